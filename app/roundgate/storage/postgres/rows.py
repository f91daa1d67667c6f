"""The session store and the once store in PostgreSQL, with one table each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from roundgate.clock import Clock
from roundgate.storage.once import CLOCKS_AHEAD_MS, OnceRecord
from roundgate.storage.postgres.database import Database, deletion
from roundgate.storage.sessions import SessionRow

_SWEEP_EVERY_MS: Final = 60_000
_PUT: Final = """insert into roundgate.sessions as old (key, value, version, forget_ms) values ($1, $2, 1, $3)
on conflict (key) do update set value = excluded.value, version = old.version + 1, forget_ms = excluded.forget_ms"""
_REPLACE: Final = """update roundgate.sessions set value = $2, version = version + 1, forget_ms = $4
where key = $1 and version = $3 returning version"""
_VALUES: Final = "from roundgate.sessions where key = any($1) and forget_ms >= $2"
_CLAIM: Final = """insert into roundgate.once (token_id, answers, give_up_ms, forget_ms) values ($1, $2, $3, $4)
on conflict do nothing returning token_id"""
_FINISH: Final = "update roundgate.once set outcome = $2 where token_id = $1 and outcome is null"
_ROUND: Final = "select answers, outcome, give_up_ms from roundgate.once where token_id = $1"


class _Rows:
    """A table whose rows expire."""

    delete: str
    """The statement that deletes some expired rows."""
    kept_ms = 0
    """The time in milliseconds for which a row is kept beyond its `forget_ms`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._swept_ms = 0

    async def _sweep(self) -> None:
        """Delete some expired rows from time to time. Reads ignore such rows anyway."""
        now_ms = self._clock.now_ms()
        if now_ms - self._swept_ms > _SWEEP_EVERY_MS:
            self._swept_ms = now_ms
            if await self._database.fetch_once(self.delete, now_ms - self.kept_ms):
                self._swept_ms = 0  # there may be more

    async def aclose(self) -> None:
        """Close the connections."""
        await self._database.aclose()


class PostgresSessions(_Rows):
    """A `SessionStore` in a PostgreSQL database."""

    delete = deletion("sessions", "key", "forget_ms", "octet_length(value)")

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        await self._sweep()
        facts = (key, value, forget_ms, self._clock.now_ms())
        put = f"{_PUT} where old.forget_ms < $4 returning version"
        return bool(await self._database.fetch_once(put, *facts))

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        return bool(await self._database.fetch_once(_REPLACE, key, value, version, forget_ms))

    async def put(self, key: str, value: bytes, forget_ms: int) -> int:
        await self._sweep()
        put, facts = f"{_PUT} returning version", (key, value, forget_ms)
        ((version,),) = await self._database.fetch(put, *facts)
        return int(version)

    async def read(self, key: str) -> SessionRow | None:
        select, now_ms = f"select value, version, forget_ms {_VALUES}", self._clock.now_ms()
        rows = await self._database.fetch(select, [key], now_ms)
        return SessionRow(*rows[0]) if rows else None

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        select, now_ms = f"select key, value {_VALUES}", self._clock.now_ms()
        return dict(await self._database.fetch(select, list(keys), now_ms))


class PostgresOnce(_Rows):
    """An `OnceStore` in a PostgreSQL database."""

    delete = deletion("once", "token_id", "forget_ms", "coalesce(octet_length(outcome), 0)")
    kept_ms = CLOCKS_AHEAD_MS

    async def claim(
        self, token_id: str, answers: str, give_up_ms: int, forget_ms: int
    ) -> OnceRecord | None:
        await self._sweep()
        won = await self._database.fetch_once(_CLAIM, token_id, answers, give_up_ms, forget_ms)
        return None if won else await self.read(token_id)

    async def finish(self, token_id: str, outcome: bytes) -> None:
        await self._database.fetch(_FINISH, token_id, outcome)

    async def read(self, token_id: str) -> OnceRecord | None:
        rows = await self._database.fetch(_ROUND, token_id)
        return OnceRecord(*rows[0]) if rows else None
