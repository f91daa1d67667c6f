"""The sweep: what no message reminds anybody of any more is found when it is due, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from app.protocol.tasks import Status
from app.replay.context import Context
from app.storage.tasks import Claimed, TaskRef
from app.tasks import sweep
from app.tasks.ending import Turn
from tests.support.clocks import FixedClock
from tests.support.replay import Name
from tests.support.tasks import Shared, Workshop

Share = Callable[..., Shared]


async def quick(ctx: Context) -> str:
    return "quick"


async def asks(ctx: Context) -> str:
    return (await ctx.elicit("who", "Who?", Name)).name


async def sleeps_long(ctx: Context) -> str:
    await ctx.sleep(7_200)
    return "awake"


@pytest.fixture
def shop(shared: Shared) -> Workshop:
    return shared.workshop(quick=quick, asks=asks, sleeps=sleeps_long)


async def lose_messages(shop: Workshop) -> None:
    while messages := await shop.messages():
        await shop.queue.delete(messages)


async def refs_sent(shop: Workshop) -> list[TaskRef]:
    sent: list[TaskRef] = []
    while messages := await shop.messages():
        await shop.queue.delete(messages)
        sent += [message.ref for message in messages]
    return sent


async def test_a_task_whose_message_was_lost_is_sent_again_when_it_is_due(shop: Workshop, clock: FixedClock) -> None:
    ref = await shop.begin("quick")
    await lose_messages(shop)
    clock.skip(shop.config.requeue_after_s - 0.001)
    assert await shop.sweep.sweep() == 0
    clock.skip(0.001)
    assert await shop.sweep.sweep() == 1
    assert await shop.turns() == [Turn.FINISHED]
    assert await shop.value(ref) == "quick"


async def test_an_answered_task_whose_message_was_lost_is_sent_again(shop: Workshop, clock: FixedClock) -> None:
    ref = await shop.begin("asks")
    await shop.turns()
    clock.skip(5_000)
    await shop.answer(ref, who={"action": "accept", "content": {"name": "me"}})
    await lose_messages(shop)
    clock.skip(shop.config.requeue_after_s)
    await shop.sweep.sweep()
    assert await shop.turns() == [Turn.FINISHED]


async def test_a_task_whose_worker_died_is_sent_when_its_lease_is_over(shop: Workshop, clock: FixedClock) -> None:
    ref = await shop.begin("quick")
    await lose_messages(shop)
    assert isinstance(await shop.worker.claim(ref), Claimed)
    clock.skip(shop.config.lease_s - 0.001)
    assert await shop.sweep.sweep() == 0
    clock.skip(0.001)
    assert await shop.sweep.sweep() == 1
    assert await shop.turns() == [Turn.FINISHED]


async def test_a_sleep_longer_than_a_message_can_be_delayed_is_ended_by_the_sweep(
    shop: Workshop, clock: FixedClock
) -> None:
    ref = await shop.begin("sleeps")
    assert await shop.turns() == [Turn.RELEASED]
    clock.skip(7_199.9)
    assert await shop.sweep.sweep() == 0
    assert await refs_sent(shop) == []
    clock.skip(0.1)
    assert await shop.sweep.sweep() == 1
    assert await shop.turns() == [Turn.FINISHED]
    assert await shop.value(ref) == "awake"


@pytest.mark.parametrize("tool", ["quick", "asks"], ids=["working", "input_required"])
async def test_an_open_task_past_its_time_is_ended_and_sent_to_nobody(
    shop: Workshop, clock: FixedClock, tool: str
) -> None:
    ref = await shop.begin(tool)
    if tool == "asks":
        await shop.turns()
    await lose_messages(shop)
    clock.skip(shop.config.ttl_s)
    assert await shop.sweep.sweep() == 1
    assert await refs_sent(shop) == []
    (kept,) = await shop.store.find()
    assert (kept.ref, kept.status, kept.due_ms) == (ref, Status.FAILED, None)
    assert await shop.sweep.sweep() == 0


async def test_a_backlog_is_not_flooded_with_messages(share: Share, clock: FixedClock) -> None:
    """Nobody works: each task is sent once each `requeue_after_s`, however often and by however many is swept."""
    shared = share(requeue_after_s=30)
    shops = [shared.workshop(quick=quick) for _ in range(3)]
    refs = [await shops[0].begin("quick") for _ in range(25)]
    await lose_messages(shops[0])
    sent: list[TaskRef] = []
    for _ in range(60):  # five minutes, a sweep every five seconds by each of three
        clock.skip(5)
        await asyncio.gather(*(shop.sweep.sweep() for shop in shops))
        sent += await refs_sent(shops[0])
    assert {ref: sent.count(ref) for ref in refs} == dict.fromkeys(refs, 10)


async def test_more_late_tasks_than_one_look_finds_are_all_found(
    shop: Workshop, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "AT_ONCE", 4)
    refs = [await shop.begin("quick") for _ in range(10)]
    await lose_messages(shop)
    clock.skip(60)
    assert await shop.sweep.sweep() == 10
    assert sorted(await refs_sent(shop)) == sorted(refs)


async def test_what_is_over_is_never_late(shop: Workshop, clock: FixedClock) -> None:
    await shop.begin("quick")
    ref = await shop.begin("quick")
    await shop.cancel(ref)
    await shop.turns()
    clock.skip(80_000)
    assert await shop.sweep.sweep() == 0


async def test_the_census_counts_open_tasks_and_how_old_and_late_they_are(shop: Workshop, clock: FixedClock) -> None:
    await shop.begin("asks")
    await shop.turns()
    clock.skip(100)
    await shop.begin("quick")
    clock.skip(50)
    await shop.begin("quick")
    await shop.cancel(await shop.begin("quick"))
    census = await shop.sweep.census()
    assert dict(census.open) == {"working": 2, "input_required": 1}
    assert dict(census.oldest_s) == {"working": 50.0, "input_required": 150.0}
    assert census.overdue_s == 20.0


async def test_the_census_of_nothing_is_zeros(shop: Workshop) -> None:
    census = await shop.sweep.census()
    assert (dict(census.open), census.overdue_s) == ({"working": 0, "input_required": 0}, 0)
