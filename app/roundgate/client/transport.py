"""HTTP requests to a server, and the transport that sends them through httpx.

A transport sends one HTTP request and returns the response while its body arrives. It does not
follow redirects, keep cookies, decompress bodies, or read proxies from the environment.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from msgspec import Struct

from roundgate.errors import (
    AnswerTooLarge,
    BadAnswer,
    ClientError,
    ConnectionLost,
    Remedy,
    TimedOut,
    UnknownEncoding,
)
from roundgate.lenient import Unpacker
from roundgate.net.request import DEFAULT_PORTS, IdleLimit, Unread, WireRequest
from roundgate.protocol import is_plain_host

if TYPE_CHECKING:
    import httpx

    from roundgate.net.http import PooledTransport

_MAX_IDLE: Final = 16
_LONGEST_LABEL: Final = 63


class Limits(Struct, frozen=True):
    """Limits of one client: sizes in bytes (`max_state` in characters), times in seconds. An error
    names the limit that caused it.

    `idle_s` limits the wait for the head of a response, and then each wait for more data.
    `request_s` limits the whole request, unless it is infinite. Both exclude the time that people
    need to answer questions.
    `keep_alive_s` limits the reuse of an idle connection. It is below 5 s, because common servers
    then close an idle connection, possibly while a request is being sent.
    """

    connect_s: float = 10.0
    idle_s: float = 60.0
    keep_alive_s: float = 4.0
    request_s: float = 600.0
    max_message: int = 32 * 1024 * 1024
    max_state: int = 1024 * 1024
    max_rounds: int = 10
    max_questions: int = 100
    max_pages: int = 1_000
    max_items: int = 100_000
    max_connections: int = 256
    max_cached: int = 256
    max_poll_s: float = 60.0


class Url(Struct, frozen=True):
    """An http or https URL."""

    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def parse(cls, text: str) -> Url:
        """Parse an absolute http or https URL; drop its fragment. Raise `ClientError` if the URL is
        malformed, or contains a user name or password."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ClientError("The URL is malformed: write it as https://host/path") from None
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise ClientError(
                "The URL of a server must start with http:// or https:// and name a host"
            )
        if parts.username is not None or parts.password is not None:
            raise ClientError(
                "Remove the user name and password from the URL, which logs and histories record",
                Remedy.CREDENTIALS,
            )
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not target.isascii() or not target.isprintable() or " " in target:
            raise ClientError("The URL has characters that must be percent-encoded")
        host = _ascii_host(parts.hostname)
        return cls(parts.scheme, host, port or DEFAULT_PORTS[parts.scheme], target)

    @property
    def origin(self) -> tuple[str, str, int]:
        """The scheme, host and port."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def root(self) -> str:
        """The origin as text: `https://host`."""
        return f"{self.scheme}://{self.authority}"

    def redirected(self, location: str) -> Url | None:
        """Return the URL of a `Location` header in a response from this URL, or `None` if it is
        malformed."""
        is_path = location.startswith("/") and not location.startswith("//")
        try:
            return Url.parse(f"{self.root}{location}" if is_path else location)
        except ClientError:
            return None

    @property
    def is_confidential(self) -> bool:
        """Return whether requests cannot be read on the network: the scheme is https, or the host
        is this machine by a usual name. Credentials are not sent to other spellings of loopback."""
        return self.scheme == "https" or self.host in ("localhost", "127.0.0.1", "::1")

    def __str__(self) -> str:
        return f"{self.root}{self.target}"


def _ascii_host(name: str) -> str:
    """Return a host in ASCII, with an international name in its IDNA form. Raise `ClientError` if
    the host is invalid."""
    try:
        host = name if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        host = ""
    labels = host.removesuffix(".").split(".") if ":" not in host else [host]
    if any(not label or len(label) > _LONGEST_LABEL for label in labels) or not is_plain_host(host):
        raise ClientError("The URL has an invalid host: write it as https://host/path")
    return host


class HttpRequest(Struct, frozen=True):
    """An HTTP request. `body` is `None` for a GET or DELETE. `idle` replaces the transport's own
    limit `idle_s` on the wait for data."""

    method: str
    url: Url
    headers: Sequence[tuple[str, str]]
    body: bytes | None = None
    idle: IdleLimit | None = None


class HttpResponse(Protocol):
    """A response whose body is not yet read."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, with names in lower case."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives.

        Raises:
            ConnectionLost: the body ended before it was complete.
            TimedOut: no data arrived for `idle_s` seconds.
        """

    async def close(self) -> None:
        """Release the connection; this cancels the request if the body is incomplete."""


class Transport(Protocol):
    """A sender of HTTP requests."""

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and return its response once the head has arrived.

        Raises:
            ConnectionLost: there is no connection, or it ended before the head arrived.
            TimedOut: `connect_s` or `idle_s` passed.
            BadAnswer: the response is not valid HTTP.
        """

    async def close(self) -> None:
        """Close every connection."""


