"""Every statement on the SQLite store finds its rows by an index: its time does not grow
with what is in the file."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from roundgate.clock import Clock
from roundgate.protocol import Status
from roundgate.storage.sqlite.database import MIGRATIONS, SqliteDatabase
from roundgate.storage.sqlite.queue import SqliteQueue
from roundgate.storage.sqlite.sessions import SqliteSessions
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import Ending, TaskRef, Wanted
from roundgate.tasks import events
from roundgate.tasks.events import Added
from roundgate.tasks.stored import Claimed, Lease, StoredTasks
from tests.roundgate.storage.task_contract import END, NOW, REF, UNTIL, new
from tests.support.postponing import Move, postpone_many

ALL = "all that there are are asked for"
KNOWN_SCANS = {
    "select n, version, owner, id, tool,": ALL,
    "select (select count(*) from waiting": "counting is going over the index",
}
"""How a statement begins that goes over a whole table or index, and why it may."""
KNOWN_SORTS = ("order by n desc",)
"""What an operator asks for: the newest of those that an index has found."""


class Traced(SqliteDatabase):
    """Notes each statement, with its values."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, durable=False)
        self.statements: dict[str, str] = {}

    def _connect(self) -> sqlite3.Connection:
        db = super()._connect()
        db.set_trace_callback(self._note)
        return db

    def _note(self, statement: str) -> None:
        if re.match("(select|insert|update|delete) ", statement.lower()):
            shape = re.sub(r"'[^']*'|x'[^']*'|\b\d+\b", "?", statement)
            self.statements.setdefault(shape, statement)


@pytest.fixture
async def database(tmp_path: Path) -> Any:
    made = Traced(tmp_path / "gateway.sqlite3")
    yield made
    await made.aclose()


async def test_each_statement_uses_an_index(database: Traced) -> None:
    await have_everything_done(database)
    assert len(database.statements) > 55, "the story has become short"
    told = [told for one in database.statements.values() for told in await trouble(database, one)]
    assert not told, "\n".join(told)


async def trouble(database: Traced, statement: str) -> list[str]:
    """What is wrong with how SQLite goes about a statement."""
    rows = await database.read(lambda db: db.execute(f"explain query plan {statement}").fetchall())
    plan = [row[3] for row in rows]
    may_scan = any(statement.startswith(known) for known in KNOWN_SCANS)
    may_sort = any(known in statement for known in KNOWN_SORTS)
    scans = [step for step in plan if re.match(r"SCAN (?!CONSTANT|\()", step) and not may_scan]
    sorts = [step for step in plan if "TEMP B-TREE" in step and not may_sort]
    return [f"{step}: {statement}" for step in scans + sorts]


async def have_everything_done(database: SqliteDatabase) -> None:
    """Each operation of each store."""
    store, clock = StoredTasks(SqliteTasks(database)), Clock()
    await of_owners(store)
    await of_workers(store)
    await of_sweeps(store)
    queue = SqliteQueue(database, clock)
    await queue.send_many([REF, TaskRef("other", "x")])
    await queue.send(TaskRef("other", "y"), 60_000)
    messages = await queue.receive(10, 0, skip=["nobody"])
    await queue.put_back(messages[:1])
    await queue.delete(messages)
    await queue.depth()
    await queue.waiting([REF])
    sessions = SqliteSessions(database, clock)
    await sessions.put_new("key", b"", clock.now_ms() + 1_000)
    await sessions.replace("key", b"", 1, clock.now_ms() + 1_000)
    await sessions.read("key")
    await sessions.read_values(["key", "other"])


async def of_owners(store: StoredTasks) -> None:
    await store.create(new())
    await store.create(new(TaskRef("owner", "over"), status=Status.COMPLETED, outcome=b"1"))
    await store.count_open("owner", 10)
    await store.read(REF, NOW)
    for number, wanted in enumerate(
        (
            Wanted(),
            Wanted(owner="owner"),
            Wanted(tool="report", created_before_ms=NOW),
            Wanted(statuses=frozenset({Status.WORKING})),
            Wanted(statuses=frozenset({Status.FAILED, Status.CANCELLED})),
            Wanted(endings=frozenset({Ending.STEP_FAILED})),
            Wanted(owner="owner", endings=frozenset({Ending.TOOL_ERROR})),
            Wanted(owner="owner", statuses=frozenset({Status.COMPLETED})),
        )
    ):
        await store.find(wanted, 1, str(10 - number) if number % 2 else None)
    await store.open_tasks(10)
    await store.read_work(REF)
    await store.apply(TaskRef("owner", "over"), events.NoteRetry("other"), 0)
    await store.purge(TaskRef("owner", "over"), NOW)


