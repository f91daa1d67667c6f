"""Tables that already hold open tasks, for `bench.tasks`.

The open tasks wait for answers and belong to a thousand owners, which do not include the load's
caller. The tables also contain the tasks that the load polls, nine of ten of them completed. These
and the first open task are created through the store. The other open tasks are copies of its rows
with other keys, made by SQL or `BatchWriteItem`.
"""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.dynamodb import Emulator
from bench.postgresql import Server
from bench.wire import FILLED, KNOWS_TASKS, LARGE, LARGE_RESULT
from roundgate.auth import LOCAL, task_owner
from roundgate.clock import Clock
from roundgate.json import encode
from roundgate.protocol import Status
from roundgate.storage import TaskRef, postgres
from roundgate.storage.dynamodb import BATCH, SHARDS, DynamoDbTasks
from roundgate.storage.postgres import PostgresTasks
from roundgate.storage.sqlite import SqliteDatabase, SqliteTasks
from roundgate.tasks import TaskCall, events
from roundgate.tasks.events import NewTask
from roundgate.tasks.stored import Claimed, StoredTasks

OWNER = task_owner(LOCAL)
DAY_MS = 86_400_000
KEY = base64.b64encode(bytes(32)).decode()
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "Go on?", "requestedSchema": {"type": "object"}},
}
WRITERS = 4
OWNERS = 1_000


@dataclass(frozen=True)
class Filled:
    """A table with open tasks, and the settings that a process needs to use the table."""

    store: str
    count: int
    folder: Path
    """The folder for the local files of a gateway that uses the table."""
    environment: Mapping[str, str]
    dynamodb: tuple[Emulator, str] | None = None
    postgresql: Server | None = None

    @property
    def name(self) -> str:
        """The name of the table's row in the report."""
        return f"{self.store}, {self.count:,} open tasks"

    def open(self) -> StoredTasks:
        """Return the table's store, opened as in another process."""
        if self.dynamodb is not None:
            emulator, table = self.dynamodb
            return StoredTasks(DynamoDbTasks(emulator.open(table)))
        if self.postgresql is not None:
            return StoredTasks(PostgresTasks(postgres.PostgresDatabase(self.postgresql.url)))
        return StoredTasks(SqliteTasks(SqliteDatabase(self.folder / "gateway.sqlite3")))


def sqlite(folder: Path, count: int) -> Filled:
    """Create a SQLite file with `count` open tasks."""
    folder.mkdir()
    path = folder / "gateway.sqlite3"
    asyncio.run(_fill_sqlite(SqliteDatabase(path, durable=False), count))
    return Filled("SQLite", count, folder, {"GATEWAY_STORE": f"sqlite:///{path}"})


def dynamodb(folder: Path, count: int, emulator: Emulator, table: str) -> Filled:
    """Fill a table of DynamoDB Local with `count` open tasks. Its queue is a SQLite file."""
    folder.mkdir()
    asyncio.run(_fill_dynamodb(emulator, table, count))
    environment = {
        "GATEWAY_STORE": f"dynamodb://{table}",
        "AWS_ENDPOINT_URL_DYNAMODB": emulator.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "eu-central-1",
    }
    return Filled("DynamoDB Local", count, folder, environment, (emulator, table))


def postgresql(folder: Path, count: int, server: Server) -> Filled:
    """Create the tables in a server's database anew, with `count` open tasks."""
    folder.mkdir()
    asyncio.run(_fill_postgresql(postgres.PostgresDatabase(server.url), count))
    environment = {"GATEWAY_STORE": server.url, "GATEWAY_STATE_KEYS": KEY}
    return Filled("PostgreSQL", count, folder, environment, postgresql=server)


async def _fill_postgresql(database: postgres.PostgresDatabase, count: int) -> None:
    await database.fetch("drop schema if exists roundgate cascade")
    await database.aclose()
    store = StoredTasks(PostgresTasks(database))
    await _put_first(store)
    columns = await database.fetch(
        "select column_name from information_schema.columns where table_schema = 'roundgate'"
        " and table_name = 'tasks' and column_name not in ('n', 'version', 'owner', 'id')"
    )
    same = ", ".join(name for (name,) in columns)
    refs = [_open(number) for number in range(1, count)]
    copy = (
        f"with copied as (insert into roundgate.tasks (owner, id, {same}) select r.owner, r.id, {same}"
        " from unnest($1::text[], $2::text[]) as r (owner, id),"
        f" (select {same} from roundgate.tasks where id = $3) as first returning n)"
        " insert into roundgate.payloads (task, kind, name, value) select copied.n, kind, name, value"
        " from copied, roundgate.payloads where task = (select n from roundgate.tasks where id = $3)"
    )
    for start in range(0, len(refs), 1_000):
        some = refs[start : start + 1_000]
        await database.fetch(
            copy, [ref.owner for ref in some], [ref.id for ref in some], _open(0).id
        )
    await database.fetch("analyze")
    await store.aclose()


