"""The SQLite stores and queue do what every one must, on one file that several processes share."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from roundgate.errors import Unavailable
from roundgate.storage.ports import OnceStore, SessionStore
from roundgate.storage.sqlite.database import (
    FORGET_BYTES,
    MIGRATIONS,
    SqliteDatabase,
    migrate,
    other_version,
)
from roundgate.storage.sqlite.queue import HIDDEN_MS, SqliteQueue
from roundgate.storage.sqlite.sessions import SqliteSessions
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import FORGET_AFTER_MS, TaskRef
from roundgate.tasks.stored import StoredTasks
from tests.roundgate.storage import queue_contract, task_contract
from tests.roundgate.storage.account_contract import AccountContract
from tests.roundgate.storage.once_contract import (
    LATER,
    OnceStoreContract,
    SpawnClaims,
    spawning,
)
from tests.roundgate.storage.rate_contract import RateContract
from tests.roundgate.storage.session_contract import SessionStoreContract
from tests.roundgate.storage.task_contract import END, NOW, REF, ids, new
from tests.roundgate.storage.version_contract import COLUMN, FILLED, Opened, VersionContract
from tests.support.clocks import FixedClock, SkippingClock
from tests.support.reopening import reopening

OpenSessions = Callable[[], SessionStore]

_INSERT = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("insert into sessions (key, value, version, forget_ms) values (?, '', 1, 1)", [sys.argv[2]])
db.commit()
db.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "not yet there" / "gateway.sqlite3"


@pytest.fixture
async def open_sessions(path: Path, clock: FixedClock) -> AsyncIterator[OpenSessions]:
    async with reopening(lambda: SqliteSessions(SqliteDatabase(path), clock)) as open_one:
        yield open_one


@pytest.fixture
def spawn_claims(path: Path) -> SpawnClaims:
    imports = "from roundgate.storage.sqlite import SqliteDatabase, SqliteSessions"
    sessions = "SqliteSessions(SqliteDatabase(Path(*place)), Clock())"
    return spawning(imports, sessions, [str(path)], connects=False)


class TestSqliteOnce(OnceStoreContract):
    """The contract, on SQLite."""

    def test_processes_that_race_for_a_file_that_is_not_there_all_get_on(
        self, spawn_claims: SpawnClaims, path: Path
    ) -> None:
        assert not path.exists()
        assert spawn_claims("id", processes=6, claims=1).count("won") == 1

    async def test_a_write_that_is_confirmed_is_on_the_disk(
        self, store: OnceStore, path: Path
    ) -> None:
        await store.claim("id", "yes", 10, LATER)
        with sqlite3.connect(path) as db:
            assert db.execute("pragma journal_mode").fetchone() == ("wal",)
            assert db.execute("select key from sessions").fetchall() == [("once.id",)]
        db.close()

    def test_making_a_store_touches_no_file(self, path: Path, clock: FixedClock) -> None:
        SqliteSessions(SqliteDatabase(path), clock)
        assert not path.parent.exists()


class TestSqliteSessions(SessionStoreContract):
    """The contract, on SQLite."""

    async def test_rows_are_deleted_when_their_time_has_come(
        self, store: SessionStore, path: Path, clock: FixedClock
    ) -> None:
        for number in range(10):
            await store.put_new(f"key {number}", b"x", clock.now_ms() + 1_000)
        clock.skip(120)
        await store.put_new("another", b"y", LATER)
        with sqlite3.connect(path) as db:
            assert db.execute("select key from sessions").fetchall() == [("another",)]
        db.close()

    async def test_large_rows_are_deleted_a_few_at_a_time(
        self, store: SessionStore, path: Path, clock: FixedClock
    ) -> None:
        for number in range(5):
            await store.put_new(
                f"key {number}", b"x" * (FORGET_BYTES // 2), clock.now_ms() + number
            )
        clock.skip(120)
        left = []
        for number in range(4):
            await store.put_new(f"later {number}", b"", LATER)
            with sqlite3.connect(path) as db:
                select = "select count(*) from sessions where key like 'key %'"
                left.append(db.execute(select).fetchone()[0])
            db.close()
        assert left == [3, 1, 0, 0]


class TestSqliteAccounts(AccountContract):
    """The contract of accounts, on SQLite."""


class TestSqliteRates(RateContract):
    """The contract of shared token buckets, on SQLite."""


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


class TestSqliteVersions(VersionContract):
    """The contract of versions."""

    @pytest.fixture
    async def opened(
        self, path: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Opened]:
        made: list[SqliteSessions] = []
        scripts = (*MIGRATIONS, COLUMN, FILLED)

        async def open_some(
            version: int, min_version: int = 1, processes: int = 1
        ) -> list[SqliteSessions]:
            stores = [SqliteSessions(SqliteDatabase(path), clock) for _ in range(processes)]
            made.extend(stores)
            migrates = partial(migrate, scripts=scripts[:version], min_version=min_version)
            with monkeypatch.context() as patched:
                patched.setattr(f"{migrate.__module__}.migrate", migrates)
                await asyncio.gather(*(store.read("key") for store in stores))
            return stores

        yield open_some
        for store in made:
            await store.aclose()


async def test_the_file_and_its_folder_are_for_their_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        once = SqliteSessions(SqliteDatabase(path), FixedClock())
        await once.put_new("t", b"", LATER)
        modes = {
            one.name: stat.S_IMODE(one.stat().st_mode)
            for one in (path.parent, *path.parent.iterdir())
        }
        await once.aclose()
    finally:
        os.umask(before)
    assert modes.pop(path.parent.name) == 0o700
    assert modes.keys() >= {path.name, f"{path.name}-wal"}
    assert set(modes.values()) == {0o600}


async def test_a_connection_takes_no_locks_from_the_others_of_its_process(tmp_path: Path) -> None:
    """Or the next process to leave believes that it is the last one, and takes the
    write-ahead log with it."""
    path = tmp_path / "store.sqlite3"
    first, second = SqliteDatabase(path), SqliteDatabase(path)
    assert await first.read(lambda db: db.execute("select count(*) from tasks").fetchone()) == (0,)
    assert await second.read(lambda db: db.execute("select count(*) from tasks").fetchone()) == (0,)
    for number in range(2):
        command = [sys.executable, "-c", _INSERT, str(path), str(number)]
        assert await asyncio.to_thread(subprocess.call, command) == 0
        assert path.with_name("store.sqlite3-wal").exists()
        assert await first.read(
            lambda db: db.execute("select count(*) from sessions").fetchone()
        ) == (number + 1,)
    await first.aclose()
    await second.aclose()


async def test_a_full_disk_is_said_and_does_no_harm(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite has ended the transaction by then: there is nothing to roll back."""
    caplog.set_level("INFO", "roundgate")
    database = SqliteDatabase(path)

    def insert(db: sqlite3.Connection) -> None:
        facts = ("key", b"x" * 100_000, 1, LATER)
        db.execute(
            "insert into sessions (key, value, version, forget_ms) values (?, ?, ?, ?)",
            facts,
        )

    await database.write(lambda db: _limit_pages(db, 0))
    for _ in range(2):
        with pytest.raises(Unavailable, match="database or disk is full"):
            await database.write(insert)
    assert database.trouble() == "the database cannot be used; the log has the reason"
    await database.write(lambda db: _limit_pages(db, 1_000))
    assert database.trouble() is None
    await database.write(insert)
    logged = [record.getMessage() for record in caplog.records if "database" in record.getMessage()]
    assert logged == ["cannot use the database", "the database answers again"]
    assert await database.read(
        lambda db: db.execute("select count(*) from sessions").fetchone()
    ) == (1,)
    await database.aclose()


