"""The SQLite store of sessions does what every one must, and forgets."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from roundgate.storage.sqlite.database import FORGET_BYTES, SqliteDatabase
from roundgate.storage.sqlite.sessions import SqliteSessions
from tests.roundgate.storage.account_contract import AccountContract
from tests.roundgate.storage.rate_contract import RateContract
from tests.roundgate.storage.session_contract import LATER, SessionStoreContract
from tests.support.clocks import FixedClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.sqlite3"


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
async def store(path: Path, clock: FixedClock) -> AsyncIterator[SqliteSessions]:
    made = SqliteSessions(SqliteDatabase(path), clock)
    yield made
    await made.aclose()


@pytest.fixture
async def another(path: Path, clock: FixedClock) -> AsyncIterator[SqliteSessions]:
    made = SqliteSessions(SqliteDatabase(path), clock)
    yield made
    await made.aclose()


class TestSqliteSessions(SessionStoreContract):
    """The contract, on SQLite."""

    async def test_rows_are_deleted_when_their_time_has_come(
        self, store: SqliteSessions, path: Path, clock: FixedClock
    ) -> None:
        for number in range(10):
            await store.put_new(f"key {number}", b"x", clock.now_ms() + 1_000)
        clock.skip(120)
        await store.put_new("another", b"y", LATER)
        with sqlite3.connect(path) as db:
            assert db.execute("select key from sessions").fetchall() == [("another",)]
        db.close()

    async def test_large_rows_are_deleted_a_few_at_a_time(
        self, store: SqliteSessions, path: Path, clock: FixedClock
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
