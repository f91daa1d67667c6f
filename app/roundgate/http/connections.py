"""Connection limits that uvicorn lacks, in a protocol around uvicorn's own.

    accepted ──▶ head ──▶ body ──▶ response ──▶ idle ──▶ head …
       │          │        │         │           └ http.idle_timeout_s (uvicorn)
       │          │        │         └ http.send_timeout_s: the connection is aborted;
       │          │        │           http.max_unread_bytes: another one is (see `unread`)
       │          │        └ http.body_timeout_s: 408
       │          └ http.head_timeout_s: 408; http.max_header_bytes, http.max_headers: 431
       └ http.max_connections: another connection is closed (see `room`), or 503

    transport ◀──▶ BoundedConnection ◀──▶ uvicorn's protocol ──▶ ConnectionMiddleware ──▶ app
                          ▲                                             │
                          └── a request began, has arrived, is over ────┘

`BoundedConnection` receives bytes and finds the end of a head. `ConnectionMiddleware` (`arrival`),
which must wrap the app, reports the later stages.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf
from typing import Any, Final, cast

from msgspec import Struct
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from roundgate.clock import ticker
from roundgate.errors import TransportError, Unavailable
from roundgate.http.arrival import ARRIVED, LARGE_BODY, STATE, ArrivingRequest
from roundgate.http.exchange import error_headers
from roundgate.http.room import Stage, connection_to_close
from roundgate.http.unread import UnreadAnswers
from roundgate.net.addresses import client_address
from roundgate.protocol import NEWEST
from roundgate.settings import HttpConfig

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

log = logging.getLogger("roundgate.request")

LOOK_EVERY_S: Final = 1.0
"""Seconds between two checks of all connections."""
LINGER_S: Final = 2.0
"""Seconds that a refused client may keep sending. Closing at once would reset the connection before
the client has read the response (RFC 9112 section 9.6)."""
LAST_REQUEST_S: Final = 0.2
"""Seconds between the stop of the server and the end of idle connections. Requests that have arrived
unread are served, because closing would reset their connections."""
LEAST_READ: Final = 65_536
"""Bytes that a client must read within `http.send_timeout_s` while a response waits for it."""
_FRAMING: Final = 6 * 65_536
"""Bytes of a chunked body that may arrive before the app receives any: uvicorn collects 64 KB, and
a chunk of one byte takes six. More bytes than that and a head are endless trailers."""
_PIECE: Final = 1_024
"""Bytes of pipelined requests that are passed on at once, until uvicorn asks to pause."""
_SPARE_DESCRIPTORS: Final = 64
"""File descriptors left for stores, back ends, logs and Python itself."""
_END_OF_HEAD: Final = b"\r\n\r\n"
_UPGRADE: Final = re.compile(rb"\r\nupgrade[ \t]*:[^\r\n]*", re.IGNORECASE)


class Bounds(Struct, frozen=True):
    """The limits on one process's connections."""

    header_bytes: int
    headers: int
    head_s: float
    body_s: float
    send_s: float
    connections: int
    per_address: int
    unread_bytes: int
    has_proxies: bool
    """Whether there are proxies that name the client."""

    @classmethod
    def from_config(cls, http: HttpConfig) -> Bounds:
        """Return the configured limits, with no more connections than file descriptors allow."""
        connections = min(http.max_connections, descriptors_for_connections())
        return cls(
            header_bytes=http.max_header_bytes,
            headers=http.max_headers,
            head_s=http.head_timeout_s,
            body_s=http.body_timeout_s,
            send_s=http.send_timeout_s,
            connections=connections,
            per_address=http.max_connections_per_address or max(1, connections // 8),
            unread_bytes=http.max_unread_bytes,
            has_proxies=bool(http.trusted_proxies),
        )


def descriptors_for_connections() -> int:
    """Return the number of file descriptors that connections may use: three quarters of the limit
    without the spare descriptors."""
    soft = -1 if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1_000_000 if soft < 0 else max(8, (soft - _SPARE_DESCRIPTORS) * 3 // 4)


@dataclass
class Connections:
    """The connections of one process. An instance is uvicorn's factory of protocols
    (`uvicorn.Config(http=…)`)."""

    bounds: Bounds
    unread: UnreadAnswers = field(init=False)
    _open: dict[BoundedConnection, None] = field(default_factory=dict)
    """Every open connection, in the order in which they were accepted."""
    _leaving: dict[BoundedConnection, None] = field(default_factory=dict)
    """Connections that are being closed to free places for others."""
    _is_looking: bool = False
    _looked: float = 0.0
    """The time of the last check, or of its start, in seconds on the event loop's clock."""

    def __post_init__(self) -> None:
        self.unread = UnreadAnswers(self.bounds.unread_bytes, self.bounds.send_s)

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> BoundedConnection:
        return BoundedConnection(self, config, server_state, app_state)

    def add(self, connection: BoundedConnection) -> None:
        """Add a connection. If there are too many, close another connection or refuse this
        connection."""
        bounds = self.bounds
        if len(self._open) >= bounds.connections:
            victim = connection_to_close(
                self._open,
                connection.address,
                places=bounds.connections,
                share=bounds.per_address,
                now=connection.since,
            )
            if victim is None:
                connection.refuse(_too_many())
            else:
                self._leave(victim)
        self._open[connection] = None
        if not self._is_looking:
            self._is_looking, self._looked = True, connection.since
            asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _leave(self, victim: BoundedConnection) -> None:
        """Close a connection in favour of another. Its descriptor stays open until its client has
        the response."""
        del self._open[victim]
        self._leaving[victim] = None
        victim.make_room()
        if len(self._leaving) > max(1, self.bounds.connections // 8):
            next(iter(self._leaving)).make_room()  # the second call aborts the connection

    def discard(self, connection: BoundedConnection) -> None:
        """Forget a connection that was lost."""
        self._open.pop(connection, None)
        self._leaving.pop(connection, None)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        since_s, self._looked = now - self._looked, now
        # a check that is late: the loop was blocked, and did not read what clients had sent
        blocked_s = since_s if since_s > 2 * LOOK_EVERY_S else 0.0
        for connection in [*self._open, *self._leaving]:
            connection.look(now, blocked_s)
        self.unread.look(now)
        self._is_looking = bool(self._open or self._leaving)
        if self._is_looking:
            loop.call_later(LOOK_EVERY_S, self._look)


class BoundedConnection(asyncio.Protocol):
    """One connection: passes bytes to uvicorn's protocol, within the limits."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
    ) -> None:
        self._connections = connections
        self._bounds = connections.bounds
        self._loop = asyncio.get_running_loop()
        self.ticker = ticker()
        self._server_state = server_state
        kind = _ProxiedProtocol if connections.bounds.has_proxies else _StockProtocol
        self._stock = kind(self, config, server_state, {**app_state, STATE: self}, self._loop)
        self._stage = Stage.NEW
        self.head_bytes = 0
        """The size of the head that was passed on last, until its request has begun; 0 for a request
        that arrived together with an earlier one."""
        self.since = 0.0
        """The time at which the stage began, in seconds on the event loop's clock."""
        self.address = ""
        self.caller: Hashable = ""
        self.last_write = 0
        """The size of the newest part of a response."""
        self.waiting_bytes = 0
        """The size of an answer that is not yet written."""
        self._due = inf
        """The time at which to end the connection unless its stage changes, on the same clock."""
        self._head: bytes | None = b""
        """The received part of a head; `None` while bytes belong to a body, or to a head that uvicorn
        has in part."""
        self._held = b""
        """Bytes held back while uvicorn has paused reading or a request is being answered."""
        self._is_paused = False
        """Whether uvicorn has paused reading."""
        self._loose_bytes = 0
        """Bytes of a body that arrived since the app received some of it."""
        self.has_answered = False
        """Whether the last response is written and only the client's close is outstanding."""
        self._request: ArrivingRequest | None = None
        self._unread: tuple[int, float] | None = None
        """The size of a response when its client last read enough of it, and the time of that, in
        seconds."""
        self._is_write_paused = False
        self._is_counted = False
        """Whether the connection counts as unread for an answer that is not yet written."""

    @property
    def stage(self) -> Stage:
        """The stage of the connection. A request is being received while the app waits for more of
        its body; a complete body that the app has not read yet is no delay of the client."""
        is_receiving = self._request is not None and self._request.is_waiting_for_body
        return Stage.RECEIVING if is_receiving and self._stage is Stage.ANSWERING else self._stage

    @property
    def is_ending(self) -> bool:
        """Whether the connection reads no more requests."""
        return self._stage is Stage.ENDING

    # called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._stock.connection_made(_StockTransport(self._transport, self))
        client = self._stock.client
        self.address = self.caller = client_address(client[0] if client else "")
        self.since = self._loop.time()
        self._due = self.since + self._bounds.head_s
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._connections.unread.discard(self)
        self._held = b""
        self._stock.connection_lost(exc)
        if self._request is not None:
            self._request.interrupt("disconnect")

    def data_received(self, data: bytes) -> None:
        if self._stage is Stage.ENDING:
            return
        if self._head is not None:
            self._add_to_head(self._head, data)
            return
        self._loose_bytes += len(data)
        request, limit = self._request, self._bounds.header_bytes
        if self._stage is Stage.RECEIVING or (request is not None and request.has_arrived):
            if self._loose_bytes > limit:  # of the next head, which uvicorn has in part
                self.refuse(_head_too_large(self._bounds))
                return
        elif self._loose_bytes > _FRAMING + limit and request is not None:
            self._answer_early(request, _head_too_large(self._bounds))
            return
        self._feed(data)

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._connections.unread.add(self)
        self._stock.pause_writing()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._connections.unread.discard(self)
        self._stock.resume_writing()

    # bytes

    def _add_to_head(self, begun: bytes, data: bytes) -> None:
        if not begun:
            if self._stage is Stage.NEW and not data[:1].isalpha() and data[0] not in b"\r\n":
                self._feed(data)  # not HTTP: uvicorn answers with an error
                return
            data = data.lstrip(b"\r\n")
            if not data:
                return
        head = begun + data
        end = head.find(_END_OF_HEAD, max(0, len(begun) - len(_END_OF_HEAD)))
        size = len(head) if end < 0 else end
        if size > self._bounds.header_bytes or head.count(b"\n", 0, size) > self._bounds.headers:
            self.refuse(_head_too_large(self._bounds))
        elif end < 0:
            if self._stage is Stage.IDLE:
                self._enter(Stage.RECEIVING, self._bounds.head_s)
            self._head = head
        else:
            self._pass_head(head, end + len(_END_OF_HEAD))

    def _pass_head(self, data: bytes, end: int) -> None:
        """Pass on a complete head and the bytes after it, once the previous request is answered."""
        self._head, self._due, self._loose_bytes = None, inf, 0
        # the gateway speaks no other protocol, and uvicorn drops a body after this field
        if _UPGRADE.search(data, 0, end):
            data = _UPGRADE.sub(b"", data[:end]) + data[end:]
        if self._request is None:
            self.head_bytes = end
            self._enter(Stage.ANSWERING)
            self._feed(data)
        else:
            self._held += data
            self._transport.pause_reading()

    def _feed(self, data: bytes) -> None:
        """Pass bytes to uvicorn, or hold them back while it has paused reading."""
        if self._held:
            self._held += data
            return
        if len(data) <= _PIECE and not self._is_paused:
            self._stock.data_received(data)
            return
        start = 0
        while start < len(data) and not self._is_paused:
            end = data.find(_END_OF_HEAD, start + _PIECE)
            end = len(data) if end < 0 else end + len(_END_OF_HEAD)
            self._stock.data_received(data[start:end])
            start = end
        self._held = data[start:]

    def _feed_held(self) -> None:
        held, self._held = self._held, b""
        if not self._transport.is_closing():
            self._feed(held)
            if not self._is_paused:
                self._transport.resume_reading()

    def pause_reading(self) -> None:
        """Pause reading, because uvicorn has enough bytes for now."""
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, after passing on the bytes that were held back."""
        if self._is_paused:
            self._is_paused = False
            self._loop.call_soon(self._feed_held)

    # called by uvicorn's protocol and `arrival.ConnectionMiddleware`

    def head_began(self) -> None:
        """Note that uvicorn has the beginning of a head: the rest of it follows there, too. It may
        be that of a pipelined request."""
        self._head, self._loose_bytes = None, 0

    def request_arrived(self) -> None:
        """Note that a request has arrived as a whole: another head comes next."""
        self._head = b""
        if self._stage is not Stage.ENDING:
            self._due = inf

    def request_began(self, request: ArrivingRequest) -> None:
        """Note that a request was passed to the app; start the timeout of a body that is still
        arriving."""
        self._request = request
        if self._stage is not Stage.ANSWERING:  # a pipelined request
            self._enter(Stage.ANSWERING)
        if request.has_arrived:
            return
        if self._stage is not Stage.ENDING:
            self._due = self.since + self._bounds.body_s

    def body_received(self) -> None:
        """Note that the app has received a part of the body."""
        self._loose_bytes = 0

    def request_ended(self, request: ArrivingRequest) -> None:
        """Note that a request was answered. A pipelined request may have begun."""
        if self._request is not request:
            return
        self._request = None
        if self._is_counted:
            self.written()
        if self._held or self._head == b"":
            self._enter(Stage.IDLE)
        else:  # a head has begun, here or at uvicorn
            self._enter(Stage.RECEIVING, self._bounds.head_s)
        if self._held and not self._is_paused:
            self._loop.call_soon(self._feed_held)

    # the answers that wait for their reader (`unread`)

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that are kept for the client. The event loop keeps a whole part of a
        response until its last byte is sent."""
        return self.waiting_bytes + (self.last_write if self._is_write_paused else 0)

    # `aio.Room`

    @property
    def is_idle(self) -> bool:
        return self._connections.unread.is_idle

    @property
    def has_room(self) -> bool:
        return self._connections.unread.has_room(self)

    async def wait(self) -> None:
        await self._connections.unread.turn(self)

    async def keep(self, size: int) -> None:
        if size > LARGE_BODY and not self._transport.is_closing():
            self._connections.unread.admit(self, size)
            self.waiting_bytes, self._is_counted = size, True
            await self._connections.unread.encoding_turn()

    def hold(self, size: int) -> None:
        """Count an answer that is not yet written; `written` ends that."""
        if size > LARGE_BODY and not self._transport.is_closing():
            self.waiting_bytes, self._is_counted = size, True
            self._connections.unread.add(self)

    def written(self) -> None:
        """Note that no further part of the answer waits for room in the buffer of the transport."""
        self.waiting_bytes, self._is_counted = 0, False
        if not self._is_write_paused:
            self._connections.unread.discard(self)

    def abort(self) -> None:
        """Drop the connection and what its client has not read."""
        self._transport.abort()

    # the ends of a connection

    def close(self) -> None:
        """Close the connection after writing all data; linger if the client is still sending."""
        if self._request is not None and not self._request.has_arrived:
            self._linger()
        else:
            self._transport.close()

    def refuse(self, error: TransportError | Unavailable) -> None:
        """Answer in place of the app and read no more. Abort if a request is being served."""
        if self.stage is Stage.ENDING or self._transport.is_closing():
            return
        status, body = NEWEST.render(error, None)
        log.info(
            "request",
            extra={"fields": {"status": status, "outcome": "refused", "error": str(error)}},
        )
        if self._request is not None:  # a second response cannot be written into an open response
            self._enter(Stage.ENDING)
            self._transport.abort()
            return
        headers = [*self._server_state.default_headers, *error_headers(error)]
        self._transport.write(_response(status, headers, body))
        self._linger()

    def make_room(self) -> None:
        """Close the connection in favour of another. A client that is sending gets a 503."""
        if self.stage is Stage.RECEIVING and self._request is not None:
            self._answer_early(self._request, _too_many())
        elif self.stage is Stage.RECEIVING:
            self.refuse(_too_many())
        elif self.stage is Stage.IDLE:
            self._transport.close()
        else:
            self._transport.abort()
        self._enter(Stage.ENDING, LINGER_S)

    def look(self, now: float, blocked_s: float = 0.0) -> None:
        """End the connection if its stage takes too long, without the `blocked_s` seconds in which
        the event loop was blocked. `Connections` calls it every `LOOK_EVERY_S`."""
        self._due += blocked_s
        if self._transport.is_closing() or self._is_write_paused:
            self._abort_if_unread(now, blocked_s)
            return
        self._unread = None
        if now < self._due:
            return
        if self.stage is Stage.ENDING:
            self._transport.abort()
        elif self._request is not None and not self._request.has_arrived:
            self._answer_early(
                self._request, TransportError(408, "The request's body took too long to arrive")
            )
        else:
            self.refuse(TransportError(408, "The request's head took too long to arrive"))

    def _answer_early(self, request: ArrivingRequest, error: TransportError | Unavailable) -> None:
        """Make the app answer with an error, and read no more of the request."""
        self._enter(Stage.ENDING, LINGER_S)
        request.interrupt(error)
        self._transport.resume_reading()

    def _abort_if_unread(self, now: float, blocked_s: float) -> None:
        """Abort the connection if its client reads too little of a waiting response."""
        waiting = self._transport.get_write_buffer_size()
        before, since = self._unread or (waiting + LEAST_READ, now)
        if waiting <= before - LEAST_READ:
            self._unread = (waiting, now)
        elif now - since - blocked_s >= self._bounds.send_s:
            self._transport.abort()
        else:
            self._unread = (before, since + blocked_s)

    def _linger(self) -> None:
        """Finish writing, and discard the client's bytes for `LINGER_S`."""
        self._enter(Stage.ENDING, LINGER_S)
        self.has_answered = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()

    def _enter(self, stage: Stage, within_s: float = inf) -> None:
        """Enter a stage that may take `within_s` seconds. The stage `ENDING` is final."""
        if self._stage is not Stage.ENDING:
            self._stage, self.since = stage, self._loop.time()
            self._due = self.since + within_s


class _StockProtocol(HttpToolsProtocol):
    """uvicorn's protocol. It reports whole requests, and drops their trailers, which uvicorn adds to
    the headers."""

    def __init__(self, connection: BoundedConnection, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connection = connection

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._connection.head_began()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.parser.should_upgrade():
            return  # at the end of the head, so the connection must close before a body is read as one
        self.scope["state"][ARRIVED] = True
        self._connection.request_arrived()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self.headers = []

    def shutdown(self) -> None:
        """End the connection once it is idle, after the requests that have arrived."""
        self.loop.call_later(LAST_REQUEST_S, super().shutdown)


class _ProxiedProtocol(_StockProtocol):
    """uvicorn's protocol behind proxies, without the empty items of X-Forwarded-For. A list has none
    (RFC 9110 section 5.6.1.2), but uvicorn takes one at the end for an unknown client."""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-forwarded-for":
            value = b",".join(item for item in value.split(b",") if item.strip())
        super().on_header(name, value)


class _StockTransport(asyncio.Transport):
    """The transport of uvicorn's protocol. Pausing and closing go through the connection."""

    def __init__(self, transport: asyncio.Transport, connection: BoundedConnection) -> None:
        super().__init__()
        self._transport = transport
        self._connection = connection

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._transport.is_closing() or self._connection.is_ending

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._connection.has_answered and not self._transport.is_closing():
            self._connection.last_write, self._connection.waiting_bytes = len(data), 0
            if len(data) > LARGE_BODY:
                # the transport keeps all of it while the last byte waits: count it until then
                self._transport.set_write_buffer_limits(high=0)
            self._transport.write(data)

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._connection.resume_reading()


def _head_too_large(bounds: Bounds) -> TransportError:
    return TransportError(
        431,
        f"The request's head is larger than {bounds.header_bytes} bytes or {bounds.headers} fields"
        " (http.max_header_bytes, http.max_headers)",
    )


def _too_many() -> Unavailable:
    return Unavailable("There are too many connections (http.max_connections); try again soon")


def _response(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bytes:
    fields = [
        *headers,
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    head = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    return b"".join([head, *(b"%b: %b\r\n" % header for header in fields), b"\r\n", body])
