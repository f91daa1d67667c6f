"""The httpx client of all requests to services and servers.

It is a stock `httpx.AsyncClient` on httpcore's pool, with a stream of ours around each connection. httpcore leaves
three things open that the stream closes:

- bytes behind an answer, which would be read as the answer to the next request on the connection (RFC 9112 section 6.3)
- interim answers (1xx) without end
- heads that arrive so slowly that no single read times out

The stream holds back the last byte of each read. httpcore asks for it only if the answer is not whole without it. If
the byte is still there when the answer is complete, more came than the answer: then the stream says that it is
readable, and the pool does not use an idle connection that is readable. A further TLS record is looked for before the
next request; the pool sends that on another connection.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpcore
import httpx

MAX_HEAD_BYTES: Final = 131_072
"""Of an answer's head with the interim answers before it."""
_ERRORS: Final = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


@cache
def trust_store() -> ssl.SSLContext:
    """Return the authorities of the certifi package, or those that `SSL_CERT_FILE` or
    `SSL_CERT_DIR` names. Reading them takes 40 ms, so all connections share them."""
    return httpx.create_ssl_context()


def make_client(
    *,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
    max_connections: int = 10,
    max_idle: int | None = None,
    keep_alive_s: float = 4.0,
    retries: int = 0,
) -> httpx.AsyncClient:
    """Return a client that keeps no cookies and reads no proxy or password from the environment or
    from URLs.

    Args:
        tls: `None` for `trust_store()`.
        headers: of every request; they replace httpx's defaults of the same name.
        timeout_s: seconds for connecting, for each write and read, and for the whole head of an
            answer with the interim answers before it.
        max_connections: open at once.
        max_idle: kept without a request; `None`: all.
        keep_alive_s: seconds for which an idle connection is used again.
        retries: of a failed connection, before anything is sent.
    """
    pool = httpcore.AsyncConnectionPool(
        ssl_context=tls or trust_store(),
        max_connections=max_connections,
        max_keepalive_connections=max_connections if max_idle is None else max_idle,
        keepalive_expiry=keep_alive_s,
        retries=retries,
        network_backend=_Network(),
    )
    return httpx.AsyncClient(
        auth=httpx.Auth(),  # otherwise httpx takes a user and a password out of a redirect's URL
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        headers=headers,
        timeout=timeout_s,
        transport=_Transport(pool),
        trust_env=False,
    )


class _Transport(httpx.AsyncBaseTransport):
    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self._pool = pool

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        sent = httpcore.Request(
            request.method,
            httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _errors_of_httpx():
            response = await self._pool.handle_async_request(sent)
        connection = response.extensions.get("network_stream")
        if isinstance(connection, _Stream):
            connection.end_head()
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_of_httpx():
            async for part in self._response.aiter_stream():
                yield part

    async def aclose(self) -> None:
        with _errors_of_httpx():
            await self._response.aclose()


@contextmanager
def _errors_of_httpx() -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        kind = getattr(httpx, type(error).__name__)  # both libraries use the same names
        raise kind(str(error)) from error


class _Network(httpcore.AsyncNetworkBackend):
    """Opens connections with asyncio and wraps them."""

    def __init__(self) -> None:
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._network.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream)

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    """A connection; see the module's docstring."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._withheld = b""
        self._is_in_head = True
        self._head_bytes = 0
        self._head_until: float | None = None

    def end_head(self) -> None:
        """End the bounds of the head: what follows is the body."""
        self._is_in_head = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self._withheld:
            last, self._withheld = self._withheld, b""
            return last
        if self._is_in_head:
            timeout = self._head_timeout(timeout)
        data = await self._stream.read(max_bytes, timeout)
        self._head_bytes += len(data)
        if len(data) < 2:
            return data
        self._withheld = data[-1:]
        return data[:-1]

    def _head_timeout(self, timeout: float | None) -> float | None:
        """Return the seconds that are left for the head."""
        if self._head_bytes > MAX_HEAD_BYTES:
            raise httpcore.RemoteProtocolError("the head of an answer does not end")
        if timeout is None:
            return None
        now = time.monotonic()
        if self._head_until is None:
            self._head_until = now + timeout
        return max(0.0, self._head_until - now)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if not self._is_in_head and await self._has_more():
            raise httpcore.ConnectionNotAvailable
        self._is_in_head, self._head_bytes, self._head_until = True, 0, None
        await self._stream.write(buffer, timeout)

    async def _has_more(self) -> bool:
        """Return whether more than the last answer was received. A further record of TLS does not
        show at the socket."""
        if self._stream.get_extra_info("ssl_object") is None:
            return bool(self._withheld)
        try:
            await self._stream.read(1, timeout=0)
        except httpcore.ReadTimeout:
            return bool(self._withheld)
        except httpcore.ReadError:
            pass
        return True

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._withheld:
            return True
        return self._stream.get_extra_info(info)
