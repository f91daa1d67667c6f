"""Claims to run a round: a row that is written, renewed, released, and taken over from a process that died.

    holder    claim ── renew ── renew ── (dies)
    another   reads the same version for `LOST_MS` ─────▶ takes the claim over

Clocks differ, so a waiting request measures on its own clock how long the version has stayed the
same. A request that must end before stores how long it has watched, and the next one continues from
there: without streams, no request may wait for so long.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.storage import SessionRow, SessionStore

BEAT_S: Final = 1.0
"""Seconds between two renewals of a claim."""
LOST_MS: Final = 5_000
"""Milliseconds without a renewal after which a claim is lost."""
LOST_FIRST_MS: Final = 10_000
"""The same for a first round, whose holder looks for waiting requests every 5 s at most."""
GAP_MS: Final = 3_000
"""Milliseconds between two reads after which a watch starts again: if the store was down, the
holder could not renew its claim."""
SUSPICIOUS_MS: Final = 2_000
"""The shortest watch that is stored, in milliseconds: a live holder renews its claim within this
time."""
RELEASE_S: Final = 2.0
"""Seconds that a request may spend on releasing its claim."""
_FREE: Final = b"free"
_WANTED: Final = b"wanted"


class Claim:
    """One request's claim to a round, or its watch on another request's claim.

    Args:
        rows: the store of claims.
        clock: the clock of the process.
        key: the key of the round.
        keep_ms: milliseconds that a claim is kept: longer than the round's end, or a finished round
            could be claimed again.
    """

    def __init__(self, rows: SessionStore, clock: Clock, key: str, keep_ms: int) -> None:
        self._rows = rows
        self._clock = clock
        self._key, self._watched_key = f"run.{key}", f"watched.{key}"
        self._mine = clock.new_id().encode()
        self._keep_ms = keep_ms
        self._seen: tuple[int, float] | None = None
        """The version of another's claim, and when it was first read, in monotonic milliseconds."""
        self._looked_ms = 0.0
        """When that claim was last read, in monotonic milliseconds."""
        self._kept: SessionRow | None = None
        """The stored watch of earlier requests, as first read."""

    @property
    def is_anothers(self) -> bool:
        """Return whether another request's claim has been read."""
        return self._seen is not None

    async def is_first(self) -> bool:
        """Claim the round and return whether no other request had claimed it.

        Raises:
            Unavailable: the store cannot be reached.
        """
        return await self._put(self._mine)

    async def is_taken_over(self) -> bool:
        """Return whether this request now holds the claim, which was released, lost, or its own all
        along.

        Raises:
            Unavailable: the store cannot be reached.
        """
        row = await self._rows.read(self._key)
        if row is not None and row.value == self._mine:  # our write whose response was lost
            return True
        if row is None:  # expired
            return await self.is_first()
        return await self._is_free(row, LOST_MS) and await self._replace(self._mine, row)

    async def is_lost(self) -> bool:
        """Return whether no request runs a first round any more. Also asks its holder to write a
        claim and renew it.

        Raises:
            Unavailable: the store cannot be reached.
        """
        row = await self._rows.read(self._key)
        if row is None:
            await self._put(_WANTED)
            row = await self._rows.read(self._key)
        return row is not None and await self._is_free(row, LOST_FIRST_MS)

    async def is_wanted(self) -> bool:
        """Return whether another request waits for this first round; write this request's claim if
        so.

        Raises:
            Unavailable: the store cannot be reached.
        """
        row = await self._rows.read(self._key)
        if row is not None and row.value == self._mine:  # our write whose response was lost
            return True
        return row is not None and row.value == _WANTED and await self._replace(self._mine, row)

    async def _is_free(self, row: SessionRow, lost_ms: int) -> bool:
        now_ms = self._clock.monotonic_ms()
        if self._seen is None:
            self._kept = await self._rows.read(self._watched_key)
            self._seen = row.version, now_ms - _watched_ms(self._kept, row.version)
        elif self._seen[0] != row.version or now_ms - self._looked_ms > GAP_MS:
            self._seen = row.version, now_ms
        self._looked_ms = now_ms
        return row.value == _FREE or now_ms - self._seen[1] > lost_ms

    async def keep_watch(self) -> None:
        """Store how long another's claim has stayed the same, if it may be lost; one of several
        watches is kept."""
        if self._seen is None:
            return
        version, since_ms = self._seen
        watched_ms = int(self._clock.monotonic_ms() - since_ms)
        if watched_ms < SUSPICIOUS_MS:
            return
        value = b"%d %d" % (version, watched_ms)
        with suppress(Unavailable):
            if self._kept is None:
                await self._rows.put_new(self._watched_key, value, self._forget_ms())
            else:
                kept = self._kept.version
                await self._rows.replace(self._watched_key, value, kept, self._forget_ms())

    async def beat(self) -> None:
        """Renew the claim every `BEAT_S` seconds, until another request holds it."""
        while True:
            await asyncio.sleep(BEAT_S)
            with suppress(Unavailable):
                row = await self._rows.read(self._key)
                if row is None or row.value != self._mine:
                    return
                await self._replace(self._mine, row)

    async def release(self) -> None:
        """Release the claim. If the store cannot be reached, others take it over after
        `LOST_MS`."""
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                row = await self._rows.read(self._key)
                if row is not None and row.value == self._mine:
                    await self._replace(_FREE, row)

    async def _put(self, value: bytes) -> bool:
        return await self._rows.put_new(self._key, value, self._forget_ms())

    async def _replace(self, value: bytes, row: SessionRow) -> bool:
        return await self._rows.replace(self._key, value, row.version, self._forget_ms())

    def _forget_ms(self) -> int:
        return self._clock.now_ms() + self._keep_ms


def _watched_ms(kept: SessionRow | None, version: int) -> int:
    """Return how many milliseconds earlier requests have watched this version of a claim."""
    if kept is None:
        return 0
    of, watched_ms = kept.value.split()
    return int(watched_ms) if int(of) == version else 0
