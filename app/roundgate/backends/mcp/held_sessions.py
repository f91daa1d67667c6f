"""The sessions in which an older server may ask: each has one caller, and one call at a time.

    take ──▶ an idle session of the caller, or a new one ──▶ a call ─┬─ clean ─▶ idle for a minute ─▶ closed
                                                                     └─ else ─▶ closed

If the server is a program, each session is a process. A caller whose processes end by themselves waits
before the next one starts; other callers do not wait.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from roundgate import json
from roundgate.backends.mcp.server import Restarts, has_ended
from roundgate.background import detached
from roundgate.client.connection import Connection
from roundgate.client.stdio import StdioLink
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import BackendError, ClientError

MAX_IDLE: Final = 32
"""The maximum number of idle sessions, which wait for the next call of their caller."""
IDLE_MS: Final = 60_000
"""Milliseconds after which an idle session expires; it is closed within the same time again."""
MAX_FAILING: Final = 1_000
"""The maximum number of callers whose failed processes are counted; beyond it, the count that is
unchanged for longest is dropped."""

MakeConnection: TypeAlias = Callable[[Json], Awaitable[Connection]]
"""Makes a separate connection that declares the capabilities. Raises BackendError."""


@dataclass(eq=False)
class HeldSessions:
    """The sessions of one server."""

    server: str
    """The server's name for error texts."""
    make_connection: MakeConnection
    clock: Clock
    keeps_idle: bool
    """Whether sessions stay open between calls; AWS Lambda freezes the process."""
    _idle: OrderedDict[Connection, tuple[tuple[str, bytes], float]] = field(
        default_factory=OrderedDict
    )
    """The caller and the capabilities of each idle session, and the time since when it is idle."""
    _closing: set[asyncio.Task[None]] = field(default_factory=set)
    _timer: asyncio.TimerHandle | None = None
    """The timer of the next search for expired sessions."""
    _restarts: OrderedDict[str, Restarts] = field(default_factory=OrderedDict)
    """The pauses between processes, by caller."""
    _started_ms: dict[Connection, float] = field(default_factory=dict)

    async def take(self, owner: str, capabilities: Json) -> Connection:
        """Return an idle session of a caller that declares the capabilities, or open one.

        Raises:
            ClientError: the server is unreachable, or refuses the session.
            BackendError: a credential is unavailable, or the caller's next process must not start yet.
        """
        self._close_expired()
        key = owner, json.encode(capabilities)
        for connection in reversed(list(self._idle)):
            if self._idle[connection][0] == key:
                del self._idle[connection]
                if not has_ended(connection):
                    return connection
                self.close(connection)
        return await self._open(owner, capabilities)

    async def give_back(
        self, connection: Connection, owner: str, capabilities: Json, *, is_clean: bool
    ) -> None:
        """Keep the session of a call for the caller's next call if it is clean; otherwise close it."""
        started_ms = self._started_ms.get(connection)
        if started_ms is not None and not is_clean and has_ended(connection):
            self._count_failure(owner, started_ms, connection)
        if not self.keeps_idle:
            self._started_ms.pop(connection, None)
            await _end_session(connection)
            return
        if not is_clean:
            self.close(connection)
            return
        self._idle[connection] = (owner, json.encode(capabilities)), self.clock.monotonic_ms()
        if self._timer is None:
            self._schedule()
        if len(self._idle) > MAX_IDLE:
            self.close(self._idle.popitem(last=False)[0])

    def close(self, connection: Connection) -> None:
        """Close a session in the background."""
        self._started_ms.pop(connection, None)
        closing = detached(asyncio.create_task, _end_session(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close the idle sessions, and wait until all are closed."""
        if self._timer is not None:
            self._timer.cancel()
        idle = list(self._idle)
        self._idle.clear()
        await asyncio.gather(*map(_end_session, idle), *self._closing, return_exceptions=True)

    async def _open(self, owner: str, capabilities: Json) -> Connection:
        if (restarts := self._restarts.get(owner)) is not None:
            restarts.check()
        started_ms = self.clock.monotonic_ms()
        connection = await self.make_connection(capabilities)
        try:
            await connection.connect()
        except BaseException as error:
            if isinstance(error, ClientError) and isinstance(connection.link, StdioLink):
                self._count_failure(owner, started_ms, connection)
            await asyncio.shield(_end_session(connection))
            raise
        self._started_ms[connection] = started_ms
        return connection

    def _count_failure(self, owner: str, started_ms: float, connection: Connection) -> None:
        restarts = self._restarts.setdefault(owner, Restarts(self.server, self.clock))
        restarts.count_failure(started_ms, connection)
        self._restarts.move_to_end(owner)
        if len(self._restarts) > MAX_FAILING:
            self._restarts.popitem(last=False)

    def _schedule(self) -> None:
        later = asyncio.get_running_loop().call_later
        self._timer = detached(later, IDLE_MS / 1000, self._close_expired_and_reschedule)

    def _close_expired_and_reschedule(self) -> None:
        """Close expired sessions, and repeat this later while any are idle."""
        self._timer = None
        self._close_expired()
        if self._idle:
            self._schedule()

    def _close_expired(self) -> None:
        oldest_ms = self.clock.monotonic_ms() - IDLE_MS
        expired = [session for session, (_, ms) in self._idle.items() if ms < oldest_ms]
        for connection in expired:
            del self._idle[connection]
            self.close(connection)


async def _end_session(connection: Connection) -> None:
    with suppress(ClientError, BackendError):  # BackendError: a credential is unavailable
        await connection.link.end_session()
