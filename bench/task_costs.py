"""The cost of each operation on a task at DynamoDB: calls and capacity units, for `bench.tasks`.

One task passes through the real service and a real worker: it is created, runs a step, asks, is
answered, and completes with the result of the step. DynamoDB Local reports the capacity units
(`ReturnConsumedCapacity`); an event hook of the client requests them, so the application is
unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bench.dynamodb import Emulator
from bench.measurements import Sample
from roundgate.auth import LOCAL, task_owner
from roundgate.backends import Offering, Tool, build
from roundgate.clock import Clock
from roundgate.protocol import TextContent, ToolResult
from roundgate.replay import Context, Journal
from roundgate.runtime import loading
from roundgate.settings import TasksConfig
from roundgate.storage import TaskQueue, TaskRef
from roundgate.storage.dynamodb import DynamoDbTasks
from roundgate.storage.sqlite import Database, SqliteQueue
from roundgate.tasks import TaskCall, Tasks
from roundgate.tasks.stored import Claimed, StoredTasks
from roundgate.tasks.worker import Worker

SIZES: Mapping[str, int] = {"2 KB": 2_000, "300 KB": 300_000}
NOTHING_YET = (
    "store_calls",
    "queue_calls",
    "dynamodb_calls",
    "read_units",
    "write_units",
    "index_units",
)
ROWS = {"checkpoint": "a step's checkpoint", "suspend": "asking", "finish": "completion"}
"""The store calls within a turn that are counted as separate operations."""
READS = frozenset({"GetItem", "Query"})


class Consent(BaseModel):
    go: bool


async def nobody_listens(method: str, uri: str | None) -> None:
    """Ignore a published change."""


async def work(ctx: Context, size: int) -> dict[str, str]:
    """Run a step with a result of `size` characters, then ask for consent."""
    made = await ctx.step("make", lambda: "x" * size)
    await ctx.elicit("confirm", "Go on?", Consent)
    return {"made": made}


class OneTool:
    """A back end with the tool `work`."""

    name = "bench"
    prefix = ""

    async def offer(self) -> Offering:
        async def call(context: Context, arguments: dict[str, Any]) -> ToolResult:
            return ToolResult([TextContent("done")], await work(context, **arguments))

        return Offering(
            [Tool({"name": "work", "inputSchema": {"type": "object"}}, call, task="optional")]
        )

    async def aclose(self) -> None:
        """Do nothing: no resource is open."""


class Shop:
    """The service of a gateway, and a worker, with a common store and queue."""

    def __init__(self, store: StoredTasks, queue: TaskQueue, clock: Clock) -> None:
        config, catalog = TasksConfig(), loading.apart(build([OneTool()], page_size=1))
        self.queue = queue
        self.tasks = Tasks(store, clock, config)
        self.worker = Worker(catalog, store, clock, config, nobody_listens)

    async def begin(self, size: int) -> TaskRef:
        """Create a task whose step and result have `size` characters."""
        call = TaskCall("work", {"size": size}, LOCAL, {"elicitation": {}})
        created = await self.tasks.create(call, Journal())
        return TaskRef(task_owner(LOCAL), created["taskId"])


def samples(emulator: Emulator, folder: Path) -> Iterator[Sample]:
    """Yield one sample per operation, with one case per size."""
    for name, size in SIZES.items():
        with emulator.table() as table:
            meter = asyncio.run(_measured(emulator, table, folder / f"costs-{size}.sqlite3", size))
        for operation, values in meter.costs.items():
            yield Sample(
                f"what it costs with a step and a result of {name}, DynamoDB Local",
                operation,
                values,
            )


async def _measured(emulator: Emulator, table: str, path: Path, size: int) -> Meter:
    meter, clock = Meter(), Clock()
    queue = SqliteQueue(Database(path, durable=False), clock)
    counted = meter.wrapped(queue, "queue_calls")
    table_of_tasks = DynamoDbTasks(emulator.open(table, lambda: meter.watched(emulator.client())))
    store = StoredTasks(table_of_tasks, counted)
    shop = Shop(meter.wrapped(store, "store_calls"), counted, clock)
    await _story(meter, shop, size)
    await store.aclose()
    await queue.aclose()
    return meter


async def _story(meter: Meter, shop: Shop, size: int) -> None:
    with meter.operation("create"):
        ref = await shop.begin(size)
    with meter.operation("claim"):
        claimed = await _claimed(shop)
    with meter.operation("rest of a turn"):
        await shop.worker.run(claimed)
    with meter.operation("tasks/get, it asks"):
        await shop.tasks.record(LOCAL, ref.id)
    with meter.operation("tasks/update, answers all"):
        await shop.tasks.update(
            LOCAL, ref.id, {"confirm": {"action": "accept", "content": {"go": True}}}
        )
    with meter.operation("claim, after the step"):
        claimed = await _claimed(shop)
    with meter.operation("rest of a turn"):
        await shop.worker.run(claimed)
    with meter.operation("tasks/get, completed"):
        record = await shop.tasks.record(LOCAL, ref.id)
        assert record is not None
        assert len(shop.tasks.shown(record)) > size
    other = await shop.begin(size)
    with meter.operation("tasks/cancel"):
        await shop.tasks.cancel(LOCAL, other.id)


async def _claimed(shop: Shop) -> Claimed:
    """Claim the queue's next task, as a worker pool does before it runs the task."""
    (message,) = await shop.queue.receive(10, 0)
    claimed = await shop.worker.claim(message.ref)
    await shop.queue.delete([message])
    assert isinstance(claimed, Claimed)
    return claimed


