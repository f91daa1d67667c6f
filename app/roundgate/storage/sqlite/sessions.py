"""`SessionStore` on SQLite: one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from roundgate.clock import Clock
from roundgate.storage.ports import SessionRow
from roundgate.storage.sqlite.database import SqliteDatabase, expired_rows

if TYPE_CHECKING:
    import sqlite3


SWEEP_EVERY_MS: Final = 60_000
_PUT: Final = """insert into sessions (key, value, version, forget_ms) values (?, ?, 1, ?)
on conflict (key) do update set value = excluded.value, version = version + 1, forget_ms = excluded.forget_ms"""


class SqliteSessions:
    """A `SessionStore` in a SQLite file."""

    def __init__(self, database: SqliteDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._swept_ms = 0

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        now_ms = self._clock.now_ms()

        def write(db: sqlite3.Connection) -> bool:
            self._sweep(db, now_ms)
            statement = f"{_PUT} where sessions.forget_ms < ?"  # an expired row counts as absent
            return db.execute(statement, (key, value, forget_ms, now_ms)).rowcount == 1

        return await self._database.write(write)

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        # The row is unchanged since it was read.
        is_same = "key = ? and version = ?"
        statement = (
            f"update sessions set value = ?, version = version + 1, forget_ms = ? where {is_same}"
        )
        arguments = (value, forget_ms, key, version)
        return await self._database.write(lambda db: db.execute(statement, arguments).rowcount == 1)

    async def put(self, key: str, value: bytes, forget_ms: int) -> int:
        now_ms = self._clock.now_ms()

        def write(db: sqlite3.Connection) -> int:
            self._sweep(db, now_ms)
            statement = f"{_PUT} returning version"
            version: int = db.execute(statement, (key, value, forget_ms)).fetchone()[0]
            return version

        return await self._database.write(write)

    async def read(self, key: str) -> SessionRow | None:
        statement = (
            "select value, version, forget_ms from sessions where key = ? and forget_ms >= ?"
        )
        arguments = (key, self._clock.now_ms())
        row = await self._database.read(lambda db: db.execute(statement, arguments).fetchone())
        return None if row is None else SessionRow(*row)

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        marks = ", ".join("?" * len(keys))
        statement = f"select key, value from sessions where key in ({marks}) and forget_ms >= ?"
        arguments = (*keys, self._clock.now_ms())
        return dict(
            await self._database.read(lambda db: db.execute(statement, arguments).fetchall())
        )

    async def aclose(self) -> None:
        await self._database.aclose()

    def _sweep(self, db: sqlite3.Connection, now_ms: int) -> None:
        """Delete some expired rows from time to time. Reads ignore such rows anyway."""
        if now_ms - self._swept_ms > SWEEP_EVERY_MS:
            rows = expired_rows(db, "sessions", "length(value)", "forget_ms", now_ms)
            db.executemany("delete from sessions where rowid = ?", rows)
            self._swept_ms = 0 if rows else now_ms
