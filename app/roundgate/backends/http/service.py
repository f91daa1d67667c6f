"""One HTTP service: requests to it and whole answers, within the back end's limits.

What the service does wrong is a `BackendError`; redirects are followed on its own origin
only; the caller's token is never passed on, and what the gateway authenticates itself with is
taken out of the answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlencode

from roundgate.backends.http.access import Access
from roundgate.backends.http.body import ACCEPTED, Unpacker
from roundgate.backends.http.failures import no_answer
from roundgate.backends.http.hosts import Hosts
from roundgate.backends.http.messages import Answer, Outgoing
from roundgate.backends.http.reliability import TimeoutsConfig
from roundgate.backends.http.remote_config import RemoteConfig
from roundgate.backends.http.retries import Retries
from roundgate.backends.http.secrets import Redactor
from roundgate.backends.http.tls import Certificates
from roundgate.clock import Deadline
from roundgate.errors import AnswerTooLarge, BackendError, UnexpectedAnswer, UnknownEncoding
from roundgate.net.addresses import origin_of

if TYPE_CHECKING:
    import httpx  # 100 ms to import: a gateway whose first call is to a Python tool does not wait for it

_MAX_REDIRECTS: Final = 5

log = logging.getLogger("roundgate.backends")


class Service:
    """The pooled client of one service."""

    def __init__(
        self,
        config: RemoteConfig,
        base_url: str,
        access: Access,
        redacted: Redactor,
        certificates: Certificates | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        """No connection is opened yet.

        Args:
            config: limits and name.
            base_url: what paths are appended to; nothing is sent to another origin.
            access: what every request is authenticated with.
            redacted: takes secrets out of answers.
            certificates: for TLS; `None`: the public authorities are believed.
            hosts: those of the back end, where it has several services.
        """
        self.name = config.name
        self._config = config
        self._base_url = base_url
        self._access = access
        self._client: httpx.AsyncClient | None = None
        self._redacted = redacted
        self._certificates = certificates
        hosts = hosts or Hosts(config)
        self._clock = hosts.clock
        self._gate = hosts.gate(base_url)
        self._retries = Retries(config.retry, config.name, hosts.clock)

    async def aclose(self) -> None:
        """Close the pooled connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def send(
        self, outgoing: Outgoing, timeout_s: float, deadline: Deadline | None = None
    ) -> Answer:
        """Send one request, again where that is wanted and safe, and read its whole answer.

        Args:
            outgoing: the request.
            timeout_s: seconds until the whole answer has to be here, each time that it is sent.
            deadline: of the call.

        Raises:
            UnexpectedAnswer: it answers too much, in an encoding that was not asked for, or
                redirects off its origin.
            BackendError: the service cannot be reached or is too slow; or it is busy,
                or left alone for a while.
        """
        until = deadline or self._clock.deadline(None)

        async def once() -> Answer:
            self._gate.check()
            if self._access.tokens is not None:  # had in a time of its own, whosever trouble it is
                await self._access.tokens.token()
            return await self._gate.through(lambda: self._once(outgoing, timeout_s), until)

        return await self._retries.send(outgoing, once, until)

    async def _once(self, outgoing: Outgoing, timeout_s: float) -> Answer:
        import httpx

        what = f"{outgoing.method} {outgoing.path} of {self.name}"
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(outgoing, what, timeout_s)
        except (httpx.InvalidURL, httpx.LocalProtocolError, httpx.UnsupportedProtocol) as error:
            raise BackendError(
                f"{what} failed: the request cannot be sent ({type(error).__name__})"
            ) from None
        except (TimeoutError, httpx.HTTPError) as error:
            raise no_answer(error, what, timeout_s, self._config.timeouts) from None

    async def _exchange(self, outgoing: Outgoing, what: str, timeout_s: float) -> Answer:
        import httpx

        client = self._ready_client()
        url = self._base_url.rstrip("/") + outgoing.path
        if query := "&".join(filter(None, (urlencode(outgoing.query), outgoing.raw_query))):
            url = f"{url}?{query}"
        request = client.build_request(
            outgoing.method,
            url,
            headers=outgoing.headers,
            content=outgoing.body,
            timeout=_timeout(timeout_s, self._config.timeouts),
        )
        for _ in range(_MAX_REDIRECTS + 1):
            try:
                response = await _sent(client, request, self._access)
            except (httpx.InvalidURL, UnicodeError):  # it was sent, and httpx looks where it leads
                raise UnexpectedAnswer(f"{what} redirects to what is no URL") from None
            except httpx.RemoteProtocolError as error:
                if "location header" not in str(error):
                    raise
                raise UnexpectedAnswer(f"{what} redirects to what is no URL") from None
            try:
                if response.next_request is None:
                    return await self._read(response, what, outgoing)
                if not _same_origin(str(response.next_request.url), self._base_url):
                    raise UnexpectedAnswer(
                        f"{what} redirects to another host, which the gateway does not follow"
                    )
                request = response.next_request
            finally:
                await response.aclose()
        raise UnexpectedAnswer(f"{what} redirects more than {_MAX_REDIRECTS} times")

    async def _read(self, response: httpx.Response, what: str, outgoing: Outgoing) -> Answer:
        limit = outgoing.max_bytes or self._config.max_response_bytes
        encoding = response.headers.get("content-encoding", "")
        try:
            unpacker = Unpacker(encoding, limit)
            async for piece in cast("httpx.AsyncByteStream", response.stream):
                unpacker.feed(piece)
            body = unpacker.body()
            headers = _wanted(response, outgoing, limit - len(body))
        except AnswerTooLarge:
            raise UnexpectedAnswer(
                f"{what} answered more than {limit} bytes; ask for less at once"
            ) from None
        except UnknownEncoding:
            raise UnexpectedAnswer(
                f"{what} answered in an encoding that was not asked for: {encoding[:50]!r}"
            ) from None
        return self._redacted(
            Answer(
                response.status_code,
                response.reason_phrase,
                response.headers.get("content-type", ""),
                body,
                headers,
                response.headers.get("retry-after"),
            )
        )

    def _ready_client(self) -> httpx.AsyncClient:
        if self._client is None:
            from roundgate.net.http import make_client

            self._client = make_client(
                tls=None if self._certificates is None else self._certificates.context,
                headers={"user-agent": "roundgate", "accept-encoding": ACCEPTED},
                timeout_s=self._config.timeout_s,
                max_connections=self._config.max_connections,
                keep_alive_s=self._config.keep_alive_s,
                retries=1,
            )
        return self._client


