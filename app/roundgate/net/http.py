"""The httpx transport, and client, for all requests to services and servers.

The connections are `net.connection`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import httpx

from roundgate.net.connection import HttpAnswer, HttpConnection, connect
from roundgate.net.request import DEFAULT_PORTS, IdleLimit, Origin, WireRequest

_OWN_HEADERS: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})
"""The headers that a connection writes itself."""


@cache
def trust_store() -> ssl.SSLContext:
    """Return a context that trusts certifi's authorities, or those in `SSL_CERT_FILE` or
    `SSL_CERT_DIR`. Reading them takes 40 ms, so all connections share one context."""
    return httpx.create_ssl_context()


def make_client(
    *, headers: Mapping[str, str] | None = None, timeout_s: float = 10.0, **connections: Any
) -> httpx.AsyncClient:
    """Return a client that stores no cookies, ignores the environment's proxies and passwords, and
    ignores passwords in URLs.

    Args:
        headers: headers of every request; they replace httpx's defaults of the same name.
        timeout_s: seconds for connecting, for each write and read, and for the whole head of an
            answer with the interim answers before it.
        connections: the arguments of `PooledTransport`.
    """
    return httpx.AsyncClient(
        auth=httpx.Auth(),  # otherwise httpx uses a user and a password in a redirect's URL
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        headers=headers,
        timeout=timeout_s,
        transport=PooledTransport(**connections),
        trust_env=False,
    )


class PooledTransport(httpx.AsyncBaseTransport):
    """A pool of HTTP/1.1 connections for one event loop. The newest idle connection is used first.

    `send` takes a third of the processor time that a request through `make_client` takes.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        max_connections: int = 10,
        max_idle: int | None = None,
        keep_alive_s: float = 4.0,
        retries: int = 0,
    ) -> None:
        """Prepare the pool without opening a connection.

        Args:
            tls: the TLS context; `None` means `trust_store()`.
            max_connections: the number of connections open at once; further requests wait in order.
            max_idle: the number of idle connections kept; `None` keeps all.
            keep_alive_s: seconds for which an idle connection can be reused.
            retries: the number of retries of a failed connection, before any data is sent.
        """
        self._tls = tls or trust_store()
        self._max_connections = max_connections
        self._max_idle = max_connections if max_idle is None else max_idle
        self._keep_alive_s = keep_alive_s
        self._retries = retries
        self._slots = asyncio.Semaphore(max_connections)
        self._busy: set[HttpConnection] = set()
        self._idle: list[HttpConnection] = []
        """The open connections without a request; the one that was used last is at the end."""
        self._requests = 0
        """The number of requests that have a slot."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request for httpx, as `send` does. Its whole body is read first."""
        url, extensions = request.url, request.extensions
        limits = extensions.get("timeout", {})
        read_s = limits.get("read")
        target: bytes = extensions.get("target") or url.raw_path
        answer = await self.send(
            WireRequest(
                request.method,
                _origin(url),
                target.decode("latin-1"),
                [
                    (name.decode("latin-1"), value.decode("latin-1"))
                    for name, value in request.headers.raw
                    if name.lower() not in _OWN_HEADERS
                ],
                await request.aread(),
                None if read_s is None else IdleLimit(read_s),
                limits.get("connect"),
                limits.get("write"),
                limits.get("pool"),
            )
        )
        version = answer.http_version.encode()
        return httpx.Response(
            answer.status,
            headers=answer.raw_headers,
            stream=answer,
            extensions={"http_version": version, "reason_phrase": answer.reason},
        )

    async def send(self, request: WireRequest) -> HttpAnswer:
        """Send a request and return its answer, with the body unread. The connection is free again
        when the body has arrived, or the answer is closed.

        Raises:
            httpx.PoolTimeout: no connection became free within `pool_s`.
            httpx.TimeoutException, httpx.NetworkError, httpx.ProtocolError,
            httpx.UnsupportedProtocol: the request failed.
        """
        if request.origin[0] not in DEFAULT_PORTS:
            raise httpx.UnsupportedProtocol("the URL must begin with http:// or https://")
        await self._acquire_slot(request.pool_s)
        try:
            connection = self._pop_idle(request.origin)
            if connection is None:
                request.is_connecting = True
                connection = await self._open(request.origin, request.connect_s)
        except BaseException:
            self._free_slot()
            raise
        self._busy.add(connection)
        try:
            request.is_sent = True
            answer = await connection.send(request)
            await answer.head()
        except BaseException:
            connection.close()
            self._release(connection)
            raise
        return answer

    async def aclose(self) -> None:
        """Close all connections, also those with a request. A request that still waits opens
        another one and closes it."""
        self._max_idle = 0
        for connection in [*self._busy, *self._idle]:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # the event loop then closes the sockets

    async def _acquire_slot(self, timeout_s: float | None) -> None:
        if timeout_s is None or not self._slots.locked():
            await self._slots.acquire()
        else:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._slots.acquire()
            except TimeoutError:
                raise httpx.PoolTimeout("") from None
        self._requests += 1

    def _free_slot(self) -> None:
        self._requests -= 1
        self._slots.release()

    def _pop_idle(self, origin: Origin) -> HttpConnection | None:
        """Return the newest usable connection to an origin; close those that are not usable."""
        now_s = asyncio.get_running_loop().time()
        for index in reversed(range(len(self._idle))):
            connection = self._idle[index]
            if connection.origin == origin and not connection.is_draining:
                del self._idle[index]
                if now_s < connection.idle_until and connection.is_usable():
                    return connection
                connection.close()
        return None

    async def _open(self, origin: Origin, timeout_s: float | None) -> HttpConnection:
        if self._requests + len(self._idle) > self._max_connections:
            self._idle.pop(0).close()
        for _ in range(self._retries):
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await connect(origin, self._tls, timeout_s, self._release)
        return await connect(origin, self._tls, timeout_s, self._release)

    def _release(self, connection: HttpConnection) -> None:
        """Keep the connection of a request that has ended if it can be used again."""
        if connection not in self._busy:
            return
        self._busy.remove(connection)
        self._free_slot()
        now_s = asyncio.get_running_loop().time()
        if not connection.is_closed:
            connection.idle_until = now_s + self._keep_alive_s
            self._idle.append(connection)
        if self._idle and (len(self._idle) > self._max_idle or self._idle[0].idle_until < now_s):
            self._idle.pop(0).close()


def read_url(url: str) -> tuple[Origin, str]:
    """Return the origin of an absolute URL, and its path and query, percent-encoded. Raise
    `httpx.InvalidURL` or `httpx.UnsupportedProtocol` if the URL is invalid, or of another scheme."""
    parsed = httpx.URL(url)
    return _origin(parsed), parsed.raw_path.decode("ascii")


def _origin(url: httpx.URL) -> Origin:
    port = url.port or DEFAULT_PORTS.get(url.scheme, 0)
    return url.scheme, url.raw_host.decode("ascii"), port


def redirect(request: WireRequest, status: int, location: str) -> None:
    """Change a request into the one that follows a redirect, with the method that browsers and
    httpx choose. Raise `httpx.InvalidURL` or `ValueError` if the new URL is invalid."""
    url = httpx.URL(request.url).join(location)
    if not url.host:
        url = url.copy_with(host=request.origin[1])
    request.origin, request.target = _origin(url), url.raw_path.decode("ascii")
    is_post = request.method == "POST"
    if (status in (302, 303) and request.method != "HEAD") or (status == 301 and is_post):
        if request.method != "GET":
            request.body = b""
        request.method = "GET"
