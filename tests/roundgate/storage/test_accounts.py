"""Accounts under any sequence of writes, of any processes, at any time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.errors import QuotaExceeded
from roundgate.storage.accounts import PART, Accounts, period_end
from roundgate.storage.ports import SessionRow
from tests.support.clocks import FixedClock

HOUR_MS = 3_600_000
MOST = 1_000_000


class Rows:
    """A session store in memory. A write may lose, as if another process had been first."""

    def __init__(self, clock: FixedClock) -> None:
        self.clock = clock
        self.kept: dict[str, SessionRow] = {}
        self.loses = False

    async def read(self, key: str) -> SessionRow | None:
        row = self.kept.get(key)
        return None if row is None or row.forget_ms < self.clock.now_ms() else row

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        return await self.read(key) is None and self._write(key, value, forget_ms)

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        return self.kept[key].version == version and self._write(key, value, forget_ms)

    def _write(self, key: str, value: bytes, forget_ms: int) -> bool:
        if self.loses:
            self.loses = False
            return False
        before = self.kept.get(key)
        self.kept[key] = SessionRow(value, before.version + 1 if before else 1, forget_ms)
        return True


PROCESS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(st.just("write"), PROCESS, st.integers(0, MOST // 2), st.integers(1, 100 * HOUR_MS)),
    st.tuples(st.just("give back"), PROCESS, st.just(0), st.just(0)),
    st.tuples(st.just("die"), PROCESS, st.just(0), st.just(0)),
    st.tuples(st.just("lose"), PROCESS, st.just(0), st.just(0)),
    st.tuples(st.just("wait"), PROCESS, st.just(0), st.integers(1, 30 * HOUR_MS)),
)


@given(st.lists(STEPS, max_size=40))
def test_no_more_than_the_limit_is_stored_at_any_time(steps: list[Any]) -> None:
    asyncio.run(follow(steps))


async def follow(steps: list[Any]) -> None:
    clock = FixedClock()
    rows: Any = Rows(clock)
    processes = [Accounts(rows, clock, MOST) for _ in range(3)]
    stored: list[tuple[int, int]] = []
    """Size and end of what was written."""
    last: dict[int, Any] = {}
    for what, process, size, time_ms in steps:
        accounts = processes[process]
        match what:
            case "write":
                try:
                    last[process] = await accounts.reserve("ann", size, clock.now_ms() + time_ms)
                except QuotaExceeded:
                    ahead = MOST - await accounts.usage("ann")
                    assert size > ahead, "there was room"
                else:
                    stored.append((size, clock.now_ms() + time_ms))
            case "give back" if process in last:
                reserved = last.pop(process)
                accounts.give_back(reserved)
                stored.remove(next(one for one in reversed(stored) if one[0] == reserved.size))
            case "die":
                processes[process] = Accounts(rows, clock, MOST)
                last.pop(process, None)
            case "lose":
                rows.loses = True
            case "wait":
                clock.skip(time_ms / 1000)
                last.clear()
        stored = [one for one in stored if one[1] > clock.now_ms()]
        assert sum(size for size, _ in stored) <= await accounts.usage("ann") <= MOST


def test_a_process_reserves_a_part_of_what_is_free() -> None:
    async def free_after(writes: int) -> int:
        clock = FixedClock()
        rows: Any = Rows(clock)
        for _ in range(writes):
            await Accounts(rows, clock, MOST).reserve("ann", 1, clock.now_ms() + HOUR_MS)
        return MOST - await Accounts(rows, clock, MOST).usage("ann")

    assert asyncio.run(free_after(1)) == MOST - MOST // PART
    assert asyncio.run(free_after(300)) > 0


@pytest.mark.parametrize("life_ms", [1, 60_000, 900_000, HOUR_MS, 30 * 24 * HOUR_MS])
def test_bytes_never_count_shorter_than_asked_nor_for_a_quarter_longer(life_ms: int) -> None:
    now_ms = 1_764_187_200_123
    step_ms = max(1, life_ms // 99)
    for offset in range(0, life_ms, step_ms):
        end_ms = period_end(now_ms + offset + life_ms, now_ms + offset)
        assert 0 <= end_ms - (now_ms + offset + life_ms) <= max(life_ms, 60_000) // 4
    offsets = range(0, life_ms, step_ms)
    assert len({period_end(now_ms + t + life_ms, now_ms + t) for t in offsets}) <= 10
