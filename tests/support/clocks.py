"""A clock that a test can set forward and back, and time that passes for an event loop."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from roundgate.clock import Clock


def pass_time(seconds: float) -> None:
    """Let time pass for the timers of the running event loop. A test that waits for a limit sets one
    that no slow machine reaches, waits for what has to happen before, and then lets it pass."""
    loop = asyncio.get_running_loop()
    if loop not in _passed_s:
        now = loop.time
        loop.time = lambda: now() + _passed_s[loop]  # type: ignore[method-assign]
    _passed_s[loop] = _passed_s.get(loop, 0.0) + seconds


_passed_s: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()


class SkippingClock(Clock):
    """The real clock, and what a test has added to it."""

    def __init__(self) -> None:
        self._skipped_ms = 0

    def skip(self, seconds: float) -> None:
        """Let time pass, or go back."""
        self._skipped_ms += int(seconds * 1000)

    @property
    def skipped_ms(self) -> int:
        """What has been added."""
        return self._skipped_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._skipped_ms

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self._skipped_ms


class FixedClock(SkippingClock):
    """Stands still at one moment until it is told to skip."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        super().__init__()
        self._now_ms = now_ms
        self._set_ms = 0

    def set(self, seconds: float) -> None:
        """Set the wall clock forward or back, and nothing else."""
        self._set_ms += int(seconds * 1000)

    def now_ms(self) -> int:
        return self._now_ms + self._skipped_ms + self._set_ms

    def monotonic_ms(self) -> float:
        return float(self._now_ms + self._skipped_ms)
