"""A time limit that outlives its process: `async with ctx.timeout(3600): …`
around anything that waits.

It begins when it is first come to, and is over at that moment plus its seconds, whichever process
runs the handler by then. A task whose limit ends a wait is woken for it. What is remembered inside
is served also when the limit is over; the first thing that is not ends the block with
`TimeoutError`, as it did when the time ran out.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from roundgate.clock import Timer
from roundgate.replay.branches import Branch
from roundgate.replay.run import Run
from roundgate.replay.waiting import begin_limit

LATE_S: Final = 1.0
"""How long a limit that was over before its block began leaves to code that does not ask
the engine for anything."""


class TimeLimit:
    """`until_ms` is the moment at which it is over, in milliseconds since the epoch."""

    def __init__(self, run: Run, name: str, seconds: float) -> None:
        self._run = run
        self._name = name
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._timer: Timer | None = None
        self._branch: Branch | None = None
        self._cancelling = 0
        self.has_fired = False
        """Whether it has ended its block, or is about to."""
        self._left = asyncio.Event()
        self.until_ms = 0

    @property
    def is_left(self) -> bool:
        """Whether the block has ended."""
        return self._left.is_set()

    @property
    def is_pending(self) -> bool:
        """Whether it is about to end its block, now or later."""
        return not self.has_fired and not self.is_left

    async def wait_until_left(self) -> None:
        """Return once the block has ended."""
        await self._left.wait()

    async def __aenter__(self) -> TimeLimit:
        self._branch, self.until_ms = await begin_limit(self._run, self._name, self._seconds)
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._branch.scopes += (self,)
        left_s = (self.until_ms - self._run.clock.now_ms()) / 1000
        self._timer = self._run.clock.call_later(left_s if left_s > 0 else LATE_S, self.fire)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._branch is not None:
            self._branch.scopes = tuple(scope for scope in self._branch.scopes if scope is not self)
        if not self.has_fired or self._task is None:
            return
        # ours alone becomes a time-out: a cancellation that came from elsewhere as well goes on
        is_ours = self._task.uncancel() <= self._cancelling
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError(f"the limit of {self._seconds:g} s is over") from error

    def fire(self) -> None:
        """End the block, if it has not ended."""
        if self.has_fired or self._task is None or self._run.stopped is not None:
            return
        self.has_fired = True
        self._task.cancel()
