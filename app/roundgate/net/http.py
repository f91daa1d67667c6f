"""The httpx transport, and client, for all requests to services and servers.

The connections are `net.connection`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from roundgate.net.connection import HttpAnswer, HttpConnection, Origin, connect


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

    A request through the transport alone takes half the processor time of one through
    `make_client`. The caller sets its headers and its extension `timeout`.
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
        """Send a request for httpx, as `send` does."""
        answer = await self.send(request)
        version = answer.http_version.encode()
        return httpx.Response(
            answer.status_code,
            headers=answer.raw_headers,
            stream=answer,
            extensions={"http_version": version, "reason_phrase": answer.reason},
        )

    async def send(self, request: httpx.Request) -> HttpAnswer:
        """Send a request and return its answer, with the body unread. The connection is free again
        when the body has arrived, or the answer is closed.

        Raises:
            httpx.PoolTimeout: no connection became free within the timeout `pool`.
            httpx.TimeoutException, httpx.NetworkError, httpx.ProtocolError,
            httpx.UnsupportedProtocol: the request failed.
        """
        url, timeouts = request.url, request.extensions.get("timeout", {})
        origin = (url.raw_scheme, url.raw_host, url.port)
        if url.raw_scheme not in (b"http", b"https"):
            raise httpx.UnsupportedProtocol("the URL must begin with http:// or https://")
        trace = request.extensions.get("trace", _ignore)
        await self._acquire_slot(timeouts.get("pool"))
        try:
            connection = self._pop_idle(origin)
            if connection is None:
                await trace("connection.connect_tcp.started", {})
                connection = await self._open(origin, timeouts.get("connect"))
        except BaseException:
            self._free_slot()
            raise
        self._busy.add(connection)
        try:
            await trace("http11.send_request_headers.started", {})
            answer = await connection.send(request)
            await trace("http11.receive_response_headers.started", {})
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
            if self._idle[index].origin == origin:
                connection = self._idle.pop(index)
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


async def _ignore(event: str, info: Mapping[str, Any]) -> None:
    """Ignore an event of a request (https://www.encode.io/httpcore/extensions/#trace)."""


@lru_cache(maxsize=64)
def _parse_url(url: str) -> httpx.URL:
    return httpx.URL(url)


def make_request(
    method: str,
    url: str,
    headers: Iterable[tuple[str, str]],
    body: bytes | None,
    extensions: Mapping[str, Any],
) -> httpx.Request:
    """Return a request with the headers `Host` and `Content-Length`, and without httpx's usual
    ones, in half the time that httpx takes.

    Raises:
        httpx.InvalidURL, UnicodeError: the URL or a header is invalid.
    """
    parsed = _parse_url(url)
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    if body is not None or method in ("POST", "PUT", "PATCH"):
        raw.append((b"Content-Length", b"%d" % len(body or b"")))
    request = httpx.Request(
        method,
        parsed,
        headers=[(b"Host", parsed.netloc), *raw],
        stream=httpx.ByteStream(body or b""),
        extensions=dict(extensions),
    )
    request.read()  # so that its content can be read, as of any request with content
    return request


async def redirected(request: httpx.Request, status: int, location: str) -> httpx.Request:
    """Return the request that follows a redirect, as httpx's client builds it.

    Raises:
        httpx.InvalidURL, httpx.RemoteProtocolError, UnicodeError: its URL is invalid.
    """
    answered = _Answered(status, location)
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
