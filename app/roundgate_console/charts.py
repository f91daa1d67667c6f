"""Lines of time and histograms as pages and path operations show them: tables, and pictures that
templates draw as SVG, with classes of the style sheet."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, Field

from roundgate.clock import iso, span
from roundgate_console.timeline import TimelineItem

WATCHES: Final = 200
"""The number of times that a page updates itself before it stops, so that a forgotten page does not
read the store for ever."""
MAX_MOMENTS: Final = 1_000
"""The limit on the moments of a page: it shows the last ones."""
WIDTH: Final = 900
"""The width of a line of time, in units of its SVG."""
LABELS: Final = 240
"""The width of the column with the titles."""
ROW: Final = 20
MAX_ROWS: Final = 60
"""The limit on the bars of a picture; the table below it has all moments."""
MIN_BAR: Final = 3
"""The width of a moment without a duration."""
TICKS: Final = 5
MAX_LABEL: Final = 34
"""The limit on a title in a picture, in characters."""
AGES_S: Final = (1, 10, 60, 600, 3_600, 21_600, 86_400)
"""The bounds of the histogram of the ages and durations of tasks, in seconds."""
CALLS_S: Final = (0.005, 0.02, 0.1, 0.5, 2, 10, 60)
"""The bounds of the histogram of the durations of calls, in seconds."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A moment in the picture of a line of time."""

    x: float
    y: int
    width: float
    kind: str
    tone: str
    label: str
    title: str
    """The whole title, with the duration."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A time at the scale of a picture, counted from its first moment."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture of a line of time."""

    height: int
    bars: Sequence[Bar]
    ticks: Sequence[Tick]
    omitted: int
    """The number of moments for which there is no space."""
    width: int = WIDTH


def picture(moments: Sequence[TimelineItem], now_ms: int) -> Picture | None:
    """Return the picture of the moments that have a time and are not in the future; `None` if there
    are fewer than two."""
    timed = [(moment, moment.at_ms) for moment in moments if moment.at_ms is not None]
    past = [(moment, at_ms) for moment, at_ms in timed if at_ms <= now_ms]
    if len(past) < 2:
        return None
    shown = past[-MAX_ROWS:]
    first_ms = min(at_ms for _, at_ms in shown)
    length_ms = max(1.0, *(at_ms + moment.took_ms - first_ms for moment, at_ms in shown))
    scale = (WIDTH - LABELS - MIN_BAR) / length_ms
    bars = [
        Bar(
            x=round(LABELS + (at_ms - first_ms) * scale, 1),
            y=index * ROW,
            width=round(max(MIN_BAR, moment.took_ms * scale), 1),
            kind=moment.kind.value,
            tone=moment.tone.value,
            label=_shortened(moment.title),
            title=" ".join(filter(None, (moment.title, moment.outcome, took(moment.took_ms)))),
        )
        for index, (moment, at_ms) in enumerate(shown)
    ]
    ticks = [
        Tick(
            round(LABELS + (WIDTH - LABELS) * index / TICKS, 1),
            "0" if index == 0 else f"+{took(length_ms * index / TICKS)}",
        )
        for index in range(TICKS)
    ]
    return Picture(ROW * len(bars) + ROW, bars, ticks, len(past) - len(shown))


def _shortened(title: str) -> str:
    return title if len(title) <= MAX_LABEL else title[: MAX_LABEL - 1] + "…"


def took(ms: float | None) -> str:
    """Return a duration for people, such as `12 ms` or `1.5m`; empty if it is unknown."""
    if not ms:
        return ""
    return f"{ms:.3g} ms" if ms < 1000 else span(round(ms))


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bar of a histogram."""

    label: str
    count: int
    share: float
    """The part of the highest bar, from 0 to 1."""


def histogram(durations_s: Sequence[float], bounds_s: Sequence[float]) -> list[Bucket]:
    """Return the numbers of durations below each bound, and above the last one."""
    counts = [0] * (len(bounds_s) + 1)
    for seconds in durations_s:
        counts[bisect_right(bounds_s, seconds)] += 1
    most = max(1, *counts)
    labels = [f"< {_bound(bound)}" for bound in bounds_s] + [f"≥ {_bound(bounds_s[-1])}"]
    return [Bucket(label, count, count / most) for label, count in zip(labels, counts, strict=True)]


def _bound(seconds: float) -> str:
    return span(round(seconds * 1000)) if seconds >= 1 else f"{seconds * 1000:g} ms"


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
    tone: str = Field(description="good, bad, waits or plain.")
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


def updates_left(query: Mapping[str, str]) -> int:
    """Return how often a page may still update itself, from `left` in its address."""
    text = query.get("left", "")
    return min(int(text), WATCHES) if text.isdecimal() and len(text) < 10 else WATCHES
