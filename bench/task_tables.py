"""Tables that have tasks in them already, and gateways in front of them: for `bench.tasks`.

Nine of ten tasks are completed, one waits for its client's answer: it is open, so the index of open tasks has it.
SQLite is filled through its store, without a disk to wait for. In DynamoDB one task of each kind is made through the
store, and its rows are copied: `BatchWriteItem` under other keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.wire import FILLED, KNOWS_TASKS, LARGE, LARGE_RESULT
from roundgate.auth import LOCAL
from roundgate.clock import Clock
from roundgate.deployment.dynamodb_local import Emulator
from roundgate.json import encode
from roundgate.protocol import Status
from roundgate.storage import NOTHING, Claimed, NewTask, TaskRef, TaskStore
from roundgate.storage.dynamodb import BATCH, SHARDS, DynamoDbTasks
from roundgate.storage.sqlite import Database, SqliteTasks
from roundgate.tasks import TaskCall, owner_of

OWNER = owner_of(LOCAL)
DAY_MS = 86_400_000
QUESTION = {
    "method": "elicitation/create",
    "params": {"message": "Go on?", "requestedSchema": {"type": "object"}},
}
WRITERS = 4


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
        return f"{self.store}, {self.count:,} tasks"

    def open(self) -> TaskStore:
        """Its store, as one more process would have it."""
        if self.dynamodb is not None:
            emulator, table = self.dynamodb
            return DynamoDbTasks(emulator.open(table))
        return SqliteTasks(Database(self.folder / "gateway.sqlite3"))


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
    store = SqliteTasks(database)
    for number in range(count):
        await _put(store, number)
    await _put_large(store)
    await store.aclose()


async def _fill_dynamodb(emulator: Emulator, table: str, count: int) -> None:
    store = DynamoDbTasks(emulator.open(table))
    for number in range(FILLED):
        await _put(store, number)
    await _put_large(store)
    await store.aclose()
    client = emulator.client()
    rows = list(_copies(client, table, range(FILLED, count)))
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
    """The rows of as many tasks more, each like the one that has its last digit."""
    keys = [{"pk": {"S": f"T#{_ref(number)}"}, "sk": {"S": "0"}} for number in range(FILLED)]
    heads = [client.get_item(TableName=table, Key=key)["Item"] for key in keys]
    for number in numbers:
        head = {**heads[number % FILLED], "pk": {"S": f"T#{_ref(number)}"}}
        yield head | ({"shard": {"S": str(number // FILLED % SHARDS)}} if "shard" in head else {})


async def _put(store: TaskStore, number: int) -> None:
    if number % FILLED == FILLED - 1:
        await _put_asking(store, _ref(number))
    else:
        await store.create(_completed(_ref(number), "done"))


async def _put_large(store: TaskStore) -> None:
    for number in range(LARGE):
        await store.create(_completed(TaskRef(OWNER, f"large-{number}"), LARGE_RESULT))


async def _put_asking(store: TaskStore, ref: TaskRef) -> None:
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