async def _fill_sqlite(database: SqliteDatabase, count: int) -> None:
    store = StoredTasks(SqliteTasks(database))
    await _put_first(store)
    await database.write(lambda db: _copy(db, count))
    await store.aclose()


def _copy(db: sqlite3.Connection, count: int) -> None:
    """Insert copies of the first open task until the table has `count` open tasks."""
    (first,) = db.execute("select n from tasks where id = ?", (_open(0).id,)).fetchone()
    names = [name for _, name, *_ in db.execute("pragma table_info(tasks)")]
    same = ", ".join(name for name in names if name not in {"n", "owner", "id"})
    copy = f"insert into tasks (owner, id, {same}) select ?, ?, {same} from tasks where n = {first}"
    payloads = (
        "insert into payloads (task, kind, name, value) select ?, kind, name, value from payloads"
        f" where task = {first}"
    )
    for ref in map(_open, range(1, count)):
        db.execute(payloads, (db.execute(copy, (ref.owner, ref.id)).lastrowid,))


async def _fill_dynamodb(emulator: Emulator, table: str, count: int) -> None:
    store = StoredTasks(DynamoDbTasks(emulator.open(table)))
    await _put_first(store)
    await store.aclose()
    client = emulator.client()
    rows = list(_copies(client, table, range(1, count)))
    batches = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]

    def write(batch: list[Any]) -> None:
        left = client.batch_write_item(
            RequestItems={table: [{"PutRequest": {"Item": row}} for row in batch]}
        )
        assert not left["UnprocessedItems"], "nothing throttles the emulator"

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, batches))
    client.close()


def _copies(client: Any, table: str, numbers: range) -> Iterator[dict[str, Any]]:
    """Yield a copy of the first open task's row for each number."""
    key = {"pk": {"S": f"T#{_open(0)}"}, "sk": {"S": "0"}}
    head = client.get_item(TableName=table, Key=key)["Item"]
    for ref, number in zip(map(_open, numbers), numbers, strict=True):
        own = {"pk": f"T#{ref}", "owner": ref.owner, "shard": str(number % SHARDS)}
        yield head | {name: {"S": value} for name, value in own.items()}


async def _put_first(store: StoredTasks) -> None:
    """Create the tasks that the load polls, and the first open task."""
    for number in range(FILLED - 1):
        await store.create(_completed(_ref(number), "done"))
    await _put_asking(store, _ref(FILLED - 1))
    await _put_asking(store, _open(0))
    for number in range(LARGE):
        await store.create(_completed(TaskRef(OWNER, f"large-{number}"), LARGE_RESULT))


async def _put_asking(store: StoredTasks, ref: TaskRef) -> None:
    now_ms = Clock().now_ms()
    await store.create(_new(ref, now_ms))
    claimed = await store.claim(ref, events.Claim(now_ms + 30_000, now_ms + 30_000, now_ms), now_ms)
    assert isinstance(claimed, Claimed)
    await store.write(claimed.lease, events.SuspendTask({"confirm": encode(QUESTION)}), now_ms)


def _completed(ref: TaskRef, text: str) -> NewTask:
    outcome = encode({"resultType": "complete", "content": [{"type": "text", "text": text}]})
    return _new(ref, Clock().now_ms(), status=Status.COMPLETED, outcome=outcome)


def _new(ref: TaskRef, now_ms: int, **facts: Any) -> NewTask:
    call = TaskCall("add", {"a": 1, "b": 2}, LOCAL, dict(KNOWS_TASKS))
    return NewTask(
        ref,
        tool="add",
        call=call.to_bytes(),
        created_ms=now_ms,
        expires_ms=now_ms + DAY_MS,
        due_ms=now_ms + DAY_MS,
        **facts,
    )


def _ref(number: int) -> TaskRef:
    return TaskRef(OWNER, f"filled-{number}")


def _open(number: int) -> TaskRef:
    return TaskRef(f"owner-{number % OWNERS}", f"open-{number}")
