"""The HTTP server's side of a connection: uvicorn's protocol with bounds
that uvicorn does not have.

    accepted ──▶ head ──▶ body ──▶ answer ──▶ idle ──▶ head …
       │          │         │        │         └ keep-alive (uvicorn)
       │          │         │        └ a reader that takes too little: the connection is cut
       │          │         └ http.body_timeout_s, 408
       │          └ http.head_timeout_s, 408; http.max_header_bytes and http.max_headers, 431
       └ http.max_connections: another makes room (see `room`), or 503

Nothing here is looked at by the clock for each connection alone: one timer a second goes through
all of them. Knows nothing of MCP but how an error is written.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, BaseTransport, Transport
from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import partial
from math import inf
from typing import Any, Final, cast
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from roundgate.config import HttpConfig
from roundgate.errors import TransportError, Unavailable
from roundgate.http.cycle import Cycle
from roundgate.http.responder import headers_of
from roundgate.http.room import Stage, address_of, makes_room
from roundgate.protocol import NEWEST
from roundgate.values import dataclass

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

log = logging.getLogger("roundgate.request")

LOOK_EVERY_S: Final = 1.0
LINGER_S: Final = 2.0
"""For how long what a refused client goes on sending is thrown away: to close at once would reset
the connection, and the client would not see why (RFC 9112 section 9.6)."""
MAX_PIPELINED: Final = 16
"""Requests on one connection that wait for the answer to an earlier one."""
LEAST_READ: Final = 65_536
"""Bytes that a client has to take within `http.send_timeout_s` while more wait for it."""
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
"""What says where a body ends."""
_SPARE_DESCRIPTORS: Final = 64
"""Left for stores, back ends, logs and what Python opens by itself."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one process lets its connections have."""

    header_bytes: int
    headers: int
    head_s: float
    body_s: float
    send_s: float
    connections: int
    per_address: int

    @classmethod
    def of(cls, http: HttpConfig) -> Bounds:
        """As configured; connections as many as there can be descriptors for."""
        connections = min(http.max_connections, descriptors_for_connections())
        return cls(
            header_bytes=http.max_header_bytes,
            headers=http.max_headers,
            head_s=http.head_timeout_s,
            body_s=http.body_timeout_s,
            send_s=http.send_timeout_s,
            connections=connections,
            per_address=http.max_connections_per_address or max(1, connections // 8),
        )


def descriptors_for_connections() -> int:
    """How many descriptors of this process connections may take: three in four of what is
    left beside the spare."""
    soft = -1 if resource is None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1_000_000 if soft < 0 else max(8, (soft - _SPARE_DESCRIPTORS) * 3 // 4)


class _Part(Enum):
    """What of a request is being received."""

    NONE = auto()
    HEAD = auto()
    BODY = auto()


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        config: Any,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
        *,
        bounds: Bounds,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounds = bounds
        proxied = isinstance(self.app, ProxyHeadersMiddleware)
        self._app = self.app.app if proxied else self.app
        """Without uvicorn's middleware for the headers of proxies, which goes through
        those of every request."""
        self._part = _Part.NONE
        self._has_begun = False
        """Whether a request began in the bytes that are being read: how many of them
        belong to it, nobody knows."""
        self._has_body = False
        """Whether there is a piece of a body in these bytes."""
        self._loose_bytes = 0
        """Received for a head that is not complete, or behind a body for trailers and the like."""
        self._due = self._idle_until = inf
        self._has_asked = False
        self._refusal: TransportError | None = None
        self._is_over = False
        """Whether it has been refused, and is only read for the client to come to its end."""
        self._has_made_room = False
        """Whether its place has been given to another connection."""
        self._since = 0.0
        """When its last request began to arrive or was answered; before
        that, when it was opened."""
        self._address = ""
        self._unread: tuple[int, float] | None = None
        self._running: Cycle | None = None
        self._known_url: bytes | None = None
        self._address_of_url = ("", b"", b"")

    # the transport calls these

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast("Transport", transport))
        self._address = address_of(self.client[0] if self.client else "")
        self._since = self.loop.time()
        self._due = self._since + self._bounds.head_s
        _watch_of(self.server_state, self.loop).start()
        if len(self.connections) > self._bounds.connections:
            self._ask_for_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # tells the request that came last
        self.pipeline.clear()
        # which may wait behind another one: that is the one being served
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._has_begun = self._has_body = False
        self._idle_until = inf
        try:
            self._feed(data)
        except HttpParserError:
            self._refuse(self._refusal or TransportError(400, "The request is not HTTP/1.1"))
            return
        if self._part is _Part.NONE:
            # a line end between two requests stops uvicorn's timer, but is no request
            if self._due == inf:
                self._due = self.loop.time() + self._bounds.head_s
        elif self._has_begun or self._has_body:
            self._loose_bytes = 0
        else:
            self._loose_bytes += len(data)
            if self._loose_bytes > self._bounds.header_bytes:
                self._refuse(self._too_much())

    def _feed(self, data: bytes) -> None:
        """Have the parser read bytes, also behind a request that asks for another protocol: we
        speak none, so it is answered as any other (RFC 9110 section 7.8). Java's own client asks so
        with the first request of a connection.

        Raises:
            HttpParserError: they are no HTTP/1.1.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except HttpParserUpgrade as stopped:  # behind the head: what follows is no HTTP to it
                data = data[stopped.args[0] :]
                self._go_on_with_body()

    def _go_on_with_body(self) -> None:
        """Take back that the request is complete whose head has been read: the
        body is still to come."""
        cycle = cast("Cycle", self.cycle)
        cycle.more_body = True
        cycle.message_event.clear()
        self._part, self._due = _Part.BODY, self.loop.time() + self._bounds.body_s
        self.parser = _parser_of_body(self, cycle.scope["headers"])

    # the parser calls these

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._part, self._has_begun = _Part.HEAD, True
        now = self.loop.time()
        if not self._is_answering():
            self._since = now
        self._due = now + self._bounds.head_s

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """uvicorn's own, without what it looks at in vain here (WebSockets, `limit_concurrency`, a
        root path), and with a cycle of ours."""
        expects_continue, app = self._check_head()
        self._part, self._has_asked = _Part.BODY, True
        self._due = self.loop.time() + self._bounds.body_s
        scope, version = self.scope, self.parser.get_http_version()
        scope["method"], scope["http_version"] = self.parser.get_method().decode("ascii"), version
        if self.url != self._known_url:  # on one connection it is nearly always the same
            self._known_url, self._address_of_url = self.url, _address_of(self.url)
        scope["path"], scope["raw_path"], scope["query_string"] = self._address_of_url
        before = self.cycle
        self.cycle = cycle = Cycle(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.server_state.default_headers,
            self.on_response_complete,
            # RFC 9110, 10.1.1: an older client would take the interim answer for the answer
            expects_continue=expects_continue and version != "1.0",
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
        )
        self.headers = []  # what follows a chunked body is not part of the head, whatever it is called
        if before is None or before.response_complete:
            self._running = cycle
            self._start_asgi_task(cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))

    def _check_head(self) -> tuple[bool, Any]:
        """Whether its client waits to be told to go on, and who serves it.

        Raises:
            HttpParserError: there is too much of it; `_refusal` says of what.
        """
        bounds, headers = self._bounds, self.headers
        expects_continue, app, size = False, self._app, len(self.url)
        for name, value in headers:
            size += len(name) + len(value)
            if name == b"expect":
                expects_continue |= value.lower() == b"100-continue"
            elif name.startswith(b"x-forwarded-"):
                app = self.app
        if size > bounds.header_bytes or len(headers) > bounds.headers:
            self._refusal = self._too_much()
            raise HttpParserError
        if len(self.pipeline) >= MAX_PIPELINED:
            self._refusal = TransportError(
                503, "Too many requests were sent without waiting for an answer"
            )
            raise HttpParserError
        return expects_continue, app

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._part, self._due = _Part.NONE, inf
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        """uvicorn's own, without a timer for each connection that is idle:
        `look` ends those, too."""
        self.server_state.total_requests += 1
        self._since = self.loop.time()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._running = cast("Cycle", cycle)
            self._start_asgi_task(cycle, app)
        else:
            self._idle_until = self._since + self.timeout_keep_alive
            if self._part is _Part.NONE:  # what was due was only that something comes
                self._due = inf

    # once a second

    def look(self, now: float) -> None:
        """End what has taken too long."""
        if self._has_made_room:
            self.transport.abort()
            return
        if self.transport.is_closing() or self.flow.write_paused:
            self._cut_off_if_unread(now)
            return
        self._unread = None
        if now >= self._idle_until:
            self.transport.close()
        if now < self._due:
            return
        if self._is_over:
            self.transport.abort()
        elif self._part is _Part.NONE and self._is_answering():
            self._due = now + self._bounds.head_s
        elif self._part is _Part.NONE and self._has_asked:
            self.transport.close()
        else:
            what = "body" if self._part is _Part.BODY else "head"
            self._refuse(TransportError(408, f"The request's {what} took too long to arrive"))

    # what `room` has to know

    @property
    def stage(self) -> Stage:
        """What it is doing."""
        if self._is_over or self.transport.is_closing():
            return Stage.ENDING
        if not self._has_asked:
            return Stage.NEW
        if self._part is _Part.BODY or (self._part is _Part.HEAD and not self._is_answering()):
            return Stage.RECEIVING
        return Stage.ANSWERING if self._is_answering() else Stage.IDLE

    @property
    def since(self) -> float:
        """From when on, roughly, in seconds of the loop's clock."""
        return self._since

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self._address

    def _cut_off_if_unread(self, now: float) -> None:
        """A client that takes less than it must while bytes wait for it would hold them,
        and its call, for ever."""
        waiting = self.transport.get_write_buffer_size()
        before, since = self._unread or (waiting + LEAST_READ, now)
        if waiting <= before - LEAST_READ:
            self._unread = (waiting, now)
        elif now - since >= self._bounds.send_s:
            self.transport.abort()

    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _ask_for_room(self) -> None:
        """Take the place of another connection, or be refused."""
        bounds, now = self._bounds, self.loop.time()
        held = [
            one for one in cast("set[BoundedProtocol]", self.connections) if not one._has_made_room
        ]
        found = makes_room(held, self, places=bounds.connections, share=bounds.per_address, now=now)
        if found is None:
            self._refuse(_too_many())
            self.transport.close()
        else:
            found.make_room()

    def make_room(self) -> None:
        """Close the connection; whoever is in the middle of a request is told why."""
        self._has_made_room = True
        if self.stage is Stage.RECEIVING:
            self._refuse(_too_many())
            self.transport.close()  # what does not fit into the socket's buffer, nobody waits for: see `look`
        elif self.stage is Stage.IDLE:
            self.transport.close()
        else:
            self.transport.abort()

    def _too_much(self) -> TransportError:
        bounds = self._bounds
        return TransportError(
            431,
            f"The request's head is larger than {bounds.header_bytes} bytes or {bounds.headers} fields"
            " (http.max_header_bytes, http.max_headers)",
        )

    def _refuse(self, error: TransportError | Unavailable) -> None:
        """Answer in place of the app, and read no more requests."""
        if self._is_over or self.transport.is_closing():
            return
        self._is_over, self._due = True, self.loop.time() + LINGER_S
        status, body = NEWEST.render(error, None)
        log.info(
            "request",
            extra={"fields": {"status": status, "outcome": "refused", "error": str(error)}},
        )
        self.pipeline.clear()
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()  # the app hears of it, and sends nothing more
            if running.response_started:
                self.transport.abort()
                return
        if running is None or self._part is not _Part.BODY or not running.response_complete:
            self.transport.write(
                _head(status, body, [*self.server_state.default_headers, *headers_of(error)]) + body
            )
        self.flow.resume_reading()
        self.transport.write_eof()


