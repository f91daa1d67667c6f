"""The limits of the stores themselves, for `bench.tasks`: only the writes of a task that completes
immediately.

A task is three durable writes: create, claim, end. HTTP, queue, conditions and the event loop are
excluded. SQLite is measured with one transaction per write, as a single writer would do, and with
one transaction per step for sixteen tasks, the number of clients. DynamoDB Local is measured with
sixteen threads that share a client, with one `PutItem` and two `UpdateItem` per task, on its own
table.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.dynamodb import Emulator
from bench.measurements import Sample, Settings
from roundgate.storage.sqlite import Database

TOGETHER = 16
HEAD = ("owner", "tool", "working", 1, 1, 1, 1, 0, 0, 0, 1, 0)
CALL = b"x" * 260
"""A value of about the size of a call that becomes a task, and of the result below."""
OUTCOME = b"x" * 90

Work = Callable[[], int]


def sqlite(folder: Path, settings: Settings, case: str) -> Iterator[Sample]:
    """Yield the tasks per second that SQLite's writes alone allow, with the gateway's tables and
    pragmas."""
    folder.mkdir(exist_ok=True)
    path = folder / "limit.sqlite3"
    asyncio.run(_make(path))
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    (first,) = db.execute("select coalesce(max(n), 0) + 1 from tasks").fetchone()
    numbers = iter(range(first, 10**9))
    for count in (1, TOGETHER):
        values = measured(partial(_tasks, db, numbers, count), settings)
        each = "one a transaction" if count == 1 else f"those of {count} tasks a transaction"
        yield Sample(case, f"SQLite, bare writes, {each}", values)
    db.close()


async def _make(path: Path) -> None:
    database = Database(path)
    await database.write(lambda db: None)
    await database.aclose()


def _tasks(db: sqlite3.Connection, numbers: Iterator[int], count: int) -> int:
    these = [next(numbers) for _ in range(count)]
    for write in (_create, _claim, _end):
        db.execute("begin immediate")
        for n in these:
            write(db, n)
        db.execute("commit")
    return count


def _create(db: sqlite3.Connection, n: int) -> None:
    columns = (
        "n, id, owner, tool, status, created_ms, updated_ms, expires_ms, revision, fence,"
        " lease_until_ms, wake_ms, due_ms, attempts"
    )
    facts = (n, f"limit-{n}", *HEAD)
    db.execute(f"insert into tasks ({columns}) values ({', '.join('?' * 14)})", facts)
    for kind, value in (("call", CALL), ("state", b"{}")):
        _put(db, n, kind, value)


def _put(db: sqlite3.Connection, n: int, kind: str, value: bytes) -> None:
    insert = "insert into payloads (task, kind, name, value) values (?, ?, '', ?)"
    db.execute(insert, (n, kind, value))


def _claim(db: sqlite3.Connection, n: int) -> None:
    db.execute("update tasks set fence = 1, lease_until_ms = 2 where n = ?", (n,))


def _end(db: sqlite3.Connection, n: int) -> None:
    db.execute(
        "update tasks set status = 'completed', lease_until_ms = 0, due_ms = null where n = ?",
        (n,),
    )
    _put(db, n, "outcome", OUTCOME)


def dynamodb(emulator: Emulator, table: str, settings: Settings, case: str) -> Iterator[Sample]:
    """Yield the tasks per second that DynamoDB Local's writes alone allow."""
    client = emulator.client()
    numbers = iter(range(10**9))

    def one(n: int) -> None:
        _one_in_dynamodb(client, table, f"limit-{time.time_ns()}-{n}")

    with ThreadPoolExecutor(TOGETHER) as threads:

        def some() -> int:
            batch = [next(numbers) for _ in range(TOGETHER)]
            return len(list(threads.map(one, batch)))

        values = measured(some, settings)
    client.close()
    yield Sample(case, f"DynamoDB Local, bare writes, {TOGETHER} threads", values)


def _one_in_dynamodb(client: Any, table: str, name: str) -> None:
    key = {"pk": {"S": f"T#{name}"}, "sk": {"S": "0"}}
    facts: Mapping[str, Any] = {
        "shard": {"S": "1"},
        "due_ms": {"N": "1"},
        "owner": {"S": "limit"},
        "status": {"S": "working"},
        "call": {"B": CALL},
    }
    client.put_item(TableName=table, Item={**key, **facts})
    client.update_item(
        TableName=table,
        Key=key,
        UpdateExpression="SET lease_until_ms = :until, fence = :one",
        ExpressionAttributeValues={":until": {"N": "2"}, ":one": {"N": "1"}},
    )
    client.update_item(
        TableName=table,
        Key=key,
        UpdateExpression="SET outcome = :outcome REMOVE due_ms, #shard, #owner",
        ExpressionAttributeNames={"#shard": "shard", "#owner": "owner"},
        ExpressionAttributeValues={":outcome": {"B": OUTCOME}},
    )


def measured(some: Work, settings: Settings) -> dict[str, float]:
    """Return the tasks per second, and this process's processor time per task, over a window."""
    some()
    began, used, done = time.perf_counter(), time.process_time(), 0
    while (took_s := time.perf_counter() - began) < settings.seconds:
        done += some()
    used_s = time.process_time() - used
    return {"tasks_per_s": done / took_s, "task_cpu_us": 1e6 * used_s / done}
