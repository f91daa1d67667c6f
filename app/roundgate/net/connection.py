"""One HTTP/1.1 connection to a service, on asyncio's transports and the parser of httptools.

An `HttpAnswer` has a parser of its own, so nothing that a service sends after an answer, or before a
request, can become the answer to another request (RFC 9112 section 6.3): such bytes close the
connection. Surplus bytes that arrive only after the next request was sent cannot be told from its
answer, in any HTTP/1.1 client.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

import httptools
import httpx
from aiohappyeyeballs import start_connection

from roundgate.net.request import IdleLimit, Origin, WireRequest

MAX_HEAD_BYTES: Final = 131_072
"""The limit in bytes for an answer's head together with the interim answers before it. It is also
the limit for the trailers, and for the data between two parts of a body."""
_MAX_UNREAD: Final = 131_072
"""The number of unread bytes at which a connection stops to receive."""
_MAX_JOINED: Final = 65_536
"""The largest body in bytes that is copied behind its head, for one write instead of two."""
_REST_S: Final = 0.25
"""Seconds for the unneeded rest of an answer, after which its connection closes."""
_NEXT_ADDRESS_S: Final = 0.25
"""Seconds after which the next address of a host is tried too (RFC 8305 section 5)."""
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEAD: Final = re.compile(
    rb"%b [\x21-\x7e\x80-\xff]+ HTTP/1\.1\r\n(?:%b: [\t\x20-\x7e\x80-\xff]*\r\n)+\r\n"
    % (_TOKEN, _TOKEN)
)
_WITH_CONTENT: Final = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose requests declare a length even without a body (RFC 9110 section 8.6)."""


async def connect(
    origin: Origin,
    tls: ssl.SSLContext,
    timeout_s: float | None,
    loses: Callable[[HttpConnection], None],
) -> HttpConnection:
    """Open a connection.

    Args:
        origin: the service.
        tls: the TLS context for `https`.
        timeout_s: seconds for the name, all addresses and the TLS handshake; `None` for no limit.
        loses: called when a request ends, so that the connection is idle or closed.

    Raises:
        httpx.ConnectTimeout: no address of the host accepted in time.
        httpx.ConnectError: the host is unknown, all of its addresses refused, or TLS failed.
    """
    loop = asyncio.get_running_loop()
    scheme, host, port = origin
    options: dict[str, Any] = {}
    if scheme == "https":
        # asyncio's own limit, 60 s unless given, must not end the handshake earlier
        limit_s = None if timeout_s is None else timeout_s + 1
        options = {"ssl": tls, "server_hostname": host, "ssl_handshake_timeout": limit_s}
    try:
        async with asyncio.timeout(timeout_s):
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            sock = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S)
            _, connection = await loop.create_connection(
                lambda: HttpConnection(origin, loses), sock=sock, **options
            )
    except TimeoutError as error:
        raise httpx.ConnectTimeout("") from error
    except (OSError, UnicodeError) as error:  # including ssl.SSLError, and a label of 64 letters
        raise httpx.ConnectError(str(error)) from error
    return connection


