"""A moment of a line of time, as pages and path operations show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import BaseModel, Field

from roundgate.clock import iso
from roundgate.console.charts import took
from roundgate.console.timeline import Moment

WATCHES: Final = 200
"""The number of times that a page updates itself before it stops, so that a forgotten page does not
read the store for ever."""
MAX_MOMENTS: Final = 1_000
"""The limit on the moments of a page: it shows the last ones."""


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

    @property
    def took(self) -> str:
        """Return the duration for people."""
        return took(self.ms)

    @property
    def time(self) -> str:
        """Return the time of day in UTC; empty if it is unknown."""
        return "" if self.at is None else self.at[11:23]


def moment_views(moments: Iterable[Moment]) -> list[MomentView]:
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