def read_media_type(response: HttpResponse) -> str:
    """Return the content type without parameters, such as `application/json`, or "" if it is
    missing."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(response: HttpResponse, limit: int) -> bytes:
    """Return the whole body, unpacked if it is compressed.

    Raises:
        BadAnswer: the body has more than `limit` bytes, or an unknown encoding.
        ConnectionLost, TimedOut: the body did not arrive completely.
    """
    try:
        unpacker = Unpacker(_encoding(response), limit)
        async for part in response.chunks():
            unpacker.feed(part)
        return unpacker.body()
    except AnswerTooLarge:
        raise BadAnswer(f"The server sent more than {limit} bytes (limit max_message)") from None
    except UnknownEncoding:
        raise _not_unpacked(response) from None


async def unpacked_chunks(response: HttpResponse) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives, unpacked if it is compressed, in parts of a bounded size. Raise
    as `read_body` does, except for the limit."""
    try:
        unpacker = Unpacker(_encoding(response))
        async with aclosing(response.chunks()) as chunks:
            async for part in chunks:
                for unpacked in unpacker.unpacked(part):
                    yield unpacked
    except UnknownEncoding:
        raise _not_unpacked(response) from None


def _encoding(response: HttpResponse) -> str:
    return response.headers.get("content-encoding", "")


def _not_unpacked(response: HttpResponse) -> BadAnswer:
    return BadAnswer(
        f"The server's answer is not valid in its content encoding {_encoding(response)[:50]!r}, or "
        "the client does not know that encoding"
    )


Send: TypeAlias = Callable[[WireRequest], Awaitable[Unread]]
SendThrough: TypeAlias = Callable[[Send, WireRequest], Awaitable[Unread]]


async def _send_as_built(send: Send, request: WireRequest) -> Unread:
    return await send(request)


class HttpxTransport:
    """A transport that uses httpx. It closes its own connections, but not the client in `http`."""

    def __init__(
        self,
        limits: Limits,
        *,
        tls: ssl.SSLContext | None = None,
        http: httpx.AsyncClient | None = None,
        send: SendThrough | None = None,
    ) -> None:
        """Prepare the transport without opening a connection.

        Args:
            limits: the limits on time, connections and sizes.
            tls: the TLS settings; `None` trusts the authorities of certifi, or of the file that
                `SSL_CERT_FILE` names.
            http: a client to send through, for proxies, HTTP/2 or an app in this process.
            send: sends a request by the function that it receives, and returns the response unread;
                for authentication that needs more than headers.
        """
        self._limits = limits
        self._send_through = send or _send_as_built
        self._tls = tls
        self._http = http
        self._own: PooledTransport | None = None

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and return its response once the head has arrived. See `Transport`."""
        url, limits = request.url, self._limits
        built = WireRequest(
            request.method,
            url.origin,
            url.target,
            request.headers,
            request.body or b"",
            request.idle or IdleLimit(limits.idle_s),
            limits.connect_s,
            limits.idle_s,
        )
        try:
            response = await self._send_through(self._sender(), built)
        except Exception as error:
            raise _translated(error, url, limits) from None
        return _HttpxResponse(response, url, limits)

    def _sender(self) -> Send:
        if self._http is not None:
            return partial(_send_by_user, self._http)
        if self._own is None:
            from roundgate.net.http import PooledTransport

            self._own = PooledTransport(
                tls=self._tls,
                max_connections=self._limits.max_connections,
                max_idle=_MAX_IDLE,
                keep_alive_s=self._limits.keep_alive_s,
            )
        return self._own.send

    async def close(self) -> None:
        """Close every connection of the transport's own."""
        own, self._own = self._own, None
        if own is not None:
            await own.aclose()