class HttpConnection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self, origin: Origin, loses: Callable[[HttpConnection], None]) -> None:
        self.origin = origin
        self.idle_until = 0.0
        """The end of the reuse of the idle connection, on the event loop's clock."""
        self.is_closed = False
        self._loses = loses
        self._transport: asyncio.Transport  # set in connection_made
        self._answer: HttpAnswer | None = None
        self._is_paused = False
        self._may_write = asyncio.Event()
        self._may_write.set()

    async def send(self, request: WireRequest) -> HttpAnswer:
        """Send a request; return its answer, which has not arrived. The caller closes the
        connection after an error.

        Raises:
            httpx.LocalProtocolError: the request is not valid HTTP.
            httpx.ConnectError: the connection is closed; nothing of the request has been sent.
            httpx.WriteTimeout: the service did not receive the request in time.
        """
        head = _head(request)
        if self.is_closed:  # since it was opened
            raise httpx.ConnectError("the service closed the connection before the request")
        answer = HttpAnswer(self, request.idle, has_body=request.method != "HEAD")
        self._answer = answer
        if not self._transport.is_closing():
            # not writelines: with an empty body asyncio of 3.12 and later then never rests
            if len(request.body) > _MAX_JOINED:
                self._transport.write(head)
                self._transport.write(request.body)
            else:
                self._transport.write(head + request.body)
        if not self._may_write.is_set() and not self._is_paused:
            await self._drain(request.write_s)
        return answer

    async def _drain(self, timeout_s: float | None) -> None:
        """Return when the service has received most of a request, or sends an answer of which more
        than `_MAX_UNREAD` bytes must be read first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._may_write.wait()
        except TimeoutError:
            raise httpx.WriteTimeout("") from None

    def is_usable(self) -> bool:
        """Return whether an idle connection can send a request: it is open, and the service has
        sent nothing since the last answer."""
        return not self.is_closed and not self._is_readable()

    def _is_readable(self) -> bool:
        """Return whether the socket has bytes, or its end, that the event loop has not read yet."""
        connected = self._transport.get_extra_info("socket")
        if sys.platform == "win32":
            return bool(select.select([connected], [], [], 0)[0])
        poll = select.poll()
        poll.register(connected, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the connection without waiting for the service."""
        self.is_closed = True
        self._transport.abort()
        self._end(httpx.ReadError("the connection was closed"))

    def pause(self) -> None:
        """Stop to receive until `resume`."""
        if not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
            self._may_write.set()  # some services read no more of a request before their answer is read

    def resume(self) -> None:
        """Receive again."""
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    @property
    def is_draining(self) -> bool:
        """Return whether the unneeded rest of an answer arrives."""
        return self._answer is not None

    def leave(self) -> None:
        """End the request before its answer has ended."""
        self._loses(self)

    def finish(self, *, is_reusable: bool) -> None:
        """End the request, so that the connection is idle or closed."""
        self._answer = None
        self._may_write.set()
        if is_reusable and not self._transport.get_write_buffer_size():
            self.resume()
        else:
            self.close()
        self._loses(self)

    # -- asyncio.Protocol --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()
        else:
            self._answer.feed(data)

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(None if exc is None else httpx.ReadError(str(exc)), exc)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def _end(self, error: Exception | None, cause: Exception | None = None) -> None:
        self.is_closed = True
        self._may_write.set()
        if self._answer is not None:
            if error is not None:
                error.__cause__ = cause
            self._answer.end(error)


