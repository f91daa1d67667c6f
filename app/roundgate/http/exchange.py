"""One HTTP request and its answer: the facts that the layers collect, the response, and the log
line.

    nothing sent yet → streaming events → done, or straight from nothing to done

A call that sends no notification is answered with one JSON object. The first notification turns the
answer into an SSE stream, whose last event is the response (streamable-http, "Receiving Messages").
So does the first `http.keep_alive_s` of a call whose client accepts a stream: from then on comments
keep the connection in use. A client that hangs up cancels its call ("Cancellation").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from copy import copy
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from roundgate.aio import TaskWatch
from roundgate.auth import Principal
from roundgate.errors import AuthError, GatewayError, InsufficientScope, TransportError, Unavailable
from roundgate.http.protected import ProtectedResource
from roundgate.observability import REQUESTS
from roundgate.observability.tracing import Correlation
from roundgate.protocol import NEWEST, Headers, RequestId, Revision, jsonrpc, without_none

JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream"
KEEP_ALIVE: Final = b":\r\n\r\n"
"""A comment, which keeps an idle connection open and is ignored by every reader (streamable-http,
"Receiving Messages")."""
GRACE_S: Final = 5.0
"""Seconds that a call waits for a slow client beyond `http.send_timeout_s`, so that `roundgate
serve` closes the connection first."""
_TYPED: Final = (b"content-type", JSON)
_STREAM_HEADERS: Final = (
    (b"content-type", EVENT_STREAM),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_HOSTING: Final = "roundgate"
_EXCHANGE: Final = "roundgate.exchange"
_HEADERS: Final = "roundgate.headers"

MAX_ADDRESS: Final = 45
"""The characters of the longest IP address in text form; a proxy may pass on something else."""

log: Final = logging.getLogger(REQUESTS)


class Hosting(Struct, frozen=True):
    """Facts about one request that only its hosting environment knows: an extension of the ASGI
    scope. An entry point sets it (`roundgate_aws.http`), a client cannot."""

    remaining_ms: float | None = None
    """Milliseconds for which the environment lets the request run; `None` without a limit."""
    claims: Mapping[str, Any] | None = None
    """The claims of a token that an authorizer in front has verified."""
    is_buffered: bool = False
    """Whether the environment sends a response only once it is complete."""

    def put(self, scope: MutableMapping[str, Any]) -> None:
        """Add these facts to an ASGI scope."""
        scope["extensions"] = {**scope.get("extensions", {}), _HOSTING: self}


_NO_HOSTING: Final = Hosting()


class State(StrEnum):
    """The progress of a response."""

    NOTHING_SENT = "nothing sent"
    STREAMING = "streaming"
    DONE = "done"


class Responder:
    """A writer of one response to ASGI's `send`. The call ends if the client does not read an event
    within `send_s` seconds; `roundgate serve` closes such a connection earlier."""

    watch: DisconnectWatch | None = None
    """The watch that ends the call of a client that does not read."""
    state = State.NOTHING_SENT
    status = 0
    bytes_sent = 0
    _lock: asyncio.Lock | None = None

    def __init__(self, send: Send, send_s: float | None = None) -> None:
        self._send = send
        self._send_s = send_s

    @property
    def lock(self) -> asyncio.Lock:
        """The lock that is held while a message is sent, so that events do not mix. Made at first
        use, because most responses are one message."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    async def relay(self, message: Message) -> None:
        """Send a message of an app that writes its own response."""
        if message["type"] == "http.response.start":
            self.state, self.status = State.DONE, message["status"]
        await self._send(message)

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, unless the response was sent. The first notification opens the
        stream."""
        async with self.lock:
            if self.state is State.DONE:
                return
            try:
                await self.event(jsonrpc.notification(method, params))
            except ClientDisconnect:
                if self.watch is not None:
                    self.watch.hang_up()

    async def keep_alive(self) -> None:
        """Send a comment, unless the response was sent; raise ClientDisconnect as `event` does. The
        first event opens the stream."""
        async with self.lock:
            if self.state is not State.DONE:
                await self.event(None)

    async def event(self, message: bytes | None) -> None:
        """Send one message as an event; `None` is a keep-alive comment.

        Raises:
            ClientDisconnect: the client does not read, as if it had hung up.
        """
        await self.raw(KEEP_ALIVE if message is None else sse_event(message))

    async def raw(self, events: bytes) -> None:
        """Send encoded events; raise ClientDisconnect as `event` does."""
        try:
            async with asyncio.timeout(self._send_s):
                if self.state is State.NOTHING_SENT:
                    await self._start_stream()
                    # set after the send: the call can be cancelled while the client is slow
                    self.state = State.STREAMING
                await self._body(events, more=True)
        except TimeoutError:
            self.state = State.DONE
            raise ClientDisconnect from None

    async def error(
        self, error: GatewayError, request_id: RequestId | None, revision: Revision
    ) -> None:
        """Send a JSON-RPC error with the codes and statuses of a revision, and finish. The status
        of a stream that is open stays 200."""
        status, body = revision.render(error, request_id)
        await self.answer(status, body, error_headers(error))

    async def answer(
        self,
        status: int,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
        as_event: bool = False,
    ) -> None:
        """Send a response, after notifications that are being sent, and finish.

        Args:
            status: the HTTP status.
            body: the body; empty for none.
            headers: further headers.
            as_event: whether the body becomes the one event of a stream.
        """
        if self.state is not State.NOTHING_SENT or as_event or self._lock is not None:
            async with self.lock:  # only a stream has other messages
                if await self._end_stream(body, as_event=as_event):
                    return
        self.state, self.status, self.bytes_sent = State.DONE, status, len(body)
        length = (b"content-length", b"%d" % len(body))
        typed = [_TYPED, *headers, length] if body else [*headers, length]
        await self._send({"type": "http.response.start", "status": status, "headers": typed})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _end_stream(self, body: bytes, *, as_event: bool) -> bool:
        """Send the last event of an open stream, or of a new one if `as_event`; return whether there
        is a stream."""
        is_open, self.state = self.state is State.STREAMING, State.DONE
        if as_event and not is_open:
            await self._start_stream()
        if is_open or as_event:
            await self._body(sse_event(body), more=False)
        return is_open or as_event

    async def end(self) -> None:
        """Finish without a response, because another process continues the call or the call was
        cancelled: end the stream, or send 202 if none is open."""
        if self.state is State.STREAMING:
            self.state = State.DONE
            await self._body(b"", more=False)
        else:
            await self.answer(202, b"")

    async def _start_stream(self) -> None:
        self.status = 200
        headers = list(_STREAM_HEADERS)
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _body(self, body: bytes, more: bool) -> None:
        self.bytes_sent += len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def sse_event(message: bytes) -> bytes:
    """Return one JSON-RPC message, which is one line, as one Server-Sent Event (WHATWG HTML,
    section 9.2)."""
    return b"event: message\r\ndata: %b\r\n\r\n" % message


def sse_event_with_id(message: bytes, event_id: str, retry_ms: int | None = None) -> bytes:
    """Return an event with an id from which a client can continue at another replica; an empty
    message sends only the id. `retry_ms` is the pause before a client reconnects, in
    milliseconds."""
    retry = b"" if retry_ms is None else b"retry: %d\r\n" % retry_ms
    kind = b"event: message\r\n" if message else b""
    return b"id: %b\r\n%b%bdata: %b\r\n\r\n" % (event_id.encode(), retry, kind, message)


def error_headers(error: GatewayError) -> Sequence[tuple[bytes, bytes]]:
    """Return the response headers that belong to an error."""
    match error:
        case TransportError():
            return error.headers
        case Unavailable():
            return [(b"retry-after", b"%d" % error.retry_s)]
    return ()


class DisconnectWatch(TaskWatch):
    """A context manager that cancels the current task when the client hangs up, or does not read.
    The block then ends without an error, and `disconnected` is True.

    Args:
        receive: ASGI's `receive`.
        responder: the writer of the response.
        keep_alive_s: seconds between comments on the response; `None` sends none.
    """

    disconnected = False

    def __init__(
        self, receive: Receive, responder: Responder, keep_alive_s: float | None = None
    ) -> None:
        super().__init__()
        self._receive = receive
        self._responder = responder
        self.keep_alive_s = keep_alive_s
        responder.watch = self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._responder.watch = None  # a cycle for the garbage collector
        return self._end(kind)

    def cancel(self) -> None:
        """End the block as if the client had hung up."""
        self.disconnected = True
        super().cancel()

    def hang_up(self) -> None:
        """Handle a client that hung up, or does not read its response."""
        self.cancel()

    async def _watch(self) -> None:
        with suppress(ClientDisconnect):
            while not await self._is_gone():
                await self._responder.keep_alive()
        self.hang_up()

    async def _is_gone(self) -> bool:
        """Wait until the client hangs up, or return False once a comment is due."""
        try:
            async with asyncio.timeout(self.keep_alive_s):
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            return False
        return True


class Exchange:
    """One request and its answer. Class attributes are defaults, which the layers replace."""

    accepted: frozenset[bytes] = frozenset()
    """The media types that the client accepts, of JSON and event streams."""
    principal: Principal | None = None
    resource: ProtectedResource | None = None
    """The OAuth resource at this address; `None` without authentication."""
    revision: Revision = NEWEST
    """The revision that the client speaks."""
    request_id: RequestId | None = None
    method: str | None = None
    name: str | None = None
    code: int | None = None
    label: str = "ok"
    """The outcome of the request in one word, `outcome` in the log."""
    error: str | None = None
    reason: str | None = None
    """The reason for a tool's failure, or the failed check of a token, in a few words."""
    trace: str | None = None
    operates: bool = False
    """Whether the caller of a path that is open to everyone is an operator."""
    is_read: bool = False
    """Whether reading the body has begun."""
    is_element: bool = False
    """Whether the exchange is one message of a batch."""
    held_bytes: int = 0
    """The number of bytes that the body has reserved from the budget."""

    def __init__(self, scope: Scope, endpoints: Mapping[str, str], responder: Responder) -> None:
        self.path = route_path(scope) if scope.get("root_path") else scope["path"]
        """The path without the prefix that a proxy adds."""
        view = endpoints.get(self.path)
        self.is_mcp = view is not None
        """Whether the request is for an MCP endpoint."""
        self.view = view or ""
        """The view at that endpoint; empty for all tools."""
        self.headers = request_headers(scope)
        extensions = scope.get("extensions")
        hosting = extensions.get(_HOSTING) if extensions else None
        self.host = hosting if isinstance(hosting, Hosting) else _NO_HOSTING
        self.client: tuple[str, int] | None = scope.get("client")
        """The address and the port of the client."""
        self.address = self.client[0] if self.client else ""
        """The address of the client, or an empty text."""
        self.http_version: str = scope.get("http_version", "1.1")
        self.responder = responder
        self.correlation = Correlation()
        """The ids of the call, for the log."""
        scope[_EXCHANGE] = self

    @property
    def caller(self) -> Principal:
        """The caller.

        Raises:
            RuntimeError: no layer has authenticated the request.
        """
        if self.principal is None:
            raise RuntimeError("the request was not authenticated")
        return self.principal

    def refused(self, error: AuthError) -> AuthError:
        """Record a refusal for the log line. Return the error with the names under which clients
        request scopes."""
        error = error if self.resource is None else self.resource.requested(error)
        if isinstance(error, InsufficientScope) and self.principal is None:
            self.principal = error.principal
        self.label, self.error, self.reason = "unauthorized", str(error), error.reason
        return error

    def keep_alive_s(self, usual_s: float) -> float | None:
        """Return the seconds between comments on the response, or `None` if its client, or the
        hosting environment, takes no stream."""
        return usual_s if EVENT_STREAM in self.accepted and not self.host.is_buffered else None

    def element(self) -> Exchange:
        """Return the exchange of one message of a batch, without a status and size of its own."""
        element = copy(self)
        element.is_element, element.method, element.correlation = True, None, Correlation()
        return element

    def write_line(self, took_ms: float) -> None:
        """Write the log line of this request, without arguments, answers and results."""
        if not log.isEnabledFor(logging.INFO):
            return
        ids, responder, is_whole = self.correlation, self.responder, not self.is_element
        name = ids.tool or self.name
        fields = without_none(
            view=self.view or None,
            method=None if self.method is None else self.method[:100],
            name=None if name is None else name[:200],
            through=ids.through,
            call=ids.call_id,
            task=ids.task,
            **({} if self.principal is None else self.principal.names),
            address=None if self.client is None else self.client[0][:MAX_ADDRESS],
            status=(responder.status or None) if is_whole else None,
            outcome=self.label,
            code=self.code,
            error=self.error,
            reason=self.reason,
            trace=None if self.trace is None else self.trace[:55],
            ms=round(took_ms, 2),
            bytes=responder.bytes_sent if is_whole else None,
        )
        # `log.info` would search the stack for its caller
        record = log.makeRecord(
            log.name, logging.INFO, "", 0, "request", (), None, extra={"fields": fields}
        )
        log.handle(record)


def exchange_of(scope: Scope) -> Exchange:
    """Return the exchange of an HTTP request, inside `RequestMiddleware`."""
    exchange: Exchange = scope[_EXCHANGE]
    return exchange


def forget_exchange(scope: Scope) -> None:
    """Remove the exchange from the scope of a finished request: server, scope, exchange and `send`
    would keep each other alive until the garbage collector runs."""
    del scope[_EXCHANGE]


def request_headers(scope: Scope) -> Headers:
    """Return the headers of a request, which are parsed once for all layers."""
    headers: Headers | None = scope.get(_HEADERS)
    if headers is None:
        headers = scope[_HEADERS] = Headers.of(scope["headers"])
    return headers


def route_path(scope: Scope) -> str:
    """Return the path without the root path, by the rule of Starlette's router."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and (path == root or path.startswith(root + "/")) else path
