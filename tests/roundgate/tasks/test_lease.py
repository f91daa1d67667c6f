"""The time of a lease, and when a sweep looks for a task whose worker may have died."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from roundgate.clock import Moment
from roundgate.errors import Unavailable
from roundgate.replay.context import Context
from roundgate.storage.tasks import TaskRecord, TaskRef
from roundgate.tasks import lease
from roundgate.tasks.events import Checkpoint, UnderLease
from roundgate.tasks.lease import LeaseTime
from roundgate.tasks.stored import Claimed, Lease
from roundgate.tasks.turn import TurnResult
from tests.support.clocks import FixedClock
from tests.support.crashes import called
from tests.support.tasks import Share, Shared, Waiting, Workshop, quick

LEASE_MS, SKEW_MS = 30_000, 60_000
SKEW_S = 5
"""With SQLite."""


def lease_time(clock: FixedClock, skew_ms: int = SKEW_MS) -> LeaseTime:
    left = LeaseTime(clock, LEASE_MS, skew_ms)
    left.claimed(clock.now_ms() + LEASE_MS)
    return left


@pytest.mark.parametrize("skew_ms", [0, 5_000, SKEW_MS])
@pytest.mark.parametrize("seed", range(20))
def test_a_task_comes_due_after_the_next_heartbeat_and_before_its_lease_has_lapsed(
    seed: int, skew_ms: int
) -> None:
    """Heartbeats each second; some renewals come with a step, at any time."""
    chance, clock, moved = random.Random(seed), FixedClock(), 0
    left, due_ms = lease_time(clock, skew_ms), clock.now_ms() + chance.randint(-5_000, 35_000)
    until_ms = clock.now_ms() + LEASE_MS
    due_ms = min(due_ms, until_ms + skew_ms)
    for _ in range(1_000):
        clock.skip(chance.choice([0.1, 0.5, 1]))
        is_beat = left.is_half_over or left.is_due_soon(due_ms)
        if not is_beat and chance.random() > 0.05:
            assert due_ms > clock.now_ms()
            continue
        sent = Moment.now(clock)
        new_ms = left.due_ms(sent, due_ms)
        left.renewed(sent)
        until_ms, moved = left.until_ms(sent), moved + (new_ms is not None)
        due_ms = due_ms if new_ms is None else new_ms
        assert clock.now_ms() < due_ms <= until_ms + skew_ms
    passed_ms = clock.now_ms() - FixedClock().now_ms()
    assert moved <= 2 + passed_ms / (LEASE_MS * 4 / 5 + skew_ms)


def test_of_two_renewals_the_later_one_counts_whichever_is_told_first() -> None:
    clock = FixedClock()
    left, first = lease_time(clock), Moment.now(clock)
    clock.skip(10)
    second = Moment.now(clock)
    left.renewed(second)
    left.renewed(first)
    assert left.left_ms == LEASE_MS


# what workers write


class Counting:
    """A store that counts its calls, and remembers how the row was after each write under the lease."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self.calls: list[str] = []
        self.rows: list[TaskRecord] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            what = called(name, args)
            self.calls.append(what)
            value = await getattr(self._shop.store, name)(*args, **kwargs)
            if what in ("claim", "checkpoint"):
                ref: TaskRef = args[0] if what == "claim" else args[0].ref
                self.rows.append(await self._shop.record(ref))
            return value

        return call

    def worker(self) -> Workshop:
        """A process whose store it is."""
        store: Any = self
        return replace(self._shop, store=store)


async def test_steps_renew_the_lease_and_nothing_else_is_written(
    shared: Shared, clock: FixedClock
) -> None:
    async def steps(ctx: Context) -> str:
        for n in range(20):
            await ctx.step(f"{n}", clock.skip, 14)
        return "done"

    shop = shared.workshop(steps=steps)
    counting = Counting(shop)
    ref = await shop.begin("steps")
    assert await counting.worker().worker.work(ref) is TurnResult.FINISHED
    # the heartbeat may look at the row meanwhile, once a second
    written = [call for call in counting.calls if call != "read"]
    assert written == ["claim", *["checkpoint"] * 20, "finish"]
    lapse_ms = [row.lease_until_ms + SKEW_S * 1000 for row in counting.rows]
    dues_ms = [row.due_ms or 0 for row in counting.rows]
    assert all(due_ms <= at_ms for due_ms, at_ms in zip(dues_ms, lapse_ms, strict=True))
    assert lapse_ms == sorted(set(lapse_ms)), "each extends it"
    assert len({*dues_ms}) == 8, "which costs twice as much as the step itself"


