"""The accounts of owners: the limit on the bytes that all processes together store for each owner.

Every row that a caller causes has an owner, a digest of its caller (`auth.owner_of`), and a size:
its values, and `ROW` for the row itself. The gateway reserves the size before it writes the row:

    reserve ──▶ this process has as much reserved ahead ──▶ write
            ├─▶ else one conditional write to the owner's account: up to `BLOCK` more ──▶ write
            └─▶ the account is full: `QuotaExceeded`, and nothing is written

An account is a row of the session store, so accounts need no code in any store. The row has the
reserved bytes by the time at which they expire:

    {"1764187200000": 262144, "1764190000000": 1310720}

Deleting a row does not release its bytes. They count until the time at which the store may forget
the row, rounded up by at most a quarter of its lifetime. So the expiry of a row needs no write, and
no crash can make an account too small. A process that dies wastes up to `BLOCK` of an account until
then.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct, field

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import QuotaExceeded, Unavailable
from roundgate.storage.ports import SessionRow, SessionStore, write_row

ROW: Final = 1_024
"""The overhead of a row in bytes: its key, its times, its places in indexes."""
BLOCK: Final = 256 * 1024
"""The maximum number of bytes that a process reserves ahead of its writes."""
FIRST_BLOCK: Final = 16 * 1024
"""The bytes that a process reserves at its first write for an owner. Each further block doubles, up
to `BLOCK`."""
PART: Final = 64
"""The divisor that limits a block to a part of the free bytes, so that processes do not reserve
most of an account that is nearly full."""
MAX_KNOWN: Final = 10_000
"""The maximum number of owners whose reserved bytes a process remembers."""
PAUSE_S: Final = 0.005
"""The first pause in seconds after losing a write to another process; each further pause is longer
by the same amount."""
_TRIES: Final = 20
_SHORTEST_MS: Final = 60_000

RowsOf: TypeAlias = Callable[[Principal], SessionStore]
"""Returns the rows of a caller of one view."""


class Reserved(Struct, frozen=True):
    """Bytes that were reserved for a write."""

    owner: str
    size: int
    end_ms: int


class _Ahead(Struct):
    """The bytes that this process has reserved for an owner and not used yet."""

    left: dict[int, int] = field(default_factory=dict)
    """The unused bytes by the end of their period, in milliseconds since the epoch."""
    block: int = FIRST_BLOCK
    adding: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serializes the writes to the account."""

    def take(self, size: int, end_ms: int) -> bool:
        """Use bytes that were reserved until a time; return whether enough were left."""
        unused = self.left.get(end_ms, 0) - size
        if unused >= 0:
            self.left[end_ms] = unused
        return unused >= 0


