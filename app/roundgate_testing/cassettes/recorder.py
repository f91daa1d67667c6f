"""A transport that records, `Client(url, transport=Recorder(path, url))`, and a recording proxy for
any client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Final

from roundgate.client import HttpRequest, HttpResponse, HttpxTransport, Limits, Transport, Url
from roundgate.errors import ClientError, ConnectionLost, UsageError
from roundgate_testing.cassettes.files import write
from roundgate_testing.cassettes.model import RULES, Cassette, Rule
from roundgate_testing.cassettes.normalize import make_cassette
from roundgate_testing.cassettes.recording import RecordedExchange, Recording, decoded
from roundgate_testing.cassettes.web import IncomingRequest, WebReply, refusal

_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "accept-encoding", "expect"),
        "origin",
    }
)
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_FOLLOWED: Final = (307, 308)


class Recorder:
    """A transport that sends through another transport, and writes a cassette when it is closed.

    Only requests to the endpoint are recorded, not a login at another address. Of the headers, only
    MCP's own and Retry-After are recorded.

    Args:
        path: the file to write; `None` writes no file.
        url: the endpoint.
        transport: the transport to send through.
        rules: the rules of normalization.
        ignore: the paths that a replay does not compare.
        redact: the paths of members whose values are secrets.
        secrets: secret values by the names of their environment variables.
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
        self.recording = Recording()
        self.recording.origins.append(endpoint.root)
        self.recording.secrets |= {value: name for name, value in (secrets or {}).items() if value}

    @property
    def cassette(self) -> Cassette:
        """The recording so far. Raise `UsageError` if it is too large for a cassette."""
        if self.recording.is_over_limit:
            raise UsageError(
                "The conversation exceeds the limits of a cassette (32 MB, 20,000 requests): "
                "record a shorter conversation"
            )
        return make_cassette(self.recording, self._rules, self._ignore, self._redact)

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request; record it if it goes to the endpoint.

        Raises:
            ClientError: see the underlying transport.
        """
        if str(request.url) not in self._endpoints:
            return await self._transport.send(request)
        exchange = self.recording.begin(request.method, request.headers, request.body)
        try:
            response = await self._transport.send(request)
        except ClientError:
            self.recording.end(exchange, "cut")
            raise
        except BaseException:
            self.recording.end(exchange, "client")
            raise
        self.recording.head(exchange, response.status, response.headers)
        if response.status in _FOLLOWED:
            # the client follows a redirect within the origin, so record its next request, too
            target = _redirect_target(request.url, response)
            if target is not None:
                self._endpoints.add(str(target))
        return _Recorded(self.recording, exchange, response)

    async def close(self) -> None:
        """Close the connections, and write the cassette.

        Raises:
            UsageError: the file cannot be written, or the recording is too large for a cassette.
        """
        await self._transport.close()
        if self._path is not None and not self._is_closed:
            self._is_closed = True
            write(self.cassette, self._path)


def _redirect_target(url: Url, response: HttpResponse) -> Url | None:
    """Return the target of a redirect within the server's origin, or `None`."""
    target = url.redirected(response.headers.get("location", ""))
    return target if target is not None and target.origin == url.origin else None


class _Recorded:
    """A response whose body is recorded as the client reads it."""

    def __init__(
        self, recording: Recording, exchange: RecordedExchange, response: HttpResponse
    ) -> None:
        self._recording = recording
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
                self._recording.arrived(self._exchange, data)
                yield data
        except ClientError:
            self._recording.end(self._exchange, "cut")
            raise
        except BaseException:
            self._recording.end(self._exchange, "client")
            raise
        self._recording.end(self._exchange, "server")

    async def close(self) -> None:
        self._recording.end(self._exchange, "client")
        await self._response.close()


class Proxy:
    """A proxy that forwards requests to a server through a recorder.

    The proxy passes on redirects within the server's origin and refuses others, because the
    conversation and its credentials would go to a server that is not recorded.
    """

    def __init__(self, url: str, recorder: Recorder) -> None:
        self._url = Url.parse(url)
        self._recorder = recorder

    @property
    def path(self) -> str:
        """The path of the endpoint, which is the same at the server and the proxy."""
        return self._url.target

    def listens_at(self, origin: str) -> None:
        """Record the origin of the proxy as `${server}`, like the server's origin."""
        self._recorder.recording.origins.append(origin)

    async def answer(self, request: IncomingRequest) -> WebReply | None:
        """Return the server's response, or a 502 if the server cannot be reached or redirects to
        another origin. Return `None` if the connection was lost after sending."""
        url = Url(self._url.scheme, self._url.host, self._url.port, request.target)
        headers = [*_end_to_end(request.headers).items(), ("accept-encoding", "identity")]
        body = request.body if request.method in ("POST", "PUT", "PATCH") else None
        try:
            response = await self._recorder.send(HttpRequest(request.method, url, headers, body))
        except (ClientError, ValueError) as error:
            if isinstance(error, ConnectionLost) and error.was_sent:
                return None  # drop the client's connection too, because the server may have acted
            return _bad_gateway(request, f"The server could not be reached: {error}")
        if response.status not in _REDIRECTS:
            return await _reply(response)
        await response.close()
        target = _redirect_target(self._url, response)
        if target is not None:
            return WebReply(response.status, {"location": target.target})
        return _bad_gateway(
            request, "The server redirects to another host, which is not followed: record that host"
        )


def _bad_gateway(request: IncomingRequest, text: str) -> WebReply:
    """Return a 502 with a JSON-RPC error for the id of the request, so that clients show the
    text."""
    message, _ = decoded(request.body)
    return refusal(message.get("id") if isinstance(message, dict) else None, -32603, text, 502)


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _HOP_BY_HOP}


async def _reply(response: HttpResponse) -> WebReply:
    reply = WebReply(response.status, _end_to_end(response.headers))
    if response.status in (204, 304) or response.headers.get("content-length") == "0":
        async for _ in response.chunks():
            pass
        await response.close()
    else:
        reply.stream = _passed_on(response, reply)
    return reply


async def _passed_on(response: HttpResponse, reply: WebReply) -> AsyncGenerator[bytes, None]:
    try:
        async for data in response.chunks():
            yield data
    except ClientError:
        reply.is_cut = True  # the client must see that the response is incomplete
    finally:
        await response.close()
