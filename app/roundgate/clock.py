"""The clock, and the source of ids and random numbers.

Code that depends on time or randomness takes a `Clock`, or a value made by a clock, as an argument.
A test can then skip hours and choose ids.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from binascii import b2a_base64
from collections.abc import Callable
from functools import lru_cache
from os import urandom
from typing import Final, Protocol

from msgspec import Struct

_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def seed_after_restore() -> None:
    """Seed `random` after a restore from a snapshot. Otherwise all processes of one snapshot would
    draw the same numbers, for instance for the ids of OpenTelemetry. The gateway's own ids come
    from the operating system."""
    if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start":
        random.seed()


class Timer(Protocol):
    """The handle of a callback that `Clock.call_later` has scheduled."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Clock:
    """The real clock."""

    def now_ms(self) -> int:
        """Return the wall-clock time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Return the milliseconds since an arbitrary moment; the value never decreases."""
        return time.monotonic_ns() / 1_000_000

    def new_id(self) -> str:
        """Return 128 random bits as 22 URL-safe characters. The first one is not a hyphen, because
        the command line would take such an id for an option."""
        while True:
            text = b2a_base64(urandom(16), newline=False)[:22].translate(_URL_SAFE).decode()
            if text[0] != "-":
                return text

    def fraction(self) -> float:
        """Return a random number of at least 0 and less than 1."""
        return int.from_bytes(urandom(4), "big") / 2**32

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call a function in the running event loop after `seconds`; return a handle that cancels
        the callback."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    def pass_time(self) -> bool:
        """Advance a test's clock to its next timer when handlers wait only for time; return whether
        it advanced. The real clock returns `False`."""
        return False

    def deadline(self, in_ms: float | None) -> Deadline:
        """Return a deadline `in_ms` milliseconds from now; `None` means no deadline."""
        return Deadline(self, None if in_ms is None else self.monotonic_ms() + in_ms)


class Moment(Struct, frozen=True):
    """A moment by both clocks, in milliseconds."""

    wall_ms: int
    monotonic_ms: float

    @classmethod
    def now(cls, clock: Clock) -> Moment:
        """Return the current moment."""
        return cls(clock.now_ms(), clock.monotonic_ms())


class Deadline(Struct):
    """The moment by which a call must be answered. `at_ms` is in milliseconds on the clock's
    monotonic scale; `None` means no deadline."""

    clock: Clock
    at_ms: float | None
    ends_process: bool = False
    """Whether the process, or its invocation on AWS Lambda, ends then."""

    def shorten(self, at_ms: float) -> bool:
        """Move the deadline forward to the end of the process, on the monotonic scale; return
        whether it was later."""
        if self.at_ms is not None and self.at_ms <= at_ms:
            return False
        self.at_ms, self.ends_process = at_ms, True
        return True

    def remaining_ms(self) -> float | None:
        """Return the milliseconds left, at least 0; `None` without a deadline."""
        return None if self.at_ms is None else max(0.0, self.at_ms - self.clock.monotonic_ms())

    @property
    def is_past(self) -> bool:
        return self.remaining_ms() == 0.0


TICK_S: Final = 0.02
"""Seconds between two ticks. A watch starts after one to two ticks."""
SOON_S: Final = 0.1
"""Time limits in seconds below this get a timer at once; others wait until the watch starts."""


class TickedWatch:
    """A wait or a block that most often ends before its watch starts."""

    def start(self) -> None:
        """Start watching."""

    def drain(self, at_ms: float) -> None:
        """Shorten the time limit to `at_ms`, because the process is about to stop."""


class Ticker:
    """The timer and the watches of one event loop. The timer is idle while no watch is new."""

    drained_ms: float | None = None
    """The time at which every limit ends, in milliseconds on the clock of deadlines, because the
    process is about to stop; `None` before."""

    def __init__(self) -> None:
        self._new: dict[TickedWatch, None] = {}
        self._old: dict[TickedWatch, None] = {}
        self._due: dict[TickedWatch, None] = {}
        self._started: dict[TickedWatch, None] = {}
        self._is_ticking = False

    def add(self, watch: TickedWatch) -> None:
        """Start a watch after one to two ticks, unless it is discarded before."""
        self._new[watch] = None
        if not self._is_ticking:
            self._is_ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def discard(self, watch: TickedWatch) -> None:
        """Forget a watch. It may have started."""
        if watch in self._new:
            del self._new[watch]
        else:
            self._old.pop(watch, None)
            self._due.pop(watch, None)
            self._started.pop(watch, None)

    def drain(self, at_ms: float) -> None:
        """Shorten the limit of every current and future watch to `at_ms`."""
        self.drained_ms = at_ms if self.drained_ms is None else min(self.drained_ms, at_ms)
        for watches in (self._new, self._old, self._due, self._started):
            for watch in watches:
                watch.drain(at_ms)

    def _tick(self) -> None:
        self._due, self._old, self._new = self._old, self._new, {}
        self._is_ticking = bool(self._old)
        if self._is_ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        while self._due:
            watch, _ = self._due.popitem()
            self._started[watch] = None
            watch.start()


_tickers: Final[dict[asyncio.AbstractEventLoop, Ticker]] = {}


def ticker() -> Ticker:
    """Return the ticker of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _tickers.get(loop)
    if found is None:
        for other in list(_tickers):
            if other.is_closed():
                _tickers.pop(other, None)
        found = _tickers[loop] = Ticker()
    return found


def iso(at_ms: int) -> str:
    """Return a time, in milliseconds since the epoch, as ISO 8601 in UTC:
    `2026-11-21T22:06:42.123Z`."""
    return f"{_iso_second(at_ms // 1000)}.{at_ms % 1000:03d}Z"


@lru_cache(maxsize=4)
def _iso_second(at_s: int) -> str:
    """Return a time in seconds as ISO 8601 without its zone. Cached, because formatting takes 4 µs
    and many log lines share a second."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))


UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""The units of a duration, in seconds."""


def span(ms: int) -> str:
    """Return a duration in the largest unit in which it is at least 1, such as `1.5h`."""
    seconds = ms / 1000
    unit = next((unit for unit in "dhm" if seconds >= UNITS_S[unit]), "s")
    return f"{seconds / UNITS_S[unit]:.3g}{unit}"