class Accounts:
    """The accounts of all owners.

    Args:
        rows: the store of accounts.
        clock: the clock of the process.
        most: the maximum number of bytes of one owner.
    """

    def __init__(self, rows: SessionStore, clock: Clock, most: int) -> None:
        self._rows = rows
        self._clock = clock
        self._most = most
        self._known: OrderedDict[str, _Ahead] = OrderedDict()

    async def reserve(self, owner: str, size: int, until_ms: int) -> Reserved:
        """Count bytes for an owner until a time.

        Raises:
            QuotaExceeded: the bytes exceed the owner's account.
            Unavailable: the account cannot be read or written now.
        """
        ahead, end_ms = self._ahead(owner), period_end(until_ms, self._clock.now_ms())
        if not ahead.take(size, end_ms):
            async with ahead.adding:
                for tries in range(_TRIES):
                    if ahead.take(size, end_ms):
                        break
                    await self._clock.sleep(PAUSE_S * tries)
                    await self._add_block(owner, ahead, size, end_ms)
                else:
                    raise Unavailable("Too many processes write for this caller; try again soon")
        return Reserved(owner, size, end_ms)

    def give_back(self, reserved: Reserved) -> None:
        """Return reserved bytes of a write that did not happen, for later writes of this
        process."""
        unused = self._ahead(reserved.owner).left
        unused[reserved.end_ms] = unused.get(reserved.end_ms, 0) + reserved.size

    async def usage(self, owner: str) -> int:
        """Return the bytes that count for an owner now, including reserved ones.

        Raises:
            Unavailable: the account cannot be read now.
        """
        row = await self._rows.read(_key(owner))
        return sum(_live(row, self._clock.now_ms()).values())

    def rows(self, owner: str) -> CountedRows:
        """Return the rows of an owner: a session store that counts each write."""
        return CountedRows(self._rows, self, owner)

    def _ahead(self, owner: str) -> _Ahead:
        ahead = self._known.get(owner)
        if ahead is None:
            ahead = self._known[owner] = _Ahead()
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(owner)
        return ahead

    async def _add_block(self, owner: str, ahead: _Ahead, size: int, end_ms: int) -> None:
        """Reserve a block that makes `size` bytes available. Do nothing if another process changed
        the account meanwhile.

        Raises:
            QuotaExceeded: the bytes exceed the owner's account.
        """
        now_ms, key = self._clock.now_ms(), _key(owner)
        row = await self._rows.read(key)
        live = _live(row, now_ms)
        free, missing = self._most - sum(live.values()), size - ahead.left.get(end_ms, 0)
        if missing > free:
            raise QuotaExceeded(self._most)
        block = max(missing, min(ahead.block, free // PART))
        live[end_ms] = live.get(end_ms, 0) + block
        value, forget_ms = json.encode({str(end): live[end] for end in live}), max(live)
        if await write_row(self._rows, key, value, row, forget_ms):
            ahead.block = min(2 * ahead.block, BLOCK)
            ahead.left = {end: unused for end, unused in ahead.left.items() if end > now_ms}
            ahead.left[end_ms] = ahead.left.get(end_ms, 0) + block


class CountedRows:
    """The session rows of one owner. A write that exceeds the owner's account raises
    `QuotaExceeded` and does not happen."""

    def __init__(self, rows: SessionStore, accounts: Accounts, owner: str) -> None:
        self._rows = rows
        self._accounts = accounts
        self._owner = owner
        self._read: dict[str, SessionRow] = {}
        """The rows that were read, by key."""

    async def make_room(self, count: int, size: int, forget_ms: int) -> None:
        """Reserve bytes for several rows whose values have `size` bytes together, so that either
        all of them or none are written.

        Raises:
            QuotaExceeded: the bytes exceed the owner's account.
        """
        size += count * ROW
        self._accounts.give_back(await self._accounts.reserve(self._owner, size, forget_ms))

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        """Store a new value, as `SessionStore.put_new` does. A value that was not stored does not
        count."""
        reserved = await self._accounts.reserve(self._owner, ROW + len(value), forget_ms)
        is_stored = await self._rows.put_new(key, value, forget_ms)
        if not is_stored:
            self._accounts.give_back(reserved)
        return is_stored

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        """Replace a value, as `SessionStore.replace` does. If this object has read the value and
        the expiry is not later, only the growth counts. Otherwise the row lives until the end of
        its accounting period, so that few writes extend it."""
        before = self._read.get(key)
        if before is None or before.version != version or before.forget_ms < forget_ms:
            reserved = await self._accounts.reserve(self._owner, len(value), forget_ms)
            forget_ms = reserved.end_ms
        else:
            growth, forget_ms = max(0, len(value) - len(before.value)), before.forget_ms
            reserved = await self._accounts.reserve(self._owner, growth, forget_ms)
        is_stored = await self._rows.replace(key, value, version, forget_ms)
        if not is_stored:
            self._accounts.give_back(reserved)
        return is_stored

    async def put(self, key: str, value: bytes, forget_ms: int) -> int:
        await self._accounts.reserve(self._owner, ROW + len(value), forget_ms)
        return await self._rows.put(key, value, forget_ms)

    async def read(self, key: str) -> SessionRow | None:
        row = await self._rows.read(key)
        if row is not None:
            self._read[key] = row
        return row

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        return await self._rows.read_values(keys)

    async def aclose(self) -> None:
        await self._rows.aclose()


def period_end(until_ms: int, now_ms: int) -> int:
    """Return the end of the accounting period for bytes that count until `until_ms`: that time,
    rounded up by at most a quarter of the time until then. Rounding keeps the number of periods
    small."""
    width = 1 << (max(until_ms - now_ms, _SHORTEST_MS) // 8).bit_length()
    return -(-until_ms // width) * width


def _key(owner: str) -> str:
    return f"account.{owner}"


def _live(row: SessionRow | None, now_ms: int) -> dict[int, int]:
    """Return the bytes of an account that still count, by the end of their period."""
    periods = {} if row is None else json.decode(row.value)
    return {int(end): size for end, size in periods.items() if int(end) > now_ms}
