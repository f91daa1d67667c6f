"""A transport that records what passes through it, for `roundgate.client.Client(url,
transport=Recorder(…))`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

from roundgate.cassettes.files import write
from roundgate.cassettes.model import RULES, Cassette, Rule
from roundgate.cassettes.normalize import cassette_of
from roundgate.cassettes.tape import Exchange, Tape
from roundgate.client import HttpRequest, HttpResponse, HttpxTransport, Limits, Transport, Url
from roundgate.errors import ClientError, UsageError

_REDIRECTS = (307, 308)


class Recorder:
    """Sends through another transport, and writes a cassette when it is closed.

    Only what goes to the server's endpoint is recorded, no login at another address; no header but
    those of the protocol. `redact` are paths of members whose values are secrets, `secrets` secret
    values by the names of the environment variables that they come from.
    """

    def __init__(
        self,
        path: Path | str | None,
        url: str,
        *,
        transport: Transport | None = None,
        rules: Sequence[Rule] = RULES,
        ignore: Sequence[str] = (),
        redact: Sequence[str] = (),
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        self._path = None if path is None else Path(path)
        endpoint = Url.parse(url)
        self._endpoints = {str(endpoint)}
        self._transport = transport or HttpxTransport(Limits())
        self._rules, self._ignore, self._redact = tuple(rules), tuple(ignore), tuple(redact)
        self._is_closed = False
        self.tape = Tape()
        self.tape.origins.append(f"{endpoint.scheme}://{endpoint.authority}")
        self.tape.secrets |= {value: name for name, value in (secrets or {}).items() if value}

    @property
    def cassette(self) -> Cassette:
        """What was recorded so far.

        Raises:
            UsageError: it is more than a cassette may hold.
        """
        if self.tape.is_full:
            raise UsageError(
                "The conversation is longer than a cassette may be (32 MB, 20,000 requests): "
                "record less in one"
            )
        return cassette_of(self.tape, rules=self._rules, ignore=self._ignore, redact=self._redact)

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request, and record it if it goes to the endpoint."""
        if str(request.url) not in self._endpoints:
            return await self._transport.send(request)
        exchange = self.tape.begin(request.method, request.headers, request.body)
        try:
            response = await self._transport.send(request)
        except ClientError:
            self.tape.end(exchange, "cut")
            raise
        except BaseException:
            self.tape.end(exchange, "client")
            raise
        self.tape.head(exchange, response.status, response.headers)
        if response.status in _REDIRECTS:
            self._redirected(request.url, response.headers.get("location", ""))
        return _Recorded(self.tape, exchange, response)

    def _redirected(self, url: Url, location: str) -> None:
        """The client follows within the server alone: what it sends there
        belongs to the conversation."""
        target = f"{url.scheme}://{url.authority}{location}" if location[:1] == "/" else location
        try:
            aim = Url.parse(target)
        except ClientError:
            return
        if aim.origin == url.origin:
            self._endpoints.add(str(aim))

    async def close(self) -> None:
        """Close the connections, and write the cassette.

        Raises:
            UsageError: the file cannot be written, or the conversation is too long.
        """
        await self._transport.close()
        if self._path is not None and not self._is_closed:
            self._is_closed = True
            write(self.cassette, self._path)


class _Recorded:
    """A response on its way to the client."""

    def __init__(self, tape: Tape, exchange: Exchange, response: HttpResponse) -> None:
        self._tape = tape
        self._exchange = exchange
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for data in self._response.chunks():
                self._tape.arrived(self._exchange, data)
                yield data
        except ClientError:
            self._tape.end(self._exchange, "cut")
            raise
        except BaseException:
            self._tape.end(self._exchange, "client")
            raise
        self._tape.end(self._exchange, "server")

    async def close(self) -> None:
        self._tape.end(self._exchange, "client")
        await self._response.close()
