"""The httpx client for all requests to services and servers.

`make_client` returns a stock `httpx.AsyncClient` on the connections of httpcore, `make_transport` the client's
transport alone. The connections are `net.streams`, the pool is `net.pool`.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final

import httpcore
import httpx

from roundgate.net.pool import ConnectionPool
from roundgate.net.streams import Network, NetworkStream

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

    A request through the transport alone takes a quarter less processor time. The caller sets its
    headers and its extension `timeout`.
    """
    pool = ConnectionPool(
        tls=tls or trust_store(),
        max_connections=max_connections,
        max_idle=max_connections if max_idle is None else max_idle,
        keep_alive_s=keep_alive_s,
        retries=retries,
        network=Network(),
    )
    return _Transport(pool)


async def redirected(request: httpx.Request, response: httpx.Response) -> httpx.Request:
    """Return the request that follows a redirect, as httpx's client builds it.

    Raises:
        httpx.InvalidURL, httpx.RemoteProtocolError, UnicodeError: its URL is invalid.
    """
    answered = _Answered(response.status_code, response.headers["location"])
    async with httpx.AsyncClient(transport=answered, auth=httpx.Auth(), trust_env=False) as client:
        following = (await client.send(request)).next_request
    assert following is not None, "the response has a location"
    return following


class _Answered(httpx.AsyncBaseTransport):
    """A transport that answers each request with a redirect."""

    def __init__(self, status: int, location: str) -> None:
        self._status, self._location = status, location

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(self._status, headers={"location": self._location})


class _Transport(httpx.AsyncBaseTransport):
    def __init__(self, pool: ConnectionPool) -> None:
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
        try:
            response = await self._pool.send(sent)
        except _ERRORS as error:
            raise _httpx_error(error) from error
        connection = response.extensions.get("network_stream")
        if isinstance(connection, NetworkStream):
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
        try:
            async for part in self._response.aiter_stream():
                yield part
        except _ERRORS as error:
            raise _httpx_error(error) from error

    async def aclose(self) -> None:
        try:
            await self._response.aclose()
        except _ERRORS as error:
            raise _httpx_error(error) from error


def _httpx_error(error: Exception) -> Exception:
    kind: type[Exception] = getattr(httpx, type(error).__name__)  # both use the same names
    return kind(str(error))
