"""The names by which clients know questions. None is used twice in a call."""

from __future__ import annotations

from collections.abc import Iterable


class WireNames:
    """The names that are taken, and the next free one."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def take(self, wire: str) -> None:
        """Mark a name as taken."""
        self._taken.add(wire)

    def new(self, base: str) -> str:
        """A free one: `confirm`, or `confirm#2`."""
        number = self._numbers.get(base, 0) + 1
        while (wire := base if number == 1 else f"{base}#{number}") in self._taken:
            number += 1
        self._numbers[base] = number - 1
        return wire
