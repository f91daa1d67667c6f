"""The watches over a running call: for a client that hangs up, and for one that cancels the call.

"Disconnection SHOULD NOT be interpreted as the client cancelling its request" (basic/transports, of
each revision with sessions). A running handler continues to the end of its round, and a client that
resumes the call gets that end from its task. A call that only waits for an answer ends: the request
that resumes it waits instead.

    POST tools/call ─▶ handler runs ─── client hangs up ───▶ continues ─▶ the end of the round
                       waits for an answer ── hangs up ──▶ ends

Most calls end before they could be cancelled. So `CancelWatch` does not read the store in the first
second of a call, and then reads it less and less often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Final

from starlette.types import Receive

from roundgate.aio import TaskWatch
from roundgate.errors import CallCancelled, LeaseLost, Unavailable
from roundgate.http.exchange import DisconnectWatch, Responder


class UnheardWatch(DisconnectWatch):
    """A context manager that cancels the current task when the client hangs up, except inside `with
    watch.working:`.

    Args:
        receive, responder, keep_alive_s: as for `DisconnectWatch`.
        room: a function whose context counts calls that run without their client, and raises
            `Unavailable` if there are too many. The call is then cancelled, because without its
            connection nothing else limits it.
    """

    def __init__(
        self,
        receive: Receive,
        responder: Responder,
        keep_alive_s: float | None,
        room: Callable[[], AbstractContextManager[None]],
    ) -> None:
        super().__init__(receive, responder, keep_alive_s)
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


FIRST_LOOK_S: Final = 1.0
LAST_LOOK_S: Final = 5.0


class CancelWatch(TaskWatch):
    """A context manager that cancels the current task once `look` raises `CallCancelled` or
    `LeaseLost`, and raises that error. `look` returns the maximum pause before the next look, in
    seconds."""

    def __init__(self, look: Callable[[], Awaitable[float]]) -> None:
        super().__init__()
        self._look = look
        self._reason: CallCancelled | LeaseLost | None = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._end(kind) and self._reason is not None:
            raise self._reason from error

    async def _watch(self) -> None:
        pause_s, longest_s = FIRST_LOOK_S, LAST_LOOK_S
        await asyncio.sleep(FIRST_LOOK_S)
        try:
            while True:
                with suppress(Unavailable):  # look again later
                    longest_s = await self._look()
                await asyncio.sleep(min(pause_s, longest_s))
                pause_s = min(LAST_LOOK_S, pause_s * 1.5)
        except (CallCancelled, LeaseLost) as error:
            self._reason = error
            self.cancel()
