"""The rows of sessions, asked again where the store is away for a moment.

A user has answered by then, or a handler has worked: neither may be lost because the store has a new
leader. What stays away for longer is `StoreAway`, and whoever can come back is told to.

    read ─✗─ 0.1 s ─✗─ 0.5 s ─✗─ 2 s ─✗─ … ─▶ StoreAway
                                              └▶ the stream ends with the id that it had ─▶ the client comes back

The Python SDK ends its session when an answer that it sends is refused with 503, so a request waits
here for nearly as long as clients wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain, repeat
from typing import Final, TypeVar

from roundgate import aws
from roundgate.clock import Clock
from roundgate.errors import StoreAway, Unavailable
from roundgate.storage import SessionRow, SessionStore

T = TypeVar("T")

PAUSES_S: Final = (0.1, 0.5, 2.0)
"""Between attempts, the last again and again."""
PATIENCE_S: Final = 20.0
"""No attempt is begun later: where DynamoDB does not answer, one takes 9 to 15 s, and clients wait
for 30 s."""


class PatientRows:
    """A `SessionStore` that tries again; see there. A write of which nobody heard may have been
    done: `put_new` and `replace` return `False` then, and who reads finds what they wrote.

    Args:
        rows: the store itself.
        clock: of the process.
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
        """Let go of connections."""
        await self._rows.aclose()

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        until_ms = self._clock.monotonic_ms() + PATIENCE_S * 1000
        for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
            try:
                return await ask()
            except Unavailable as error:
                if self._is_late(pause_s, until_ms):
                    raise StoreAway(str(error)) from error
            await self._clock.sleep(pause_s)
        raise AssertionError("pauses do not end")

    def _is_late(self, pause_s: float, until_ms: float) -> bool:
        is_past = self._clock.monotonic_ms() + pause_s * 1000 > until_ms
        return is_past or not aws.has_time(pause_s)
