"""The port of what sessions of older clients need kept: small rows under a name, each
with a time to be forgotten.

A session itself is in its id (`roundgate.tokens.ids`). What is kept is what it changes
later, and what has to reach another process: the answer to a question, a cancellation, the state of
a call that is too long for a header.

**SessionStore** keeps values by key. `put_new` is one conditional insert: of any number of them, in
any processes, exactly one returns `True`. `replace` is one conditional write on the version that
was read, `put` one without a condition, which counts. A row whose time has come is as good as none,
whatever the database has deleted. Reads are strongly consistent.

`tests/storage/session_contract.py` holds each implementation to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class SessionRow:
    """What is kept under a key, and the version that `replace` compares."""

    value: bytes
    version: int


class SessionStore(Protocol):
    """Values by key, for a time. Keys have up to 200 characters. `forget_ms` is in
    milliseconds since the epoch."""

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        """Keep a value where there is none: whether there was none.

        Raises:
            Unavailable: the store cannot be reached.
        """

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        """Keep another value, of at most 300 KB, in place of the one with this version:
        whether it was still there.

        Raises:
            Unavailable: as `put_new`.
        """

    async def put(self, key: str, value: bytes, forget_ms: int) -> int:
        """Keep a value, of at most 300 KB, in place of whatever is there: its version. Of any
        number of writes of one key, each gets another, from 1 on and one higher each time, for as
        long as the row is not forgotten.

        Raises:
            Unavailable: as `put_new`; it may have been kept, and a number passed over.
        """

    async def read(self, key: str) -> SessionRow | None:
        """What is kept under a key.

        Raises:
            Unavailable: as `put_new`.
        """

    async def read_values(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """The values of those of the keys that have one; of large ones, in any number of calls.

        Raises:
            Unavailable: as `put_new`.
        """

    async def aclose(self) -> None:
        """Let go of connections."""
