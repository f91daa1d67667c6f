"""Watching: what any process does to a task is told here within the interval, until it is
over or nobody listens."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.protocol.tasks import Status, TaskView
from roundgate.replay.context import Context
from roundgate.storage.tasks import TaskRecord, TaskRef
from roundgate.tasks.service import NamedTasks, Tasks
from roundgate.tasks.stored import Glimpse
from roundgate.tasks.watch import Tell, Watch
from roundgate.tokens.ids import TaskIds
from roundgate.tokens.sealed import Key, KeyRing
from tests.support.clocks import FixedClock
from tests.support.long import examples
from tests.support.replay import Name
from tests.support.rounds import accept
from tests.support.tasks import Share, Workshop, as_stored
from tests.support.virtual_loop import passed_s

EVERY_S = 0.05


async def asks(ctx: Context) -> str:
    await ctx.status("asking")
    return (await ctx.elicit("who", "Who?", Name)).name


class Counting:
    """A store that counts its reads, and fails as often as it is told to."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads = 0
        self.glances = 0
        self.errors: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, *args: Any) -> Any:
        self.reads += 1
        if self.errors:
            raise self.errors.pop()
        return await self._store.read(*args)

    async def glance(self, *args: Any) -> Any:
        self.glances += 1
        return await self._store.glance(*args)


@pytest.fixture
def shop(share: Share) -> Workshop:
    return share(Clock()).workshop(asks=asks)


@pytest.fixture
def store(shop: Workshop) -> Counting:
    return Counting(shop.store)


class Watching:
    """A watch, and the tasks of one caller as it knows them."""

    def __init__(self, shop: Workshop, store: Counting) -> None:
        self._clock = shop.clock
        own = Tasks(as_stored(store), shop.clock, shop.config)
        ids = TaskIds(KeyRing([Key(bytes(32))]))
        self._tasks = NamedTasks(own, ids, shop.catalog, shop.clock, shop.config)
        self.watch = Watch(EVERY_S, lambda refs: store.glance(refs, shop.clock.now_ms()))

    def begin(self, record: TaskRecord, tell: Tell) -> Callable[[], None]:
        """Watch a task that was read before."""
        view = record.view(self._clock.now_ms())
        return self.watch.begin(self._tasks.find(LOCAL, record.ref.id), view, tell)


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
    shop = share(Clock()).workshop(asks=asks)
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
    await until(lambda: store.glances > 1)
    ends[0]()
    ends[0]()
    glances = store.glances
    await until(lambda: store.glances > glances)  # one is left
    ends[1]()
    glances = store.glances
    await some_intervals()
    assert store.glances <= glances + 1
    assert store.reads == 1, "nothing has changed since the first look"


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


# in virtual time


