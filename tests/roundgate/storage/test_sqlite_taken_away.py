"""A SQLite file that is deleted or replaced while it is in use: nothing is accepted that nobody
would find again."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from roundgate.errors import Unavailable
from roundgate.main import build_app
from roundgate.settings import TasksConfig
from roundgate.settings.process import Settings
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.queue import SqliteQueue
from roundgate.storage.sqlite.sessions import SqliteSessions
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.events import NewTask
from roundgate.tasks.stored import StoredTasks
from roundgate.tasks.sweep import Sweep
from tests.support.asgi import STATE_KEY, client, config_file, stoppable
from tests.support.clocks import FixedClock
from tests.support.functions import add

NOW = FixedClock().now_ms()
DAY_MS = 86_400_000


def new(name: str) -> NewTask:
    return NewTask(TaskRef("owner", name), "tool", b"{}", NOW, NOW + DAY_MS, NOW)


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def delete_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace(path: Path) -> None:
    other = path.with_suffix(".backup")
    SqliteDatabase(other)._connect().close()
    other.replace(path)


def delete_wal(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def delete_shm(path: Path) -> None:
    path.with_name(f"{path.name}-shm").unlink()


HARM: dict[str, tuple[Callable[[Path], None], str]] = {
    "deleted": (delete, "deleted"),
    "deleted with what is beside it": (delete_all, "deleted"),
    "its folder deleted": (delete_folder, "deleted"),
    "replaced": (replace, "replaced"),
    "its -wal deleted": (delete_wal, "separated from its -wal or -shm file"),
    "its -shm deleted": (delete_shm, "separated from its -wal or -shm file"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "gateway.db"


@pytest.mark.parametrize(("harm", "says"), HARM.values(), ids=HARM.keys())
async def test_nothing_is_accepted_into_a_file_that_was_taken_away(
    path: Path, harm: Callable[[Path], None], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = SqliteDatabase(path)
    store = StoredTasks(SqliteTasks(database))
    assert await store.create(new("before"))
    assert database.trouble() is None
    harm(path)
    for name in ("after", "once more"):
        with pytest.raises(Unavailable, match=says):
            await store.create(new(name))
    with pytest.raises(Unavailable, match=says):
        await store.read(TaskRef("owner", "before"), NOW)
    assert says in (database.trouble() or "")
    assert [one.message for one in caplog.records] == ["the store file was deleted or replaced"]
    await database.aclose()


@pytest.mark.parametrize("harm", [delete_wal, delete_shm])
async def test_what_is_beside_a_file_behind_a_link_is_missed(
    path: Path, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    await StoredTasks(SqliteTasks(SqliteDatabase(path))).create(new("first"))
    link = tmp_path / "link.db"
    link.symlink_to(path)
    database = SqliteDatabase(link)
    store = StoredTasks(SqliteTasks(database))
    assert await store.create(new("before"))
    harm(path)
    with pytest.raises(Unavailable, match="separated from its -wal or -shm file"):
        await store.create(new("after"))
    await database.aclose()


async def test_a_file_that_was_taken_away_is_not_made_again(path: Path) -> None:
    database = SqliteDatabase(path)
    store = StoredTasks(SqliteTasks(database))
    await store.create(new("before"))
    aside = path.with_suffix(".aside")

    def connect(db: sqlite3.Connection) -> None:
        os.replace(path, aside)  # between the look at the file and the next connection
        database._connect().close()

    with pytest.raises(Unavailable):
        await database.read(connect)
    assert not os.access(path, os.F_OK)
    os.replace(aside, path)
    assert await store.create(new("after"))
    await database.aclose()


async def test_a_file_that_is_put_back_is_used_again(path: Path) -> None:
    database = SqliteDatabase(path)
    store = StoredTasks(SqliteTasks(database))
    await store.create(new("before"))
    aside = path.with_suffix(".aside")
    os.replace(path, aside)
    with pytest.raises(Unavailable, match="deleted"):
        await store.create(new("after"))
    os.replace(aside, path)
    assert await store.create(new("after"))
    assert database.trouble() is None
    await database.aclose()


async def test_of_two_gateways_on_two_files_of_one_name_the_first_says_so(path: Path) -> None:
    first = SqliteDatabase(path)
    await StoredTasks(SqliteTasks(first)).create(new("first"))
    delete_all(path)
    second = SqliteDatabase(path)
    assert await StoredTasks(SqliteTasks(second)).create(new("second"))
    assert second.trouble() is None
    with pytest.raises(Unavailable, match="replaced"):
        await StoredTasks(SqliteTasks(first)).create(new("third"))
    assert first.id != second.id
    for database in (first, second):
        await database.aclose()


async def test_processes_on_one_file_know_it_by_one_id(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "roundgate.storage")
    first, second = SqliteDatabase(path), SqliteDatabase(path)
    for database in (first, second):
        await StoredTasks(SqliteTasks(database)).count_open("owner", 1)
    assert first.id == second.id is not None
    told = [one.fields for one in caplog.records]  # type: ignore[attr-defined]
    where = {"path": str(path), "store": first.id}
    assert told == [{**where, "new": True}, {**where, "new": False}]
    for database in (first, second):
        await database.aclose()


async def test_the_sweep_finds_it(path: Path, clock: FixedClock) -> None:
    database = SqliteDatabase(path)
    store, queue = StoredTasks(SqliteTasks(database)), SqliteQueue(database, clock)
    sweep = Sweep(store, queue, SqliteSessions(database, clock), clock, TasksConfig())
    await sweep.sweep()
    delete_all(path)
    with pytest.raises(Unavailable, match="deleted"):
        await sweep.sweep()
    await database.aclose()


async def test_healthz_says_it(path: Path) -> None:
    using = Settings(store=f"sqlite:///{path}", state_keys=STATE_KEY)
    async with stoppable(build_app(config_file(add), using)) as app, client(app) as mcp:
        health = (await mcp.http.get("/healthz")).json()
        assert (health["status"], "store" in health) == ("ok", False)
        stores = app.state.core.stores
        await stores.tasks.count_open("owner", 1)
        assert (await mcp.http.get("/healthz")).json()["store"] == stores.facts.id()
        delete_all(path)
        health = (await mcp.http.get("/healthz")).json()
        assert health["status"] == "degraded"
        assert "gateway.db was deleted while it was in use" in health["troubles"][0]
