"""A clock whose time passes when a test says so, or when nothing is left to do but wait."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from typing import Final

from roundgate.clock import Clock
from roundgate.replay import here

_LOOK_S: Final = 0.01


class VirtualClock(Clock):
    """Stands still but for what is waited for: an hour of `ctx.sleep` takes no time.

    It starts at the present moment. Code that reads another clock (`time.time()`,
    `datetime.now()`) sees real time.
    """

    def __init__(self, now_ms: int | None = None) -> None:
        """`now_ms` is where it starts, in milliseconds since the epoch; the
        present moment unless given."""
        self._now_ms = super().now_ms() if now_ms is None else now_ms
        self._begun_ms = self._now_ms
        self._timers: list[tuple[int, int, _Timer]] = []
        self.at_work: Callable[[], int] = lambda: 0
        """How many instances of a gateway do something just now."""
        self._numbers = count()

    def now_ms(self) -> int:
        """The moment at which it stands, in milliseconds since the epoch."""
        return self._now_ms

    def monotonic_ms(self) -> float:
        """Milliseconds that have passed on it."""
        return float(self._now_ms - self._begun_ms)

    def skip(self, seconds: float) -> None:
        """Let time pass: whatever waits for a moment in it goes on, earliest first."""
        until_ms = self._now_ms + round(seconds * 1000)
        while (due_ms := self._next_ms()) is not None and due_ms <= until_ms:
            self._fire()
        self._now_ms = until_ms

    def move_to(self, at_ms: int) -> None:
        """Let time pass until a moment, in milliseconds since the epoch; one that
        is over changes nothing."""
        if at_ms > self._now_ms:
            self.skip((at_ms - self._now_ms) / 1000)

    async def sleep(self, seconds: float) -> None:
        """Wait until that much of its time has passed.

        For a handler it passes once all of it waits. Elsewhere nobody would notice that: it passes
        at once, unless another instance is at work, which may be what is waited for.
        """
        if here.get() is None and seconds > 0:
            if self.at_work() > 1:
                await asyncio.sleep(min(seconds, _LOOK_S))
            else:
                self.skip(seconds)
        if here.get() is None or seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        """Call back once that much of its time has passed."""
        timer = _Timer(callback)
        due_ms = self._now_ms + max(0, -int(-seconds * 1000 // 1))
        heapq.heappush(self._timers, (due_ms, next(self._numbers), timer))
        return timer

    def pass_time(self) -> bool:
        """Move on to the next moment that somebody waits for, if there is one."""
        if self._next_ms() is None:
            return False
        self._fire()
        return True

    def _next_ms(self) -> int | None:
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _fire(self) -> None:
        due_ms, _, timer = heapq.heappop(self._timers)
        self._now_ms = max(self._now_ms, due_ms)
        timer.fire()


class _Timer:
    """A callback, until it was called or cancelled."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not call back."""
        self.is_cancelled = True

    def fire(self) -> None:
        """Call back."""
        self._callback()