@dataclass
class Rows:
    """Tasks of another process, of which glances may show what was."""

    interval_s: float = 1.0
    lags: Iterator[float] = field(default_factory=lambda: itertools.repeat(0.0))
    """How old each glance is, in seconds."""
    revisions: dict[TaskRef, list[tuple[float, int]]] = field(default_factory=dict)
    """Since when each task has had each revision."""
    glances: list[tuple[float, int]] = field(default_factory=list)
    """When how many tasks were glanced at."""
    looks: int = 0
    changed: dict[TaskRef, Callable[[], None]] = field(default_factory=dict)
    told: dict[TaskRef, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    """When which revision was told."""

    def __post_init__(self) -> None:
        self.watch = Watch(self.interval_s, self._glance)

    def begin(self, *refs: TaskRef) -> None:
        """Create tasks and watch them."""
        for ref in refs:
            self.change(ref)
            task: Any = Row(self, ref)
            self.watch.begin(task, self.view(ref), functools.partial(self._tell, ref))

    def change(self, ref: TaskRef) -> None:
        """Change a task in a way that its client can see."""
        history = self.revisions.setdefault(ref, [(-1.0, 0)])
        history.append((now_s(), history[-1][1] + 1))

    def view(self, ref: TaskRef) -> TaskView:
        """The task as it is."""
        revision = self.revisions[ref][-1][1]
        return TaskView(ref.id, Status.WORKING, str(revision), 0, revision, 10**9, {}, None)

    async def _glance(self, refs: Sequence[TaskRef]) -> dict[TaskRef, Glimpse]:
        self.glances.append((now_s(), len(refs)))
        seen = {}
        for ref in refs:
            at_s = now_s() - next(self.lags)
            revision = [one for since_s, one in self.revisions[ref] if since_s <= at_s]
            if revision and revision[-1]:  # a task that is new may not be there yet
                seen[ref] = Glimpse(0, revision[-1])
        return seen

    def _tell(self, ref: TaskRef, view: TaskView) -> None:
        self.told[ref].append((now_s(), int(view.status_message or 0)))


@dataclass
class Row:
    """A watched task of these rows."""

    rows: Rows
    ref: TaskRef
    backend: str = ""
    log_id: str = ""

    @property
    def key(self) -> TaskRef:
        return self.ref

    async def look(self) -> TaskView:
        self.rows.looks += 1
        return self.rows.view(self.ref)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.rows.changed[self.ref] = changed
        return lambda: None


def now_s() -> float:
    return asyncio.get_running_loop().time()


REF = TaskRef("owner", "id")


def test_a_thousand_quiet_tasks_are_read_in_few_calls_and_less_and_less_often() -> None:
    async def listen() -> Rows:
        rows = Rows()
        rows.begin(*(TaskRef("owner", str(number)) for number in range(1_000)))
        await asyncio.sleep(200)
        await rows.watch.aclose()
        return rows

    rows, _ = passed_s(listen())
    assert rows.looks == 1_000, "one each, the first"

    def glanced(from_s: float, to_s: float) -> int:
        return sum(count for at_s, count in rows.glances if from_s <= at_s < to_s)

    assert 9_000 <= glanced(0, 10) <= 11_000
    assert glanced(50, 60) <= 2_000
    assert 900 <= glanced(180, 190) <= 1_100


@pytest.mark.parametrize(
    ("quiet_s", "within_s"), [(0.5, 2.0), (5.0, 2.0), (60.0, 8.0), (10_000.0, 12.0)]
)
def test_a_change_elsewhere_is_told_within_a_tenth_of_the_quiet_before(
    quiet_s: float, within_s: float
) -> None:
    async def wait() -> float:
        rows = Rows()
        rows.begin(REF)
        await asyncio.sleep(quiet_s)
        rows.change(REF)
        changed_s = now_s()
        while not rows.told[REF]:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.05)
        await rows.watch.aclose()
        return rows.told[REF][0][0] - changed_s

    late_s, _ = passed_s(wait())
    assert late_s <= within_s


def test_a_change_of_this_process_is_told_at_once_however_quiet_the_task_was() -> None:
    async def wait() -> float:
        rows = Rows(interval_s=60.0)
        rows.begin(REF)
        await asyncio.sleep(10_000)
        rows.change(REF)
        rows.changed[REF]()
        changed_s = now_s()
        await asyncio.sleep(1)
        await rows.watch.aclose()
        return rows.told[REF][0][0] - changed_s

    late_s, _ = passed_s(wait())
    assert late_s <= 0.2


CHANGES = st.lists(st.tuples(st.floats(0.05, 30), st.booleans()), min_size=1, max_size=12)
LAGS = st.lists(st.floats(0, 20), min_size=1, max_size=20)


@examples(150)
@given(CHANGES, LAGS)
def test_states_that_are_read_late_are_never_reported_after_later_ones(
    changes: list[tuple[float, bool]], lags: list[float]
) -> None:
    async def watch() -> list[int]:
        rows = Rows(lags=itertools.cycle(lags))
        rows.begin(REF)
        for pause_s, is_here in changes:
            await asyncio.sleep(pause_s)
            rows.change(REF)
            if is_here:
                rows.changed[REF]()
        await asyncio.sleep(60)
        await rows.watch.aclose()
        return [revision for _, revision in rows.told[REF]]

    told, _ = passed_s(watch())
    assert told == sorted(set(told))
    assert told[-1] == len(changes) + 1
