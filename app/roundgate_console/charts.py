"""Lines of time, charts, durations and ages as pages and path operations show them. Templates draw
pictures as SVG, with classes of the style sheet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import BaseModel, Field

from roundgate.clock import iso
from roundgate_console.timeline import TimelineItem

MAX_MOMENTS: Final = 1_000
"""The limit on the moments of a page: it shows the last ones."""
MAX_TICKS: Final = 5
MIN_BAR: Final = 0.8
"""The width of a moment without a duration, in percent."""
_ROUND_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000),
    *(60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000, 7_200_000, 14_400_000),
    *(21_600_000, 43_200_000, 86_400_000, 172_800_000, 604_800_000),
)
"""The distances of ticks, in milliseconds."""
CALLS_S: Final = (0.005, 0.02, 0.1, 0.5, 2, 10, 60)
"""The bounds of the histogram of the durations of calls, in seconds."""
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


@dataclass(frozen=True, slots=True)
class Bar:
    """A moment in a line of time: its place and width in percent."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A round time since the first moment of a line of time, at a place in percent."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture of a line of time. SVG has no inline styles, so all places are in percent."""

    ticks: Sequence[Tick]
    bars: Sequence[Bar | None]
    """The bar of each moment; `None` for moments without a time and in the future."""


def picture(moments: Sequence[TimelineItem], now_ms: int) -> Picture | None:
    """Return the picture of the last `MAX_MOMENTS` moments; `None` if fewer than two have a past
    time."""
    shown = moments[-MAX_MOMENTS:]
    times = [each.at_ms for each in shown if each.at_ms is not None and each.at_ms <= now_ms]
    if len(times) < 2:
        return None
    first_ms = min(times)
    ends = (each.at_ms + each.took_ms for each in shown if each.at_ms in times)
    length_ms = max(1.0, max(ends) - first_ms)
    step_ms = next((ms for ms in _ROUND_MS if length_ms / ms <= MAX_TICKS), length_ms / MAX_TICKS)
    ticks = [
        Tick(round(100 * index * step_ms / length_ms, 2), took(index * step_ms) or "0")
        for index in range(int(length_ms / step_ms) + 1)
    ]

    def bar(moment: TimelineItem) -> Bar | None:
        if moment.at_ms is None or moment.at_ms > now_ms:
            return None
        x = min((moment.at_ms - first_ms) / length_ms * 100, 100 - MIN_BAR)
        width = min(max(MIN_BAR, moment.took_ms / length_ms * 100), 100 - x)
        return Bar(round(x, 2), round(width, 2))

    return Picture(ticks, [bar(each) for each in shown])


def took(ms: float | None) -> str:
    """Return a duration for people, such as `12 ms` or `1.5 min`, in one word for line breaks; empty
    if it is unknown."""
    if not ms:
        return ""
    size, unit = next(((size, unit) for size, unit in _UNITS if ms >= size), (1, "ms"))
    return f"{ms / size:.3g}\N{NO-BREAK SPACE}{unit}"


def age(at: str, now_ms: int) -> str:
    """Return the time since or until a time in ISO 8601, such as `3 min ago` or `in 2 h`."""
    ms = now_ms - datetime.fromisoformat(at).timestamp() * 1000
    if abs(ms) < 1_000:
        return "now"
    size, unit = next((size, unit) for size, unit in _UNITS if abs(ms) >= size)
    text = f"{int(abs(ms) // size)}\N{NO-BREAK SPACE}{unit}"
    return f"{text}\N{NO-BREAK SPACE}ago" if ms > 0 else f"in\N{NO-BREAK SPACE}{text}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a chart. Heights are in percent of the highest one."""

    label: str
    count: int
    height: float
    bad: float = 0
    """The height of its failed part."""


def columns(numbers: Sequence[tuple[str, int, int]]) -> list[Column]:
    """Return the columns of a chart, from their labels, their numbers and the failed part of them."""
    most = max(1, *(count for _, count, _ in numbers))
    return [
        Column(label, count, round(100 * count / most, 1), round(100 * bad / most, 1))
        for label, count, bad in numbers
    ]


def histogram(durations_s: Sequence[float], bounds_s: Sequence[float]) -> list[Column]:
    """Return the numbers of durations below each bound, and above the last one."""
    counts = [0] * (len(bounds_s) + 1)
    for seconds in durations_s:
        counts[bisect_right(bounds_s, seconds)] += 1
    names = [took(bound * 1000) for bound in bounds_s]
    labels = [*(f"<\N{NO-BREAK SPACE}{name}" for name in names), f"≥\N{NO-BREAK SPACE}{names[-1]}"]
    return columns([(label, count, 0) for label, count in zip(labels, counts, strict=True)])


class MomentView(BaseModel):
    """A moment of a line of time."""

    kind: str = Field(
        description="round, question, step, turn, death, upstream, event, task or note."
    )
    title: str
    at: str | None = Field(
        None, description="When it began; absent if another process did it and no store tells."
    )
    ms: float | None = Field(None, description="Its duration in milliseconds, if it is known.")
    tone: str = Field(description="good, bad, waits, active or plain.")
    outcome: str
    facts: dict[str, str]


def moment_views(moments: Iterable[TimelineItem]) -> list[MomentView]:
    """Return the last moments as pages show them."""
    return [
        MomentView(
            kind=moment.kind.value,
            title=moment.title,
            at=None if moment.at_ms is None else iso(moment.at_ms),
            ms=moment.took_ms or None,
            tone=moment.tone.value,
            outcome=moment.outcome,
            facts=dict(moment.facts),
        )
        for moment in list(moments)[-MAX_MOMENTS:]
    ]
