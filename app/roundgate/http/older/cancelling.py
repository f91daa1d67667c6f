"""The watch over a running handler's call, which renews the call's lease and cancels the call on
behalf of its client.

Most calls end before they could be cancelled. So the watch does not read the store in the first
second of a call, and then reads it less and less often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

from roundgate.errors import CallCancelled, LeaseLost, Unavailable

FIRST_LOOK_S: Final = 1.0
LAST_LOOK_S: Final = 5.0


class CancelWatch:
    """A context manager that cancels the current task once `look` raises `CallCancelled` or
    `LeaseLost`, and raises that error. `look` returns the maximum pause before the next look, in
    seconds."""

    def __init__(self, look: Callable[[], Awaitable[float]]) -> None:
        self._look = look
        self._watched = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason: CallCancelled | LeaseLost | None = None

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(FIRST_LOOK_S, self._start)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._reason is None or self._watched is None:
            return
        # another cancellation of the task stays in effect
        is_ours = self._watched.uncancel() == 0
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._reason from error

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        pause_s, longest_s = FIRST_LOOK_S, LAST_LOOK_S
        try:
            while True:
                with suppress(Unavailable):  # look again later
                    longest_s = await self._look()
                await asyncio.sleep(min(pause_s, longest_s))
                pause_s = min(LAST_LOOK_S, pause_s * 1.5)
        except (CallCancelled, LeaseLost) as error:
            self._reason = error
            if self._watched is not None:
                self._watched.cancel()
