"""Jobs whose tasks end early are cancelled where they run, wherever who dies: told with a
service that outlives all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.backends.base import Offering
from roundgate.backends.catalog import Catalog
from roundgate.backends.config import JobConfig
from roundgate.backends.dialogue import Kept
from roundgate.backends.exchange import NotNow, follow
from roundgate.errors import BackendError, Unavailable
from roundgate.protocol.tasks import Status
from roundgate.replay.context import Context
from roundgate.replay.journal import Journal
from roundgate.runtime import loading
from roundgate.settings import TasksConfig
from roundgate.storage.dynamodb.tasks import DynamoDbTasks
from roundgate.storage.sqlite.queue import SqliteQueue
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import TaskRecord, TaskRef
from roundgate.tasks import lease
from roundgate.tasks import turn as turns
from roundgate.tasks.call import TaskCall
from roundgate.tasks.stored import StoredTasks
from roundgate.tasks.turn import TurnResult
from roundgate.tasks.worker import CLEANUP_PAUSES_S
from tests.support.catalogs import built
from tests.support.clocks import FixedClock
from tests.support.crashes import Crash, How, Life, Plan, When, bury
from tests.support.dynamodb import Emulator
from tests.support.long import sampled
from tests.support.replay import Name
from tests.support.rounds import CAPABILITIES
from tests.support.stories import all_points, points_of
from tests.support.tasks import Fast, Files, Functions, Workshop

REF = TaskRef(task_owner(LOCAL), "job")
CONFIG = JobConfig(every_s=10, succeeded=["done"], failed=["cancelled"])
STEP = 5
"""Seconds that pass when nothing moves."""


@dataclass
class Service:
    """Where the jobs run. One that takes keys starts one job for a key."""

    clock: FixedClock
    takes_keys: bool = False
    lasts_s: float = 1_000
    jobs: dict[str, str] = field(default_factory=dict)
    began_ms: dict[str, int] = field(default_factory=dict)
    started: int = 0
    cancels: list[str] = field(default_factory=list)
    refusals: list[Exception] = field(default_factory=list)
    """What the next cancels end with."""
    pause: Callable[[], Awaitable[None]] | None = None
    """While a start is under way."""
    at_poll: Callable[[], Awaitable[None]] | None = None
    """While a poll is."""
    at_fetch: Callable[[], Awaitable[None]] | None = None
    loses_answer: bool = False
    """Whether the answer of the next start is lost."""
    start_refusals: list[Exception] = field(default_factory=list)
    """What the starts after that end with."""

    async def start(self, key: str) -> str:
        if (pause := self.pause) is not None:
            self.pause = None
            await pause()
        if self.started and self.start_refusals:
            raise self.start_refusals.pop(0)
        self.started += 1
        name = key if self.takes_keys else f"{key}-{self.started}"
        self.began_ms.setdefault(name, self.clock.now_ms())
        self.jobs.setdefault(name, "running")
        return name

    def look(self, name: str) -> str:
        is_over = self.clock.now_ms() >= self.began_ms[name] + self.lasts_s * 1000
        if is_over and self.jobs[name] == "running":
            self.jobs[name] = "done"
        return self.jobs[name]

    def cancel(self, name: str) -> None:
        self.cancels.append(name)
        if self.refusals:
            raise self.refusals.pop(0)
        if self.look(name) == "running":
            self.jobs[name] = "cancelled"

    @property
    def running(self) -> list[str]:
        return [name for name in self.jobs if self.look(name) == "running"]


@dataclass
class Job:
    """A job as one process follows it."""

    service: Service
    life: Life
    key: str
    is_cancellable: bool = True
    config: JobConfig = CONFIG
    has_result: bool = False

    @property
    def starts_once(self) -> bool:
        return self.service.takes_keys

    async def start(self) -> Any:
        self.life.look_alive()
        name = await self.service.start(self.key)
        self.life.look_alive()
        if self.service.loses_answer:
            self.service.loses_answer = False
            raise NotNow("no answer")
        return {"id": name}

    async def poll(self, values: Mapping[str, str]) -> tuple[Any, Kept]:
        self.life.look_alive()
        if (hook := self.service.at_poll) is not None:
            self.service.at_poll = None
            await hook()
        self.life.look_alive()
        status = self.service.look(values["id"])
        return {"status": status}, {"status": status}

    async def fetch(self, values: Mapping[str, str]) -> Kept:
        if (hook := self.service.at_fetch) is not None:
            self.service.at_fetch = None
            await hook()
        self.life.look_alive()
        return {"rows": 1}

    async def cancel(self, values: Mapping[str, str]) -> bool:
        self.life.look_alive()
        self.service.cancel(values["id"])
        self.life.look_alive()
        return True


class Jobs(Functions):
    """The back end that has the tool."""

    async def offer(self) -> Offering:
        offered = await super().offer()
        return Offering([replace(tool, cleans_up=True) for tool in offered.tools])


@dataclass
class House:
    """Processes on one store and one queue, and the service."""

    store: StoredTasks
    queue: SqliteQueue
    service: Service
    clock: FixedClock
    plan: Plan = field(default_factory=Plan)
    config: TasksConfig = field(default_factory=TasksConfig)
    is_cancellable: bool = True
    has_result: bool = False
    asks: bool = False

    def shop(self, life: Life | None = None) -> Workshop:
        life = life or Life(Plan())

        async def run(ctx: Context) -> Any:
            await ctx.continue_as_task()
            if self.asks:
                await ctx.elicit("go", "Go?", Name)
            key = await ctx.idempotency_key("job")
            job = Job(self.service, life, key, self.is_cancellable, has_result=self.has_result)
            return dict(await follow(job, ctx))

        shares = life.shares(self.store, self.queue)
        return Workshop(served(run), *shares, self.clock, self.config)

    async def begin(self, shop: Workshop) -> None:
        call = TaskCall("run", {}, LOCAL, CAPABILITIES)
        await shop.tasks.create(call, Journal(), task_id=REF.id, cleans_up=True)

    async def record(self) -> TaskRecord:
        found = await self.store.read(REF, self.clock.now_ms())
        assert found is not None
        return found

    async def is_at_rest(self) -> bool:
        found = await self.store.read(REF, self.clock.now_ms())
        return found is not None and found.status.is_terminal and found.due_ms is None

    async def live(self) -> None:
        """Processes, each until it dies, until the task is over and nothing is due any more."""
        for _ in range(20):
            life = self.plan.life()
            shop = self.shop(life)
            try:
                await self.begin(shop)
                await self.work(shop)
                return
            except Crash:
                await bury()
            except Unavailable:
                self.clock.skip(1)
        raise AssertionError("it never ended")

    async def work(self, shop: Workshop) -> list[TurnResult]:
        """Turns until the task is over and nothing is due any more; time passes where nothing moves."""
        turns: list[TurnResult] = []
        for _ in range(1_000):
            if await self.is_at_rest():
                return turns
            messages = await shop.messages()
            turns += [await shop.take(message) for message in messages]
            if not messages:
                self.clock.skip(STEP)
                await shop.sweep.sweep()
        raise AssertionError(f"it goes on and on: {turns}")

    async def cancel(self) -> None:
        """The client cancels, through a process of its own; before there is a task there is nothing to cancel."""
        if await self.store.read(REF, self.clock.now_ms()) is not None:
            await self.shop().cancel(REF)


def served(run: Any) -> Catalog:
    return loading.apart(built([Jobs({"run": run})]))


@pytest.fixture
def house(path: Any, clock: FixedClock) -> House:
    database = Fast(path)
    queue = SqliteQueue(database, clock)
    return House(StoredTasks(SqliteTasks(database), queue), queue, Service(clock), clock)


async def started(house: House) -> Workshop:
    """A task at rest, between two polls of its job."""
    shop = house.shop()
    await house.begin(shop)
    assert await shop.turns() == [TurnResult.RELEASED]
    assert (await house.record()).lease_until_ms == 0
    assert len(house.service.running) == 1
    return shop


# at rest


async def test_the_job_of_a_cancelled_waiting_task_is_cancelled_by_the_messages_receiver(
    house: House,
) -> None:
    shop = await started(house)
    await shop.cancel(REF)
    assert (await shop.shown(REF))["status"] == "cancelled"
    assert house.service.cancels == []  # the client has not waited for that
    assert TurnResult.CLEANED_UP in await house.shop().turns()
    assert house.service.running == []
    assert await house.is_at_rest()


async def test_a_lost_message_is_found_by_a_sweep(house: House) -> None:
    shop = await started(house)
    await shop.cancel(REF)
    await shop.queue.delete(await shop.messages())
    assert await shop.sweep.sweep() == 0
    house.clock.skip(31)
    assert await shop.sweep.sweep() == 1
    assert TurnResult.CLEANED_UP in await shop.all_turns()
    assert house.service.running == []


async def test_a_task_that_ends_by_itself_cancels_nothing(house: House) -> None:
    house.service.lasts_s = 15
    shop = await started(house)
    await house.work(shop)
    assert (await shop.shown(REF))["status"] == "completed"
    await shop.cancel(REF)
    assert await shop.all_turns() == []
    assert house.service.cancels == []


async def test_a_task_that_no_worker_had_starts_nothing_to_cancel_it(house: House) -> None:
    house.service.takes_keys = True
    shop = house.shop()
    await house.begin(shop)
    await shop.cancel(REF)
    assert TurnResult.CLEANED_UP in await shop.all_turns()
    assert house.service.jobs == {}
    assert await house.is_at_rest()


async def test_a_task_that_waits_for_its_client_has_nothing_to_cancel(house: House) -> None:
    house.asks, house.service.takes_keys = True, True
    shop = house.shop()
    await house.begin(shop)
    assert await shop.turns() == [TurnResult.ASKED]
    await shop.cancel(REF)
    assert TurnResult.CLEANED_UP in await shop.all_turns()
    assert house.service.jobs == {}


async def test_a_tool_that_does_not_say_any_more_how_to_cancel_is_left_alone(house: House) -> None:
    shop = await started(house)
    house.is_cancellable = False
    await shop.cancel(REF)
    assert TurnResult.CLEANED_UP in await house.shop().all_turns()
    assert house.service.cancels == []


async def test_a_task_that_takes_too_long_cancels_its_job(house: House) -> None:
    house.config = TasksConfig(task_timeout_s=60)
    shop = await started(house)
    turns = await house.work(shop)
    shown = await shop.shown(REF)
    assert (shown["status"], shown["result"]["isError"]) == ("completed", True)
    assert "tasks.task_timeout_s" in shown["result"]["content"][0]["text"]
    assert turns[-1] is TurnResult.CLEANED_UP
    assert (house.service.running, len(house.service.cancels)) == ([], 1)


async def test_a_task_that_expires_cancels_its_job(house: House) -> None:
    house.config = TasksConfig(ttl_s=60)
    shop = await started(house)
    await shop.queue.delete(await shop.messages())
    house.clock.skip(61)
    await shop.sweep.sweep()
    assert TurnResult.CLEANED_UP in await shop.all_turns()
    assert house.service.running == []
    assert await house.store.due(house.clock.now_ms() + 10**9, 10) == []


async def test_a_task_that_is_given_up_cancels_its_job(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.config = TasksConfig(unserved_s=60)
    await started(house)
    elsewhere = Workshop(
        loading.apart(built([Jobs({"other": None})])),
        *(house.store, house.queue, house.clock, house.config),
    )
    for _ in range(100):
        if (await house.record()).status is Status.FAILED:
            break
        house.clock.skip(STEP)
        await elsewhere.turns()
    assert (await house.record()).cleans_up
    assert TurnResult.CLEANED_UP in await house.work(house.shop())
    assert house.service.running == []


# a service that refuses, or is away


@pytest.mark.parametrize(
    "refusal", [NotNow("503"), BackendError("401"), RuntimeError("a bug")], ids=repr
)
async def test_a_cancel_that_is_not_taken_is_tried_again(house: House, refusal: Exception) -> None:
    house.service.refusals = [refusal] * 3
    shop = await started(house)
    await shop.cancel(REF)
    turns = await house.work(shop)
    assert turns.count(TurnResult.TO_CLEAN_UP) == 3
    assert turns[-1] is TurnResult.CLEANED_UP
    assert (house.service.running, len(house.service.cancels)) == ([], 4)


async def test_a_service_that_never_takes_it_is_given_up_after_eight_hours(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundgate.tasks")
    house.service.lasts_s = 10**6
    house.service.refusals = [NotNow("503 Service Unavailable")] * 100
    shop = await started(house)
    await shop.cancel(REF)
    before_ms = house.clock.now_ms()
    for _ in range(2_000):
        if await house.is_at_rest():
            break
        house.clock.skip(30)
        await shop.sweep.sweep()
        await shop.turns()
    tries = len(CLEANUP_PAUSES_S) + 1
    assert len(house.service.cancels) == tries
    took_s = (house.clock.now_ms() - before_ms) / 1000
    assert sum(CLEANUP_PAUSES_S) <= took_s < sum(CLEANUP_PAUSES_S) + 600
    last = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert [one.message for one in last] == ["cannot cancel a job, which continues"]
    fields = last[0].fields  # type: ignore[attr-defined]
    assert (fields["attempt"], fields["reason"]) == (tries, "503 Service Unavailable")
    assert (fields["task"], fields["job"]) == (str(REF), f"id={house.service.cancels[0]}")


async def test_a_worker_that_does_not_serve_the_tool_leaves_it_to_another(house: House) -> None:
    shop = await started(house)
    await shop.cancel(REF)
    other = loading.apart(built([Jobs({"other": None})]))
    elsewhere = Workshop(other, house.store, house.queue, house.clock, house.config)
    assert TurnResult.TO_CLEAN_UP in await elsewhere.turns()
    assert (await house.work(shop))[-1] is TurnResult.CLEANED_UP
    assert house.service.running == []


# while a worker has it


async def test_a_cancel_while_the_job_is_being_started_cancels_it_when_it_is(house: House) -> None:
    house.service.pause = house.cancel
    shop = house.shop()
    await house.begin(shop)
    (message,) = await shop.messages()
    assert await shop.take(message) is TurnResult.LOST
    assert len(house.service.jobs) == 1
    assert house.service.running == []
    assert await house.is_at_rest()


async def test_nobody_else_cleans_up_while_the_start_may_yet_be_answered(house: House) -> None:
    other = house.shop()

    async def cancelled_meanwhile() -> None:
        await house.cancel()
        assert await other.turns() == [TurnResult.NOT_CLAIMED]

    house.service.pause = cancelled_meanwhile
    shop = house.shop()
    await house.begin(shop)
    (message,) = await shop.messages()
    await shop.queue.delete([message])
    assert await shop.worker.run(await claimed(shop)) is TurnResult.LOST
    assert (len(house.service.jobs), house.service.running) == (1, [])


async def claimed(shop: Workshop) -> Any:
    return await shop.worker.claim(REF)


# every interleaving of a cancel with a start, a poll, a fetch, a death, a lost answer


MOMENTS = ("before a worker has it", "start", "long start", "between polls", "poll", "fetch")
TROUBLES = ("none", "the cancel is refused", "the worker dies", "the start's answer is lost")
LOST: set[tuple[str, str]] = {("start", "the worker dies"), ("long start", "the worker dies")}
"""Where no process is left that knows the job; a service that takes keys knows it."""


@pytest.mark.parametrize("takes_keys", [False, True], ids=["no keys", "keys"])
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_cancel_reaches_what_was_started(
    house: House,
    moment: str,
    trouble: str,
    takes_keys: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "roundgate.tasks")
    house.service.takes_keys = takes_keys
    await play(house, moment, trouble)
    is_lost = trouble == "the start's answer is lost" or (moment, trouble) in LOST
    if moment == "before a worker has it":
        assert house.service.jobs == {}
    elif is_lost and not takes_keys:
        assert len(house.service.running) == 1
        reasons = [one.fields.get("reason", "") for one in caplog.records]  # type: ignore[attr-defined]
        assert any("a job may have started, but its answer was lost" in one for one in reasons)
    else:
        assert house.service.running == []
        assert house.service.cancels or moment == "fetch"
        assert len(house.service.jobs) == 1


async def play(house: House, moment: str, trouble: str) -> None:
    """One life of a task that is cancelled at a moment, to where nothing is due any more."""
    service, life = house.service, Plan().life()
    service.loses_answer = trouble == "the start's answer is lost"
    service.refusals = [NotNow("503")] * (trouble == "the cancel is refused")
    house.has_result = moment == "fetch"
    if moment == "fetch" and not service.loses_answer:
        service.lasts_s = 15

    async def cancel() -> None:
        await house.cancel()
        life.dead = trouble == "the worker dies"

    async def cancel_in_a_long_start() -> None:
        await house.cancel()
        # the handler would be ended, and the lease is over
        house.clock.skip(60)
        await house.shop().turns()
        await asyncio.sleep(0.1)
        life.dead = trouble == "the worker dies"

    service.pause = {"start": cancel, "long start": cancel_in_a_long_start}.get(moment)
    service.at_poll, service.at_fetch = (
        cancel if moment == when else None for when in ("poll", "fetch")
    )
    shop = house.shop(life)
    await house.begin(shop)
    try:
        if moment != "before a worker has it":
            await shop.turns()
        if moment == "fetch":
            house.clock.skip(16)
            await shop.turns()
        if moment in ("before a worker has it", "between polls"):
            await cancel()
    except Crash:
        await bury()
    await house.work(house.shop())


@pytest.mark.parametrize(
    "refusal", [NotNow("503"), BackendError("429"), BackendError("no connection")]
)
async def test_a_job_whose_start_was_lost_is_found_once_its_service_answers(
    house: House, refusal: Exception
) -> None:
    house.service.takes_keys = house.service.loses_answer = True
    house.service.start_refusals = [refusal, refusal]
    shop = house.shop()
    await house.begin(shop)
    turns = await house.work(shop)
    assert (len(house.service.jobs), house.service.running) == (1, [])
    assert turns[-3:] == [TurnResult.TO_CLEAN_UP, TurnResult.TO_CLEAN_UP, TurnResult.CLEANED_UP]


async def test_a_start_under_way_comes_to_its_answer_before_its_handler_is_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "GRACE_S", 0.05)
    monkeypatch.setattr(turns, "TICK_S", 0.01)
    monkeypatch.setattr(turns, "LOOK_S", 0.01)

    async def slow() -> None:
        await house.cancel()
        house.clock.skip(6)
        await asyncio.sleep(2)

    house.service.pause = slow
    shop = house.shop()
    await house.begin(shop)
    assert await shop.turns() == [TurnResult.LOST]
    assert (len(house.service.jobs), house.service.running) == (1, [])


async def test_what_a_worker_knew_of_a_start_is_there_for_whoever_cancels_later(
    house: House,
) -> None:
    house.service.pause = house.cancel
    house.service.refusals = [NotNow("503")]
    shop = house.shop()
    await house.begin(shop)
    assert await shop.turns() == [TurnResult.LOST]
    assert len(house.service.running) == 1  # not taken, and this worker has gone
    await house.work(house.shop())
    assert (len(house.service.cancels), house.service.running) == (2, [])


# whoever dies, wherever


def tell(
    files: Files,
    plan: Plan,
    *,
    takes_keys: bool,
    cancel_at: tuple[int, When] | None,
    refusals: int = 0,
    store: Callable[[], StoredTasks] | None = None,
) -> int:
    """One life of a task on a new file, cancelled at a call, or when its job runs; how many calls it took."""

    async def telling() -> int:
        clock, database = FixedClock(), Fast(path)
        service = Service(clock, takes_keys, lasts_s=40)
        service.refusals = [NotNow("503")] * refusals
        kept = store() if store else StoredTasks(SqliteTasks(database))
        house = House(kept, SqliteQueue(database, clock), service, clock, plan)
        if cancel_at is not None:
            plan.meanwhile = {cancel_at: house.cancel}
        try:
            await house.live()
            calls = len(plan.calls)
            await check(house)
        finally:
            await kept.purge(REF, clock.now_ms())
            await database.aclose()
        return calls

    path = files.new()
    try:
        return asyncio.run(telling())
    except BaseException as error:
        error.add_note(f"{plan.points}, cancelled {cancel_at}; calls: {plan.calls}")
        raise
    finally:
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()


async def check(house: House) -> None:
    """What must hold, wherever who died."""
    found = await house.record()
    assert found.status in (Status.CANCELLED, Status.COMPLETED)
    jobs, service = house.service.jobs, house.service
    if found.status is Status.COMPLETED:
        assert service.cancels == []
        return
    known = {name for name in jobs if _was_kept(house.plan)}
    if service.takes_keys:
        assert len(jobs) <= 1
        known = set(jobs)
    if not house.plan.points:
        known = set(jobs)  # nobody has died: nothing was lost
    left = known.intersection(service.running)
    assert len(known) - len(left) >= min(1, len(known)), (jobs, service.cancels)
    if len(jobs) == 1:
        assert left == set(), (jobs, service.cancels)


def _was_kept(plan: Plan) -> bool:
    """Whether what the start answered was written."""
    return any(what == "kept" and "start" in step for what, step in plan.seen)


@pytest.mark.parametrize("takes_keys", [False, True], ids=["no keys", "keys"])
@pytest.mark.parametrize("dies", [False, True], ids=["alone", "and the process dies there too"])
def test_a_cancel_comes_at_any_call(files: Files, takes_keys: bool, dies: bool) -> None:
    points = all_points(tell(files, Plan(), takes_keys=takes_keys, cancel_at=None))
    assert len(points) > 20
    for number, when in sampled(points):
        plan = Plan({number: when} if dies else {})
        tell(files, plan, takes_keys=takes_keys, cancel_at=(number, when))


@pytest.mark.parametrize("takes_keys", [False, True], ids=["no keys", "keys"])
def test_a_process_dies_at_any_call_of_a_cleanup(files: Files, takes_keys: bool) -> None:
    at: tuple[int, When] = (8, "before")
    calls = tell(files, Plan(), takes_keys=takes_keys, cancel_at=at, refusals=1)
    points = [point for point in all_points(calls) if point[0] >= at[0]]
    assert len(points) > 10
    for number, when in sampled(points):
        tell(files, Plan({number: when}), takes_keys=takes_keys, cancel_at=at, refusals=1)


@pytest.mark.parametrize("takes_keys", [False, True], ids=["no keys", "keys"])
def test_any_call_of_a_cleanup_times_out_and_may_have_happened_or_not(
    files: Files, takes_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "PAUSES_S", (0,) * 4)
    at: tuple[int, When] = (8, "before")
    calls = tell(files, Plan(), takes_keys=takes_keys, cancel_at=at)
    for number, when in sampled(all_points(calls)):
        how: How = "times out before" if when == "before" else "times out after"
        tell(files, Plan({number: how}), takes_keys=takes_keys, cancel_at=at)


@pytest.fixture
def table(dynamodb: Emulator) -> Iterator[Callable[[], StoredTasks]]:
    """Makes stores on a table."""
    client = dynamodb.client(max_pool_connections=50)
    with dynamodb.table() as name:
        yield lambda: StoredTasks(DynamoDbTasks(dynamodb.open(name, lambda: client)))
    client.close()


def test_a_cancel_comes_at_any_call_of_dynamodb_and_the_process_dies_there_too(
    files: Files, dynamodb: Emulator
) -> None:
    client = dynamodb.client(max_pool_connections=50)

    def one(point: tuple[int, When] | None) -> Plan:
        with dynamodb.table() as name:
            plan = Plan({} if point is None else dict([point]))

            def store() -> StoredTasks:
                return StoredTasks(DynamoDbTasks(dynamodb.open(name, lambda: client)))

            tell(files, plan, takes_keys=True, cancel_at=point, store=store)
            return plan

    points = sampled(points_of(one(None).calls), 23)
    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(one, points))) == len(points)
    client.close()
