"""Time and ids: the real clock's promises, and deadlines on a clock that the test moves."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from roundgate.clock import Clock, Deadline


@dataclass
class Skipping(Clock):
    """A clock that stands still until it is told otherwise."""

    at_ms: float = 1000.0

    def monotonic_ms(self) -> float:
        return self.at_ms


def test_now_is_the_wall_clock_in_whole_milliseconds() -> None:
    before, now, after = time.time() * 1000, Clock().now_ms(), time.time() * 1000
    assert isinstance(now, int)
    assert before - 1 <= now <= after


def test_monotonic_time_is_in_milliseconds_and_never_goes_back() -> None:
    clock = Clock()
    before = time.monotonic() * 1000
    readings = [clock.monotonic_ms() for _ in range(1000)]
    assert readings == sorted(readings)
    assert before <= readings[0] <= readings[-1] <= time.monotonic() * 1000


def test_an_id_is_128_random_bits_in_url_safe_characters() -> None:
    ids = [Clock().new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", one) for one in ids)


def test_no_id_looks_like_an_option_of_a_command() -> None:
    clock = Clock()
    assert not any(clock.new_id().startswith("-") for _ in range(2_000))


def test_a_deadline_counts_down_and_stops_at_nothing() -> None:
    clock = Skipping()
    deadline = clock.deadline(250)
    assert (deadline.remaining_ms(), deadline.is_past) == (250, False)
    clock.at_ms += 249.5
    assert (deadline.remaining_ms(), deadline.is_past) == (0.5, False)
    clock.at_ms += 0.5
    assert (deadline.remaining_ms(), deadline.is_past) == (0, True)
    clock.at_ms += 60_000
    assert (deadline.remaining_ms(), deadline.is_past) == (0, True)


def test_without_a_limit_a_deadline_never_comes() -> None:
    clock = Skipping()
    deadline = clock.deadline(None)
    clock.at_ms += 1e12
    assert (deadline.remaining_ms(), deadline.is_past) == (None, False)


def test_a_deadline_of_no_time_is_past_at_once() -> None:
    clock = Skipping()
    assert clock.deadline(0).is_past
    assert clock.deadline(-5).remaining_ms() == 0


def test_a_deadline_is_a_moment_on_its_clock() -> None:
    clock = Skipping()
    assert clock.deadline(500) == Deadline(clock, 1500)