async def test_the_heartbeat_moves_a_task_that_is_claimed_shortly_before_it_is_due(
    share: Share, clock: FixedClock
) -> None:
    """Not by the claim: most tasks are over by then."""
    waiting = Waiting()
    shared = share(lease_s=6, requeue_after_s=1)
    shop = shared.workshop(waits=waiting.run)
    ref = await shop.begin("waits")
    created_ms = (await shop.record(ref)).due_ms
    counting = Counting(shop)
    turn = asyncio.create_task(counting.worker().worker.work(ref))
    clock.skip(0.5)
    found = await shop.until(ref, lambda record: record.due_ms != created_ms)
    assert found.due_ms == found.lease_until_ms + SKEW_S * 1000
    waiting.free.set()
    assert await turn is TurnResult.FINISHED
    assert counting.calls == ["claim", "checkpoint", "finish"]


class Silent:
    """A store whose answers to checkpoints get lost, after some time; it is told of attempts in vain."""

    def __init__(self, shop: Workshop, clock: FixedClock, lost: int, after_s: float) -> None:
        self._shop = shop
        self._clock = clock
        self._lost = lost
        self._after_s = after_s
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shop.store, name)

    async def write(self, lease: Lease, event: UnderLease, now_ms: int) -> None:
        await self._shop.store.write(lease, event, now_ms)
        if not isinstance(event, Checkpoint):
            return
        self.calls["with entries" if event.added.entries else "renewal"] += 1
        if self._lost:
            self._lost -= 1
            self._clock.skip(self._after_s)
            raise Unavailable("no answer")


@pytest.mark.parametrize(("after_s", "renewals"), [(10, 0), (25, 1)])
async def test_the_first_of_several_attempts_to_write_a_step_counts_for_the_lease(
    shared: Shared,
    clock: FixedClock,
    monkeypatch: pytest.MonkeyPatch,
    after_s: float,
    renewals: int,
) -> None:
    """The row may have the end that the first attempt gave it: too little is left of
    that for a step to begin."""
    monkeypatch.setattr(lease, "PAUSES_S", (0,) * 4)
    left_ms: list[int] = []

    async def look() -> None:
        left_ms.append((await shop.record(ref)).lease_until_ms - clock.now_ms())

    async def steps(ctx: Context) -> None:
        await ctx.step("one", lambda: 1)
        await ctx.step("two", look)

    shop = shared.workshop(steps=steps)
    ref = await shop.begin("steps")
    store: Any = Silent(shop, clock, 1, after_s)
    assert await replace(shop, store=store).worker.work(ref) is TurnResult.FINISHED
    assert store.calls == Counter({"with entries": 3} | ({"renewal": 1} if renewals else {}))
    assert left_ms[0] >= 7_500


# what sweeps make of it


@pytest.mark.parametrize("waited_s", [0, 12, 29, 31, 45, 100, 1_000])
async def test_a_task_of_a_dead_worker_is_found_when_its_lease_ends_however_long_it_waited(
    shared: Shared, clock: FixedClock, waited_s: int
) -> None:
    shop = shared.workshop(quick=quick)
    ref = await shop.begin("quick")
    for _ in range(waited_s):
        clock.skip(1)
        await shop.sweep.sweep()
        await shop.lost()
    await shop.lost()
    assert isinstance(await shop.worker.claim(ref), Claimed)
    lapses_s = int(shop.config.lease_s + SKEW_S)
    for second in range(1, lapses_s + 1):
        clock.skip(1)
        late = await shop.sweep.sweep()
        assert (late, await shop.lost()) == ((0, []) if second < lapses_s else (1, [ref]))


async def test_a_worker_that_goes_on_is_left_alone_by_every_sweep(
    shared: Shared, clock: FixedClock
) -> None:
    async def steps(ctx: Context) -> str:
        for n in range(100):
            await ctx.step(f"{n}", step)
        return "done"

    async def step() -> None:
        clock.skip(7)
        found.append((await shop.sweep.sweep(), *await shop.lost()))

    found: list[Any] = []
    shop = shared.workshop(steps=steps)
    ref = await shop.begin("steps")
    await shop.lost()
    assert await shop.worker.work(ref) is TurnResult.FINISHED
    assert found == [(0,)] * 100
