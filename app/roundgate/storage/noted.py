"""Which writes of a worker have happened, when the answer to one got lost. Shared by the stores.

Each write of entries under a lease carries the number of its attempt, and holds only while the row
has the number of the one that is known to have happened before it. The row then has its own:

    row       0 ─────── 1 ────────────────── 3
    worker    1 happens · 2: no answer · 3 is refused if the row says 2: then 2 had happened

So of several attempts that nobody heard of the row tells which one it was,
and none can happen late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Doubt(Generic[T]):
    """An attempt that nobody has heard of yet, and what the worker knows if it has happened."""

    entries: Sequence[bytes]
    then: T


@dataclass(slots=True)
class Noted(Generic[T]):
    """The writes of entries under one lease."""

    happened: int = 0
    """The attempt that is known to have happened last; 0 after the claim."""
    tried: int = 0
    doubts: dict[int, Doubt[T]] = field(default_factory=dict)
    """Every attempt since the one that has happened last, and that one."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One write after another."""

    def attempt(self, entries: Sequence[bytes], then: T) -> int:
        """The number of an attempt that is about to be made."""
        self.tried += 1
        self.doubts[self.tried] = Doubt(entries, then)
        return self.tried

    def settle(self, number: int) -> Doubt[T] | None:
        """The row has this number: what had happened, if that is news. No
        other attempt ever will."""
        doubt = None if number == self.happened else self.doubts.get(number)
        if doubt is not None:
            self.happened = number
            self.doubts = {number: doubt}
        return doubt

    def has_happened_last(self, entries: Sequence[bytes]) -> bool:
        """Whether the last write that is known to have happened was of these entries."""
        last = self.doubts.get(self.happened)
        return last is not None and last.entries == entries
