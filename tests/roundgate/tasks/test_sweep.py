"""The sweep: a task whose message was lost is found when it is due, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import pytest

from roundgate import json
from roundgate.errors import Unavailable
from roundgate.protocol.tasks import Status
from roundgate.replay.context import Context
from roundgate.storage.ports import SessionRow, TaskQueue
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.sessions import SqliteSessions
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import OpenTask, TaskRef
from roundgate.tasks import events, sweep
from roundgate.tasks.events import Decision, Event, Postpone
from roundgate.tasks.service import ANSWER_WAIT_S
from roundgate.tasks.stored import Claimed, StoredTasks
from roundgate.tasks.sweep import Sweep
from roundgate.tasks.turn import TurnResult
from tests.support.clocks import FixedClock
from tests.support.replay import Name
from tests.support.rounds import accept
from tests.support.tasks import Share, Shared, Workshop, as_stored, asks, quick


async def sleeps_long(ctx: Context) -> str:
    await ctx.sleep(7_200)
    return "awake"


@pytest.fixture
def shop(shared: Shared) -> Workshop:
    return shared.workshop(quick=quick, asks=asks, sleeps=sleeps_long)


async def test_a_task_whose_message_was_lost_is_sent_again_when_it_is_due(
    shop: Workshop, clock: FixedClock
) -> None:
    ref = await shop.begin("quick")
    await shop.lost()
    clock.skip(shop.config.requeue_after_s - 0.001)
    assert await shop.sweep.sweep() == 0
    clock.skip(0.001)
    assert await shop.sweep.sweep() == 1
    assert await shop.turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == "quick"


async def test_an_answered_task_whose_message_was_lost_is_sent_again(
    shop: Workshop, clock: FixedClock
) -> None:
    ref = await shop.begin("asks")
    await shop.turns()
    clock.skip(5_000)
    await shop.answer(ref, who={"action": "accept", "content": {"name": "me"}})
    await shop.lost()
    clock.skip(shop.config.requeue_after_s)
    await shop.sweep.sweep()
    assert await shop.turns() == [TurnResult.FINISHED]


async def test_a_task_whose_worker_died_is_sent_when_its_lease_is_over(
    shop: Workshop, clock: FixedClock
) -> None:
    ref = await shop.begin("quick")
    await shop.lost()
    assert isinstance(await shop.worker.claim(ref), Claimed)
    clock.skip(shop.config.lease_s + 5 - 0.001)  # and by what clocks may differ
    assert await shop.sweep.sweep() == 0
    clock.skip(0.001)
    assert await shop.sweep.sweep() == 1
    assert await shop.turns() == [TurnResult.FINISHED]


async def test_a_sleep_longer_than_a_message_can_be_delayed_is_ended_by_the_sweep(
    shop: Workshop, clock: FixedClock
) -> None:
    ref = await shop.begin("sleeps")
    assert await shop.turns() == [TurnResult.RELEASED]
    clock.skip(7_199.9)
    assert await shop.sweep.sweep() == 0
    assert await shop.lost() == []
    clock.skip(0.1)
    assert await shop.sweep.sweep() == 1
    assert await shop.turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == "awake"


@pytest.mark.parametrize("tool", ["quick", "asks"], ids=["working", "input_required"])
async def test_an_open_task_past_its_time_is_ended_and_sent_to_nobody(
    shop: Workshop, clock: FixedClock, tool: str
) -> None:
    ref = await shop.begin(tool)
    if tool == "asks":
        await shop.turns()
    await shop.lost()
    clock.skip(shop.config.ttl_s)
    assert await shop.sweep.sweep() == 1
    assert await shop.lost() == []
    (kept,) = (await shop.store.find()).records
    assert (kept.ref, kept.status, kept.due_ms) == (ref, Status.FAILED, None)
    assert await shop.sweep.sweep() == 0


class Blind:
    """A queue that cannot look into itself, as SQS: it knows about how many messages it has, and not which."""

    def __init__(self, queue: TaskQueue, depth: int) -> None:
        self._queue = queue
        self.told_depth = depth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    async def waiting(self, refs: Sequence[TaskRef]) -> Collection[TaskRef] | None:
        return None

    async def depth(self) -> int | None:
        return self.told_depth


def blind(shop: Workshop, depth: int) -> Sweep:
    return Sweep(shop.store, Blind(shop.queue, depth), shop.rows, shop.clock, shop.config)


async def sent_over(
    seconds: int, shop: Workshop, clock: FixedClock, sweeps: Sequence[Sweep], every_s: int = 5
) -> list[TaskRef]:
    """What is sent while nobody works and each message is lost."""
    sent: list[TaskRef] = []
    for _ in range(seconds // every_s):
        clock.skip(every_s)
        await asyncio.gather(*(one.sweep() for one in sweeps))
        sent += await shop.lost()
    return sent


async def test_a_task_that_still_waits_is_sent_again_after_ever_longer_pauses(
    share: Share, clock: FixedClock
) -> None:
    shared = share(requeue_after_s=30, requeue_at_most_s=200)
    shops = [shared.workshop(quick=quick) for _ in range(3)]
    refs = [await shops[0].begin("quick") for _ in range(25)]
    await shops[0].lost()
    sweeps = [shop.sweep for shop in shops]
    for pause_s in (30, 30, 60, 120, 200, 200):
        assert sorted(await sent_over(pause_s, shops[0], clock, sweeps)) == sorted(refs), (
            "by each of three, once"
        )


async def test_a_task_whose_message_waits_in_the_queue_is_not_sent_again(
    shop: Workshop, clock: FixedClock
) -> None:
    refs = [await shop.begin("quick") for _ in range(50)]
    for _ in range(300):  # 25 minutes
        clock.skip(5)
        await shop.sweep.sweep()
    assert sorted(await shop.lost()) == sorted(refs)
    assert {(await shop.record(ref)).resends for ref in refs} == {0}


async def test_tasks_are_not_sent_again_while_a_queue_without_a_lookup_is_long(
    shop: Workshop, clock: FixedClock
) -> None:
    refs = [await shop.begin("quick") for _ in range(20)]
    await shop.lost()
    long = blind(shop, depth=10_000)
    assert await sent_over(25 * 60, shop, clock, [long]) == []
    assert set(await sent_over(60 * 60, shop, clock, [long])) == set(refs), (
        "in the end they are, however long it is"
    )


async def test_a_long_queue_that_knows_what_it_has_lost_is_sent_just_that(
    shop: Workshop, clock: FixedClock
) -> None:
    refs = [await shop.begin("quick") for _ in range(130)]
    lost = [message.ref for message in await shop.messages()]
    await shop.queue.delete(await shop.messages())
    clock.skip(60)
    before = await shop.queue.depth()
    await shop.sweep.sweep()
    assert await shop.queue.depth() == 130, before
    assert set(await shop.lost()) == set(refs) >= set(lost)


async def test_with_the_queue_short_again_what_was_lost_is_sent(
    shop: Workshop, clock: FixedClock
) -> None:
    refs = [await shop.begin("quick") for _ in range(20)]
    await shop.lost()
    assert await sent_over(60, shop, clock, [blind(shop, depth=10_000)]) == []
    assert sorted(await sent_over(60, shop, clock, [blind(shop, depth=3)])) == sorted(refs)


async def test_a_task_with_no_message_on_its_way_is_sent_however_long_the_queue_is(
    shop: Workshop, clock: FixedClock
) -> None:
    """Its worker died, or it slept for longer than a message can be delayed."""
    died, slept = await shop.begin("quick"), await shop.begin("sleeps")
    await shop.lost()
    assert isinstance(await shop.worker.claim(died), Claimed)
    await shop.worker.work(slept)
    long = blind(shop, depth=10_000)
    clock.skip(shop.config.lease_s + 60)
    await long.sweep()
    assert await shop.lost() == [died]
    clock.skip(7_200)
    await shop.store.apply(died, events.Cancel("over", clock.now_ms()), clock.now_ms())
    await long.sweep()
    assert await shop.lost() == [slept]


# several sweepers


class Watched:
    """A store that counts how many moves it is asked for, and takes its time over each batch."""

    def __init__(self, store: StoredTasks) -> None:
        self._store = store
        self.moves = 0
        self.taken: list[int] = []
        self.now = 0
        self.most = 0
        """The most batches at a time."""
        self.fails = False
        """Whether the next batch fails."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply_many(
        self, happening: Sequence[tuple[TaskRef, Event]], now_ms: int
    ) -> Sequence[Decision]:
        if not any(isinstance(event, Postpone) for _, event in happening):
            unmoved: Sequence[Decision] = await self._store.apply_many(happening, now_ms)
            return unmoved
        self.moves += len(happening)
        self.now += 1
        self.most = max(self.most, self.now)
        fails, self.fails = self.fails, False
        try:
            if fails:
                raise Unavailable("not this one")
            await asyncio.sleep(0.01)
            moved: Sequence[Decision] = await self._store.apply_many(happening, now_ms)
            return moved
        finally:
            self.now -= 1

    async def due(self, now_ms: int, limit: int, shard: int | None = None) -> Sequence[OpenTask]:
        self.taken += [] if shard is None else [shard]
        found: Sequence[OpenTask] = await self._store.due(now_ms, limit, shard)
        return found


