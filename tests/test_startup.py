"""The stores that a process begins with are those of its settings."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from roundgate.clock import Clock
from roundgate.errors import ConfigError
from roundgate.runtime.startup import make_stores
from roundgate.settings import Settings


def test_stores_for_another_event_loop_have_as_many_shards() -> None:
    stores = make_stores(Settings(store="dynamodb://tasks"), Clock(), shards=20)
    assert stores.again is not None
    assert (stores.tasks.shards, stores.again().shards) == (20, 20)


def test_a_table_and_a_local_queue_have_nothing_in_common_on_lambda(tmp_path: Path) -> None:
    using = Settings(tmp_path / "gateway.yaml", store="dynamodb://tasks", on_lambda=True)
    with pytest.raises(ConfigError, match="set it to sqs://"):
        make_stores(using, Clock())


def test_what_is_made_ahead_of_calls_is_what_is_at_aws(tmp_path: Path) -> None:
    local = Settings(tmp_path / "gateway.yaml")
    both = Settings(store="dynamodb://tasks", queue="sqs://sqs.example/1/tasks")
    assert len(make_stores(local, Clock()).prepares) == 0
    assert len(make_stores(both, Clock()).prepares) == 2


def test_a_store_of_another_version_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "gateway.sqlite3"
    with closing(sqlite3.connect(file)) as db:
        db.execute("pragma user_version = 7")
    using = Settings(store=f"sqlite:///{file}")
    with pytest.raises(ConfigError, match="was written by another version") as refused:
        make_stores(using, Clock())
    assert refused.value.problems[0].path == "GATEWAY_STORE"
