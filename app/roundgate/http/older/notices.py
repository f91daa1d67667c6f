"""Notifications from a running handler to the client of a session."""

from __future__ import annotations

from typing import Any, Final

from roundgate.errors import Unavailable
from roundgate.http.older.caller import Caller
from roundgate.http.older.sessions import Sessions
from roundgate.http.older.stream import SessionStream
from roundgate.protocol import LOG_LEVELS

_MESSAGE: Final = "notifications/message"


class Notices:
    """Sends notifications. The session's log level is read before the first log message."""

    def __init__(self, stream: SessionStream, sessions: Sessions, caller: Caller) -> None:
        self._stream = stream
        self._sessions = sessions
        self._caller = caller
        self._least: int | None = None

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification, unless it is a log message below the session's level."""
        if method == _MESSAGE and LOG_LEVELS.index(params["level"]) < await self._level():
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