async def test_sweepers_share_the_work_and_do_none_of_it_twice(
    share: Share, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "AT_ONCE", 5)
    shared = share()
    shops = [shared.workshop(quick=quick) for _ in range(4)]
    refs = [await shops[0].begin("quick") for _ in range(120)]
    await shops[0].lost()
    clock.skip(60)
    stores = [
        Watched(
            StoredTasks(
                SqliteTasks(SqliteDatabase(shared.path, durable=False), shards=8), shop.queue
            )
        )
        for shop in shops
    ]
    sweeps = [
        Sweep(as_stored(store), shop.queue, shared.rows, clock, shop.config)
        for store, shop in zip(stores, shops, strict=True)
    ]
    found = await asyncio.gather(*(one.sweep() for one in sweeps))
    assert sum(found) == sum(store.moves for store in stores) == 120
    assert min(found) > 0
    assert sorted(await shops[0].lost()) == sorted(refs)
    assert {shard for store in stores for shard in store.taken} == set(range(8))
    for store in stores:
        await store.aclose()


@pytest.fixture
async def sharded(shared: Shared, shop: Workshop, clock: FixedClock) -> AsyncIterator[Watched]:
    """A store of eight shards, with a hundred late tasks."""
    for _ in range(100):
        await shop.begin("quick")
    await shop.lost()
    clock.skip(60)
    database = SqliteDatabase(shared.path, durable=False)
    store = StoredTasks(SqliteTasks(database, shards=8), shop.queue)
    yield Watched(store)
    await store.aclose()


