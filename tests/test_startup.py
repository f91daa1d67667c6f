"""The stores that a process begins with are those of its settings."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from roundgate.clock import Clock
from roundgate.config import GatewayConfig
from roundgate.errors import ConfigError
from roundgate.runtime.startup import make_ring, make_stores
from roundgate.settings import Settings


def test_stores_for_another_event_loop_have_as_many_shards() -> None:
    stores = make_stores(Settings(store="dynamodb://tasks"), Clock(), shards=20)
    assert stores.again is not None
    assert (stores.tasks.store.shards, stores.again().store.shards) == (20, 20)


def test_a_table_and_a_local_queue_have_nothing_in_common_on_lambda(tmp_path: Path) -> None:
    using = Settings(tmp_path / "gateway.yaml", store="dynamodb://tasks", on_lambda=True)
    with pytest.raises(ConfigError, match="set it to sqs://"):
        make_stores(using, Clock())


def test_what_is_made_ahead_of_calls_is_what_is_at_aws(tmp_path: Path) -> None:
    local = Settings(tmp_path / "gateway.yaml")
    both = Settings(store="dynamodb://tasks", queue="sqs://sqs.example/1/tasks")
    assert len(make_stores(local, Clock()).facts.prepares) == 0
    assert len(make_stores(both, Clock()).facts.prepares) == 2


POSTGRESQL = Settings(store="postgresql://gateway:s3cr3t@db.invalid/gateway")


def test_a_store_in_postgresql_is_made_without_connecting() -> None:
    stores = make_stores(POSTGRESQL, Clock())
    assert stores.again is not None
    assert (stores.tasks.store.shards, stores.again().store.shards) == (8, 8)
    facts = stores.facts
    assert (facts.id(), facts.trouble(), len(facts.prepares)) == (None, None, 0)


def test_replicas_on_postgresql_need_a_shared_key() -> None:
    with pytest.raises(ConfigError, match="replicas need a shared key") as refused:
        make_ring(GatewayConfig.model_construct(backends=[]), POSTGRESQL, Clock())
    assert "s3cr3t" not in str(refused.value)


def test_postgresql_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match=r"pip install 'roundgate\[postgres\]'"):
        make_stores(POSTGRESQL, Clock())


def test_a_store_of_another_version_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "gateway.sqlite3"
    with closing(sqlite3.connect(file)) as db:
        db.execute("pragma user_version = 7")
    using = Settings(store=f"sqlite:///{file}")
    with pytest.raises(ConfigError, match="was written by another version") as refused:
        make_stores(using, Clock())
    assert refused.value.problems[0].path == "GATEWAY_STORE"
