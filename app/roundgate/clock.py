"""Time and identifiers: the only place where the domain reads the clock or randomness.

Everything else takes a `Clock` (or a value made by one) as an argument, so a test can
skip hours and name its ids.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from binascii import b2a_base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from os import urandom
from typing import Final, Protocol

_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


def seed_after_restore() -> None:
    """Seed the numbers of `random`, where this process may be one of many that go on from one
    snapshot: they would all draw the same ones, for the ids of OpenTelemetry and in tools. Ours are
    the system's (`urandom`)."""
    if os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "snap-start":
        random.seed()


class Timer(Protocol):
    """What `Clock.call_later` returns."""

    def cancel(self) -> None:
        """Do not call back."""


class Clock:
    """The real clock."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """A clock in milliseconds that only ever goes forward; its zero means nothing."""
        return time.monotonic_ns() / 1_000_000

    def new_id(self) -> str:
        """128 random bits as 22 URL-safe characters."""
        return b2a_base64(urandom(16), newline=False)[:22].translate(_URL_SAFE).decode()

    def fraction(self) -> float:
        """A random number from 0 to 1, without 1."""
        return int.from_bytes(urandom(4), "big") / 2**32

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back once that time is over, in the running event loop."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    def pass_time(self) -> bool:
        """Called when a handler has come to rest and waits for nothing but time. A clock of
        tests moves on to the next moment that somebody waits for; the real one takes its time,
        and says so with `False`."""
        return False

    def deadline(self, in_ms: float | None) -> Deadline:
        """A deadline that many milliseconds from now; `None` never comes."""
        return Deadline(self, None if in_ms is None else self.monotonic_ms() + in_ms)


@dataclass(slots=True)
class Deadline:
    """The moment by which a call has to have its answer. `at_ms` is on the
    clock's monotonic scale."""

    clock: Clock
    at_ms: float | None

    def remaining_ms(self) -> float | None:
        """Milliseconds left, never below 0; `None` when there is no limit."""
        return None if self.at_ms is None else max(0.0, self.at_ms - self.clock.monotonic_ms())

    @property
    def is_past(self) -> bool:
        return self.remaining_ms() == 0.0


def iso(at_ms: int) -> str:
    """A moment as ISO 8601 in UTC, to the millisecond: `2026-11-21T22:06:42.123Z`."""
    return f"{_iso_second(at_ms // 1000)}.{at_ms % 1000:03d}Z"


@lru_cache(maxsize=4)
def _iso_second(at_s: int) -> str:
    """Kept, because the lines of a log have a second in common: it takes 4 µs, half as
    much as all of a line."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s))
