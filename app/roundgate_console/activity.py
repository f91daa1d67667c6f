"""The work of this process in the last hour and day: its rounds and turns, by back end.

Each request for a tool, prompt or resource and each turn of a worker is added to the slot of its
minute and to the slot of its half hour. A slot has a `Cell` for each back end: the number of runs,
of failures, and their durations by size. There are up to 108 slots.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

FAILED: Final = frozenset({"tool_error", "error", "step failed", "fault", "given up", "parked"})
"""The outcomes of rounds and turns that count as failures."""
_PER_OCTAVE: Final = 4
"""The number of sizes of durations between a duration and its double: they are exact to 9 %."""


@dataclass(slots=True)
class Cell:
    """Counted runs."""

    runs: int = 0
    failed: int = 0
    durations: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    """The number of runs by the size of their duration."""

    def add(self, took_ms: float, *, is_failed: bool) -> None:
        """Add a run."""
        self.runs += 1
        self.failed += is_failed
        self.durations[round(_PER_OCTAVE * math.log2(max(took_ms, 0.1)))] += 1

    def quantile_ms(self, part: float) -> float | None:
        """Return the duration in milliseconds that a part of the runs, from 0 to 1, does not exceed;
        `None` without runs."""
        left = part * self.runs
        for size, count in sorted(self.durations.items()):
            left -= count
            if left <= 0:
                return float(f"{math.exp2(size / _PER_OCTAVE):.2g}")
        return None


def total(cells: Iterable[Cell]) -> Cell:
    """Return the sum of cells."""
    whole = Cell()
    for cell in cells:
        whole.runs += cell.runs
        whole.failed += cell.failed
        for size, count in cell.durations.items():
            whole.durations[size] += count
    return whole


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time that ends now."""

    name: str
    slot_ms: int
    slots: int


HOUR: Final = Span("hour", 60_000, 60)
DAY: Final = Span("day", 1_800_000, 48)


class Activity:
    """Counts the rounds and turns of this process."""

    def __init__(self) -> None:
        self._slots: dict[Span, dict[int, dict[str, Cell]]] = {HOUR: {}, DAY: {}}

    def add(self, backend: str, outcome: str, took_ms: float, at_ms: float) -> None:
        """Add a round or turn that ended at `at_ms`, in milliseconds since the epoch."""
        for span, slots in self._slots.items():
            cells = slots.setdefault(int(at_ms // span.slot_ms), {})
            if len(slots) > span.slots:
                del slots[next(iter(slots))]
            cells.setdefault(backend, Cell()).add(took_ms, is_failed=outcome in FAILED)

    def slots(self, span: Span, now_ms: int) -> list[Mapping[str, Cell]]:
        """Return the cells of each slot by back end, the oldest slot first."""
        last, slots = now_ms // span.slot_ms, self._slots[span]
        return [slots.get(last - age, {}) for age in reversed(range(span.slots))]