class Meter:
    """The calls and consumed units by operation, in order of appearance. Only one operation can be
    measured at a time."""

    def __init__(self) -> None:
        self.costs: dict[str, dict[str, float]] = {}
        self._operation: str | None = None

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Count the calls in this block for an operation, except calls with their own row. Calls
        outside of all blocks do not count."""
        before, self._operation = self._operation, name
        try:
            yield
        finally:
            self._operation = before

    def wrapped(self, port: Any, what: str) -> Any:
        """Return a store or queue whose calls are counted."""
        return _Wrapped(self, port, what)

    def watched(self, client: Any) -> Any:
        """Make a client report its consumed units to the meter; return it."""
        client.meta.events.register("provide-client-params.dynamodb", _ask)
        client.meta.events.register("after-call.dynamodb", self._note)
        return client

    def add(self, **amounts: float) -> None:
        if self._operation is not None:
            costs = self.costs.setdefault(self._operation, dict.fromkeys(NOTHING_YET, 0.0))
            for what, amount in amounts.items():
                costs[what] += amount

    @contextmanager
    def store_call(self, name: str) -> Iterator[None]:
        """Count a store call in its own row, if `ROWS` has one."""
        if self._operation is None or name not in ROWS:
            yield
        else:
            with self.operation(ROWS[name]):
                yield

    def _note(self, parsed: Mapping[str, Any], model: Any, **_: Any) -> None:
        consumed = parsed.get("ConsumedCapacity", [])
        units = "read_units" if model.name in READS else "write_units"
        self.add(dynamodb_calls=1)
        for capacity in consumed if isinstance(consumed, list) else [consumed]:
            indexes = capacity.get("GlobalSecondaryIndexes", {}).values()
            in_index = sum(index["CapacityUnits"] for index in indexes)
            self.add(**{units: capacity["CapacityUnits"], "index_units": in_index})


def _ask(params: dict[str, Any], **_: Any) -> dict[str, Any]:
    return {**params, "ReturnConsumedCapacity": "INDEXES"}


class _Wrapped:
    def __init__(self, meter: Meter, port: Any, what: str) -> None:
        self._meter = meter
        self._port = port
        self._what = what

    def __getattr__(self, name: str) -> Any:
        if not callable(getattr(self._port, name)):
            return getattr(self._port, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            with self._meter.store_call(name):
                self._meter.add(**{self._what: 1})
                return await getattr(self._port, name)(*args, **kwargs)

        return call