async def test_one_process_sweeps_a_bounded_number_of_shards_at_the_same_time(
    shop: Workshop, sharded: Watched
) -> None:
    found = await Sweep(as_stored(sharded), shop.queue, shop.rows, shop.clock, shop.config).sweep()
    assert (found, sharded.most) == (100, sweep.SIDE_BY_SIDE)
    assert set(sharded.taken) == set(range(8))
    assert len(await shop.lost()) == 100


async def test_a_shard_that_cannot_be_swept_does_not_stop_the_one_beside_it(
    shop: Workshop, sharded: Watched, clock: FixedClock
) -> None:
    sharded.fails = True
    one = Sweep(as_stored(sharded), shop.queue, shop.rows, shop.clock, shop.config)
    with pytest.raises(Unavailable):
        await one.sweep()
    sent = len(await shop.lost())
    assert sent > 0
    assert sharded.now == 0, "nothing goes on unnoticed"
    clock.skip(sweep.SHARD_MS / 1000)
    assert await one.sweep() == 100 - sent


class ReadTogether(SqliteSessions):
    """Rows that a number of sweepers have all read before one of them writes."""

    def __init__(self, database: SqliteDatabase, clock: FixedClock, read: asyncio.Barrier) -> None:
        super().__init__(database, clock)
        self._all_read = read

    async def read(self, key: str) -> SessionRow | None:
        row = await super().read(key)
        await self._all_read.wait()
        return row


