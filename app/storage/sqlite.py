"""SQLite as the store: the embedded default, and the reference for every other.

WAL, so that several processes on one file read while one writes; every write is one statement whose condition is in it.
Calls hop to threads here, and each thread has its own connection.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread

from app.clock import Clock
from app.storage.base import OnceRecord

T = TypeVar("T")

BUSY_S: Final = 10
_SWEEP_EVERY_MS: Final = 60_000
_WAL_ATTEMPTS: Final = 200

_SCHEMA: Final = """
create table if not exists once (
    token_id text primary key,
    answers text not null,
    outcome blob,
    give_up_ms integer not null,
    forget_ms integer not null
) without rowid;
create index if not exists once_by_forget on once (forget_ms);
"""


class SqliteStore:
    """One file. Connections are made when a thread first needs one, so nothing is opened before a fork."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        self._limiter = CapacityLimiter(8)
        self._swept_ms = 0

    async def claim(self, token_id: str, answers: str, give_up_ms: int, forget_ms: int) -> OnceRecord | None:
        """See `OnceStore`."""

        def write(db: sqlite3.Connection) -> OnceRecord | None:
            self._sweep(db)
            insert = "insert into once (token_id, answers, give_up_ms, forget_ms) values (?, ?, ?, ?)"
            won = db.execute(f"{insert} on conflict do nothing", (token_id, answers, give_up_ms, forget_ms))
            return None if won.rowcount else _read(db, token_id)

        return await self._do(write)

    async def finish(self, token_id: str, outcome: bytes) -> None:
        """See `OnceStore`."""
        statement = "update once set outcome = ? where token_id = ? and outcome is null"
        await self._do(lambda db: db.execute(statement, (outcome, token_id)))

    async def read(self, token_id: str) -> OnceRecord | None:
        """See `OnceStore`."""
        return await self._do(lambda db: _read(db, token_id))

    async def aclose(self) -> None:
        """Close every thread's connection."""
        while self._open:
            self._open.pop().close()
        self._local = threading.local()

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await to_thread.run_sync(lambda: work(self._connection()), limiter=self._limiter)

    def _connection(self) -> sqlite3.Connection:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # autocommit: every statement is its own transaction; the closing thread may be another than the using one
            db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            _prepare(db)
            self._local.db = db
            self._open.append(db)
        return db

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Drop what may be forgotten, now and then: expired tokens are refused before they get here."""
        now_ms = self._clock.now_ms()
        if now_ms - self._swept_ms > _SWEEP_EVERY_MS:
            self._swept_ms = now_ms
            db.execute("delete from once where forget_ms < ?", (now_ms,))


def _prepare(db: sqlite3.Connection) -> None:
    """The change to WAL is the one thing that SQLite does not wait for: of processes that start together all but one
    are told at once that the file is locked. WAL stays in the file, so this is over when one of them has got through.
    """
    pause = threading.Event()
    for attempt in range(_WAL_ATTEMPTS):
        try:
            db.execute("pragma journal_mode = wal")
            break
        except sqlite3.OperationalError:
            if attempt + 1 == _WAL_ATTEMPTS:
                raise
            pause.wait(BUSY_S / _WAL_ATTEMPTS)
    db.execute("pragma synchronous = full")
    db.executescript(_SCHEMA)


def _read(db: sqlite3.Connection, token_id: str) -> OnceRecord | None:
    row = db.execute("select answers, outcome, give_up_ms from once where token_id = ?", (token_id,)).fetchone()
    return None if row is None else OnceRecord(*row)
