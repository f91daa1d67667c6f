"""Tables that have open tasks in them already, and gateways in front of them: for `bench.tasks`.

They wait for answers of their clients, who are a thousand others than the caller of the load.
Beside them stand the tasks in which the load looks, nine of ten completed. Those and the first
open one are made through the store; the others are copies of that one's rows under other keys, by
SQL or by `BatchWriteItem`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.dynamodb import Emulator
from bench.wire import FILLED, KNOWS_TASKS, LARGE, LARGE_RESULT
from roundgate.auth import LOCAL
from roundgate.clock import Clock
from roundgate.json import encode
from roundgate.protocol import Status
from roundgate.storage import TaskRef
from roundgate.storage.dynamodb import BATCH, SHARDS, DynamoDbTasks
from roundgate.storage.sqlite import Database, SqliteTasks
from roundgate.tasks import TaskCall, owner_of
from roundgate.tasks.events import NOTHING, NewTask
from roundgate.tasks.stored import Claimed, StoredTasks

OWNER = owner_of(LOCAL)
DAY_MS = 86_400_000
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "Go on?", "requestedSchema": {"type": "object"}},
}
WRITERS = 4
OWNERS = 1_000


@dataclass(frozen=True)
class Filled:
    """A table, and what a process has to know to use it."""

    store: str
    count: int
    folder: Path
    """Where a gateway on it keeps what is local."""
    environment: Mapping[str, str]
    dynamodb: tuple[Emulator, str] | None = None

    @property
    def name(self) -> str:
        """The row in which it is shown."""
        return f"{self.store}, {self.count:,} open tasks"

    def open(self) -> StoredTasks:
        """Its store, as one more process would have it."""
        if self.dynamodb is not None:
            emulator, table = self.dynamodb
            return StoredTasks(DynamoDbTasks(emulator.open(table)))
        return StoredTasks(SqliteTasks(Database(self.folder / "gateway.sqlite3")))


def sqlite(folder: Path, count: int) -> Filled:
    """A SQLite file."""
    folder.mkdir()
    path = folder / "gateway.sqlite3"
    asyncio.run(_fill_sqlite(Database(path, durable=False), count))
    return Filled("SQLite", count, folder, {"GATEWAY_STORE": f"sqlite:///{path}"})


def dynamodb(folder: Path, count: int, emulator: Emulator, table: str) -> Filled:
    """A table of DynamoDB Local; the queue is a SQLite file."""
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


async def _fill_sqlite(database: Database, count: int) -> None:
    store = StoredTasks(SqliteTasks(database))
    await _put_first(store)
    await database.write(lambda db: _copy(db, count))
    await store.aclose()


def _copy(db: sqlite3.Connection, count: int) -> None:
    """As many tasks like the open one as are missing."""
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
    """The rows of as many tasks more, each like the open one."""
    key = {"pk": {"S": f"T#{_open(0)}"}, "sk": {"S": "0"}}
    head = client.get_item(TableName=table, Key=key)["Item"]
    for ref, number in zip(map(_open, numbers), numbers, strict=True):
        own = {"pk": f"T#{ref}", "owner": ref.owner, "shard": str(number % SHARDS)}
        yield head | {name: {"S": value} for name, value in own.items()}


async def _put_first(store: StoredTasks) -> None:
    """What the load looks at, and the first of the open tasks."""
    for number in range(FILLED - 1):
        await store.create(_completed(_ref(number), "done"))
    await _put_asking(store, _ref(FILLED - 1))
    await _put_asking(store, _open(0))
    for number in range(LARGE):
        await store.create(_completed(TaskRef(OWNER, f"large-{number}"), LARGE_RESULT))


async def _put_asking(store: StoredTasks, ref: TaskRef) -> None:
    now_ms = Clock().now_ms()
    await store.create(_new(ref, now_ms))
    claimed = await store.claim(ref, now_ms, now_ms + 30_000)
    assert isinstance(claimed, Claimed)
    await store.suspend(claimed.lease, NOTHING, {"confirm": encode(QUESTION)}, now_ms)


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
