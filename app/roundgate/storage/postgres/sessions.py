"""`SessionStore` on PostgreSQL: one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from roundgate.clock import Clock
from roundgate.storage.ports import SessionRow
from roundgate.storage.postgres.database import PostgresDatabase, deletion

_SWEEP_EVERY_MS: Final = 60_000
_PUT: Final = """insert into roundgate.sessions as old (key, value, version, forget_ms) values ($1, $2, 1, $3)
on conflict (key) do update set value = excluded.value, version = old.version + 1, forget_ms = excluded.forget_ms"""
_REPLACE: Final = """update roundgate.sessions set value = $2, version = version + 1, forget_ms = $4
where key = $1 and version = $3 returning version"""
_VALUES: Final = "from roundgate.sessions where key = any($1) and forget_ms >= $2"
_DELETE: Final = deletion("sessions", "key", "forget_ms", "octet_length(value)")


class PostgresSessions:
    """A `SessionStore` in a PostgreSQL database."""

    def __init__(self, database: PostgresDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._swept_ms = 0

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

    async def aclose(self) -> None:
        await self._database.aclose()

    async def _sweep(self) -> None:
        """Delete some expired rows from time to time. Reads ignore such rows anyway."""
        now_ms = self._clock.now_ms()
        if now_ms - self._swept_ms > _SWEEP_EVERY_MS:
            self._swept_ms = now_ms
            if await self._database.fetch_once(_DELETE, now_ms):
                self._swept_ms = 0  # there may be more
