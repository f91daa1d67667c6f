"""Tasks worked on as in a deployment: a real store on a file, a queue, and workers
that share nothing else."""

from __future__ import annotations

import asyncio
import inspect
import shutil
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from anyio import CapacityLimiter

from roundgate import json
from roundgate.aio import in_thread
from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL, Principal
from roundgate.backends.base import Offering, Tool
from roundgate.backends.catalog import Catalog
from roundgate.clock import Deadline
from roundgate.protocol import detailed
from roundgate.protocol.content import TextContent, ToolResult
from roundgate.replay.context import Context
from roundgate.replay.journal import Journal
from roundgate.replay.sync_context import SyncContext
from roundgate.runtime import loading
from roundgate.settings import TasksConfig
from roundgate.storage.ports import Message, SessionRow, TaskQueue
from roundgate.storage.sqlite.database import SqliteDatabase, transacted
from roundgate.storage.sqlite.queue import SqliteQueue
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import TaskRecord, TaskRef
from roundgate.tasks.call import TaskCall
from roundgate.tasks.events import Delivered, NotClaimed
from roundgate.tasks.external import Deliveries, EventSource
from roundgate.tasks.lease import ClockTrust
from roundgate.tasks.pool import Pool
from roundgate.tasks.service import Tasks
from roundgate.tasks.stored import Claimed, StoredTasks
from roundgate.tasks.sweep import Sweep
from roundgate.tasks.turn import Means, TurnResult
from roundgate.tasks.worker import Worker
from roundgate.tokens import EventTokens, Key, KeyRing
from tests.support.catalogs import built
from tests.support.replay import Name
from tests.support.rounds import CAPABILITIES

PUBLIC_URL = "https://mcp.example.com"
RING = KeyRing([Key(bytes(32))])

Handler: TypeAlias = Callable[..., Any]
"""`async def handler(ctx, **arguments)`, or a plain function with a `SyncContext`."""
Share: TypeAlias = "Callable[..., Shared]"
"""The fixture `share` of the tests of tasks."""


async def quick(ctx: Context) -> str:
    return "quick"


async def asks(ctx: Context) -> str:
    return (await ctx.elicit("who", "Who?", Name)).name


class Waiting:
    """A handler, `run`, that has begun and waits until it is let go on; `step` does so in a step."""

    def __init__(self) -> None:
        self.began, self.free = asyncio.Event(), asyncio.Event()
        self.ended: list[bool] = []
        """Whether the task was cancelled, for each cancellation of the handler."""

    async def run(self, ctx: Context) -> str:
        self.began.set()
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.ended.append(ctx.cancelled)
            raise
        return "done"

    async def step(self, ctx: Context) -> str:
        return str(await ctx.step("long", lambda: self.run(ctx)))


@dataclass(frozen=True)
class Functions:
    """A back end of handlers, each a tool that may be a task."""

    handlers: Mapping[str, Handler | None]
    name: str = "functions"
    prefix: str = ""

    async def offer(self) -> Offering:
        return Offering([_tool(name, handler) for name, handler in self.handlers.items()])

    async def aclose(self) -> None:
        """Nothing is held."""


def catalog_of(**handlers: Handler | None) -> Catalog:
    """A catalog of these handlers under their names."""
    return loading.apart(built([Functions(handlers)]))


def _tool(name: str, handler: Handler | None) -> Tool:
    threads = CapacityLimiter(8)

    async def call(context: Context, arguments: dict[str, Any]) -> ToolResult:
        assert handler is not None, f"{name} is served elsewhere"
        if inspect.iscoroutinefunction(handler):
            value = await handler(context, **arguments)
        else:
            value = await in_thread(lambda: handler(SyncContext(context), **arguments), threads)
        return value if isinstance(value, ToolResult) else ToolResult([TextContent("done")], value)

    definition = {"name": name, "description": name, "inputSchema": {"type": "object"}}
    return Tool(definition, call, task="optional")


async def nobody_listens(method: str, uri: str | None) -> None:
    """Where changes are published when nobody listens."""