def _wanted(response: httpx.Response, outgoing: Outgoing, room: int) -> dict[str, str]:
    """The headers that the request wants.

    Raises:
        AnswerTooLarge: together they have more characters than there is room.
    """
    found = {name: response.headers[name] for name in outgoing.wants if name in response.headers}
    if found and sum(map(len, found.values())) > room:
        raise AnswerTooLarge
    return found


def _timeout(timeout_s: float, phases: TimeoutsConfig | None) -> httpx.Timeout:
    import httpx

    if phases is None:
        return httpx.Timeout(timeout_s)
    return httpx.Timeout(
        timeout_s,
        connect=phases.connect_s or timeout_s,
        write=phases.write_s or timeout_s,
        read=phases.read_s or timeout_s,
    )


async def _sent(
    client: httpx.AsyncClient, request: httpx.Request, access: Access
) -> httpx.Response:
    """Send a request with its credentials; the log has method, URL without query and
    credentials, status and time."""
    from roundgate.backends.http.credentials import authenticated

    begun = time.perf_counter()
    status: int | str = "none"
    try:
        response = await authenticated(client, request, access)
        status = response.status_code
        return response
    except Exception as error:
        status = type(error).__name__
        raise
    finally:
        if log.isEnabledFor(logging.DEBUG):
            url = request.url.copy_with(query=None, fragment=None, userinfo=b"")
            took_ms = round((time.perf_counter() - begun) * 1000, 2)
            fields = {"method": request.method, "url": str(url), "status": status, "ms": took_ms}
            log.debug("request to a service", extra={"fields": fields})


def _same_origin(url: str, base_url: str) -> bool:
    try:
        return origin_of(url) == origin_of(base_url)
    except ValueError:  # a service may name a port that there is not
        return False
