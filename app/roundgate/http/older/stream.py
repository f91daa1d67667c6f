"""The stream of one request of a session: messages that are sent before its response.

notification, question, …                       the first of them opens the stream
id: <token>.0                                   comes before everything else if the stream can be resumed
data:
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from starlette.requests import ClientDisconnect

from roundgate.errors import Unavailable
from roundgate.http.exchange import Responder, State
from roundgate.http.older.caller import SessionCaller
from roundgate.http.older.sessions import Sessions
from roundgate.http.older.watching import UnheardWatch
from roundgate.protocol import LOG_LEVELS, jsonrpc, notifications, sse
from roundgate.tasks.hidden import Holding

RETRY_MS: Final = 500
"""Milliseconds that a client waits before it resumes a stream that has ended."""
AWAY_RETRY_MS: Final = 2_000
"""Milliseconds that a client waits before it resumes a stream, while the store is unavailable."""

Token: TypeAlias = Callable[["RequestStream"], Awaitable[str]]
"""A function that makes the id of an event with which a stream's request can be resumed."""


class RequestStream:
    """The stream of one request. Several handlers may write at once.

    Args:
        responder: the writer of the response.
        watch: the watch for a client that hangs up.
        can_tell: whether the client accepts a stream.
        holds: whether the platform can keep a stream open while a user thinks.
        resumes: whether the client resumes a stream that ended.
        last_event_id: the id with which the client has just resumed; `None` for a new request.
    """

    def __init__(
        self,
        responder: Responder,
        watch: UnheardWatch,
        *,
        can_tell: bool,
        holds: bool,
        resumes: bool,
        last_event_id: str | None = None,
    ) -> None:
        self.responder = responder
        self.working = watch.working
        """A context manager for work that continues when the client hangs up."""
        self._watch = watch
        self.is_resumed = last_event_id is not None
        self.can_tell = can_tell
        self.holds = holds
        self.resumes = resumes
        self.token: Token | None = None
        """The maker of the first event's id, if the stream can be resumed before any question."""
        self.held: Holding | None = None
        """The task of the call, while this process runs a round of it."""
        self.last_event_id = last_event_id
        """The id of the last event that the client has."""

    @property
    def is_finite(self) -> bool:
        """Return whether later results need another call, because the client gets nothing after the
        response."""
        return not self.holds and not self.resumes

    @property
    def is_over(self) -> bool:
        """Return whether the response has ended."""
        return self.responder.state is State.DONE

    @property
    def is_unheard(self) -> bool:
        """Return whether the client has hung up."""
        return self._watch.disconnected

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, unless the response has been sent."""
        try:
            await self._write(sse.event(jsonrpc.notification(method, params)))
        except ClientDisconnect:
            if self.responder.give_up is not None:
                self.responder.give_up()

    async def message(self, message: bytes, event_id: str | None = None) -> None:
        """Send one message.

        Args:
            message: the message as JSON.
            event_id: the id with which any replica can continue; `None` if no replica can continue
                after this message.

        Raises:
            ClientDisconnect: the client does not read.
        """
        if event_id is None:
            await self._write(sse.event(message))
        else:
            retry_ms = RETRY_MS if self.resumes else None
            await self._write(sse.event_with_id(message, event_id, retry_ms))
            self.last_event_id = event_id

    async def leave(self, event_id: str) -> None:
        """End the stream; the client resumes it with `event_id`. Raise ClientDisconnect as
        `message` does."""
        await self.message(b"", event_id)
        await self.responder.end()

    async def come_again(self) -> None:
        """End the stream; the client resumes it with its last id, after a longer pause. Raise
        ClientDisconnect as `message` does."""
        assert self.last_event_id is not None
        await self._write(sse.event_with_id(b"", self.last_event_id, AWAY_RETRY_MS))
        await self.responder.end()

    async def _write(self, event: bytes) -> None:
        async with self.responder.lock:
            if self.is_over:
                return
            if self.resumes and self.token is not None:
                token, self.token = self.token, None
                event = await self._with_id_before(token) + event
            await self.responder.raw(event)

    async def _with_id_before(self, token: Token) -> bytes:
        """Return the first event of a stream that can be resumed: an id without data."""
        try:
            self.last_event_id = await token(self)
        except Unavailable:  # the call continues without this id; questions have their own ids
            return b""
        return sse.event_with_id(b"", self.last_event_id, RETRY_MS)


class Notices:
    """Sends notifications. The session's log level is read before the first log message."""

    def __init__(self, stream: RequestStream, sessions: Sessions, caller: SessionCaller) -> None:
        self._stream = stream
        self._sessions = sessions
        self._caller = caller
        self._least: int | None = None

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, unless it is a log message below the session's level."""
        if (
            method == notifications.MESSAGE
            and LOG_LEVELS.index(params["level"]) < await self._level()
        ):
            return
        await self._stream.notify(method, params)

    async def _level(self) -> int:
        if self._least is None:
            try:
                state = await self._sessions.state(self._caller.session, self._caller.principal)
            except Unavailable:
                return len(LOG_LEVELS)  # drop log messages rather than fail the call
            self._least = LOG_LEVELS.index(state.level)
        return self._least
