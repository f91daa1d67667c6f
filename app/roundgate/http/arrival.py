"""The layer of `roundgate serve` around the app, which reports the progress of a request to its
connection and limits the time for its body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roundgate.clock import Ticker
from roundgate.errors import TransportError, Unavailable

STATE: Final = "roundgate.connection"
"""The key of the connection in the state of an ASGI scope."""
ARRIVED: Final = "roundgate.arrived"
"""The member of that state that is set once the whole request has arrived."""
CLIENT_CLOSED: Final = 499
"""The status of a response that no client reads."""
LARGE_HEAD: Final = 8_192
"""The size of a head, in bytes, above which the response closes the connection: uvicorn keeps the
last head of an idle connection in memory."""
LARGE_BODY: Final = 65_536
"""The size of a part of a response, in bytes, above which it counts as unread while it waits. The
transport takes as much without a pause."""
Interruption: TypeAlias = TransportError | Unavailable | Literal["disconnect"]


class RequestObserver(Protocol):
    """The connection of a request (`connections.BoundedConnection`)."""

    head_bytes: int
    ticker: Ticker

    def request_began(self, request: ArrivingRequest) -> None: ...
    def body_received(self) -> None: ...
    def request_ended(self, request: ArrivingRequest) -> None: ...
    def hold(self, size: int) -> None: ...
    def written(self) -> None: ...


class ConnectionMiddleware:
    """Reports the progress of each request to its connection (`connections`).

    Args:
        app: the app.
        endpoints: the apps at some paths, to which requests go without the layers of `app`.
    """

    def __init__(
        self, app: ASGIApp, endpoints: Mapping[str, ASGIApp] = MappingProxyType({})
    ) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: RequestObserver | None = scope.get("state", {}).get(STATE)
        if connection is None:  # lifespan
            await self._app(scope, receive, send)
            return
        request = ArrivingRequest(connection, scope, receive, send)
        connection.request_began(request)
        try:
            app = self._endpoints.get(scope["path"], self._app)
            await app(scope, request.receive, request.send)
            if request.lacks_response:
                await request.finish()
        finally:
            connection.request_ended(request)


class ArrivingRequest:
    """One request on a connection of `roundgate serve`."""

    def __init__(
        self,
        connection: RequestObserver,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._connection = connection
        self._state = scope["state"]
        self._receive = receive
        self._send = send
        self._reader: asyncio.Task[Any] | None = None
        self._interruption: Interruption | None = None
        self._is_read = False
        """Whether the app has read the whole body."""
        self._has_answered = False
        self._closes = (connection.head_bytes or _head_bytes(scope)) > LARGE_HEAD
        connection.head_bytes = 0

    @property
    def has_arrived(self) -> bool:
        """Return whether the whole body has arrived."""
        return ARRIVED in self._state

    def receive(self) -> Awaitable[Message]:
        """Return the next ASGI message.

        Raises:
            TransportError: the body takes too long, or its trailers do not end.
            Unavailable: the connection was closed in favour of another client.
        """
        if self._is_read or self._interruption is not None or ARRIVED not in self._state:
            return self._wait()
        self._is_read = True
        return self._receive()  # does not wait, so nothing can interrupt it

    async def _wait(self) -> Message:
        """Wait for the next ASGI message or an interruption."""
        if (interruption := self._interruption) is not None:
            return _end_of(interruption)
        self._reader = reader = asyncio.current_task()
        cancelling = 0 if reader is None else reader.cancelling()
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            # an external cancellation is raised as well
            interruption = self._interruption
            if reader is None or interruption is None or reader.uncancel() > cancelling:
                raise
            return _end_of(interruption)
        finally:
            self._reader = None
        if message.get("more_body", False):
            self._connection.body_received()
        else:
            self._is_read = True
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Send an ASGI message. After a large head, before the whole body has arrived, or when the
        process is about to stop, the response closes the connection."""
        if message["type"] == "http.response.start":
            self._has_answered = True
            is_draining = self._connection.ticker.drained_ms is not None
            if self._closes or is_draining or ARRIVED not in self._state:
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
        elif len(message.get("body", b"")) > LARGE_BODY:
            return self._send_large(message)
        return self._send(message)

    async def _send_large(self, message: Message) -> None:
        self._connection.hold(len(message["body"]))
        try:
            await self._send(message)
        finally:
            self._connection.written()

    @property
    def is_waiting_for_body(self) -> bool:
        """Return whether the app waits for bytes of the body."""
        return self._reader is not None and not self.has_arrived

    @property
    def lacks_response(self) -> bool:
        """Return whether the client is gone, and the app has not begun a response."""
        return self._interruption == "disconnect" and not self._has_answered

    async def finish(self) -> None:
        """Send an empty response, without which uvicorn would log an error."""
        await self._send({"type": "http.response.start", "status": CLIENT_CLOSED})
        await self._send({"type": "http.response.body"})

    def interrupt(self, interruption: Interruption) -> None:
        """Stop waiting for the client: `receive` raises the error, or reports that the client
        disconnected. uvicorn notifies only the last of several pipelined requests."""
        if self._interruption is None:
            self._interruption = interruption
            if self._reader is not None:
                self._reader.cancel()


def _end_of(interruption: Interruption) -> Message:
    """Return the message about a client that disconnected; raise an error that is not that."""
    if isinstance(interruption, Exception):
        raise interruption
    return {"type": "http.disconnect"}


def _head_bytes(scope: Scope) -> int:
    """Return the size of a request's head, without its punctuation."""
    lines = sum(len(name) + len(value) for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + lines
