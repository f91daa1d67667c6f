"""Watching: what any process does to a task is told here within the interval, until it is
over or nobody listens."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.protocol.tasks import TaskView
from roundgate.replay.context import Context
from roundgate.storage.tasks import TaskRecord
from roundgate.tasks.named import NamedTasks
from roundgate.tasks.service import Tasks
from roundgate.tasks.watch import Tell, Watch
from roundgate.tokens.ids import TaskIds
from roundgate.tokens.sealed import Key, KeyRing
from tests.support.clocks import FixedClock
from tests.support.replay import Name
from tests.support.rounds import accept
from tests.support.tasks import Shared, Workshop, as_stored

Share = Callable[..., Shared]
EVERY_S = 0.05


async def asks(ctx: Context) -> str:
    await ctx.status("asking")
    return (await ctx.elicit("who", "Who?", Name)).name


class Counting:
    """A store that counts its reads, and fails as often as it is told to."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads = 0
        self.errors: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, *args: Any) -> Any:
        self.reads += 1
        if self.errors:
            raise self.errors.pop()
        return await self._store.read(*args)


@pytest.fixture
def shop(share: Share) -> Workshop:
    return share(Clock()).workshop(asks=asks)


@pytest.fixture
def store(shop: Workshop) -> Counting:
    return Counting(shop.store)


class Watching:
    """A watch, and the tasks of one caller as it knows them."""

    def __init__(self, shop: Workshop, store: Counting) -> None:
        own = Tasks(as_stored(store), shop.clock, shop.config)
        ids = TaskIds(KeyRing([Key(bytes(32))]))
        self._tasks = NamedTasks(own, ids, shop.catalog, shop.clock, shop.config)
        self.watch = Watch(EVERY_S)

    def begin(self, record: TaskRecord, tell: Tell) -> Callable[[], None]:
        """Watch a task that was read before."""
        return self.watch.begin(self._tasks.find(LOCAL, record.ref.id), record.view(), tell)


@pytest.fixture
async def watch(store: Counting, shop: Workshop) -> AsyncIterator[Watching]:
    watching = Watching(shop, store)
    yield watching
    await watching.watch.aclose()


async def some_intervals(count: int = 4) -> None:
    await asyncio.sleep(EVERY_S * count)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (what changes it does not know of this)
            await asyncio.sleep(0.005)


async def test_a_change_by_another_process_is_told(
    share: Share, shop: Workshop, watch: Watching
) -> None:
    told: list[TaskView] = []
    ref = await shop.begin("asks")
    watch.begin(await shop.record(ref), told.append)
    await shop.turns()
    await until(lambda: len(told) == 1)
    assert (told[0].status, told[0].status_message, list(told[0].requests)) == (
        "input_required",
        "asking",
        ["who"],
    )
    await shop.answer(ref, who=accept(name="me"))
    await until(lambda: len(told) == 2)
    await shop.turns()
    await until(lambda: len(told) == 3)
    assert [view.status for view in told] == ["input_required", "working", "completed"]


async def test_nothing_is_told_of_what_a_client_cannot_see(shop: Workshop, watch: Watching) -> None:
    told: list[TaskView] = []
    ref = await shop.begin("asks")
    watch.begin(await shop.record(ref), told.append)
    await shop.worker.claim(ref)
    await some_intervals()
    assert told == []


async def test_a_change_before_the_watching_began_is_told(shop: Workshop, watch: Watching) -> None:
    told: list[TaskView] = []
    ref = await shop.begin("asks")
    before = await shop.record(ref)
    await shop.turns()
    watch.begin(before, told.append)
    await until(lambda: len(told) == 1)


async def test_a_task_that_is_over_is_looked_at_no_more(
    shop: Workshop, watch: Watching, store: Counting
) -> None:
    told: list[TaskView] = []
    ref = await shop.begin("asks")
    watch.begin(await shop.record(ref), told.append)
    await shop.cancel(ref)
    await until(lambda: len(told) == 1)
    reads = store.reads
    await some_intervals()
    assert (told[0].status, store.reads) == ("cancelled", reads)
    watch.begin(await shop.record(ref), told.append)
    await some_intervals()
    assert store.reads == reads


async def test_nobody_watching_is_nobody_reading(
    shop: Workshop, watch: Watching, store: Counting
) -> None:
    ref = await shop.begin("asks")
    ends = [watch.begin(await shop.record(ref), lambda view: None) for _ in range(2)]
    await until(lambda: store.reads > 1)
    ends[0]()
    ends[0]()
    reads = store.reads
    await until(lambda: store.reads > reads)  # one is left
    ends[1]()
    reads = store.reads
    await some_intervals()
    assert store.reads <= reads + 1


async def test_one_look_serves_all_who_watch(
    shop: Workshop, watch: Watching, store: Counting
) -> None:
    told: list[int] = []

    def tell(number: int, view: TaskView) -> None:
        told.append(number)

    ref = await shop.begin("asks")
    record = await shop.record(ref)
    for number in range(5):
        watch.begin(record, functools.partial(tell, number))
    await shop.cancel(ref)
    await until(lambda: len(told) == 5)
    assert (sorted(told), store.reads) == ([0, 1, 2, 3, 4], 1)


async def test_who_is_told_may_end_its_watching_there_and_others_are_told_all_the_same(
    shop: Workshop, watch: Watching
) -> None:
    ends: list[Any] = []
    told: list[str] = []

    def once(view: TaskView) -> None:
        told.append("once")
        ends[0]()

    first, second = await shop.begin("asks"), await shop.begin("asks")
    ends.append(watch.begin(await shop.record(first), once))
    watch.begin(await shop.record(second), lambda view: told.append("second"))
    await shop.cancel(first)
    await until(lambda: told == ["once"])
    await some_intervals()
    await shop.cancel(second)
    await until(lambda: told == ["once", "second"])


@pytest.mark.parametrize(
    "error", [Unavailable("not now"), ValueError("what is this?")], ids=["not now", "strange"]
)
async def test_a_look_that_fails_is_followed_by_another(
    shop: Workshop, watch: Watching, store: Counting, error: Exception
) -> None:
    told: list[TaskView] = []
    ref = await shop.begin("asks")
    store.errors = [error]
    watch.begin(await shop.record(ref), told.append)
    await shop.cancel(ref)
    await until(lambda: len(told) == 1)


async def test_a_task_that_expired_is_looked_at_no_more(share: Share, clock: FixedClock) -> None:
    shop = share(clock).workshop(asks=asks)
    store = Counting(shop.store)
    watch = Watching(shop, store)
    watch.begin(await shop.record(await shop.begin("asks")), lambda view: None)
    clock.skip(shop.config.ttl_s)
    await until(lambda: store.reads == 1)
    await some_intervals()
    assert store.reads == 1
    await watch.watch.aclose()
