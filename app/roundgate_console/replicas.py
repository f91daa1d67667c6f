"""The replicas of this gateway that serve a console, in one row of the store that they share.

Each replica writes its version and its work of the last hour every 30 s:

    {"process 7 on a": {"version": "3.2", "runs": 812, …, "seen_ms": …}, "process 7 on b": {…}}

A replica that has not written for three periods is left out. Workers and functions on AWS Lambda
serve no console, so they are not among them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.storage import SessionStore, write_row

KEY: Final = "console/replicas"
EVERY_S: Final = 30.0
GONE_MS: Final = 90_000
"""The time in milliseconds after which a silent replica is left out."""
MAX_REPLICAS: Final = 200
"""The limit on the replicas of a row; replicas beyond it are left out."""
_TRIES: Final = 5


class ReplicaReport(BaseModel):
    """The report of a replica."""

    version: str = Field(description="`server.version` of its gateway.yaml.")
    software: str = Field(description="Its version of roundgate.")
    keys: list[str] | None = Field(None, description="The ids of its state keys.")
    python: str
    started_ms: int
    seen_ms: int = Field(description="When it wrote this, in milliseconds since the epoch.")
    runs: int = Field(description="Its rounds and turns of the last hour.")
    failed: int
    p95_ms: float | None = Field(description="The duration of 95 % of them, at most.")

    @property
    def agreed(self) -> tuple[str, str, tuple[str, ...]]:
        """Return the versions and keys in which replicas should agree."""
        return self.version, self.software, tuple(self.keys or ())


_ROWS: Final = TypeAdapter(dict[str, ReplicaReport])


class Replicas:
    """Reports this replica, and reads the reports of all.

    Args:
        store: the store that the replicas share.
        clock: the clock.
        name: the name of this replica.
        report: returns its current report.
    """

    def __init__(
        self, store: SessionStore, clock: Clock, name: str, report: Callable[[], ReplicaReport]
    ) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._report = report

    async def read(self) -> dict[str, ReplicaReport]:
        """Return the reports of the replicas by name, with the current one of this replica."""
        row = await self._store.read(KEY)
        return self._with_own(None if row is None else row.value)

    def _with_own(self, value: bytes | None) -> dict[str, ReplicaReport]:
        others: dict[str, ReplicaReport] = {}
        with suppress(ValidationError):  # of another version
            others = {} if value is None else _ROWS.validate_json(value)
        since_ms = self._clock.now_ms() - GONE_MS
        alive = {name: each for name, each in others.items() if each.seen_ms > since_ms}
        alive[self._name] = self._report()
        return dict(sorted(alive.items(), key=lambda item: -item[1].started_ms)[:MAX_REPLICAS])

    async def _write(self) -> None:
        for _ in range(_TRIES):
            row = await self._store.read(KEY)
            value = _ROWS.dump_json(self._with_own(None if row is None else row.value))
            forget_ms = self._clock.now_ms() + GONE_MS
            if await write_row(self._store, KEY, value, row, forget_ms):
                return

    async def _keep_reporting(self) -> None:
        while True:
            with suppress(Unavailable):  # `/healthz` reports an unavailable store
                await self._write()
            await asyncio.sleep(EVERY_S)

    @asynccontextmanager
    async def reporting(self, app: object) -> AsyncIterator[None]:
        """Report this replica while its app runs."""
        reporting = asyncio.create_task(self._keep_reporting())
        try:
            yield
        finally:
            reporting.cancel()
            with suppress(asyncio.CancelledError):
                await reporting
