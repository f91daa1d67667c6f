"""Token buckets: the calls that each caller may still make.

A bucket holds up to `burst` tokens and gains `per_minute` tokens a minute; a call takes one. So a
caller makes at most `burst + minutes x per_minute` calls in any time. All arithmetic is exact: one
token is `TOKEN` parts, a bucket gains `per_minute` parts in a millisecond.

`LocalBuckets` counts in this process. `SharedBuckets` counts for all processes of a store: a bucket
is a row of the session store, from which a process takes tokens in blocks:

    take ──▶ this process has a token of an earlier block
         ├─▶ else one conditional write takes a block (after a read, if another process wrote)
         └─▶ the bucket is empty: refused, and the row is left alone until it has gained tokens

    key    rate.DIGEST            of the limit and the caller
    value  [parts, at_ms]         the parts in the bucket at a time
    expiry when the bucket is full again, so that a missing row is a full bucket

The rows allow no call too many. A process that does not use its block keeps up to a `BLOCKS`th of
the burst for later calls. If the store is unavailable, each process counts by itself. Clocks that
differ by more than `MARGIN_MS` fill buckets too early.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from math import ceil
from typing import Final, Protocol, TypeAlias

from msgspec import Struct, field

from roundgate import json
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.json import digest
from roundgate.storage.ports import SessionStore

TOKEN: Final = 60_000
"""The parts of a token: the milliseconds of a minute."""
MAX_CALLERS: Final = 10_000
"""The maximum number of callers that a process remembers for one limit, with some 200 bytes
each."""
BLOCKS: Final = 300
"""The number of blocks in a burst. A process holds less than a block per caller, so more blocks are
more exact; fewer blocks are fewer writes."""
LOOKS: Final = 60
"""The number of times that a process may look for tokens while an empty bucket becomes full."""
MARGIN_MS: Final = 60_000
"""The time for which a row is kept after its bucket is full, in milliseconds, because clocks
differ."""
AWAY_MS: Final = 5_000
"""The time after a failure of the store during which a process counts by itself, in
milliseconds."""
PAUSE_S: Final = 0.005
"""The first pause in seconds after losing a write to another process."""
_TRIES: Final = 20

log: Final = logging.getLogger("roundgate.rates")

Caller: TypeAlias = tuple[str, str, str]
"""Issuer, subject and client; or two empty texts around an address."""


class Quota(Struct, frozen=True):
    """The size of a bucket, and the tokens that it gains in a minute."""

    per_minute: int
    burst: int

    @property
    def capacity(self) -> int:
        """The parts in a full bucket."""
        return self.burst * TOKEN

    def gained(self, parts: int, elapsed_ms: int) -> int:
        """Return the parts in a bucket after a time."""
        parts += elapsed_ms * self.per_minute
        return min(self.capacity, parts)

    def wait_ms(self, missing: int) -> int:
        """Return the milliseconds until a bucket has gained parts."""
        return -(-missing // self.per_minute)


class Buckets(Protocol):
    """The buckets of all callers for one limit."""

    quota: Quota

    async def take(self, caller: Caller) -> int:
        """Take a token; return 0, or without a token the milliseconds until there may be one."""

    def give_back(self, caller: Caller) -> None:
        """Return the token that `take` took for a call that was refused elsewhere."""

    def left(self, most: int) -> dict[Caller, int]:
        """Return the tokens of the `most` latest callers, as far as this process knows without
        asking the store."""


def make_buckets(
    name: str, quota: Quota, rows: SessionStore | None, clock: Clock, most: int = MAX_CALLERS
) -> Buckets:
    """Return new buckets: in `rows`, for all processes together, or without rows in memory."""
    if rows is None:
        return LocalBuckets(quota, clock.monotonic_ms, most)
    return SharedBuckets(name, quota, rows, clock, most)


class _Bucket(Struct):
    """The parts in a bucket, and the time in milliseconds at which it had them."""

    parts: int
    at_ms: int


class LocalBuckets:
    """Buckets in memory.

    If more than `most` callers are known, the least recent one is forgotten. An unknown caller
    begins with the tokens that the emptiest forgotten bucket would have now, and at least one. So
    forgetting a caller gains it at most one call, and only after calls of `most` other callers.
    """

    def __init__(self, quota: Quota, now_ms: Callable[[], float], most: int = MAX_CALLERS) -> None:
        self.quota = quota
        self._now_ms = now_ms
        self._most = most
        self._known: OrderedDict[Caller, _Bucket] = OrderedDict()
        self._all_full_ms = 0
        """The time when all forgotten buckets are full, in milliseconds on the monotonic clock."""

    async def take(self, caller: Caller) -> int:
        quota, now_ms = self.quota, int(self._now_ms())
        bucket = self._known.get(caller)
        if bucket is None:
            missing = max(0, self._all_full_ms - now_ms) * quota.per_minute
            bucket = self._known[caller] = _Bucket(max(TOKEN, quota.capacity - missing), now_ms)
            if len(self._known) > self._most:
                self._forget(now_ms)
        else:
            bucket.parts = quota.gained(bucket.parts, now_ms - bucket.at_ms)
            bucket.at_ms = now_ms
            self._known.move_to_end(caller)
        if bucket.parts < TOKEN:
            return quota.wait_ms(TOKEN - bucket.parts)
        bucket.parts -= TOKEN
        return 0

    def give_back(self, caller: Caller) -> None:
        if (bucket := self._known.get(caller)) is not None:
            bucket.parts = min(self.quota.capacity, bucket.parts + TOKEN)

    def left(self, most: int) -> dict[Caller, int]:
        now_ms = int(self._now_ms())
        return {
            caller: self.quota.gained(bucket.parts, now_ms - bucket.at_ms) // TOKEN
            for caller, bucket in islice(reversed(self._known.items()), most)
        }

    def _forget(self, now_ms: int) -> None:
        _, bucket = self._known.popitem(last=False)
        parts = self.quota.gained(bucket.parts, now_ms - bucket.at_ms)
        full_ms = now_ms + self.quota.wait_ms(self.quota.capacity - parts)
        self._all_full_ms = max(self._all_full_ms, full_ms)


class _Held(Struct):
    """The tokens of a caller in this process, and its row as this process knows it."""

    left: int = 0
    """The number of tokens that were taken from the row and not used."""
    parts: int = 0
    at_ms: int = 0
    version: int = 0
    """The version of the row with these parts; 0 if the row must be read."""
    is_contested: bool = False
    """Whether another process wrote the row between the last two uses by this process."""
    empty_until_ms: float = 0
    """The time on the monotonic clock until which the row is not used, because it was empty."""
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serializes the writes of this process."""