class _HttpxResponse:
    """A response whose errors are those of the client."""

    def __init__(self, response: Unread, url: Url, limits: Limits) -> None:
        self.status = response.status
        self.headers = response.headers
        self.http_version = response.http_version
        """The version of HTTP, such as `HTTP/1.1`, for spans."""
        self._response = response
        self._url = url
        self._limits = limits

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for part in self._response:
                yield part
        except Exception as error:
            raise _translated(error, self._url, self._limits) from None

    async def close(self) -> None:
        await self._response.aclose()

    async def leave(self) -> None:
        await self._response.leave()


async def _send_by_user(client: httpx.AsyncClient, request: WireRequest) -> _UsersResponse:
    """Send a request through the user's client, without its default headers and cookies."""
    import httpx

    assert request.idle is not None, "set by `HttpxTransport.send`"
    limits = {"connect": request.connect_s, "write": request.write_s, "read": None}
    async with _limited(request.idle) as begin:

        async def trace(event: str, _: Mapping[str, object]) -> None:
            # names: https://www.encode.io/httpcore/extensions/#trace
            if event.endswith(".receive_response_headers.started"):
                begin()

        target = request.target.encode()
        built = httpx.Request(
            request.method,
            request.url,
            headers=[("Host", request.authority), *request.headers],
            content=request.body or None,
            extensions={"timeout": {**limits, "pool": None}, "target": target, "trace": trace},
        )
        response = await client.send(built, stream=True, auth=None, follow_redirects=False)
    return _UsersResponse(response, request.idle)


class _UsersResponse:
    def __init__(self, response: httpx.Response, idle: IdleLimit) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.http_version = response.http_version
        self._response = response
        self._idle = idle

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = aiter(cast("httpx.AsyncByteStream", self._response.stream))
        while True:
            async with _limited(self._idle) as begin:
                begin()
                part = await anext(parts, None)
            if part is None:
                return
            yield part

    async def aclose(self) -> None:
        # a cancelled caller must not leave the connection in the pool
        await asyncio.shield(self._response.aclose())

    leave = aclose


@asynccontextmanager
async def _limited(idle: IdleLimit) -> AsyncGenerator[Callable[[], None], None]:
    """Yield a function that begins a wait. Raise `TimeoutError` in the block at its limit."""
    async with asyncio.timeout(None) as timeout:
        try:
            yield lambda: idle.begin(partial(timeout.reschedule, 0.0))
        finally:
            idle.end()


def _translated(error: Exception, url: Url, limits: Limits) -> Exception:
    """Return the client's error for one of httpx or of a time limit; any other error itself."""
    import httpx

    match error:
        case httpx.ConnectTimeout() | httpx.PoolTimeout():
            return TimedOut(
                f"No connection to {url.authority} within {limits.connect_s:g} s (limit connect_s)",
                was_sent=False,
            )
        case httpx.TimeoutException() | TimeoutError():
            return TimedOut(f"{url.authority} sent no data for {limits.idle_s:g} s (limit idle_s)")
        case httpx.ConnectError():
            kind = "secure connection" if url.scheme == "https" else "connection"
            text = f"No {kind} to {url.authority}{_describe_cause(error)}"
            return ConnectionLost(text, was_sent=False)
        case httpx.LocalProtocolError():  # its text quotes the header, which may be a credential
            return ClientError("The request cannot be sent: a header has a forbidden character")
        case httpx.RemoteProtocolError() | httpx.InvalidURL() | UnicodeError():
            # httpx also reports a closed connection as a protocol error: only the text differs.
            if "disconnected" not in str(error) and "closed" not in str(error):
                return BadAnswer(f"{url.authority} sent an invalid HTTP response")
        case _ if not isinstance(error, httpx.HTTPError):
            return error
    return ConnectionLost(
        f"{url.authority} closed the connection before its answer was complete", was_sent=True
    )


def _describe_cause(error: BaseException) -> str:
    """Return ": " and the reason for a failure given by the operating system or TLS, or ""."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return f": {getattr(cause, 'verify_message', '') or cause.reason or 'TLS failed'}"
        if isinstance(cause, OSError) and cause.strerror:
            return f": {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return ""