class _BehindHead:
    """What a parser calls that is to begin with a body: of the head that it is given
    in front, nobody hears."""

    def __init__(self, connection: BoundedProtocol) -> None:
        self._connection = connection
        self._is_behind = False

    def on_headers_complete(self) -> None:
        if self._is_behind:
            self._connection.on_headers_complete()
        self._is_behind = True

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_"):
            raise AttributeError(name)
        calls: Callable[..., None] = getattr(self._connection, name)

        def call(*arguments: Any) -> None:
            if self._is_behind:
                calls(*arguments)

        return call


def _parser_of_body(
    connection: BoundedProtocol, headers: Iterable[tuple[bytes, bytes]]
) -> HttpRequestParser:
    """A parser that goes on behind a head with these fields; there may be no body either.

    Raises:
        HttpParserError: they contradict each other.
    """
    parser = HttpRequestParser(_BehindHead(connection))
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
    framing = b"".join(b"%b: %b\r\n" % field for field in headers if field[0] in _FRAMING)
    parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % framing)
    return parser


def _address_of(url: bytes) -> tuple[str, bytes, bytes]:
    """The path, the path as it was sent, and the query of what stands on a request line.

    Raises:
        HttpParserError: it is no URL.
    """
    parsed = parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""


class _Watch:
    """The timer that looks at all connections of one server, while there are any."""

    def __init__(self, state: ServerState, loop: AbstractEventLoop) -> None:
        self._state = state
        self._loop = loop
        self._is_on = False

    def start(self) -> None:
        """From now on, unless it runs already."""
        if not self._is_on:
            self._is_on = True
            self._loop.call_later(LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        for connection in list(cast("set[BoundedProtocol]", self._state.connections)):
            connection.look(now)
        self._is_on = False
        if self._state.connections:
            self.start()


_watches: Final[WeakKeyDictionary[ServerState, _Watch]] = WeakKeyDictionary()


def _watch_of(state: ServerState, loop: AbstractEventLoop) -> _Watch:
    found = _watches.get(state)
    if found is None:
        found = _watches[state] = _Watch(state, loop)
    return found


def protocol(http: HttpConfig) -> partial[BoundedProtocol]:
    """What uvicorn makes a connection's protocol with (`uvicorn.Config(http=…)`)."""
    return partial(BoundedProtocol, bounds=Bounds.of(http))


def _too_many() -> Unavailable:
    return Unavailable("There are too many connections (http.max_connections); try again soon")


def _head(status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    fields = [
        *headers,
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    return b"".join([STATUS_LINE[status], *(b"%b: %b\r\n" % field for field in fields), b"\r\n"])
