"""SQLite as the store: the embedded default, and the reference for every other.

WAL, so that several processes on one file read while one writes; every write is one statement whose condition is in it.
Calls hop to threads here; a connection is used by one of them at a time.
"""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from anyio import CapacityLimiter, to_thread

from app.clock import Clock
from app.storage.base import OnceRecord

T = TypeVar("T")

BUSY_S: Final = 10
MAX_CONNECTIONS: Final = 8
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
    """One file. Connections are made when they are first needed, so nothing is opened before a fork."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._idle: list[sqlite3.Connection] = []
        self._limiter = CapacityLimiter(MAX_CONNECTIONS)
        self._swept_ms = 0
        weakref.finalize(self, _close, self._idle)  # where no lifespan ends, as on AWS Lambda, nobody calls `aclose`

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
        """Close the connections."""
        _close(self._idle)

    async def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def borrow() -> T:
            try:
                db = self._idle.pop()
            except IndexError:
                db = self._connect()
            try:
                return work(db)
            finally:
                self._idle.append(db)

        return await to_thread.run_sync(borrow, limiter=self._limiter)

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # autocommit: every statement is its own transaction; any thread may use the connection after another
        db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _sweep(self, db: sqlite3.Connection) -> None:
        """Drop what may be forgotten, now and then: expired tokens are refused before they get here."""
        now_ms = self._clock.now_ms()
        if now_ms - self._swept_ms > _SWEEP_EVERY_MS:
            self._swept_ms = now_ms
            db.execute("delete from once where forget_ms < ?", (now_ms,))


def _close(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


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