class Rows:
    """Rows in memory: the part of a `SessionStore` that a sweep needs. Others may run between a read and a write."""

    def __init__(self) -> None:
        self.kept: dict[str, SessionRow] = {}

    async def read(self, key: str) -> SessionRow | None:
        row = self.kept.get(key)
        await asyncio.sleep(0)
        return row

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        return self._write(key, value, 0)

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        return self._write(key, value, version)

    def _write(self, key: str, value: bytes, version: int) -> bool:
        kept = self.kept.get(key)
        if version != (kept.version if kept else 0):
            return False
        self.kept[key] = SessionRow(value, version + 1)
        return True


def as_stored(double: Any) -> StoredTasks:
    """A double as the tasks that it stands for."""
    return double  # type: ignore[no-any-return]


@dataclass
class Workshop:
    """One process: its catalog, its own objects on what all processes share, and what is made of them."""

    catalog: Catalog
    store: StoredTasks
    queue: TaskQueue
    clock: Any
    config: TasksConfig = field(default_factory=TasksConfig)
    public_url: str | None = PUBLIC_URL
    rows: Any = field(default_factory=Rows)

    def __post_init__(self) -> None:
        self.tasks = Tasks(self.store, self.clock, self.config)
        trust = ClockTrust(self.clock, int(self.config.lease_s * 1000), 5_000)
        source = EventSource(lambda: EventTokens(RING), self.public_url, self.config)
        means = Means(
            *(self.catalog, self.store, self.clock, self.config, nobody_listens),
            clock_trust=trust,
            external=source,
        )
        self.worker = Worker(means)
        self.sweep = Sweep(self.store, self.queue, self.rows, self.clock, self.config, trust=trust)
        self.pool = Pool(self.worker, self.sweep, self.queue, self.config)

    # for the owner

    async def begin(
        self,
        tool: str,
        *,
        journal: Journal | None = None,
        principal: Principal = LOCAL,
        **arguments: Any,
    ) -> TaskRef:
        """A new task."""
        call = TaskCall(tool, arguments, principal, CAPABILITIES)
        created = await self.tasks.create(call, journal or Journal())
        return TaskRef(task_owner(principal), created["taskId"])

    async def record(self, ref: TaskRef) -> TaskRecord:
        """Its row."""
        found = await self.store.read(ref, self.clock.now_ms())
        assert found is not None, "there is no such task"
        return found

    async def shown(self, ref: TaskRef, principal: Principal = LOCAL) -> dict[str, Any]:
        """What `tasks/get` answers."""
        record = await self.tasks.record(principal, ref.id)
        assert record is not None, "there is no such task"
        body: dict[str, Any] = json.decode(detailed(record.view(self.clock.now_ms()), 1_000))
        return body

    async def value(self, ref: TaskRef) -> Any:
        """What its handler returned."""
        shown = await self.shown(ref)
        assert shown["status"] == "completed", shown
        assert "isError" not in shown["result"], shown
        return shown["result"]["structuredContent"]

    async def error(self, ref: TaskRef) -> str:
        """The text of its result with `isError`."""
        shown = await self.shown(ref)
        assert shown["status"] == "completed", shown
        assert shown["result"]["isError"] is True
        text: str = shown["result"]["content"][0]["text"]
        return text

    async def until(
        self, ref: TaskRef, is_so: Callable[[TaskRecord], bool], within_s: float = 60
    ) -> TaskRecord:
        """Its row once a condition holds, for real processes and clocks."""
        until = time.monotonic() + within_s
        while not is_so(found := await self.record(ref)):
            assert time.monotonic() < until, found
            await asyncio.sleep(0.02)
        return found

    async def over(self, *refs: TaskRef, within_s: float = 60) -> list[TaskRecord]:
        """Their rows once all are terminal."""
        return [await self.until(ref, _is_over, within_s) for ref in refs]

    async def answer(self, ref: TaskRef, **responses: Any) -> None:
        """`tasks/update`"""
        await self.tasks.update(
            LOCAL, ref.id, {key.replace("__", "~"): value for key, value in responses.items()}
        )

    async def cancel(self, ref: TaskRef) -> None:
        """`tasks/cancel`"""
        await self.tasks.cancel(LOCAL, ref.id)

    # for services

    async def deliver(self, ref: TaskRef, name: str, payload: Any) -> Delivered:
        """A payload of an external event."""
        deliveries = Deliveries(self.store, self.clock, self.config)
        return await deliveries.deliver(ref, name, payload)

    # for the workers

    async def messages(self) -> Sequence[Message]:
        """What the queue has just now."""
        return await self.queue.receive(10, 0)

    async def lost(self) -> list[TaskRef]:
        """Take away all messages that the queue has just now; return their tasks."""
        refs: list[TaskRef] = []
        while messages := await self.messages():
            await self.queue.delete(messages)
            refs += [message.ref for message in messages]
        return refs

    async def take(self, message: Message) -> TurnResult:
        """What a pool does with a message, and then with a suspect."""
        claimed = await self.worker.claim(message.ref)
        await self.queue.delete([message])
        if claimed is NotClaimed.SUSPECT:
            return await self.worker.work(message.ref, alone=True)
        if claimed is NotClaimed.CLEAN_UP:
            return await self.worker.clean_up(message.ref)
        return (
            await self.worker.run(claimed)
            if isinstance(claimed, Claimed)
            else TurnResult.NOT_CLAIMED
        )

    async def turns(self, deadline: Deadline | None = None) -> list[TurnResult]:
        """A turn for each message that the queue has just now."""
        turns: list[TurnResult] = []
        for message in await self.messages():
            await self.queue.delete([message])
            turn = await self.worker.work(message.ref, deadline)
            if turn is TurnResult.SUSPECT:  # nothing else runs here
                turn = await self.worker.work(message.ref, deadline, alone=True)
            turns.append(turn)
        return turns

    async def all_turns(self, at_most: int = 50) -> list[TurnResult]:
        """Turns until the queue has nothing more just now."""
        turns: list[TurnResult] = []
        while more := await self.turns():
            turns += more
            assert len(turns) < at_most, turns
        return turns


