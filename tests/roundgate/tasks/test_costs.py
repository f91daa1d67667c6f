"""What bench/costs.md says that tasks cost, in calls: of the store, of what is
under it, and messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.errors import CleanedUp
from roundgate.replay.context import Context, run_of
from roundgate.replay.journal import Journal
from roundgate.settings import TasksConfig
from roundgate.storage.accounts import Accounts
from roundgate.storage.dynamodb import DynamoDbSessions
from roundgate.storage.dynamodb.tasks import DynamoDbTasks
from roundgate.storage.sqlite.queue import SqliteQueue
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.call import TaskCall
from roundgate.tasks.stored import StoredTasks
from roundgate.tasks.turn import TurnResult
from tests.support.clocks import FixedClock
from tests.support.crashes import Plan
from tests.support.dynamodb import ROOT, Emulator
from tests.support.rounds import CAPABILITIES, accept
from tests.support.tasks import Fast, Handler, Workshop, catalog_of

T = TypeVar("T")

TABLE = """
| operation | store calls | DynamoDB: write units | read units | messages |
|---|---|---|---|---|
| `tools/call` that becomes a task | 1 count and 1 write | 3 | 0.5 | 1 |
| `tools/call` with a key that may become a task | 1 read more | 0 | 1 | |
| what is stored for a caller: a process's first 16 KB, later blocks up to 256 KB | 1 + 1 more | 1 | 1 | |
| `tasks/get` | 1 consistent read | 0 | 1, and 1 each 4 KB of questions or result | 0 |
| `tasks/update` that answers all, `tasks/cancel` | 1 read and 1 conditional write | 3, 4 | 1 | 1, 0 |
| `tasks/update` that answers some | 1 + 1 | 1 | 1 | 0 |
| `tasks/update`, `tasks/cancel`, where any task's tool needs scopes | 1 read more | 0 | 1 | |
| `tasks/cancel` of a task whose tool says how its job is cancelled | 1 + 1 | 4 | 1 | 1 |
| cancelling that job: a look, a claim, its end | 1 + 2 + 1 | 3 + 2 | 2, and 1 each 4 KB | 0, or 1 to try again |
| a turn of a worker: read, claim, end | 1 + 1 + 1 | 1 + 3 | 1, and 1 each 4 KB beside it | 0, or 1 if it goes on |
| the claim of a task that a sweep has sent again | 1 + 1 | 2 or 3 | as above | 0 |
| a step in it | 1 | 1 (1.3 over 10,000 steps), and 2 more each 85 s | 0 | 0 |
| a sweep, whatever it finds | 1 for the clock, and 1 query each shard | 1 | 0.5 each shard | 0 |
| each late task that it finds | 1 write, and 1 read each 100 | 3 | 1 | 0 or 1 |
| a long step: each half lease (15 s), and each 5 s | 1, and 1 read | 1, and 2 more each 85 s | 1 | 0 |
"""
LEASE_S = 1


def test_these_are_the_costs_that_are_documented() -> None:
    assert TABLE in (ROOT / "bench/costs.md").read_text()


# counting


@dataclass
class Counts:
    """What has been called since it was last asked."""

    store: list[str]
    queue: list[str]
    under: list[str] = field(default_factory=list)
    """Transactions of SQLite, or calls of DynamoDB."""
    written: list[float] = field(default_factory=list)
    """Write units of DynamoDB, those of indexes among them."""

    async def of(self, work: Awaitable[Any]) -> tuple[list[str], int, int]:
        """The store's methods, the calls under it, the messages sent."""
        for calls in (self.store, self.queue, self.under):
            calls.clear()
        await work
        return list(self.store), len(self.under), self.queue.count("send")


class CountedFast(Fast):
    """A file whose every use counts."""

    def __init__(self, path: Path, calls: list[str]) -> None:
        super().__init__(path)
        self._calls = calls

    async def read(self, work: Callable[..., T]) -> T:  # which `write` goes through
        self._calls.append(work.__qualname__)
        value: T = await super().read(work)
        return value


class Go(BaseModel):
    go: bool


@dataclass
class Costs:
    """A process, and what it has called."""

    shop: Workshop
    counts: Counts

    async def asking(self) -> TaskRef:
        """A task with two questions."""
        ref = await self.shop.begin("ask")
        assert await self.shop.all_turns() == [TurnResult.ASKED]
        return ref


async def at_once(ctx: Context) -> str:
    return "done"


async def two_steps(ctx: Context) -> str:
    return f"{await ctx.step('one', lambda: 1)} {await ctx.step('two', lambda: 2)}"


async def ask(ctx: Context) -> str:
    await asyncio.gather(ctx.elicit("first", "?", Go), ctx.elicit("second", "?", Go))
    return "done"


async def ask_once(ctx: Context) -> str:
    await ctx.elicit("first", "?", Go)
    return "done"


