"""The answer to one POST on its way out, and a client that hangs up.

    nothing sent yet → streaming events → done, or straight from nothing to done

A call that tells its client nothing is answered with one JSON object. The first notification turns
the answer into an SSE stream, on which the response follows as the last event (streamable-http,
"Receiving Messages"). A client that hangs up cancels its call ("Cancellation").
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send

from roundgate import json
from roundgate.aio import Limit, timers
from roundgate.errors import AuthError, GatewayError, TransportError, Unavailable
from roundgate.protocol import RequestId, Revision, jsonrpc, sse

JSON: Final = b"application/json"
REFUSED: Final = -32600
"""The code of an error whose reason is a status of HTTP: every revision has it."""
_TYPED: Final = (b"content-type", JSON)
GRACE_S: Final = 5.0
"""What a call waits for its reader in addition: our own server, which also cuts off the
connection, goes first."""
_STREAM_HEADERS: Final = (
    (b"content-type", sse.CONTENT_TYPE),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class State(StrEnum):
    """How far the answer is."""

    NOTHING_SENT = "nothing sent"
    STREAMING = "streaming"
    DONE = "done"


class Responder:
    """A writer of one response to ASGI's `send`. An event that a client does not take within
    `send_s` seconds ends its call.

    Our own server cuts such a connection off by itself (`roundgate.http.connections`); under any
    other, the call ends here.
    """

    def __init__(self, send: Send, send_s: float | None = None) -> None:
        self._send = send
        self._send_s = send_s
        self.give_up: Callable[[], None] | None = None
        """Ends the call of a client that does not read."""
        self._lock: asyncio.Lock | None = None
        self.state = State.NOTHING_SENT
        self.status = 0
        self.bytes_sent = 0

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, opening the stream with the first. One that comes after
        the response is dropped."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if self.state is State.DONE:
                return
            try:
                await self.event(jsonrpc.notification(method, params))
            except ClientDisconnect:
                if self.give_up is not None:
                    self.give_up()

    async def event(self, message: bytes | None) -> None:
        """Send one message as an event; `None` is a keep-alive comment.

        Raises:
            ClientDisconnect: the client does not read, which is as if it were gone.
        """
        await self.raw(sse.KEEP_ALIVE if message is None else sse.event(message))

    async def raw(self, event: bytes) -> None:
        """Send an event as it stands, or several. Raises as `event`."""
        try:
            with Limit(self._send_s):
                if self.state is State.NOTHING_SENT:
                    await self._start_stream()
                    # only now: a call can be ended while it waits for a slow client
                    self.state = State.STREAMING
                await self._body(event, more=True)
        except TimeoutError:
            self.state = State.DONE
            raise ClientDisconnect from None

    def result(
        self, request_id: RequestId, result: bytes, as_event: bool = False
    ) -> Awaitable[None]:
        """Send the response and finish.

        Args:
            request_id: of the request.
            result: JSON.
            as_event: for a client that takes nothing but streams.
        """
        return self._finish(200, jsonrpc.result_response(request_id, result), as_event=as_event)

    async def error(
        self, error: GatewayError, request_id: RequestId | None, revision: Revision
    ) -> None:
        """Send a JSON-RPC error as a revision has it, and finish.

        Args:
            error: what went wrong.
            request_id: `None` if it is not known.
            revision: whose codes and statuses are used; once a stream is open
                its HTTP status stays 200.
        """
        status, body = revision.render(error, request_id)
        await self._finish(status, body, headers_of(error))

    async def refused(
        self, error: AuthError, challenge: bytes, request_id: RequestId | None
    ) -> None:
        """Send 401 or 403 with its challenge (RFC 6750 section 3) and finish.

        The body is a JSON-RPC error where the id of the request is known, because clients show no
        other; else it is in OAuth's words.

        Args:
            error: 401 or 403, and the reason.
            challenge: the value of `WWW-Authenticate`.
            request_id: `None` if it is not known.
        """
        words = {"error": error.error or "unauthorized", "error_description": str(error)}
        if request_id is None:
            body = json.encode(words)
        else:
            body = jsonrpc.error_response(request_id, REFUSED, str(error), words)
        await self._finish(error.status, body, [(b"www-authenticate", challenge)])

    async def answer(
        self,
        status: int,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
        as_event: bool = False,
    ) -> None:
        """Send an answer that is ready, and finish.

        Args:
            status: of HTTP.
            body: as it is sent; empty for none.
            headers: beside those that every answer has.
            as_event: whether the body becomes the one event of a stream.
        """
        await self._finish(status, body, headers, as_event)

    async def end(self) -> None:
        """Finish a stream without a response: it goes on elsewhere, or nobody
        waits for it any more."""
        if self.state is State.STREAMING:
            self.state = State.DONE
            await self._body(b"", more=False)
        else:
            await self.answer(202, b"")

    async def accepted(self) -> None:
        """202 without a body: a notification was taken."""
        await self._finish(202, b"")

    def _finish(
        self,
        status: int,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]] = (),
        as_event: bool = False,
    ) -> Awaitable[None]:
        if self._lock is None:
            return self._end(status, body, headers, as_event)
        return self._end_after(self._lock, status, body, headers, as_event)

    async def _end_after(
        self,
        lock: asyncio.Lock,
        status: int,
        body: bytes,
        headers: Sequence[tuple[bytes, bytes]],
        as_event: bool,
    ) -> None:
        async with lock:  # a notification that is on its way goes first
            await self._end(status, body, headers, as_event)

    async def _end(
        self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]], as_event: bool
    ) -> None:
        streaming, self.state = self.state is State.STREAMING, State.DONE
        if as_event and not streaming:
            streaming = True
            await self._start_stream()
        if streaming:
            await self._body(sse.event(body), more=False)
        else:
            self.status, self.bytes_sent = status, len(body)
            length = (b"content-length", b"%d" % len(body))
            typed = [_TYPED, *headers, length] if body else [*headers, length]
            await self._send({"type": "http.response.start", "status": status, "headers": typed})
            await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def _start_stream(self) -> Awaitable[None]:
        self.status = 200
        headers = list(_STREAM_HEADERS)
        return self._send({"type": "http.response.start", "status": 200, "headers": headers})

    def _body(self, body: bytes, more: bool) -> Awaitable[None]:
        self.bytes_sent += len(body)
        return self._send({"type": "http.response.body", "body": body, "more_body": more})


def headers_of(error: GatewayError) -> Sequence[tuple[bytes, bytes]]:
    """The headers that go with an error."""
    match error:
        case TransportError():
            return error.headers
        case Unavailable():
            return [(b"retry-after", b"%d" % error.retry_s)]
    return ()


WATCH_AFTER_S: Final = 0.02
"""Most calls are over before anyone could hang up, so nothing is watched for the first moments: a
coarse timer that is cancelled costs a microsecond, a task that reads `receive` costs thirty."""


class DisconnectWatch:
    """`with DisconnectWatch(receive) as watch:` cancels the current task when the client hangs up.

    The cancellation ends the block as if the work were done; `watch.disconnected` tells.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watched = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer = timers.of_this_loop()
        self._is_cancelled = False
        self.disconnected = False

    def __enter__(self) -> DisconnectWatch:
        self._timer.set(self, WATCH_AFTER_S, self._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._timer.cancel(self)
        if self._watcher is not None:
            self._watcher.cancel()
        if not self._is_cancelled or self._watched is None:
            return False
        # take back our own cancellation only: one that came from elsewhere as well still counts
        return (
            self._watched.uncancel() == 0
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        )

    def hang_up(self) -> None:
        """End the block as if the client had hung up: it does not read what it is sent."""
        self.cancel()

    def cancel(self) -> None:
        """End the block."""
        self.disconnected = True
        if self._watched is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._watched.cancel()

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.hang_up()
