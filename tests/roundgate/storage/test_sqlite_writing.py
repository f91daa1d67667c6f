"""Writes that come together are one transaction, and yet none of them has to do with the others."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from roundgate.errors import LeaseLost, Unavailable
from roundgate.storage.sqlite.database import SqliteDatabase

INSERT = "insert into sessions (key, value, version, forget_ms) values (?, ?, 1, 1)"


class Counting(SqliteDatabase):
    """Counts commits."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commits = 0
        self.is_free = threading.Event()
        self.is_free.set()

    def _connect(self) -> sqlite3.Connection:
        db = super()._connect()
        db.set_trace_callback(self._note)
        return db

    def _note(self, statement: str) -> None:
        if statement == "commit":
            self.commits += 1


@pytest.fixture
async def database(tmp_path: Path) -> Any:
    made = Counting(tmp_path / "gateway.sqlite3")
    await made.write(lambda db: None)
    made.commits = 0
    yield made
    made.is_free.set()
    await made.aclose()


def insert(name: str, size: int = 1) -> Callable[[sqlite3.Connection], str]:
    def write(db: sqlite3.Connection) -> str:
        db.execute(INSERT, (name, "x" * size))
        return name

    return write


async def names(database: SqliteDatabase) -> list[str]:
    select = "select key from sessions"
    return sorted(name for (name,) in await database.read(lambda db: db.execute(select).fetchall()))


def held(database: Counting) -> asyncio.Task[None]:
    """A write that keeps the thread busy, so that what comes meanwhile comes together."""
    database.is_free.clear()

    def wait(db: sqlite3.Connection) -> None:
        assert database.is_free.wait(60)

    return asyncio.create_task(database.write(wait))


async def together(
    database: Counting, works: list[Callable[[sqlite3.Connection], Any]]
) -> list[Any]:
    """What becomes of writes that are asked for while another is on its way."""
    first = held(database)
    await asyncio.sleep(0)
    writes = [asyncio.create_task(database.write(work)) for work in works]
    await asyncio.sleep(0)
    database.commits = -1  # that of the first
    database.is_free.set()
    await first
    return await asyncio.gather(*writes, return_exceptions=True)


async def test_what_is_asked_for_while_the_disk_is_busy_goes_to_it_at_once(
    database: Counting,
) -> None:
    asked = [f"{number:02}" for number in range(20)]
    assert await together(database, [insert(name) for name in asked]) == asked
    assert database.commits == 1
    assert await names(database) == asked


async def test_a_write_that_raises_takes_back_itself_alone(database: Counting) -> None:
    def lose(db: sqlite3.Connection) -> None:
        insert("lost")(db)
        raise LeaseLost("task")

    a, lost, twice, b = await together(database, [insert("a"), lose, insert("a"), insert("b")])
    assert (a, b) == ("a", "b")
    assert isinstance(lost, LeaseLost)
    assert isinstance(twice, sqlite3.IntegrityError)
    assert await names(database) == ["a", "b"]


async def test_what_does_not_fit_the_disk_any_more_fails_alone(database: Counting) -> None:
    def limit(db: sqlite3.Connection) -> None:
        (pages,) = db.execute("pragma page_count").fetchone()
        db.execute(f"pragma max_page_count = {pages + 3}")

    await database.write(limit)
    a, large, b = await together(database, [insert("a"), insert("large", 10**6), insert("b")])
    assert (a, b) == ("a", "b")
    assert isinstance(large, Unavailable)
    assert "full" in str(large)
    assert await names(database) == ["a", "b"]


async def test_what_cannot_be_committed_fails_alone(database: Counting) -> None:
    def orphan(db: sqlite3.Connection) -> None:
        db.execute("pragma defer_foreign_keys = on")
        db.execute("insert into payloads (task, kind, name, value) values (999, '', '', '')")

    a, bad, b = await together(database, [insert("a"), orphan, insert("b")])
    assert (a, b) == ("a", "b")
    assert isinstance(bad, sqlite3.IntegrityError)
    assert await names(database) == ["a", "b"]


async def test_nobody_waits_for_a_caller_that_has_given_up(database: Counting) -> None:
    first = held(database)
    await asyncio.sleep(0)
    given_up, other = (
        asyncio.create_task(database.write(insert(name))) for name in ("given up", "other")
    )
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    assert given_up.cancelled()
    database.is_free.set()
    await first
    assert await other == "other"
    assert set(await names(database)) >= {"other"}


async def test_a_write_of_hints_does_not_wait_for_the_disk_by_itself(tmp_path: Path) -> None:
    seen: list[int] = []

    def look(db: sqlite3.Connection) -> None:
        seen.append(db.execute("pragma synchronous").fetchone()[0])

    durable, not_durable = (
        SqliteDatabase(tmp_path / "a.sqlite3"),
        SqliteDatabase(tmp_path / "b.sqlite3", durable=False),
    )
    for database in (durable, not_durable):
        await database.write(look)
        await database.write(look, durable=False)
        await database.aclose()
    full, normal = 2, 1
    assert seen == [full, normal, normal, normal]


def test_a_database_outlives_an_event_loop_that_was_closed_over_a_write(tmp_path: Path) -> None:
    database, begun = SqliteDatabase(tmp_path / "gateway.sqlite3"), threading.Event()
    goes_on = threading.Event()

    def slow(db: sqlite3.Connection) -> None:
        begun.set()
        assert goes_on.wait(60)

    async def leave() -> None:
        write = asyncio.create_task(database.write(slow))
        await asyncio.to_thread(begun.wait, 60)
        write.cancel()

    asyncio.run(leave())
    goes_on.set()
    assert asyncio.run(database.write(insert("a"))) == "a"
    asyncio.run(database.aclose())


_LOCK = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("begin immediate")
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which locks the file until it reads a line."""
    command = [sys.executable, "-c", _LOCK, str(tmp_path / "gateway.sqlite3")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


async def test_while_another_process_has_the_lock_each_waits_once(
    database: Counting, other: subprocess.Popen[str]
) -> None:
    await database.write(lambda db: db.execute("pragma busy_timeout = 300").fetchone())
    assert other.stdout is not None
    assert await asyncio.to_thread(other.stdout.readline) == "locked\n"
    began = asyncio.get_running_loop().time()
    writes = [database.write(insert(f"{number}")) for number in range(30)]
    got = await asyncio.gather(*writes, return_exceptions=True)
    assert asyncio.get_running_loop().time() - began < 5, "two transactions, not thirty"
    assert all(isinstance(one, Unavailable) for one in got)
    await asyncio.to_thread(other.communicate, "\n")
    assert await database.write(insert("after")) == "after"
