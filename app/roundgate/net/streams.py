"""TCP and TLS connections for httpcore, made of asyncio's transports.

httpcore writes to a connection and reads from it. A `NetworkStream` handles four problems that httpcore
leaves open:

- bytes after an answer, which httpcore would read as the answer to the next request (RFC 9112
  section 6.3)
- an endless sequence of interim answers (1xx)
- a head that arrives so slowly that no single read times out
- the head and the body of a request, which httpcore writes one after the other; a stream sends them
  together

A stream keeps all received bytes until httpcore reads them, and never returns the last one together
with others. httpcore reads that byte only if the answer is incomplete without it. If bytes are
unread when the answer is complete, the service sent more than the answer. The stream then reports
that it is readable, and the pool does not reuse it. Surplus bytes that arrive only after the next
request was sent cannot be told from its answer, in any HTTP/1.1 client.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, cast

import httpcore
from aiohappyeyeballs import start_connection

MAX_HEAD_BYTES: Final = 131_072
"""The limit in bytes for an answer's head together with the interim answers before it."""
_MAX_UNREAD: Final = 131_072
"""The number of unread bytes at which a stream stops to receive, twice the size of httpcore's reads."""
_MAX_UNSENT: Final = 65_536
"""The limit in bytes for the beginning of a request that waits for the rest, to be sent at once."""
_NEXT_ADDRESS_S: Final = 0.25
"""Seconds after which the next address of a host is tried too (RFC 8305 section 5)."""


