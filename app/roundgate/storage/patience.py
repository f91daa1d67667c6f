"""Retries of store operations while the store is unavailable.

When a row is written or read, a user has already answered, or a handler has done work. Neither may
be lost because the store elects a new leader. After a longer outage the error is `StoreAway`, and
the gateway asks a client that can resume its call to do so.

    read ─✗─ 0.1 s ─✗─ 0.5 s ─✗─ 2 s ─✗─ … ─▶ StoreAway
                                              └▶ the stream ends with its last id ─▶ the client resumes

The Python SDK ends its session when an answer that it sends is refused with 503. So the retries
last nearly as long as clients wait for an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import chain, repeat
from typing import Final, TypeVar

from roundgate import aws
from roundgate.clock import Clock
from roundgate.errors import QuotaExceeded, StoreAway, Unavailable

T = TypeVar("T")

PAUSES_S: Final = (0.1, 0.5, 2.0)
"""Seconds between attempts; the last pause repeats."""
PATIENCE_S: Final = 20.0
"""Seconds after which no attempt begins. An attempt takes 9 to 15 s if DynamoDB does not answer,
and clients wait for 30 s."""


class RowPatience:
    """Retries an operation. A failed attempt may still have written its row."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def __call__(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `ask`.

        Raises:
            StoreAway: the store was unavailable for `PATIENCE_S`.
        """
        until_ms = self._clock.monotonic_ms() + PATIENCE_S * 1000
        for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
            try:
                return await ask()
            except QuotaExceeded:
                raise
            except Unavailable as error:
                is_late = self._clock.monotonic_ms() + pause_s * 1000 > until_ms
                if is_late or not aws.has_time(pause_s):
                    raise StoreAway(str(error)) from error
            await self._clock.sleep(pause_s)
        raise AssertionError("pauses do not end")