@pytest.mark.parametrize("before", ["absent", "expired"])
async def test_of_sweepers_that_take_a_shard_together_one_gets_it(
    shared: Shared, shop: Workshop, clock: FixedClock, before: str
) -> None:
    barrier = asyncio.Barrier(8)
    stores = [
        ReadTogether(SqliteDatabase(shared.path, durable=False), clock, barrier) for _ in range(8)
    ]
    shared.opened += stores
    if before == "expired":
        lease = json.encode(["dead", clock.now_ms()])
        assert await stores[0].put_new("sweep.3", lease, clock.now_ms() + sweep.SHARD_AT_MOST_MS)
    sweeps = [Sweep(shop.store, shop.queue, rows, clock, shop.config) for rows in stores]
    got = await asyncio.gather(*(one._take(3, sweep.SHARD_MS) for one in sweeps))
    assert sum(got) == 1
    again = await asyncio.gather(*(one._take(3, sweep.SHARD_MS) for one in sweeps))
    assert again == got, "the one that has it goes on"


async def test_what_a_sweeper_left_that_died_is_seen_to_by_another(
    shop: Workshop, clock: FixedClock
) -> None:
    refs = [await shop.begin("quick") for _ in range(16)]
    await shop.lost()
    clock.skip(60)
    dead = json.encode(["dead", clock.now_ms() + sweep.SHARD_MS])
    for shard in range(shop.store.store.shards):
        assert await shop.rows.put_new(f"sweep.{shard}", dead, 0)
    assert await shop.sweep.sweep() == 0
    clock.skip(sweep.SHARD_MS / 1000)
    assert await shop.sweep.sweep() == 16
    assert sorted(await shop.lost()) == sorted(refs)


async def test_a_lease_of_a_shard_that_ends_too_late_came_from_a_wrong_clock(
    shop: Workshop, clock: FixedClock
) -> None:
    await shop.begin("quick")
    await shop.lost()
    clock.skip(60)
    ahead = json.encode(["ahead", clock.now_ms() + sweep.SHARD_AT_MOST_MS + 1])
    for shard in range(shop.store.store.shards):
        assert await shop.rows.put_new(f"sweep.{shard}", ahead, 0)
    assert await shop.sweep.sweep() == 1


async def test_a_sweep_stops_at_its_deadline_and_the_next_one_goes_on(
    shop: Workshop, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "AT_ONCE", 5)
    refs = [await shop.begin("quick") for _ in range(60)]
    await shop.lost()
    clock.skip(60)

    class Slow(Watched):
        async def apply_many(
            self, happening: Sequence[tuple[TaskRef, Event]], now_ms: int
        ) -> Sequence[Decision]:
            clock.skip(1 if happening else 0)
            return await super().apply_many(happening, now_ms)

    slow = Sweep(as_stored(Slow(shop.store)), shop.queue, shop.rows, clock, shop.config)
    found = await slow.sweep(clock.deadline(2_500))
    assert 0 < found <= 15
    assert found + await shop.sweep.sweep() >= 60
    assert set(await shop.lost()) == set(refs)


async def test_more_late_tasks_than_one_look_finds_are_all_found(
    shop: Workshop, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "AT_ONCE", 4)
    refs = [await shop.begin("quick") for _ in range(10)]
    await shop.lost()
    clock.skip(60)
    assert await shop.sweep.sweep() == 10
    assert sorted(await shop.lost()) == sorted(refs)


async def test_what_is_over_is_never_late(shop: Workshop, clock: FixedClock) -> None:
    await shop.begin("quick")
    ref = await shop.begin("quick")
    await shop.cancel(ref)
    await shop.turns()
    clock.skip(80_000)
    assert await shop.sweep.sweep() == 0


async def test_the_delay_is_of_the_task_that_is_most_overdue(
    shop: Workshop, clock: FixedClock
) -> None:
    assert await shop.sweep.overdue_s() == 0
    await shop.begin("asks")
    await shop.turns()
    clock.skip(100)
    await shop.begin("quick")
    clock.skip(50)
    await shop.begin("quick")
    await shop.cancel(await shop.begin("quick"))
    assert await shop.sweep.overdue_s() == 20.0