class Network(httpcore.AsyncNetworkBackend):
    """A network back end whose connections are `NetworkStream`s."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> NetworkStream:
        """Connect to a host; `local_address` and `socket_options`, which the pool does not set, are
        ignored.

        Raises:
            httpcore.ConnectTimeout: no address of the host accepted within `timeout` seconds.
            httpcore.ConnectError: the host is unknown, or all of its addresses refused.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                connected = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S)
                _, stream = await loop.create_connection(NetworkStream, sock=connected)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return stream

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class NetworkStream(httpcore.AsyncNetworkStream, asyncio.Protocol):
    """A connection that detects surplus bytes and limits heads (see the module's docstring)."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport  # set in connection_made
        self._unread = bytearray()
        self._may_read = asyncio.Event()
        """Set while there are unread bytes, and after the end of the connection."""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._has_ended = False
        self._is_paused = False
        self._error: Exception | None = None
        self._unsent = b""
        self._write_timeout: float | None = None
        self._is_in_head = True
        self._head_bytes = 0
        self._head_until: float | None = None

    def end_head(self) -> None:
        """End the limits of the head; the body follows."""
        self._is_in_head = False

    # -- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._may_read.set()
        if len(self._unread) > _MAX_UNREAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def _end(self, error: Exception | None) -> None:
        if not self._has_ended:
            self._has_ended, self._error = True, error
        self._may_read.set()
        self._may_write.set()

    # -- httpcore.AsyncNetworkStream ---------------------------------------------------------------

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Return received bytes, or none after the end of the connection.

        Raises:
            httpcore.ReadTimeout: nothing arrived within `timeout` seconds, or the head is late.
            httpcore.ReadError: the connection has failed.
            httpcore.RemoteProtocolError: the head exceeds `MAX_HEAD_BYTES`.
        """
        if self._unsent:
            with suppress(httpcore.WriteError):  # as httpcore: there may be an answer nevertheless
                await self._flush()
        if self._is_in_head:
            timeout = self._head_timeout(timeout)
        if not self._may_read.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await self._may_read.wait()
            except TimeoutError:
                raise httpcore.ReadTimeout from None
        if not self._unread and self._error is not None:
            raise httpcore.ReadError(str(self._error)) from self._error
        size = min(max_bytes, max(len(self._unread) - 1, 1))
        data = bytes(self._unread[:size])
        del self._unread[:size]
        self._head_bytes += len(data)
        if not self._unread:
            self._receive_more()
        return data

    def _receive_more(self) -> None:
        if not self._has_ended:
            self._may_read.clear()
            if self._is_paused:
                self._is_paused = False
                self._transport.resume_reading()

    def _head_timeout(self, timeout: float | None) -> float | None:
        """Return the seconds left for the head, or `None` without a timeout. Raise
        httpcore.RemoteProtocolError if the head exceeds `MAX_HEAD_BYTES`."""
        if self._head_bytes > MAX_HEAD_BYTES:
            raise httpcore.RemoteProtocolError(
                f"the head of a response exceeds {MAX_HEAD_BYTES} bytes"
            )
        if timeout is None:
            return None
        now = asyncio.get_running_loop().time()
        if self._head_until is None:
            self._head_until = now + timeout
        return max(0.0, self._head_until - now)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Send a part of a request, at the latest before the next read.

        Raises:
            httpcore.ConnectionNotAvailable: the service sent more than the last answer, or closed
                the connection; nothing of the request has been sent.
            httpcore.WriteTimeout, httpcore.WriteError: the request was not sent completely.
        """
        if not self._is_in_head and self._may_read.is_set():
            raise httpcore.ConnectionNotAvailable  # the pool then uses another connection
        self._is_in_head, self._head_bytes, self._head_until = True, 0, None
        self._unsent += buffer
        self._write_timeout = timeout
        if len(self._unsent) > _MAX_UNSENT:
            await self._flush()

    async def _flush(self) -> None:
        data, self._unsent = self._unsent, b""
        if not self._transport.is_closing():
            self._transport.write(data)
            if not self._may_write.is_set():
                try:
                    async with asyncio.timeout(self._write_timeout):
                        await self._may_write.wait()
                except TimeoutError:
                    raise httpcore.WriteTimeout from None
        if self._has_ended:
            raise httpcore.WriteError(str(self._error)) from self._error

    async def aclose(self) -> None:
        """Close the connection without waiting for the service."""
        self._end(ConnectionAbortedError("the connection was closed"))
        self._transport.abort()
        await asyncio.sleep(0)  # the event loop then closes the socket

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> NetworkStream:
        """Encrypt the connection; close it if that fails.

        Raises:
            httpcore.ConnectTimeout: the handshake took more than `timeout` seconds.
            httpcore.ConnectError: the handshake failed.
        """
        loop = asyncio.get_running_loop()
        try:
            if self._may_read.is_set():  # otherwise these bytes would count as encrypted
                raise ConnectionAbortedError("the service sent data before the TLS handshake")
            async with asyncio.timeout(timeout):
                transport = await loop.start_tls(
                    self._transport,
                    self,
                    ssl_context,
                    server_hostname=server_hostname,
                    # the limit of asyncio, 60 s unless given, must not end the handshake earlier
                    ssl_handshake_timeout=None if timeout is None else timeout + 1,
                )
            if transport is None:
                raise ConnectionAbortedError("the connection ended during the TLS handshake")
            self._transport = transport
        except BaseException as error:
            await self.aclose()
            if isinstance(error, TimeoutError):
                raise httpcore.ConnectTimeout from error
            if isinstance(error, OSError):  # includes ssl.SSLError
                raise httpcore.ConnectError(str(error)) from error
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        match info:
            case "is_readable":
                return self._may_read.is_set() or _is_readable(
                    self._transport.get_extra_info("socket")
                )
            case "client_addr":
                return self._transport.get_extra_info("sockname")
            case "server_addr":
                return self._transport.get_extra_info("peername")
        return self._transport.get_extra_info(info)  # such as "socket" and "ssl_object"


def _is_readable(connected: socket.socket) -> bool:
    """Return whether a socket has bytes, or its end, that the event loop has not read yet."""
    if sys.platform == "win32":
        return bool(select.select([connected], [], [], 0)[0])
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(0))
