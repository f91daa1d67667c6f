"""A client that hangs up does not cancel what runs for it.

"Disconnection SHOULD NOT be interpreted as the client cancelling its request" (basic/transports, of
each revision with sessions): a handler that runs goes on to the end of its round, and what comes of
it is there for a client that comes back (`one_run`). What only waits for an answer ends, because
whoever comes back waits for it.

    POST tools/call ─▶ handler runs ─── client hangs up ───▶ goes on ─▶ the end of the round
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
    """`with UnheardWatch(receive, room) as watch:` cancels the current task when the client hangs
    up, and nothing of it is in `with watch:` blocks of `working`.

    Args:
        receive: ASGI's.
        room: counts those who go on for nobody, and raises `Unavailable` where there
            are too many: then this one is cancelled, because without its connection
            nothing else would bound them.
    """

    def __init__(self, receive: Receive, room: Callable[[], AbstractContextManager[None]]) -> None:
        super().__init__(receive)
        self.working = Working()
        self._room = room
        self._place: AbstractContextManager[None] | None = None

    def hang_up(self) -> None:
        """The client has hung up, or reads no more: end the block, unless something is
        worked on that has a place."""
        self.disconnected = True
        if self.working.count and self._has_place():
            self.working.rested = self._rested
        else:
            self.cancel()

    def _rested(self) -> None:
        """What else waits in this block, in tasks of its own, ends for nobody."""
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
    """`with watch.working:` is gone on with when the client hangs up. Several
    may be entered at once."""

    def __init__(self) -> None:
        self.count = 0
        self.rested: Callable[[], None] | None = None
        """Called when nothing is worked on any more. The watch is not known here: a cycle of
        references for each request would be garbage that somebody has to find."""

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if not self.count and self.rested is not None:
            self.rested()
