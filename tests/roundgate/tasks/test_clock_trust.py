"""Clocks that are wrong: one of several processes, or all of them at once. No clock ends the tasks
of others, and a fleet whose clocks were set back goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from roundgate import json
from roundgate.clock import Clock
from roundgate.main import build_app
from roundgate.protocol.tasks import Status
from roundgate.replay.context import Context
from roundgate.runtime.startup import make_stores
from roundgate.settings import TasksConfig
from roundgate.storage.ports import OnceStore
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.sessions import SqliteSessions
from roundgate.tasks import events
from roundgate.tasks.events import NotClaimed
from roundgate.tasks.lease import HEARD_MS, HOLD_MS
from roundgate.tasks.turn import TurnResult
from tests.support.asgi import client, config_file, stoppable
from tests.support.clocks import FixedClock
from tests.support.jobs import JOBS
from tests.support.task_client import task_settings
from tests.support.tasks import Shared, Workshop, asks, quick

HOUR = 3_600
AHEAD = 26 * HOUR


class Fleet:
    """Processes on one file, each with a clock of its own; time passes for all of them."""

    def __init__(self, path: Path, size: int) -> None:
        self.clocks = [FixedClock() for _ in range(size)]
        self._shared = [Shared(path, clock) for clock in self.clocks]
        self.ran_by: asyncio.Queue[int] = asyncio.Queue()
        """Which process ran a task `where`, for each of them."""
        self.shops: list[Workshop] = [
            one.workshop(quick=quick, asks=asks, slow=None, where=self._where(n))
            for n, one in enumerate(self._shared)
        ]

    def _where(self, n: int) -> Callable[[Context], Awaitable[None]]:
        async def where(ctx: Context) -> None:
            self.ran_by.put_nowait(n)
            await asyncio.sleep(0.01)

        return where

    async def pass_time(self, seconds: float) -> None:
        """Every process sweeps every five seconds."""
        for _ in range(round(seconds / 5)):
            for clock, shop in zip(self.clocks, self.shops, strict=True):
                clock.skip(5)
                await shop.sweep.sweep()

    async def aclose(self) -> None:
        for one in self._shared:
            await one.aclose()


Fleets = Callable[[int], Fleet]


@pytest.fixture
async def fleets(path: Path) -> AsyncIterator[Fleets]:
    """Makes fleets of so many processes on one file."""
    made: list[Fleet] = []

    def make(size: int) -> Fleet:
        made.append(Fleet(path, size))
        return made[-1]

    yield make
    for fleet in made:
        await fleet.aclose()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "roundgate.tasks")

    def told() -> list[str]:
        return [one.message for one in caplog.records if "clock" in one.message]

    return told


@pytest.mark.parametrize("size", [2, 3, 5])
async def test_a_process_that_is_a_day_ahead_ends_no_task(
    fleets: Fleets, size: int, log: Callable[[], list[str]]
) -> None:
    fleet = fleets(size)
    right, wrong = fleet.shops[0], fleet.shops[-1]
    fleet.clocks[-1].set(AHEAD)
    await fleet.pass_time(30)
    refs = [await right.begin("quick"), await right.begin("asks")]
    await right.lost()
    await fleet.pass_time(5 * 60)
    assert {(await right.record(ref)).status for ref in refs} == {Status.WORKING}
    # two that disagree cannot know who is right; of more the majority goes on
    distrusted = fleet.shops if size == 2 else [wrong]
    assert [shop for shop in fleet.shops if shop.sweep.trouble is not None] == distrusted
    assert "the clock of this process shows 2027-01-16T" in str(wrong.sweep.trouble)
    assert "the clock is not trusted" in log()
    fleet.clocks[-1].set(-AHEAD)
    await fleet.pass_time(5 * 60)
    assert [shop.sweep.trouble for shop in fleet.shops] == [None] * size
    assert TurnResult.FINISHED in await right.turns()
    assert (await right.record(refs[0])).status is Status.COMPLETED


async def test_a_process_that_is_an_hour_ahead_takes_no_living_lease(fleets: Fleets) -> None:
    fleet = fleets(3)
    right, wrong = fleet.shops[0], fleet.shops[-1]
    fleet.clocks[-1].set(HOUR)
    await fleet.pass_time(30)
    ref = await right.begin("quick")
    assert not isinstance(await right.worker.claim(ref), NotClaimed)
    assert await wrong.worker.claim(ref, alone=True) is NotClaimed.LEASED


async def test_a_process_that_is_outvoted_takes_no_work(fleets: Fleets) -> None:
    fleet = fleets(3)
    right, _, wrong = fleet.shops
    fleet.clocks[-1].set(HOUR)
    await fleet.pass_time(30)
    refs = [await right.begin("where") for _ in range(30)]
    wrong.pool.start()
    await asyncio.sleep(0.5)  # it could have run all of them by then
    right.pool.start()
    async with asyncio.timeout(60):
        ran_by = [await fleet.ran_by.get() for _ in refs]
    for shop in (right, wrong):
        await shop.pool.stop()
    assert ran_by == [0] * 30


async def test_of_three_clocks_that_all_differ_none_is_outvoted(fleets: Fleets) -> None:
    fleet = fleets(3)
    fleet.clocks[1].set(HOUR)
    fleet.clocks[2].set(AHEAD)
    await fleet.pass_time(30)
    assert all(shop.sweep.trouble is not None for shop in fleet.shops)
    assert not any(shop.sweep.is_outvoted for shop in fleet.shops)


async def test_a_running_task_is_not_ended_by_a_clock_that_was_set_ahead(tmp_path: Path) -> None:
    shared = Shared(tmp_path / "db", clock := FixedClock(), TasksConfig(task_timeout_s=HOUR))

    async def sets_the_clock(ctx: Context) -> str:
        clock.set(AHEAD)
        await asyncio.sleep(2.5)  # a heartbeat or two
        return "done"

    shop = shared.workshop(sets=sets_the_clock)
    ref = await shop.begin("sets")
    assert await shop.turns() == [TurnResult.FINISHED]
    found = await record(shop, ref)
    assert b"done" in found.outcome
    await shared.aclose()


async def test_healthz_says_that_the_clock_is_not_trusted(tmp_path: Path) -> None:
    using = task_settings(tmp_path)
    stores = make_stores(using, Clock())
    there = {"by": "another", "now_ms": Clock().now_ms() + AHEAD * 1000, "ahead_ms": {}}
    await stores.tasks.tell_time(json.encode(there))
    async with (
        stoppable(build_app(config_file(*JOBS), using, stores=stores)) as app,
        client(app) as mcp,
    ):
        async with asyncio.timeout(60):
            health = {"status": "ok"}
            while health["status"] == "ok":
                await asyncio.sleep(0.05)
                health = (await mcp.http.get("/healthz")).json()
    assert health["status"] == "degraded"
    assert "another process on the same store" in health["troubles"][0]


async def test_a_machine_whose_clock_is_set_a_day_ahead_and_mended_loses_no_task(
    fleets: Fleets, log: Callable[[], list[str]]
) -> None:
    fleet = fleets(2)
    shop, clocks = fleet.shops[0], fleet.clocks
    await fleet.pass_time(30)
    ref = await shop.begin("asks")
    await shop.turns()
    for clock in clocks:
        clock.set(AHEAD)
    assert await shop.store.read(ref, clocks[0].now_ms()) is None  # to its client it is unknown
    await fleet.pass_time(50 * 60)
    assert (await record(shop, ref)).status is Status.INPUT_REQUIRED
    for clock in clocks:
        clock.set(-AHEAD)
    await fleet.pass_time(10 * 60)
    await shop.answer(ref, who={"action": "accept", "content": {"name": "me"}})
    assert await shop.turns() == [TurnResult.FINISHED]
    assert log().count("the clock was set") == 4


async def record(shop: Workshop, ref: Any) -> Any:
    return await shop.store.read(ref, 0)


async def test_a_clock_that_stays_ahead_is_taken_for_right_after_an_hour(fleets: Fleets) -> None:
    fleet = fleets(1)
    (shop,), (clock,) = fleet.shops, fleet.clocks
    await fleet.pass_time(30)
    ref = await shop.begin("asks")
    await shop.turns()
    clock.set(AHEAD)
    await fleet.pass_time(HOLD_MS / 1000 - 10)
    assert (await record(shop, ref)).status is Status.INPUT_REQUIRED
    await fleet.pass_time(20)
    assert (await record(shop, ref)).status is Status.FAILED


async def test_after_a_long_stop_nothing_expires_for_a_minute(fleets: Fleets) -> None:
    before = fleets(1)
    await before.pass_time(30)
    ref = await before.shops[0].begin("asks")
    await before.shops[0].turns()
    await before.aclose()
    after = fleets(1)
    after.clocks[0].skip(AHEAD)
    await after.pass_time(HEARD_MS / 1000 - 5)
    assert (await record(after.shops[0], ref)).status is Status.INPUT_REQUIRED
    await after.pass_time(15)
    assert (await record(after.shops[0], ref)).status is Status.FAILED


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
async def test_a_fleet_that_is_set_back_an_hour_goes_on(
    fleets: Fleets, size: int, restarted: bool
) -> None:
    """A worker died with a task before, and the message of another was lost."""
    fleet = fleets(size)
    shop = fleet.shops[0]
    await fleet.pass_time(30)
    died, lost = await shop.begin("quick"), await shop.begin("quick")
    assert not isinstance(await shop.worker.claim(died), NotClaimed)
    await shop.lost()
    if restarted:
        await fleet.aclose()
        fleet = fleets(size)
        shop = fleet.shops[0]
        for clock in fleet.clocks:
            clock.skip(30)
    for clock in fleet.clocks:
        clock.set(-HOUR)
    await fleet.pass_time(4 * 60)
    turns = await shop.turns()
    assert sorted(turns) == [TurnResult.FINISHED, TurnResult.FINISHED]
    for ref in (died, lost):
        assert (await shop.record(ref)).status is Status.COMPLETED


async def test_a_living_worker_keeps_its_task_when_the_clocks_are_set_back(fleets: Fleets) -> None:
    fleet = fleets(2)
    shop = fleet.shops[0]
    await fleet.pass_time(30)
    ref = await shop.begin("quick")
    claimed = await shop.worker.claim(ref)
    assert not isinstance(claimed, NotClaimed)
    for clock in fleet.clocks:
        clock.set(-HOUR)
    for _ in range(10):
        now_ms = fleet.clocks[0].now_ms()
        await shop.store.write(claimed.lease, events.Checkpoint(now_ms + 30_000), now_ms)
        await fleet.pass_time(15)
    assert (await shop.record(ref)).fence == claimed.lease.fence


async def test_a_clock_that_is_ahead_does_not_let_a_round_run_again(tmp_path: Path) -> None:
    clock = FixedClock()
    database = SqliteDatabase(tmp_path / "db")
    once = OnceStore(SqliteSessions(database, clock))
    now_ms = clock.now_ms()
    assert await once.claim("round", "{}", now_ms, now_ms + HOUR * 1000) is None
    clock.set(AHEAD)
    await once.claim("another", "{}", now_ms, clock.now_ms() + HOUR * 1000)
    clock.set(-AHEAD)
    assert await once.claim("round", "{}", now_ms, now_ms + HOUR * 1000) is not None
    await database.aclose()