def _is_over(record: TaskRecord) -> bool:
    return record.status.is_terminal


class Files:
    """SQLite files with everything in them but rows; made once, because making one takes its time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made = 0
        self._template = directory / "template.sqlite3"
        SqliteDatabase(self._template, durable=False)._connect().close()

    def new(self) -> Path:
        """Another file."""
        self._made += 1
        path = self._directory / f"{self._made}.sqlite3"
        shutil.copy(self._template, path)
        return path


class Fast(SqliteDatabase):
    """No thread and no disk: for thousands of runs. Whether writes are durable is not what they are about."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, durable=False)

    async def read(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        return self._borrow(work)

    async def write(
        self, work: Callable[[sqlite3.Connection], Any], *, durable: bool = True
    ) -> Any:
        return await self.read(lambda db: transacted(db, work))

    def _connect(self) -> sqlite3.Connection:
        db = super()._connect()
        db.execute("pragma synchronous = off")
        return db


@dataclass
class Shared:
    """What processes share: a file. `workshop` is one more process."""

    path: Path
    clock: Any
    config: TasksConfig = field(default_factory=TasksConfig)
    opened: list[Any] = field(default_factory=list)
    rows: Any = field(default_factory=Rows)
    database: type[SqliteDatabase] = SqliteDatabase

    def stores(self) -> tuple[StoredTasks, SqliteQueue]:
        """Another process's objects on the file."""
        kind: Any = self.database
        databases = [
            kind(self.path, durable=False) if kind is SqliteDatabase else kind(self.path)
            for _ in range(2)
        ]
        self.opened += databases
        queue = SqliteQueue(databases[1], self.clock)
        return StoredTasks(SqliteTasks(databases[0]), queue), queue

    def workshop(self, **handlers: Handler | None) -> Workshop:
        """Another process that serves these handlers; one that is `None` has a name, but is never run here."""
        parts = catalog_of(**handlers), *self.stores()
        return Workshop(*parts, self.clock, self.config, rows=self.rows)

    async def aclose(self) -> None:
        for database in self.opened:
            await database.aclose()
