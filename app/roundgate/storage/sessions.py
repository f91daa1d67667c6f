"""The port of the session store: expiring rows that every process can read.

The rows are changes of the sessions of older clients, the records of `once` tools, the rest of long
results, the accounts and token buckets of callers, and the latest changes of lists.

**SessionStore** keeps values by key. `put_new` is a conditional insert: of any number of inserts,
in any processes, exactly one returns `True`. `replace` is a conditional write on the version that
was read; `put` writes without a condition and increments the version. An expired row counts as
absent, even if the database has not deleted it yet. Reads are strongly consistent.

`tests/roundgate/storage/session_contract.py` checks each implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct


class SessionRow(Struct, frozen=True):
    """A stored value, and the version that `replace` compares."""

    value: bytes
    version: int
    forget_ms: int = 0
    """When the row expires, in milliseconds since the epoch."""

    def __eq__(self, other: object) -> bool:
        """Compare value and version; not every read of a store knows when a row expires."""
        if not isinstance(other, SessionRow):
            return NotImplemented
        return (self.value, self.version) == (other.value, other.version)


class SessionStore(Protocol):
    """A store of expiring values by key. Keys have up to 200 characters. `forget_ms` is in
    milliseconds since the epoch."""

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        """Store a value if the key has none; return whether it was stored.

        Raises:
            Unavailable: the store cannot be reached.
        """

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        """Replace a value if its version is still `version`. The new value has at most 300 KB.
        Return whether the value was replaced.

        Raises:
            Unavailable: as for `put_new`.
        """

    async def put(self, key: str, value: bytes, forget_ms: int) -> int:
        """Store a value of at most 300 KB unconditionally and return its version.

        Versions of a key begin at 1 and rise by one with each write until the row is forgotten.

        Raises:
            Unavailable: as for `put_new`; the value may have been stored, and a version skipped.
        """

    async def read(self, key: str) -> SessionRow | None:
        """Return the row of a key, or `None`.

        Raises:
            Unavailable: as for `put_new`.
        """

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the values of the keys that have one. Large values may take several calls.

        Raises:
            Unavailable: as for `put_new`.
        """

    async def aclose(self) -> None:
        """Close the connections."""


async def write_row(
    rows: SessionStore, key: str, value: bytes, read: SessionRow | None, forget_ms: int
) -> bool:
    """Store a value if the row is still as it was read; `None` for no row. Return whether the value
    was stored."""
    if read is None:
        return await rows.put_new(key, value, forget_ms)
    return await rows.replace(key, value, read.version, forget_ms)
