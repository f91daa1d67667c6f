"""Handlers that continue when their client hangs up.

"Disconnection SHOULD NOT be interpreted as the client cancelling its request" (basic/transports, of
each revision with sessions). A running handler continues to the end of its round, and a client that
resumes the call gets that end from its task. A call that only waits for an answer ends: the request
that resumes it waits instead.

    POST tools/call ─▶ handler runs ─── client hangs up ───▶ continues ─▶ the end of the round
                       waits for an answer ── hangs up ──▶ ends
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from starlette.types import Receive

from roundgate.errors import Unavailable
from roundgate.http.exchange import DisconnectWatch


class UnheardWatch(DisconnectWatch):
    """A context manager that cancels the current task when the client hangs up, except inside `with
    watch.working:`.

    Args:
        receive: ASGI's `receive`.
        room: a function whose context counts calls that run without their client, and raises
            `Unavailable` if there are too many. The call is then cancelled, because without its
            connection nothing else limits it.
    """

    def __init__(self, receive: Receive, room: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(receive)
        self.working = Working()
        self._room = room
        self._place: AbstractContextManager[None] | None = None

    def hang_up(self) -> None:
        """Cancel the block of a client that has hung up or does not read; let counted work in it
        finish."""
        self.disconnected = True
        if self.working.count and self._has_place():
            self.working.rested = self._rested
        else:
            self.cancel()

    def _rested(self) -> None:
        """Cancel the watched task after work in another task has ended, because the watched task
        only waits."""
        if asyncio.current_task() is not self._watched:
            self.cancel()

    def _has_place(self) -> bool:
        if self._place is None:
            place = self._room()
            try:
                place.__enter__()
            except Unavailable:
                return False
            self._place = place
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._place is not None:
            self._place.__exit__(None, None, None)
        return super().__exit__(kind, error, trace)


class Working:
    """A block whose work continues when the client hangs up. Several tasks may enter it at once."""

    def __init__(self) -> None:
        self.count = 0
        self.rested: Callable[[], None] | None = None
        """A function that is called when the last block ends. It is set only after the client has
        hung up, because a reference to the watch in every request would be a cycle for the garbage
        collector."""

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count and self.rested is not None:
            self.rested()