async def nap(ctx: Context) -> str:
    await ctx.sleep(3)
    return "done"


async def job(ctx: Context) -> str:
    if run_of(ctx).call.cleanup is not None:
        raise CleanedUp("the job was cancelled")
    return "done"


async def step_and_nap(ctx: Context) -> str:
    made = await ctx.step("one", lambda: 1)
    await ctx.sleep(3)
    return f"{made}"


TOOLS: Mapping[str, Handler] = {
    tool.__name__: tool for tool in (at_once, two_steps, ask, ask_once, nap, job, step_and_nap)
}


@pytest.fixture(params=["sqlite", pytest.param("dynamodb", marks=pytest.mark.long)])
async def costs(
    request: pytest.FixtureRequest, path: Path, clock: FixedClock
) -> AsyncIterator[Costs]:
    stores, queues = Plan(), Plan()
    counts = Counts(stores.calls, queues.calls)
    is_sqlite = request.param == "sqlite"
    store = _sqlite(path, counts.under) if is_sqlite else _dynamodb(request, counts)
    queue = SqliteQueue(Fast(path), clock)
    catalog = catalog_of(**TOOLS, long_step=_long_step(clock))
    config = TasksConfig(lease_s=LEASE_S, clock_skew_s=60)
    counted = queues.life().wraps(queue)
    tasks = stores.life().wraps(StoredTasks(store.store, counted))
    shop = Workshop(catalog, tasks, counted, clock, config)
    await store.store.heads([TaskRef("a", "b")])  # checks the version of the table, once
    counts.under.clear()
    yield Costs(shop, counts)
    await store.aclose()
    await queue.aclose()


def _sqlite(path: Path, under: list[str]) -> StoredTasks:
    return StoredTasks(SqliteTasks(CountedFast(path, under)))


def _dynamodb(request: pytest.FixtureRequest, counts: Counts) -> StoredTasks:
    emulator: Emulator = request.getfixturevalue("dynamodb")
    table = emulator.table()
    name = table.__enter__()
    request.addfinalizer(lambda: table.__exit__(None, None, None))

    def make_client() -> Any:
        client = emulator.client()
        events = client.meta.events
        events.register("before-call.dynamodb", lambda model, **_: counts.under.append(model.name))
        events.register("provide-client-params.dynamodb.UpdateItem", _ask_for_units)
        events.register("provide-client-params.dynamodb.PutItem", _ask_for_units)
        events.register("after-call.dynamodb", note)
        return client

    def note(parsed: Mapping[str, Any], **_: Any) -> None:
        counts.written.append(parsed.get("ConsumedCapacity", {}).get("CapacityUnits", 0))

    return StoredTasks(DynamoDbTasks(emulator.open(name, make_client)))


def _ask_for_units(params: Mapping[str, Any], **_: Any) -> Mapping[str, Any]:
    return {**params, "ReturnConsumedCapacity": "TOTAL"}


def _long_step(clock: FixedClock) -> Callable[[Context], Awaitable[str]]:
    """A tool with a step that lasts a little more than half a lease, by a clock that then stands still."""

    async def long() -> str:
        clock.skip(0.6 * LEASE_S)
        await asyncio.sleep(0.6 * LEASE_S)  # some beats of the heart
        return "long"

    async def tool(ctx: Context) -> str:
        return f"{await ctx.step('long', long)}"

    return tool


# the rows of the table


async def test_a_task_is_created_by_one_count_one_write_and_one_message(costs: Costs) -> None:
    assert await costs.counts.of(costs.shop.begin("at_once")) == (["count_open", "create"], 2, 1)


@pytest.mark.parametrize("costs", ["dynamodb"], indirect=True)
async def test_an_account_costs_a_read_and_a_write_for_each_block(
    costs: Costs, clock: FixedClock, request: pytest.FixtureRequest
) -> None:
    emulator: Emulator = request.getfixturevalue("dynamodb")
    calls: list[str] = []

    def make_client() -> Any:
        client = emulator.client()
        events = client.meta.events
        events.register("before-call.dynamodb", lambda model, **_: calls.append(model.name))
        return client

    with emulator.table() as table:
        accounts = Accounts(
            DynamoDbSessions(emulator.open(table, make_client), clock), clock, 10**9
        )
        for _ in range(1_000):  # tasks, as they are counted
            await accounts.reserve("ann", 3_000, clock.now_ms() + 86_400_000)
    assert Counter(calls) == {"GetItem": 1 + 15, "PutItem": 1, "UpdateItem": 14}, (
        "a read of the version, and then as documented"
    )


async def test_a_look_is_one_read(costs: Costs) -> None:
    waiting = await costs.asking()
    over = await costs.shop.begin("at_once")
    await costs.shop.all_turns()
    for ref in (waiting, over):
        assert await costs.counts.of(costs.shop.tasks.record(LOCAL, ref.id)) == (["read"], 1, 0)