class SharedBuckets:
    """Buckets in rows of the session store, for all processes together.

    Args:
        name: the name of the limit, the same in all processes.
        quota: the quota of a caller.
        rows: the store.
        clock: the clock of the process.
        most: the number of callers whose rows this process remembers. Forgetting a caller only
            costs it the unused tokens of its block.
    """

    def __init__(
        self, name: str, quota: Quota, rows: SessionStore, clock: Clock, most: int = MAX_CALLERS
    ) -> None:
        self._quota = quota
        self._name = name
        self._rows = rows
        self._clock = clock
        self._most = most
        self._known: OrderedDict[Caller, _Held] = OrderedDict()
        self._alone = LocalBuckets(quota, clock.monotonic_ms, most)
        """The buckets that count while the store is unavailable."""
        self._away_until_ms = 0.0
        self._is_away = False
        """Whether the last use of the store failed."""

    @property
    def quota(self) -> Quota:
        """The quota of a caller. Setting it also checks callers again whose buckets were empty."""
        return self._quota

    @quota.setter
    def quota(self, quota: Quota) -> None:
        if quota != self._quota:
            self._quota = self._alone.quota = quota
            for held in self._known.values():
                held.empty_until_ms = 0

    async def take(self, caller: Caller) -> int:
        held = self._held(caller)
        if (wait_ms := await self._take_here(caller, held)) is not None:
            return wait_ms
        async with held.taking:
            while (wait_ms := await self._take_here(caller, held)) is None:
                try:
                    await self._take_block(caller, held)
                    self._is_away = False
                except Unavailable as error:
                    self._note_away(error)
            return wait_ms

    def give_back(self, caller: Caller) -> None:
        self._held(caller).left += 1

    def left(self, most: int) -> dict[Caller, int]:
        """Return nothing: only the store knows how many tokens a caller has."""
        return {}

    def _held(self, caller: Caller) -> _Held:
        held = self._known.get(caller)
        if held is None:
            held = self._known[caller] = _Held()
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(caller)
        return held

    async def _take_here(self, caller: Caller, held: _Held) -> int | None:
        """Take a token as `take` does, or return `None` if the store must be asked."""
        if held.left:
            held.left -= 1
            return 0
        now_ms = self._clock.monotonic_ms()
        if now_ms < held.empty_until_ms:
            return ceil(held.empty_until_ms - now_ms)
        if now_ms < self._away_until_ms:
            return await self._alone.take(caller)
        return None

    async def _take_block(self, caller: Caller, held: _Held) -> None:
        """Take a block from the row, or note until when the row has no token.

        Raises:
            Unavailable: the row cannot be read or written now.
        """
        quota, key = self.quota, f"rate.{digest([self._name, *caller])}"
        for tries in range(_TRIES):
            if tries:
                await self._clock.sleep(PAUSE_S * tries * self._clock.fraction())
            now_ms = self._clock.now_ms()
            is_absent = not self._is_known(held, now_ms) and not await self._read(key, held)
            parts, at_ms = (quota.capacity, now_ms) if is_absent else self._parts(held, now_ms)
            if parts < TOKEN:
                if quota is not self._quota:  # changed meanwhile; `take` looks again
                    return
                pause_ms = quota.wait_ms(quota.capacity) // LOOKS
                self._pause(held, max(quota.wait_ms(TOKEN - parts), pause_ms))
                return
            block = min(parts // TOKEN, max(1, quota.burst // BLOCKS))
            parts -= block * TOKEN
            forget_ms = at_ms + quota.wait_ms(quota.capacity - parts) + MARGIN_MS
            value = json.encode([parts, at_ms])
            if is_absent:
                is_written = await self._rows.put_new(key, value, forget_ms)
            else:
                is_written = await self._rows.replace(key, value, held.version, forget_ms)
            held.version = held.version + 1 if is_written else 0
            if is_written:
                held.parts, held.at_ms, held.left = parts, at_ms, held.left + block
                return
        self._pause(held, _TRIES * PAUSE_S * 1000)

    def _pause(self, held: _Held, wait_ms: float) -> None:
        held.empty_until_ms = self._clock.monotonic_ms() + wait_ms

    def _parts(self, held: _Held, now_ms: int) -> tuple[int, int]:
        """Return the parts in a row now, and the time to write with them. A process whose clock is
        ahead may have written a later time, which stays, so that no time counts twice."""
        written_ms = held.at_ms if held.at_ms < now_ms + MARGIN_MS else now_ms
        at_ms = max(now_ms, written_ms)
        return self.quota.gained(held.parts, at_ms - written_ms), at_ms

    def _is_known(self, held: _Held, now_ms: int) -> bool:
        """Return whether the row probably has the version that this process has written last, so
        that it need not be read. An expired row may have been replaced by another."""
        if held.is_contested or not held.version:
            return False
        full_ms = held.at_ms + self.quota.wait_ms(self.quota.capacity - held.parts)
        return now_ms < full_ms + MARGIN_MS // 2

    async def _read(self, key: str, held: _Held) -> bool:
        """Read the row; return whether there is one."""
        row = await self._rows.read(key)
        if row is None:
            held.version, held.is_contested = 0, False
            return False
        held.parts, held.at_ms = json.decode_own(row.value)
        held.is_contested = row.version != held.version
        held.version = row.version
        return True

    def _note_away(self, error: Unavailable) -> None:
        if not self._is_away:
            fields = {"limit": self._name, "error": str(error)}
            log.warning(
                "each process counts calls by itself, because the store is unavailable",
                extra={"fields": fields},
            )
        self._is_away = True
        self._away_until_ms = self._clock.monotonic_ms() + AWAY_MS
