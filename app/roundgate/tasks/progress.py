"""The progress of a task for its operator: its steps, pauses and questions, by name.

Values, arguments and answers are omitted: they belong to the task's owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from roundgate import json
from roundgate.errors import ParseError
from roundgate.replay import (
    Answered,
    Asked,
    Began,
    Cut,
    Entry,
    Finished,
    Journal,
    Raised,
    Slept,
    Tried,
    Unanswered,
    from_row,
)
from roundgate.storage import Work

_STATES: Final[dict[type, str]] = {
    Finished: "done",
    Raised: "failed",
    Tried: "failed, is tried again",
    Began: "begun",
    Cut: "cancelled by its handler",
    Slept: "pause begun",
    Asked: "asked",
    Answered: "answered",
    Unanswered: "not answered in time",
}
"""The kinds of entries that an operator sees. Other kinds only keep branches in order."""
_UNREADABLE: Final = (ParseError, ValueError, TypeError, KeyError)


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step, pause or question that a task has done or begun."""

    name: str
    """The place in the handler."""
    state: str
    attempts: int | None = None
    """The number of failed attempts; `None` without any."""
    again_ms: int | None = None
    """The time of the retry, in milliseconds since the epoch."""


def steps_done(work: Work) -> list[StepDone] | None:
    """Return the progress of a task in order; `None` if a later version of Roundgate wrote the
    journal."""
    try:
        entries = [from_row(json.decode(entry)) for entry in work.journal]
        journal = Journal()
        for entry in entries:
            journal.add(entry)
        journal.receive({key: json.decode(answer) for key, answer in work.answers.items()})
    except _UNREADABLE:
        return None
    known = {entry.key: entry for entry in journal.entries()}
    order = reversed(dict.fromkeys(entry.key for entry in reversed(entries)))
    return [_step(known[key]) for key in order if _is_shown(known[key])]


def _is_shown(entry: Entry) -> bool:
    return type(entry) in _STATES and not entry.key.rpartition("/")[2].startswith("key:")


def _step(entry: Entry) -> StepDone:
    state = _STATES[type(entry)]
    match entry:
        case Raised(attempts=attempts):
            return StepDone(entry.key, state, attempts or 1)
        case Tried(attempts=attempts, again_ms=again_ms):
            return StepDone(entry.key, state, attempts, again_ms)
    return StepDone(entry.key, state)