async def test_the_answers_to_everything_are_a_read_a_write_and_a_message(costs: Costs) -> None:
    ref = await costs.asking()
    answered = costs.shop.answer(ref, first=accept(go=True), second=accept(go=True))
    assert await costs.counts.of(answered) == (["take_answers"], 2, 1)


@pytest.mark.parametrize("state", ["waiting for a worker", "asking", "over"])
async def test_a_cancellation_is_a_read_a_write_and_no_message(costs: Costs, state: str) -> None:
    ref = await (costs.asking() if state == "asking" else costs.shop.begin("at_once"))
    if state == "over":
        await costs.shop.all_turns()
    calls = 1 if state == "over" else 2
    assert await costs.counts.of(costs.shop.cancel(ref)) == (["cancel"], calls, 0)


async def test_a_cancellation_with_a_job_to_cancel_is_a_message_more(costs: Costs) -> None:
    call = TaskCall("job", {}, LOCAL, CAPABILITIES)
    await costs.shop.tasks.create(call, Journal(), task_id="job", cleans_up=True)
    ref = TaskRef(task_owner(LOCAL), "job")
    assert await costs.counts.of(costs.shop.cancel(ref)) == (["cancel"], 2, 1)
    cleanup = ["claim", "claim_cleanup", "end_cleanup"]
    assert await costs.counts.of(costs.shop.worker.work(ref)) == (cleanup, 4, 0)


async def test_some_answers_are_a_read_a_write_and_no_message(costs: Costs) -> None:
    ref = await costs.asking()
    store, under, messages = await costs.counts.of(costs.shop.answer(ref, first=accept(go=True)))
    assert (store, under, messages) == (["take_answers"], 2, 0)


async def test_more_answers_than_were_asked_for_cost_what_the_right_ones_cost(costs: Costs) -> None:
    ref = await costs.asking()
    answered = costs.shop.answer(
        ref, **{key: accept(go=True) for key in ("first", "second", "third")}
    )
    store, under, messages = await costs.counts.of(answered)
    assert (store, under, messages) == (["take_answers"], 2, 1)


async def test_a_turn_is_a_read_and_two_writes(costs: Costs) -> None:
    ref = await costs.shop.begin("at_once")
    assert await costs.counts.of(costs.shop.worker.work(ref)) == (["claim", "finish"], 3, 0)


async def test_a_turn_that_asks_is_a_read_and_two_writes(costs: Costs) -> None:
    ref = await costs.shop.begin("ask")
    assert await costs.counts.of(costs.shop.worker.work(ref)) == (["claim", "suspend_task"], 3, 0)


async def test_a_turn_after_which_it_goes_on_sends_a_message(costs: Costs) -> None:
    ref = await costs.shop.begin("nap")
    assert await costs.counts.of(costs.shop.worker.work(ref)) == (["claim", "release"], 3, 1)


async def test_a_step_is_one_write(costs: Costs) -> None:
    ref = await costs.shop.begin("two_steps")
    calls = ["claim", "checkpoint", "checkpoint", "finish"]
    assert await costs.counts.of(costs.shop.worker.work(ref)) == (calls, 5, 0)


async def test_a_step_that_is_known_costs_nothing(costs: Costs, clock: FixedClock) -> None:
    ref = await costs.shop.begin("step_and_nap")
    assert await costs.counts.of(costs.shop.worker.work(ref)) == (
        ["claim", "checkpoint", "release"],
        4,
        1,
    )
    clock.skip(3)
    assert await costs.counts.of(costs.shop.worker.work(ref)) == (["claim", "finish"], 3, 0)


async def test_half_a_lease_is_one_write(costs: Costs) -> None:
    ref = await costs.shop.begin("long_step")
    calls = ["claim", "checkpoint", "checkpoint", "finish"]
    assert await costs.counts.of(costs.shop.worker.work(ref)) == (calls, 5, 0)


# the whole of a task


@pytest.mark.parametrize("costs", ["dynamodb"], indirect=True)
@pytest.mark.parametrize(
    ("tool", "units"),
    [("at_once", 7), ("two_steps", 7 + 2), ("long_step", 7 + 2), ("ask_once", 14)],
)
async def test_the_write_units_of_a_task_from_its_call_to_its_end(
    costs: Costs, tool: str, units: int
) -> None:
    ref = await costs.shop.begin(tool)
    await costs.shop.all_turns()
    if tool == "ask_once":
        await costs.shop.answer(ref, first=accept(go=True))
        await costs.shop.all_turns()
    assert (await costs.shop.shown(ref))["status"] == "completed"
    assert sum(costs.counts.written) == units


# what is not in the table


async def test_a_pool_receives_and_deletes_a_message_once_each(costs: Costs) -> None:
    await costs.shop.begin("at_once")
    await costs.counts.of(costs.shop.turns())
    assert Counter(costs.counts.queue) == {"receive": 1, "delete": 1}
