"""Tasks and their queue in SQLite do what every task store and every queue must, on one file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.queue import HIDDEN_MS, SqliteQueue
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import FORGET_AFTER_MS, TaskRef
from roundgate.tasks.stored import StoredTasks
from tests.roundgate.storage import queue_contract, task_contract
from tests.roundgate.storage.task_contract import END, NOW, REF, ids, new
from tests.support.clocks import SkippingClock
from tests.support.reopening import reopening


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sqlite3"


class TestSqliteTasks(task_contract.TaskStoreContract):
    """The contract of tasks."""

    @pytest.fixture
    async def reopen(self, path: Path) -> AsyncIterator[task_contract.Reopen]:
        async with reopening(
            lambda: StoredTasks(SqliteTasks(SqliteDatabase(path, durable=False), shards=8))
        ) as open_one:
            yield open_one

    async def test_what_expired_long_ago_is_forgotten(self, store: StoredTasks) -> None:
        await store.create(new(call=b"x" * 9000))
        await store.create(new(TaskRef("owner", "later"), expires_ms=END + 1))
        assert await store.forget(END + FORGET_AFTER_MS - 1) == 0
        assert await store.forget(END + FORGET_AFTER_MS) == 1
        assert ids((await store.find()).records) == ["later"]
        assert await store.read(REF, NOW) is None


class TestSqliteQueue(queue_contract.DatabaseQueueContract):
    """The contract of the queue."""

    hidden_s = HIDDEN_MS / 1000

    @pytest.fixture
    async def reopen(
        self, path: Path, clock: SkippingClock
    ) -> AsyncIterator[queue_contract.Reopen]:
        async with reopening(
            lambda: SqliteQueue(SqliteDatabase(path, durable=False), clock)
        ) as open_one:
            yield open_one
