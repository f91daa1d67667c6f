"""The httpx client for all requests to services and servers.

`make_client` returns a stock `httpx.AsyncClient` on the connections of httpcore, `make_transport` the client's
transport alone. `_Stream` wraps each connection. It sends the head and the body of a request together, which httpcore
writes one after the other, and prevents three problems that httpcore does not handle:

- bytes after an answer, which httpcore would read as the answer to the next request (RFC 9112 section 6.3)
- an endless sequence of interim answers (1xx)
- a head that arrives so slowly that no single read times out

The stream withholds the last byte of each read. httpcore reads that byte only if the answer is incomplete without it.
If the byte is still withheld when the answer is complete, the service sent more than the answer. The stream then
reports that it is readable, and the pool does not reuse an idle connection that is readable. Before each write the
stream also looks for a further TLS record; if there is one, the pool uses another connection.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpcore
import httpx

from roundgate.net.pool import Pool

MAX_HEAD_BYTES: Final = 131_072
"""The limit in bytes for an answer's head together with the interim answers before it."""
_MAX_UNSENT: Final = 65_536
"""The limit in bytes for the beginning of a request that waits for the rest, to be sent at once."""
_ERRORS: Final = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


@cache
def trust_store() -> ssl.SSLContext:
    """Return a context that trusts certifi's authorities, or those in `SSL_CERT_FILE` or
    `SSL_CERT_DIR`. Reading them takes 40 ms, so all connections share one context."""
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
    """Return a client that stores no cookies, ignores the environment's proxies and passwords, and
    ignores passwords in URLs.

    Args:
        tls: the TLS context; `None` means `trust_store()`.
        headers: headers of every request; they replace httpx's defaults of the same name.
        timeout_s: seconds for connecting, for each write and read, and for the whole head of an
            answer with the interim answers before it.
        max_connections: the number of connections open at once.
        max_idle: the number of idle connections kept; `None` keeps all.
        keep_alive_s: seconds for which an idle connection can be reused.
        retries: the number of retries of a failed connection, before any data is sent.
    """
    return httpx.AsyncClient(
        auth=httpx.Auth(),  # otherwise httpx uses a user and a password in a redirect's URL
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        headers=headers,
        timeout=timeout_s,
        transport=make_transport(
            tls=tls,
            max_connections=max_connections,
            max_idle=max_idle,
            keep_alive_s=keep_alive_s,
            retries=retries,
        ),
        trust_env=False,
    )


def make_transport(
    *,
    tls: ssl.SSLContext | None = None,
    max_connections: int = 10,
    max_idle: int | None = None,
    keep_alive_s: float = 4.0,
    retries: int = 0,
) -> httpx.AsyncBaseTransport:
    """Return the transport of `make_client`, which takes the same arguments.

    A request through the transport alone takes a sixth less processor time. The caller sets its
    headers and its extension `timeout`.
    """
    pool = Pool(
        tls=tls or trust_store(),
        max_connections=max_connections,
        max_idle=max_connections if max_idle is None else max_idle,
        keep_alive_s=keep_alive_s,
        retries=retries,
        network=_Network(),
    )
    return _Transport(pool)


class _Transport(httpx.AsyncBaseTransport):
    def __init__(self, pool: Pool) -> None:
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
            response = await self._pool.send(sent)
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
    """A network back end that wraps each TCP connection in a `_Stream`."""

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
    """A connection that detects surplus bytes and limits heads (see the module's docstring)."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._withheld = b""
        self._unsent = b""
        self._write_timeout: float | None = None
        self._is_in_head = True
        self._head_bytes = 0
        self._head_until: float | None = None

    def end_head(self) -> None:
        """End the limits of the head; the body follows."""
        self._is_in_head = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self._withheld:
            last, self._withheld = self._withheld, b""
            return last
        if self._unsent:
            with suppress(httpcore.WriteError):  # as httpcore: there may be an answer nevertheless
                await self._flush()
        if self._is_in_head:
            timeout = self._head_timeout(timeout)
        data = await self._read(max_bytes, timeout)
        self._head_bytes += len(data)
        if len(data) < 2:
            return data
        self._withheld = data[-1:]
        return data[:-1]

    async def _read(self, max_bytes: int, timeout: float | None) -> bytes:  # noqa: ASYNC109
        try:
            return await self._stream.read(max_bytes, timeout)
        except ssl.SSLError as error:  # an alert or an invalid record, which httpcore does not map
            raise httpcore.ReadError(str(error)) from error

    def _head_timeout(self, timeout: float | None) -> float | None:
        """Return the seconds left for the head, or `None` without a timeout.

        Raises:
            httpcore.RemoteProtocolError: the head exceeds `MAX_HEAD_BYTES`.
        """
        if self._head_bytes > MAX_HEAD_BYTES:
            raise httpcore.RemoteProtocolError(
                f"the head of a response exceeds {MAX_HEAD_BYTES} bytes"
            )
        if timeout is None:
            return None
        now = time.monotonic()
        if self._head_until is None:
            self._head_until = now + timeout
        return max(0.0, self._head_until - now)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        if not self._is_in_head and await self._has_more():
            raise httpcore.ConnectionNotAvailable  # the pool then uses another connection
        self._is_in_head, self._head_bytes, self._head_until = True, 0, None
        self._unsent += buffer
        self._write_timeout = timeout
        if len(self._unsent) > _MAX_UNSENT:
            await self._flush()

    async def _flush(self) -> None:
        data, self._unsent = self._unsent, b""
        try:
            await self._stream.write(data, self._write_timeout)
        except ssl.SSLError as error:
            raise httpcore.WriteError(str(error)) from error

    async def _has_more(self) -> bool:
        """Return whether bytes arrived after the last answer, or the connection has failed. With
        TLS, only a read shows a record that is already buffered."""
        if self._stream.get_extra_info("ssl_object") is None:
            return bool(self._withheld)
        try:
            await self._read(1, timeout=0)
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
        try:
            return _Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout))
        except BaseException:  # httpcore leaves the connection open if the handshake is cancelled
            await self.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._withheld:
            return True
        return self._stream.get_extra_info(info)
