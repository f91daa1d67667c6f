"""The workers of one process: never too many at once, nobody blocked by another's trouble,
and let go of at the end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.protocol.tasks import Status
from roundgate.replay.context import Context
from roundgate.storage.tasks import TaskRef
from roundgate.tasks import pool
from roundgate.tasks.pool import Pool
from tests.support.replay import Effects
from tests.support.tasks import Share, Workshop, as_stored, quick


@asynccontextmanager
async def at_work(shop: Workshop) -> AsyncIterator[Pool]:
    shop.pool.start()
    try:
        yield shop.pool
    finally:
        await shop.pool.stop()


async def ends(shop: Workshop, *refs: TaskRef) -> list[Status]:
    """The status of each once all are over."""
    return [record.status for record in await shop.over(*refs)]


async def test_no_more_tasks_are_worked_on_at_once_than_allowed(share: Share) -> None:
    running, most, three = 0, 0, asyncio.Barrier(3)

    async def busy(ctx: Context) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await three.wait()
        await asyncio.sleep(0.02)
        running -= 1

    shop = share(Clock(), concurrency=3).workshop(busy=busy)
    refs = [await shop.begin("busy") for _ in range(12)]
    async with at_work(shop):
        assert await ends(shop, *refs) == [Status.COMPLETED] * 12
    assert most == 3


async def test_what_there_is_no_room_for_stays_in_the_queue_for_others(share: Share) -> None:
    free, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def waits(ctx: Context) -> None:
        begun.release()
        await free.wait()

    shop = share(Clock(), concurrency=2).workshop(waits=waits)
    refs = [await shop.begin("waits") for _ in range(5)]
    async with at_work(shop):
        for _ in range(2):
            await asyncio.wait_for(begun.acquire(), 60)
        left = [message.ref for message in await shop.messages()]
        assert len(left) >= 2  # one more may be on its way
        assert set(left) < set(refs)
        free.set()


async def test_a_poisonous_task_blocks_no_other(share: Share) -> None:
    async def poison(ctx: Context) -> None:
        raise RuntimeError("again and again")

    shop = share(Clock(), concurrency=1).workshop(poison=poison, quick=quick)
    await shop.queue.send(TaskRef("nobody", "nothing"))
    bad = await shop.begin("poison")
    refs = [await shop.begin("quick") for _ in range(3)]
    async with at_work(shop):
        assert await ends(shop, bad, *refs) == [Status.COMPLETED] * 4


class Broken:
    """A queue or store whose method raises the given errors first, one after another."""

    def __init__(self, port: Any, method: str, *errors: Exception) -> None:
        self._port = port
        self._method = method
        self._errors = [*errors]

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if name == self._method and self._errors:
                raise self._errors.pop(0)
            return await method(*args, **kwargs)

        return call


@pytest.mark.parametrize(
    "error",
    [Unavailable("not now"), ValueError("what is this?")],
    ids=["not reached", "not understood"],
)
@pytest.mark.parametrize("method", ["receive", "delete"])
async def test_trouble_with_the_queue_passes(
    share: Share, method: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PAUSE_AFTER_FAULT_S", 0.01)
    shop = share(Clock(), lease_s=1, requeue_after_s=1, sweep_every_s=0.1).workshop(quick=quick)
    queue: Any = Broken(shop.queue, method, error)
    broken = replace(shop, queue=queue)
    ref = await shop.begin("quick")
    async with at_work(broken):
        assert await ends(shop, ref) == [Status.COMPLETED]


async def test_a_message_that_cannot_be_deleted_does_not_keep_its_task_waiting(
    share: Share,
) -> None:
    shop = share(Clock()).workshop(quick=quick)
    queue: Any = Broken(shop.queue, "delete", Unavailable("not now"))
    shop = replace(shop, queue=queue)
    ref = await shop.begin("quick")
    async with at_work(shop):
        assert await ends(shop, ref) == [Status.COMPLETED]


@pytest.mark.parametrize(
    "error",
    [Unavailable("not now"), ValueError("what is this?")],
    ids=["not reached", "not understood"],
)
async def test_a_sweep_that_fails_is_followed_by_another(
    share: Share, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    shop = share(Clock(), requeue_after_s=1, sweep_every_s=0.05).workshop(quick=quick)
    ref = await shop.begin("quick")
    for message in await shop.messages():
        await shop.queue.delete([message])  # lost
    broken = Broken(shop.store, "due", error)
    shop = replace(shop, store=as_stored(broken))
    with caplog.at_level(logging.WARNING):
        async with at_work(shop):
            assert await ends(shop, ref) == [Status.COMPLETED]
    assert [record.message for record in caplog.records if "sweep" in record.message]


# The end


async def test_a_pool_that_stops_lets_go_at_the_next_step_and_the_task_is_queued_at_once(
    share: Share,
) -> None:
    effects, began = Effects(), asyncio.Event()

    async def step(number: int) -> None:
        effects.do(number)
        began.set()
        await asyncio.sleep(0.05)

    async def steps(ctx: Context) -> str:
        for number in range(60):
            await ctx.step("one", step, number)
        return "done"

    shared = share(Clock())
    shop = shared.workshop(steps=steps)
    ref = await shop.begin("steps")
    shop.pool.start()
    await began.wait()
    await shop.pool.stop()
    assert 0 < len(effects.seen) < 30

    other = shared.workshop(steps=steps)
    record = await other.record(ref)
    assert (record.status, record.lease_until_ms, record.wake_ms) == (Status.WORKING, 0, 0)
    assert [message.ref for message in await other.messages()] == [ref]
    before = len(effects.seen)
    assert await other.worker.work(ref) == "finished"
    assert effects.seen == list(range(60))
    assert before > 0


async def test_a_pool_that_stops_cancels_what_comes_to_no_step_and_lets_go_of_it(
    share: Share,
) -> None:
    began = asyncio.Event()

    async def waits(ctx: Context) -> None:
        began.set()
        await asyncio.sleep(600)

    shared = share(Clock(), stop_grace_s=0.2)
    shop = shared.workshop(waits=waits)
    ref = await shop.begin("waits")
    shop.pool.start()
    await began.wait()
    begun = time.monotonic()
    await shop.pool.stop()
    assert time.monotonic() - begun >= 0.2
    record = await shop.record(ref)
    assert (record.status, record.lease_until_ms) == (Status.WORKING, 0)
    assert [message.ref for message in await shared.workshop(waits=waits).messages()] == [ref]


async def test_a_turn_that_begins_while_the_pool_stops_lets_go_too(share: Share) -> None:
    effects = Effects()

    async def steps(ctx: Context) -> None:
        await ctx.step("one", effects.do, 1)

    shop = share(Clock()).workshop(steps=steps)
    ref = await shop.begin("steps")
    shop.worker.request_stop()
    assert await shop.worker.work(ref) == "released"
    assert effects.seen == []


async def test_a_pool_that_was_never_started_stops(share: Share) -> None:
    await share(Clock()).workshop(quick=quick).pool.stop()


async def test_a_stopped_pool_takes_nothing(share: Share) -> None:
    shop = share(Clock()).workshop(quick=quick)
    async with at_work(shop):
        await ends(shop, await shop.begin("quick"))
    ref = await shop.begin("quick")
    await asyncio.sleep(0.1)
    assert (await shop.record(ref)).fence == 0


class Timed:
    """A queue that is empty: it waits for messages under a time limit that ends when it is told to."""

    def __init__(self, port: Any) -> None:
        self._port = port
        self.limit = asyncio.timeout(None)
        self.waits = asyncio.Event()

    async def receive(self, limit: int, wait_ms: int, skip: Any = ()) -> list[Any]:
        self.limit = asyncio.timeout(60)
        with suppress(TimeoutError):
            async with self.limit:
                self.waits.set()
                await asyncio.Event().wait()
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


async def test_a_pool_stops_at_the_moment_its_own_time_limit_ends_a_wait(
    share: Share,
) -> None:
    """A time limit cancels the task around it, and takes that back in the next
    turn of the event loop."""
    shop = share(Clock()).workshop()
    queue = Timed(shop.queue)
    one = Pool(shop.worker, shop.sweep, queue, shop.config)
    one.start()
    await queue.waits.wait()
    queue.waits.clear()
    queue.limit.reschedule(0)
    await asyncio.sleep(0)
    await one.stop()
    await asyncio.sleep(0.05)
    assert not queue.waits.is_set(), "it goes on taking messages"
