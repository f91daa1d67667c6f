"""A pool of HTTP/1.1 connections, made of httpcore's connections.

httpcore's own pool looks at all connections, and asks the system about each idle one, twice for each request. It also
assigns one idle connection to all requests that arrive together, and all but one of them have to start again. This
pool uses the newest idle connection, and looks at the oldest to close it in time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, AsyncIterator
from typing import Protocol, cast

import httpcore


class ConnectionPool:
    """A pool of connections for one event loop."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext,
        max_connections: int,
        max_idle: int,
        keep_alive_s: float,
        retries: int,
        network: httpcore.AsyncNetworkBackend,
    ) -> None:
        """Prepare the pool without opening a connection.

        Args:
            tls: the TLS context.
            max_connections: the number of connections open at once; further requests wait in order.
            max_idle: the number of idle connections kept.
            keep_alive_s: seconds for which an idle connection can be reused.
            retries: the number of retries of a failed connection, before any data is sent.
            network: opens the connections.
        """
        self._tls = tls
        self._max_connections = max_connections
        self._max_idle = max_idle
        self._keep_alive_s = keep_alive_s
        self._retries = retries
        self._network = network
        self._slots = asyncio.Semaphore(max_connections)
        self._open: set[httpcore.AsyncHTTPConnection] = set()
        self._idle: list[httpcore.AsyncHTTPConnection] = []
        """The open connections without a request; the one that was used last is at the end."""

    async def send(self, request: httpcore.Request) -> httpcore.Response:
        """Send a request and return its response, with the body unread. The connection is free again
        when the response is closed.

        Raises:
            httpcore.PoolTimeout: no connection became free within the timeout `pool`.
            httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError,
            httpcore.UnsupportedProtocol: the request failed.
        """
        if request.url.scheme not in (b"http", b"https"):
            raise httpcore.UnsupportedProtocol("the URL must begin with http:// or https://")
        await self._acquire_slot(request.extensions.get("timeout", {}).get("pool"))
        try:
            response, connection = await self._send(request)
        except BaseException:
            self._slots.release()
            raise
        response.stream = _Body(cast("_Stream", response.stream), connection, self)
        return response

    async def release(self, connection: httpcore.AsyncHTTPConnection) -> None:
        """Keep the connection of a closed response if it can be used again."""
        try:
            await self._keep_or_close(connection)
        finally:
            self._slots.release()

    async def aclose(self) -> None:
        """Close all connections. A request that still waits opens another one and closes it."""
        self._max_idle = 0
        for connection in tuple(self._open):
            await self._close(connection)

    async def _acquire_slot(self, timeout_s: float | None) -> None:
        if timeout_s is None or not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise httpcore.PoolTimeout from None

    async def _send(
        self, request: httpcore.Request
    ) -> tuple[httpcore.Response, httpcore.AsyncHTTPConnection]:
        while True:
            connection = await self._connection(request.url.origin)
            try:
                return await connection.handle_async_request(request), connection
            except httpcore.ConnectionNotAvailable:  # before any data was sent
                await self._close(connection)
            except BaseException:
                await self._keep_or_close(connection)
                raise

    async def _connection(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        """Return an idle connection to an origin, or a new one."""
        while (connection := self._pop_idle(origin)) is not None:
            if not connection.has_expired():
                return connection
            await self._close(connection)
        # another request may open a connection while this one closes an idle one
        while len(self._open) >= self._max_connections:  # then one of them is idle
            await self._close(self._idle[0])
        connection = httpcore.AsyncHTTPConnection(
            origin,
            ssl_context=self._tls,
            keepalive_expiry=self._keep_alive_s,
            retries=self._retries,
            network_backend=self._network,
        )
        self._open.add(connection)
        return connection

    def _pop_idle(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection | None:
        for index in reversed(range(len(self._idle))):
            if self._idle[index].can_handle_request(origin):
                return self._idle.pop(index)
        return None

    async def _keep_or_close(self, connection: httpcore.AsyncHTTPConnection) -> None:
        is_open = connection in self._open and not connection.is_closed()
        if not is_open or not connection.is_idle():
            await self._close(connection)
            return
        self._idle.append(connection)
        oldest = self._idle[0]
        if len(self._idle) > self._max_idle or (oldest is not connection and oldest.has_expired()):
            await self._close(oldest)

    async def _close(self, connection: httpcore.AsyncHTTPConnection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        await connection.aclose()


class _Stream(Protocol):
    """The body of a response of httpcore."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...
    async def aclose(self) -> None: ...


class _Body(AsyncIterable[bytes]):
    """The body of a response. When it is closed, its connection is free again."""

    def __init__(
        self, stream: _Stream, connection: httpcore.AsyncHTTPConnection, pool: ConnectionPool
    ) -> None:
        self._stream = stream
        self._connection = connection
        self._pool = pool
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        """Close the body; if it was not read to its end, close the connection."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._stream.aclose()
        finally:  # a cancellation above leaves a connection that is not idle
            await self._pool.release(self._connection)
