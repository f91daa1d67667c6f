"""The pages of tasks, on each store."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from roundgate.settings.process import Settings
from tests.roundgate_console.task_pages_contract import Operating, TaskPagesContract
from tests.support import console_tasks
from tests.support.dynamodb import Emulator
from tests.support.postgresql import Server


class TestSqlite(TaskPagesContract):
    """In a SQLite file."""

    @pytest.fixture
    def operated(self, tmp_path: Path) -> Operating:
        return partial(console_tasks.operated, tmp_path)


@pytest.mark.long
class TestPostgresql(TaskPagesContract):
    """In PostgreSQL."""

    @pytest.fixture
    def operated(self, postgresql: Server) -> Operating:
        return partial(console_tasks.operated, Settings(store=postgresql.url))


@pytest.mark.long
class TestDynamoDb(TaskPagesContract):
    """In DynamoDB Local, with the queue in a file."""

    @pytest.fixture
    def operated(
        self, dynamodb: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Operating]:
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        with dynamodb.table() as name:
            using = Settings(tmp_path / "gateway.yaml", store=f"dynamodb://{name}")
            yield partial(console_tasks.operated, using)