async def of_workers(store: StoredTasks) -> None:
    lease = await claimed(store)
    await store.write(
        lease, events.Checkpoint(UNTIL, added=Added([b"1"], b"{}", "on its way")), NOW
    )
    await store.write(lease, events.SuspendTask({"a": b"1", "b": b"2"}, wake_ms=NOW), NOW)
    await store.apply(REF, events.TakeAnswers({"a": b"1"}, UNTIL), NOW)
    await store.apply(REF, events.GoOn(UNTIL), NOW)
    await store.write(await claimed(store), events.Release(0, NOW), NOW)
    await store.write(await claimed(store), events.Restart(b"{}", [b"1"], b"{}", 1, NOW), NOW)
    await store.apply(REF, events.LetGo(NOW, blame=False, fence=(await claimed(store)).fence), NOW)
    await store.write(await claimed(store), events.Park("waits"), NOW)
    await store.apply(REF, events.Requeue(NOW), NOW)
    await store.write(await claimed(store), events.Finish(Status.COMPLETED, b"1"), NOW)


async def claimed(store: StoredTasks) -> Lease:
    found = await store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW)
    assert isinstance(found, Claimed)
    return found.lease


async def of_sweeps(store: StoredTasks) -> None:
    for name in ("late", "past", "stopped"):
        await store.create(new(TaskRef("owner", name)))
    await store.apply(TaskRef("owner", "stopped"), events.Cancel("no more", NOW), NOW)
    assert await store.late_shards(UNTIL) == [0]
    late = await store.due(UNTIL, 10, 0)
    await store.due(UNTIL, 10)
    await postpone_many(store, [Move(late[0], UNTIL, 1)], UNTIL)
    await store.apply_many([(ref, events.Expire(END)) for ref in [TaskRef("owner", "past")]], END)
    await store.forget(END + 10**10)


async def test_the_time_of_an_operation_does_not_grow_with_the_table(database: Traced) -> None:
    """Counted in steps of SQLite's machine, which are the same on every computer."""
    store = StoredTasks(SqliteTasks(database))
    small = await steps(database, store, 10)
    large = await steps(database, store, 3_000)
    grown = {name: (small[name], large[name]) for name in small if large[name] > 3 * small[name]}
    assert not grown


async def steps(database: Traced, store: StoredTasks, count: int) -> dict[str, int]:
    """Steps of each operation, in hundreds, with so many open tasks of others in the file."""
    for number in range(count):
        await store.create(new(TaskRef(f"owner {number % 7}", f"{count} {number}")))
    ref, used = TaskRef("me", str(count)), 0

    def note() -> int:
        nonlocal used
        used += 1
        return 0

    async def measured(work: Any) -> int:
        nonlocal used
        used = 0
        for db in database._idle:
            db.set_progress_handler(note, 10)
        await work
        return used + 1

    found = {"create": await measured(store.create(new(ref)))}
    found["count"] = await measured(store.count_open("me", 1_000))
    claimed = await store.claim(ref, events.Claim(UNTIL, UNTIL, NOW), NOW)
    assert isinstance(claimed, Claimed)
    lease = claimed.lease
    found["get"] = await measured(store.read(ref, NOW))
    found["checkpoint"] = await measured(
        store.write(lease, events.Checkpoint(added=Added([b"1"])), NOW)
    )
    found["ask"] = await measured(store.write(lease, events.SuspendTask({"a": b"1"}), NOW))
    found["update"] = await measured(store.apply(ref, events.TakeAnswers({"a": b"1"}, UNTIL), NOW))
    found["cancel"] = await measured(store.apply(ref, events.Cancel("no more", NOW), NOW))
    found["sweep"] = await measured(store.late_shards(NOW - 1))
    found["due"] = await measured(store.due(NOW - 1, 10, 0))
    found["forget"] = await measured(store.forget(NOW))
    found["find"] = await measured(store.find(Wanted(owner="me"), 10))
    found["failed"] = await measured(store.find(Wanted(statuses=frozenset({Status.FAILED})), 10))
    return found


def test_values_of_any_size_lie_beside_the_index() -> None:
    tables = re.findall(
        r"create table (\w+) \(\n(.*?)\n\)( without rowid)?;", "".join(MIGRATIONS), re.DOTALL
    )
    with_values = {name: (columns, kind) for name, columns, kind in tables if " blob" in columns}
    assert with_values.keys() == {"payloads", "sessions", "told"}
    for name, (columns, kind) in with_values.items():
        assert not kind, f"{name} would have its values inside the tree of its keys"
        assert " blob" in columns.strip().splitlines()[-1], f"{name}: a column behind the value"
