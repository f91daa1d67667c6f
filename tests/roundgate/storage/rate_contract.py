"""What shared token buckets promise on every session store: a suite that the test of each store
inherits.

A test of a store gives the fixture `open_sessions`, which makes a store on the same data, as another
process would; `clock` is the clock of all.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roundgate.storage.ports import SessionRow, SessionStore
from roundgate.storage.rates import BLOCKS, MARGIN_MS, Buckets, Caller, Quota, SharedBuckets
from tests.support.clocks import FixedClock

ANN, BOB = ("issuer", "ann", "cli"), ("issuer", "bob", "cli")
MINUTE_S = 60


async def take(buckets: Buckets, caller: Caller = ANN) -> int:
    """Take a token, if necessary from the store."""
    return await buckets.take(caller)


async def flood(processes: list[SharedBuckets], caller: Caller = ANN) -> int:
    """The calls of a caller that floods all processes at once until each refuses."""

    async def calls(buckets: SharedBuckets) -> int:
        count = 0
        while not await take(buckets, caller):
            count += 1
        return count

    return sum(await asyncio.gather(*map(calls, processes)))


class RateContract:
    """However many processes there are, they allow as many calls as one bucket."""

    @pytest.fixture
    def processes(
        self, store: SessionStore, another: SessionStore, clock: FixedClock
    ) -> list[SharedBuckets]:
        stores = (store, another, store)
        return [SharedBuckets("callers", Quota(60, 20), rows, clock) for rows in stores]

    async def test_a_higher_quota_counts_at_once(
        self, processes: list[SharedBuckets], clock: FixedClock
    ) -> None:
        assert await flood(processes) == 20
        for buckets in processes:
            buckets.quota = Quota(6_000, 20)
        clock.skip(0.01)
        assert await flood(processes) == 1
        clock.skip(1)
        assert await flood(processes) == 20

    async def test_all_processes_together_allow_the_burst_and_then_the_rate(
        self, processes: list[SharedBuckets], clock: FixedClock
    ) -> None:
        assert await flood(processes) == 20
        for seconds in (5, 1, 10):
            clock.skip(seconds)
            assert await flood(processes) == seconds
        clock.skip(10 * MINUTE_S)
        assert await flood(processes) == 20, "a bucket holds no more than the burst"

    async def test_callers_and_limits_have_buckets_of_their_own(
        self, processes: list[SharedBuckets], store: SessionStore, clock: FixedClock
    ) -> None:
        other_limit = SharedBuckets("tools *", Quota(60, 3), store, clock)
        assert await flood(processes) == 20
        for caller in (BOB, ("issuer", "ann", "web"), ("other", "ann", "cli")):
            assert await flood(processes[:1], caller) == 20
        assert await flood([other_limit]) == 3

    async def test_blocks_allow_no_call_too_many_and_cost_few_writes(
        self, store: SessionStore, another: SessionStore, clock: FixedClock
    ) -> None:
        quota = Quota(3_000, 3_000)
        counting: list[Any] = [_Counting(rows) for rows in (store, another)]
        processes = [SharedBuckets("callers", quota, rows, clock) for rows in counting]
        assert await flood(processes) == 3_000
        writes = sum(rows.writes for rows in counting)
        assert BLOCKS <= writes < 2 * BLOCKS + 20

    async def test_a_call_of_a_caller_of_one_process_is_at_most_one_operation(
        self, store: SessionStore, clock: FixedClock
    ) -> None:
        counting: Any = _Counting(store)
        buckets = SharedBuckets("callers", Quota(60, 20), counting, clock)
        assert await take(buckets) == 0
        for _ in range(10):
            clock.skip(2)
            before = counting.operations
            assert await take(buckets) == 0
            assert counting.operations == before + 1
        await flood([buckets])
        before = counting.operations
        for _ in range(100):
            assert await take(buckets) > 0
        assert counting.operations == before, "an empty bucket is not looked at again"
        clock.skip(1)
        await asyncio.gather(*(take(buckets) for _ in range(100)))
        assert counting.operations <= before + 3, "nor by calls that wait for each other"

    async def test_a_call_of_a_caller_of_several_processes_is_two_operations(
        self, store: SessionStore, another: SessionStore, clock: FixedClock
    ) -> None:
        counting: list[Any] = [_Counting(rows) for rows in (store, another)]
        processes = [SharedBuckets("callers", Quota(60, 20), rows, clock) for rows in counting]
        for _ in range(2):
            for buckets in processes:
                assert await take(buckets) == 0
        before = sum(rows.operations for rows in counting)
        for _ in range(4):
            for buckets in processes:
                assert await take(buckets) == 0
        assert sum(rows.operations for rows in counting) == before + 16
        for _ in range(3):
            assert await take(processes[0]) == 0
        before = counting[0].operations
        assert await take(processes[0]) == 0
        assert counting[0].operations == before + 1, "again the only one"

    async def test_a_refused_caller_is_told_when_it_may_call_again(
        self, processes: list[SharedBuckets], clock: FixedClock
    ) -> None:
        await flood(processes)
        for buckets in processes:
            wait_ms = await take(buckets)
            assert 0 < wait_ms <= 1_000
            clock.skip(wait_ms / 1_000)
            assert await take(buckets) == 0

    async def test_a_bucket_whose_row_was_forgotten_is_full(
        self, processes: list[SharedBuckets], clock: FixedClock
    ) -> None:
        await flood(processes)
        clock.skip(MINUTE_S + 2 * MARGIN_MS / 1_000)
        assert await flood(processes) == 20
        clock.skip(3)
        assert await flood(processes) == 3

    async def test_a_process_that_dies_loses_less_than_a_block(
        self, store: SessionStore, clock: FixedClock
    ) -> None:
        quota = Quota(3_000, 3_000)
        block = quota.burst // BLOCKS
        for _ in range(5):  # each takes a block, uses one token and dies
            assert await take(SharedBuckets("callers", quota, store, clock)) == 0
        left = await flood([SharedBuckets("callers", quota, store, clock)])
        assert left == 3_000 - 5 * block

    async def test_a_process_whose_clock_is_behind_gains_nothing(
        self, store: SessionStore, another: SessionStore, clock: FixedClock
    ) -> None:
        behind = FixedClock()
        ahead = FixedClock()
        ahead.set(30)
        quota = Quota(60, 20)
        processes = [
            SharedBuckets("callers", quota, store, behind),
            SharedBuckets("callers", quota, another, ahead),
        ]
        total = 0
        for _ in range(10):
            for buckets in processes:
                total += await flood([buckets])
            behind.skip(1)
            ahead.skip(1)
        assert 20 <= total <= 20 + 30 + 10


class _Counting:
    """A session store that counts its operations."""

    def __init__(self, rows: SessionStore) -> None:
        self._rows = rows
        self.operations = self.writes = 0

    async def read(self, key: str) -> SessionRow | None:
        self.operations += 1
        return await self._rows.read(key)

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        self.operations += 1
        is_written = await self._rows.put_new(key, value, forget_ms)
        self.writes += is_written
        return is_written

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        self.operations += 1
        is_written = await self._rows.replace(key, value, version, forget_ms)
        self.writes += is_written
        return is_written
