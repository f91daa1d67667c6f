"""The rows of sessions, with retries while the store is unavailable.

A user has already answered, or a handler has done work, when a row is written or read: neither may be
lost because the store elects a new leader. After a longer outage the error is `StoreAway`, and a
client that can resume its call is told to.

    read ─✗─ 0.1 s ─✗─ 0.5 s ─✗─ 2 s ─✗─ … ─▶ StoreAway
                                              └▶ the stream ends with its last id ─▶ the client resumes

The Python SDK ends its session when an answer that it sends is refused with 503. So a request
retries here for nearly as long as clients wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain, repeat
from typing import Final, TypeVar

from roundgate import aws
from roundgate.clock import Clock
from roundgate.errors import QuotaExceeded, StoreAway, Unavailable
from roundgate.storage import SessionRow, SessionStore

T = TypeVar("T")

PAUSES_S: Final = (0.1, 0.5, 2.0)
"""Seconds between attempts; the last pause repeats."""
PATIENCE_S: Final = 20.0
"""Seconds after which no attempt begins: one takes 9 to 15 s if DynamoDB does not answer, and
clients wait for 30 s."""


class PatientRows:
    """A `SessionStore` that retries. An attempt that failed may have written all the same:
    `put_new` and `replace` then return `False`, and a read returns the caller's own value.

    Args:
        rows: the store itself.
        clock: the clock of the process.
    """

    def __init__(self, rows: SessionStore, clock: Clock) -> None:
        self._rows = rows
        self._clock = clock

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        """See `SessionStore`. Raises StoreAway."""
        return await self._patiently(lambda: self._rows.put_new(key, value, forget_ms))

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        """See `SessionStore`. Raises StoreAway."""
        return await self._patiently(lambda: self._rows.replace(key, value, version, forget_ms))

    async def put(self, key: str, value: bytes, forget_ms: int) -> int:
        """See `SessionStore`. Raises StoreAway."""
        return await self._patiently(lambda: self._rows.put(key, value, forget_ms))

    async def read(self, key: str) -> SessionRow | None:
        """See `SessionStore`. Raises StoreAway."""
        return await self._patiently(lambda: self._rows.read(key))

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """See `SessionStore`. Raises StoreAway."""
        return await self._patiently(lambda: self._rows.read_values(keys))

    async def aclose(self) -> None:
        """Close the store's connections."""
        await self._rows.aclose()

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        until_ms = self._clock.monotonic_ms() + PATIENCE_S * 1000
        for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
            try:
                return await ask()
            except QuotaExceeded:
                raise
            except Unavailable as error:
                if self._is_late(pause_s, until_ms):
                    raise StoreAway(str(error)) from error
            await self._clock.sleep(pause_s)
        raise AssertionError("pauses do not end")

    def _is_late(self, pause_s: float, until_ms: float) -> bool:
        is_past = self._clock.monotonic_ms() + pause_s * 1000 > until_ms
        return is_past or not aws.has_time(pause_s)
