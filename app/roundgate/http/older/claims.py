"""Who runs a round: a row that is claimed, renewed, given up, and taken over from whoever has died.

    holder    claim ── again ── again ── (dies)
    another   reads the same version for `LOST_MS` ─────▶ takes it over

How long it has been the same is watched on the clock of who waits, because clocks differ. A request
that must leave before keeps how long it has watched, and the next one goes on counting there: where
nothing streams, none may wait for so long.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.storage import SessionRow, SessionStore

BEAT_S: Final = 1.0
"""How often whoever runs a round says so."""
LOST_MS: Final = 5_000
"""When nothing was said for so long, nobody runs it any more."""
LOST_FIRST_MS: Final = 10_000
"""The same of a first round, whose holder looks every 5 s at most whether anybody wants to know."""
GAP_MS: Final = 3_000
"""After so long without a look nothing is known of the time between: the store was away, and nobody
could say anything."""
SUSPICIOUS_MS: Final = 2_000
"""What is worth keeping of a watch: whoever lives has said something by then."""
RELEASE_S: Final = 2.0
"""How long a request that is over may take to say that it does not run the round."""
_FREE: Final = b"free"
_WANTED: Final = b"wanted"


class Claim:
    """One request's claim to a round, or its watch on another's.

    Args:
        rows: where claims are.
        clock: of the process.
        key: of the round.
        keep_ms: milliseconds for which they are kept: longer than the round's end, or somebody
            might claim what has ended.
    """

    def __init__(self, rows: SessionStore, clock: Clock, key: str, keep_ms: int) -> None:
        self._rows = rows
        self._clock = clock
        self._key, self._watched_key = f"run.{key}", f"watched.{key}"
        self._mine = clock.new_id().encode()
        self._keep_ms = keep_ms
        self._seen: tuple[int, float] | None = None
        """The version of another's claim, and since when it is the same, in monotonic
        milliseconds."""
        self._looked_ms = 0.0
        """When that was last read, in monotonic milliseconds."""
        self._kept: SessionRow | None = None
        """How long others had watched, as it was read."""

    @property
    def is_anothers(self) -> bool:
        """Whether another's claim has been seen."""
        return self._seen is not None

    async def is_first(self) -> bool:
        """Whether this is the first claim. Raises Unavailable."""
        return await self._put(self._mine)

    async def is_taken_over(self) -> bool:
        """Whether nobody ran the round any more, and now this request does. Raises Unavailable."""
        row = await self._rows.read(self._key)
        if row is not None and row.value == self._mine:  # a write of which nobody heard
            return True
        if row is None:  # forgotten, as everything is for which nobody can ask any more
            return await self.is_first()
        return await self._is_free(row, LOST_MS) and await self._replace(self._mine, row)

    async def is_lost(self) -> bool:
        """Whether nobody runs a first round any more; its holder is told
        that somebody wants to know.

        Raises:
            Unavailable: the store cannot be reached.
        """
        row = await self._rows.read(self._key)
        if row is None:
            await self._put(_WANTED)
            row = await self._rows.read(self._key)
        return row is not None and await self._is_free(row, LOST_FIRST_MS)

    async def is_wanted(self) -> bool:
        """Whether somebody wants to know who runs this first round, and has now been
        told. Raises Unavailable."""
        row = await self._rows.read(self._key)
        if row is not None and row.value == self._mine:  # a write of which nobody heard
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
        """Keep for how long another's claim has been the same. Of several who
        watch at once, one counts."""
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
        """Say again and again that the round is run, until another runs it."""
        while True:
            await asyncio.sleep(BEAT_S)
            with suppress(Unavailable):
                row = await self._rows.read(self._key)
                if row is None or row.value != self._mine:
                    return
                await self._replace(self._mine, row)

    async def release(self) -> None:
        """Let another run the round now; if that cannot be said, it does after a while."""
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
    """For how long others have seen this version of a claim, in milliseconds."""
    if kept is None:
        return 0
    of, watched_ms = kept.value.split()
    return int(watched_ms) if int(of) == version else 0