async def test_a_question_whose_time_is_over_has_its_default_and_the_next_one_another_key(
    shared: Shared, clock: FixedClock
) -> None:
    async def asks_for_a_minute(ctx: Context) -> list[str]:
        first = await ctx.elicit("who", "Who?", Name, timeout_s=60, default=Name(name="nobody"))
        return [first.name, (await ctx.elicit("who", "Who else?", Name)).name]

    shop = shared.workshop(asks=asks_for_a_minute)
    ref = await shop.begin("asks")
    assert await shop.all_turns() == [TurnResult.ASKED]
    clock.skip(59)
    assert await shop.sweep.sweep() == 0
    clock.skip(1)
    assert await shop.sweep.sweep() == 1
    assert await shop.all_turns() == [TurnResult.ASKED]
    assert list((await shop.shown(ref))["inputRequests"]) == ["who#2"]
    await shop.answer(ref, who__2=accept(name="late"))  # nobody waits for an answer to the first
    await shop.answer(ref, **{"who#2": accept(name="me")})
    await shop.all_turns()
    assert await shop.value(ref) == ["nobody", "me"]


async def test_a_sleep_beside_a_question_wakes_and_the_question_keeps_its_key(
    shared: Shared, clock: FixedClock
) -> None:
    async def both(ctx: Context) -> list[str]:
        async def sleeper() -> str:
            await ctx.sleep(60)
            slept: str = await ctx.step("after", lambda: "slept")
            return slept

        async def asker() -> str:
            return (await ctx.elicit("who", "Who?", Name)).name

        return list(await asyncio.gather(sleeper(), asker()))

    shop = shared.workshop(both=both)
    ref = await shop.begin("both")
    assert await shop.all_turns() == [TurnResult.ASKED]
    clock.skip(61)
    await shop.sweep.sweep()
    assert await shop.all_turns() == [TurnResult.ASKED]
    assert list((await shop.shown(ref))["inputRequests"]) == ["who"]
    await shop.answer(ref, who=accept(name="me"))
    await shop.all_turns()
    assert await shop.value(ref) == ["slept", "me"]


async def two_questions(ctx: Context) -> list[str]:
    async def limited() -> str:
        try:
            found = await ctx.elicit("limited", "Who, within a minute?", Name, timeout_s=60)
        except TimeoutError:
            late: str = await ctx.step("late", lambda: "nobody")
            return late
        return found.name

    async def patient() -> str:
        return (await ctx.elicit("patient", "Who?", Name)).name

    return list(await asyncio.gather(limited(), patient()))


@pytest.mark.parametrize("when", ["before", "after the sweep", "during the turn", "after it"])
async def test_an_answer_is_not_lost_when_the_limit_of_a_question_beside_it_passes(
    shared: Shared, clock: FixedClock, when: str
) -> None:
    shop = shared.workshop(two=two_questions)
    ref = await shop.begin("two")

    async def answer() -> None:
        await shop.answer(ref, patient=accept(name="me"))

    assert await shop.all_turns() == [TurnResult.ASKED]
    if when == "before":
        await answer()
    clock.skip(61)
    await shop.sweep.sweep()
    if when == "after the sweep":
        answering = asyncio.ensure_future(answer())
        await asyncio.sleep(0)
        await shop.all_turns()
        await answering
    elif when == "during the turn":
        await asyncio.gather(shop.all_turns(), answer())
    elif when == "after it":
        await shop.all_turns()
        assert list((await shop.shown(ref))["inputRequests"]) == ["patient"]
        await answer()
    await shop.all_turns()
    assert await shop.value(ref) == ["nobody", "me"]


async def test_an_answer_that_would_wait_for_too_long_is_refused_and_not_taken(
    shared: Shared, clock: FixedClock
) -> None:
    shop = shared.workshop(two=two_questions)
    ref = await shop.begin("two")
    await shop.all_turns()
    clock.skip(61)
    await shop.sweep.sweep()
    answering = asyncio.ensure_future(shop.answer(ref, patient=accept(name="me")))
    assert not (await asyncio.wait([answering], timeout=0.05))[0]
    clock.skip(ANSWER_WAIT_S)
    with pytest.raises(
        Unavailable, match="may ask this question again; send the answer again later"
    ):
        await answering
    await shop.all_turns()
    await shop.answer(ref, patient=accept(name="me"))
    await shop.all_turns()
    assert await shop.value(ref) == ["nobody", "me"]
