"""Cancellation of a running handler by a request to another replica.

Most calls end before they could be cancelled. So the store is not read in the first second of a
call, and then less and less often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Final

from roundgate.aio import timers
from roundgate.errors import CallCancelled, Unavailable

FIRST_LOOK_S: Final = 1.0
LAST_LOOK_S: Final = 5.0


class CancelWatch:
    """`with CancelWatch(is_cancelled):` cancels the current task once `is_cancelled` returns
    True."""

    def __init__(self, is_cancelled: Callable[[], Awaitable[bool]]) -> None:
        self._is_cancelled = is_cancelled
        self._watched = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer = timers.of_this_loop()
        self._cancelled = False

    def __enter__(self) -> None:
        self._timer.set(self, FIRST_LOOK_S, self._start)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel(self)
        if self._watcher is not None:
            self._watcher.cancel()
        if not self._cancelled or self._watched is None:
            return
        # another cancellation of the task stays in effect
        is_ours = self._watched.uncancel() == 0
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise CallCancelled from error

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        pause_s = FIRST_LOOK_S
        while not await self._looked():
            await asyncio.sleep(pause_s)
            pause_s = min(LAST_LOOK_S, pause_s * 1.5)
        self._cancelled = True
        if self._watched is not None:
            self._watched.cancel()

    async def _looked(self) -> bool:
        with suppress(Unavailable):  # `_watch` tries again
            return await self._is_cancelled()
        return False
