"""Token buckets under any sequence of calls, compared with a bucket of exact fractions."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roundgate.errors import Unavailable
from roundgate.storage.rates import AWAY_MS, BLOCKS, LocalBuckets, Quota, SharedBuckets
from tests.roundgate.storage.rate_contract import take
from tests.roundgate.storage.test_accounts import Rows
from tests.support.clocks import FixedClock

ANN = ("issuer", "ann", "cli")


class Reference:
    """A bucket as a textbook has it."""

    def __init__(self, quota: Quota, extra: int = 0) -> None:
        self.per_ms = Fraction(quota.per_minute, 60_000)
        self.most = Fraction(quota.burst + extra)
        self.tokens = self.most
        self.returned = 0
        """Tokens that calls gave back, which their process keeps until it needs them."""

    def wait(self, elapsed_ms: int) -> None:
        self.tokens = min(self.most, self.tokens + elapsed_ms * self.per_ms)

    def take(self) -> bool:
        has_one = self.tokens >= 1
        self.tokens -= has_one
        if has_one or not self.returned:
            return has_one
        self.returned -= 1
        return True


QUOTAS = st.builds(Quota, st.integers(1, 100_000), st.integers(1, 50))
STEPS = st.lists(st.one_of(st.just(0), st.integers(1, 120_000)), max_size=60)
"""Milliseconds to wait; a call after each."""


@given(QUOTAS, STEPS)
def test_a_bucket_in_memory_is_exact(quota: Quota, steps: list[int]) -> None:
    async def follow() -> None:
        clock, reference = FixedClock(), Reference(quota)
        buckets = LocalBuckets(quota, clock.monotonic_ms)
        for wait_ms in steps:
            clock.skip(wait_ms / 1_000)
            reference.wait(wait_ms)
            told_ms = await take(buckets)
            assert (told_ms == 0) == reference.take()
            if told_ms:
                assert reference.tokens + told_ms * reference.per_ms >= 1
                assert reference.tokens + (told_ms - 1) * reference.per_ms < 1

    asyncio.run(follow())


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 2), st.integers(1, 30)),
        st.tuples(st.just("wait"), st.integers(1, 5_000), st.just(0)),
        st.tuples(st.just("die"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("lose"), st.just(0), st.just(0)),
        st.tuples(st.just("give back"), st.integers(0, 2), st.just(0)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("burst", [1, 20, 599, 3_000])
@example(moves=[("call", 2, 1), ("give back", 2, 0), ("wait", 1_000, 0), ("call", 2, 2)])
@given(moves=MOVES)
def test_processes_together_allow_no_more_than_one_bucket(
    burst: int, moves: list[tuple[str, int, int]]
) -> None:
    asyncio.run(follow(Quota(60 * burst, burst), moves))


async def follow(quota: Quota, moves: list[tuple[str, int, int]]) -> None:
    clock = FixedClock()
    rows: Any = Rows(clock)
    unused = max(1, quota.burst // BLOCKS) - 1

    def process() -> SharedBuckets:
        return SharedBuckets("callers", quota, rows, clock)

    processes = [process() for _ in range(3)]
    reference = Reference(quota, 3 * unused)
    taken = [0, 0, 0]
    for what, number, count in moves:
        match what:
            case "call":
                for _ in range(count):
                    if await take(processes[number]) == 0:
                        taken[number] += 1
                        assert reference.take(), "a call too many"
            case "wait":
                clock.skip(number / 1_000)
                reference.wait(number)
                taken = [0, 0, 0]
            case "die":
                processes[number] = process()
                taken[number] = 0
            case "lose":
                rows.loses = True
            case "give back" if taken[number]:
                processes[number].give_back(ANN)
                taken[number] -= 1
                reference.returned += 1


async def test_a_forgotten_caller_gains_at_most_one_call() -> None:
    clock, quota = FixedClock(), Quota(60, 10)
    buckets = LocalBuckets(quota, clock.monotonic_ms, most=5)

    async def calls(subject: str) -> int:
        count = 0
        while await take(buckets, ("issuer", subject, "")) == 0:
            count += 1
        return count

    assert await calls("ann") == 10
    for number in range(5):
        assert await calls(f"other {number}") == 10
    assert await calls("ann") == 1, "was forgotten, and gains one"
    assert await calls("somebody new") == 1
    clock.skip(5)
    assert await calls("somebody newer") == 5
    clock.skip(10)
    assert await calls("the newest") == 10


async def test_memory_is_bounded() -> None:
    clock = FixedClock()
    rows: Any = Rows(clock)
    local = LocalBuckets(Quota(1, 1), clock.monotonic_ms, most=10)
    shared = SharedBuckets("callers", Quota(1, 1), rows, clock, most=10)
    for number in range(100):
        await take(local, ("issuer", str(number), ""))
        await take(shared, ("issuer", str(number), ""))
    assert len(local._known) == len(shared._known) == 10
    for number in range(100):
        assert await take(shared, ("issuer", str(number), "")) > 0, "the rows remember"


class Away(Rows):
    """A store that can be unavailable."""

    is_away = False
    asked = 0

    async def read(self, key: str) -> Any:
        self.asked += 1
        if self.is_away:
            raise Unavailable("The store cannot be used just now")
        return await super().read(key)


async def test_each_process_counts_by_itself_while_the_store_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FixedClock()
    rows: Any = Away(clock)
    rows.is_away = True
    buckets = SharedBuckets("callers", Quota(60, 10), rows, clock)
    assert [await take(buckets) for _ in range(12)].count(0) == 10
    assert rows.asked == 1, "a store that is down is not asked by every call"
    for _ in range(3):
        clock.skip(AWAY_MS / 1_000)
        assert await take(buckets) == 0
    assert [record.message for record in caplog.records].count(
        "each process counts calls by itself, because the store is unavailable"
    ) == 1
    clock.skip(AWAY_MS / 1_000)
    rows.is_away = False
    assert [await take(buckets) for _ in range(12)].count(0) == 10


async def test_a_new_quota_counts_from_where_the_old_one_stopped() -> None:
    clock = FixedClock()
    rows: Any = Rows(clock)
    for buckets in (
        LocalBuckets(Quota(60, 10), clock.monotonic_ms),
        SharedBuckets("callers", Quota(60, 10), rows, clock),
    ):
        assert [await take(buckets) for _ in range(10)].count(0) == 10
        buckets.quota = Quota(600, 100)
        assert await take(buckets) > 0
        clock.skip(1)
        assert [await take(buckets) for _ in range(20)].count(0) == 10
        clock.skip(10)
        buckets.quota = Quota(60, 5)
        assert [await take(buckets) for _ in range(20)].count(0) == 5