def _limit_pages(db: sqlite3.Connection, more: int) -> None:
    (pages,) = db.execute("pragma page_count").fetchone()
    db.execute(f"pragma max_page_count = {pages + more}")


async def test_a_commit_that_fails_leaves_no_transaction_behind(path: Path) -> None:
    """Or its connection would keep the lock, and be good for nothing more."""
    database = SqliteDatabase(path)

    def insert(db: sqlite3.Connection) -> None:
        db.execute("pragma defer_foreign_keys = on")  # looked at when it is committed
        db.execute("insert into payloads (task, kind, name, value) values (999, '', '', '')")

    for _ in range(2):
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            await database.write(insert)
    await database.aclose()


async def test_a_file_that_is_no_database_is_said_by_whoever_reads_or_writes(
    tmp_path: Path,
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("What was bought: " * 500)
    store = SqliteSessions(SqliteDatabase(file), FixedClock())
    with pytest.raises(Unavailable, match="file is not a database"):
        await store.read("t")
    with pytest.raises(Unavailable, match="file is not a database"):
        await store.put_new("t", b"", LATER)
    await store.aclose()
    assert file.read_text().startswith("What was bought"), "it is left as it is"


async def test_a_file_with_other_tables_of_the_same_version_is_refused(path: Path) -> None:
    store = SqliteSessions(SqliteDatabase(path), FixedClock())
    assert await store.put_new("t", b"", LATER)
    await store.aclose()
    assert other_version(path) is None
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma application_id = 0")  # as files from before the tables were settled
    reason = r"written by another version of the gateway \(file version 1, with other tables\)"
    assert re.search(reason, other_version(path) or "")
    store = SqliteSessions(SqliteDatabase(path), FixedClock())
    with pytest.raises(Unavailable, match=reason):
        await store.read("t")
    await store.aclose()


async def test_a_file_of_an_earlier_version_is_migrated_and_keeps_its_rows(path: Path) -> None:
    store = SqliteSessions(SqliteDatabase(path), FixedClock())
    await store.put_new("token", b"", LATER)
    await store.aclose()
    later = (
        *MIGRATIONS,
        "alter table sessions add column owner text not null default '?'; create table two (n)",
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert migrate(db, path, later, min_version=2) is False
        assert migrate(db, path, later, min_version=2) is False
        rows = db.execute("select key, owner from sessions").fetchall()
        assert (rows, db.execute("select * from two").fetchall()) == ([("token", "?")], [])
    assert "file version 2, this version reads 1" in (other_version(path) or "")


async def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    store = SqliteSessions(SqliteDatabase(path), FixedClock())
    await store.put_new("token", b"", LATER)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        broken = (*MIGRATIONS, "alter table sessions add column owner text; drop table none")
        with pytest.raises(sqlite3.OperationalError, match="no such table: none"):
            migrate(db, path, broken)
    assert other_version(path) is None
    assert not await store.put_new("token", b"", LATER)
    await store.aclose()


def test_processes_that_migrate_a_file_at_once_do_so_once(path: Path) -> None:
    path.parent.mkdir()
    scripts = ("create table one (n)", "create table two (n); insert into two values (1)")

    def run(_: int) -> bool:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as db:
            return migrate(db, path, scripts)

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(run, range(8))) == [False] * 7 + [True]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select n from two").fetchall() == [(1,)]


async def test_who_opens_a_new_file_waits_for_another_that_is_making_it(tmp_path: Path) -> None:
    file = tmp_path / "new.sqlite3"
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("create table x (y)")
    other.execute("begin exclusive")
    store = SqliteSessions(SqliteDatabase(file), FixedClock())
    reading = asyncio.ensure_future(store.read("t"))
    await asyncio.sleep(0.2)
    assert not reading.done()
    other.execute("commit")
    other.close()
    assert await asyncio.wait_for(reading, 60) is None
    await store.aclose()