class HttpAnswer(httpx.AsyncByteStream):
    """An answer while it arrives, which is also the stream of its body. The parser calls its
    methods `on_…`."""

    def __init__(
        self, connection: HttpConnection, idle: IdleLimit | None, *, has_body: bool
    ) -> None:
        """Wait for an answer.

        Args:
            connection: the connection of the request.
            idle: the limit on the wait for the whole head, and then on each wait for more of the
                body.
            has_body: False for the answer to HEAD, which has none whatever its headers say.
        """
        self.status = 0
        self.reason = b""
        self.http_version = ""
        """The version of HTTP, such as `HTTP/1.1`."""
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.headers: dict[str, str] = {}
        """The headers by name in lower case, once the head has arrived; the values of one name are
        joined by commas."""
        self.has_ended = False
        """Whether the answer is complete, or its connection has failed."""
        self._connection = connection
        self._idle = idle
        self._has_body = has_body
        self._parser = httptools.HttpResponseParser(self)
        # as other clients; nothing after an answer can become another one
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._has_head = False
        self._overhead = 0
        """The bytes of the head; later the bytes since the last part of the body."""
        self._is_reusable = False
        self._parts: list[bytes] = []
        self._unread = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Return when the head has arrived.

        Raises:
            httpx.ReadTimeout: it did not arrive in time.
            httpx.ReadError: the connection has failed.
            httpx.RemoteProtocolError: it is not valid HTTP, or too long.
        """
        if not self._has_head and not self.has_ended:
            await self._wait()
        if not self._has_head:
            assert self._error is not None, "an answer without a head ends with an error"
            raise self._error
        for raw_name, raw_value in self.raw_headers:
            name, value = raw_name.decode("ascii").lower(), _header_text(raw_value)
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return the part of the body that has arrived; wait if there is none."""
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self.has_ended:
                raise StopAsyncIteration
            await self._wait()
        parts, self._parts, self._unread = self._parts, [], 0
        if not self.has_ended:
            self._connection.resume()
        return b"".join(parts)

    async def aclose(self) -> None:
        """Close the connection, unless the answer is complete."""
        self._close()

    async def leave(self) -> None:
        """Free the connection, which can be reused if the unneeded rest of the body
        arrives within `_REST_S` seconds."""
        if not self.has_ended:
            self._connection.leave()
            asyncio.get_running_loop().call_later(_REST_S, self._close)

    def _close(self) -> None:
        if not self.has_ended:
            self._finish(httpx.ReadError("the answer was closed"))

    async def _wait(self) -> None:
        """Return when the head, more of the body, or the end has arrived."""
        self._waiter = asyncio.get_running_loop().create_future()
        if self._idle is not None:
            self._idle.begin(self._time_out)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._idle is not None:
                self._idle.end()

    def _time_out(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._finish(httpx.ReadTimeout(""))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def feed(self, data: bytes) -> None:
        """Parse what the service has sent."""
        is_head, unread = not self._has_head, self._unread
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._finish(httpx.RemoteProtocolError("the service changed the protocol"))
            return
        except httptools.HttpParserError as error:
            if not self.has_ended:  # else these bytes are surplus
                self._finish(httpx.RemoteProtocolError(str(error)))
                return
            self._is_reusable = False
        if self._has_short_head() if is_head else self._unread > unread or self.has_ended:
            self._overhead = 0
        if self._overhead > MAX_HEAD_BYTES:
            part = "head of a response" if is_head else "data between two parts of a body"
            text = f"the {part} exceeds {MAX_HEAD_BYTES} bytes"
            self._finish(httpx.RemoteProtocolError(text))
        elif self.has_ended:
            self._finish(None)
        elif self._has_head:
            if self._unread > _MAX_UNREAD:
                self._connection.pause()
            self._wake()

    def _has_short_head(self) -> bool:
        """Return whether the head is complete, and most of what has arrived belongs to the body."""
        if not self._has_head:  # it may arrive byte by byte, so do not count its headers yet
            return False
        return (
            self._overhead <= MAX_HEAD_BYTES
            or sum(len(name) + len(value) for name, value in self.raw_headers) <= MAX_HEAD_BYTES
        )

    def end(self, error: Exception | None) -> None:
        """End the answer with its connection; `error` is `None` after a regular end."""
        if self.has_ended:
            return
        if error is None and not self._has_head:
            error = httpx.RemoteProtocolError("Server disconnected without sending a response.")
        elif error is None and self._has_declared_end():
            error = httpx.RemoteProtocolError(
                "peer closed connection without sending complete message body"
            )
        self._finish(error)

    def _has_declared_end(self) -> bool:
        return any(
            name.lower() == b"content-length" or value.lower().endswith(b"chunked")
            for name, value in self.raw_headers
            if name.lower() in (b"content-length", b"transfer-encoding")
        )

    def _finish(self, error: Exception | None) -> None:
        self.has_ended, self._error = True, error
        del self._parser  # which refers to this object
        self._connection.finish(is_reusable=error is None and self._is_reusable)
        self._wake()

    # -- httptools ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.has_ended:
            self._is_reusable = False  # bytes after the answer

    def on_status(self, status: bytes) -> None:
        if not self.has_ended:
            self.reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # otherwise a trailer, which must not replace a header
            # the parser keeps the whitespace after a value (RFC 9112 section 5)
            self.raw_headers.append((name, value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self.has_ended:
            return
        self.status = self._parser.get_status_code()
        self.http_version = f"HTTP/{self._parser.get_http_version()}"
        self._has_head = self.status >= 200
        if self._has_head and not self._has_body:
            self.has_ended = True

    def on_body(self, body: bytes) -> None:
        if not self.has_ended:
            self._parts.append(body)
            self._unread += len(body)

    def on_message_complete(self) -> None:
        if self._has_head and not self.has_ended:
            self.has_ended, self._is_reusable = True, self._parser.should_keep_alive()
        elif not self._has_head:  # an interim answer
            self.raw_headers, self.reason = [], b""


def _head(request: WireRequest) -> bytes:
    """Return the head of a request. Raise `httpx.LocalProtocolError` if a part of it has a forbidden
    character."""
    lines = [f"{request.method} {request.target} HTTP/1.1"]
    lines.append(f"Host: {request.authority}")
    if request.body or request.method in _WITH_CONTENT:
        lines.append(f"Content-Length: {len(request.body)}")
    lines += [f"{name}: {value}" for name, value in request.headers]
    try:
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    except UnicodeEncodeError:
        head = b""
    if head.count(b"\n") != len(lines) + 1 or not _HEAD.fullmatch(head):
        raise httpx.LocalProtocolError("the head of the request has a forbidden character")
    return head


def _header_text(value: bytes) -> str:
    """Return the value of a header, which is in UTF-8 or Latin-1, as httpx reads it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
