"""The replay of recorded histories (`roundgate tasks export`) with the handlers of a test's
gateway.

A replay runs no step: each new step waits, so the handler goes exactly as far as its history.

    recorded    plan ✓   confirm ✓   charge ✓
    replay 1    plan ✓   confirm ✓   charge ✓   ship …       continues at the place of the task
    replay 2    plan ✓   confirm ✓   weigh …                 departs: `charge` is recorded

An outline has no values. If the test supplies no value either, the replay ends at that place.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from roundgate.auth import Principal
from roundgate.backends import Catalog, Returned
from roundgate.clock import Deadline
from roundgate.errors import NondeterminismError, RoundgateError
from roundgate.json import fresh
from roundgate.operators.histories import History, without_arguments
from roundgate.protocol import ClientCapabilities, Meta
from roundgate.replay import (
    DELIVERED,
    VERSION,
    Answered,
    Asked,
    Branch,
    Call,
    Context,
    Cut,
    Entry,
    Failed,
    Finished,
    Journal,
    Opened,
    Raised,
    Remembered,
    Run,
    Suspended,
    TimedOutQuestion,
    Told,
    engine,
)
from roundgate.replay.values import OTHER_TYPE
from roundgate_testing.instances import VirtualClock

WITHIN_S: Final = 30.0
"""The time limit of one replay in seconds."""
LOOK_S: Final = 0.02
LOOKS: Final = 100
"""The maximum number of checks, every `LOOK_S` seconds, whether a waiting handler has reached the next
recorded place: longer than the engine holds back unrequested results, with a margin. A number of
checks instead of a time, because a blocked event loop gives the handler no time."""
MAX_SHOWN: Final = 10
"""The maximum number of entries of each kind in the description of a departure."""

_VALUES: Final = ("key", "now", "random", "uuid")
"""The kinds of places that need no recorded entry."""
_QUESTIONS: Final = (Asked, Answered, TimedOutQuestion)
Place: TypeAlias = tuple[bool, str]
"""Whether the place belongs to a question, and the key."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of replaying one history."""

    task: str
    tool: str
    reached: Sequence[str]
    """The recorded places that the handler reached."""
    unchecked: Sequence[str]
    """The recorded places after a missing value."""
    departure: str | None
    """The first departure as text; `None` if the handler follows the history."""


def read_histories(file: str | Path) -> Iterator[History]:
    """Yield the histories of a file, one per line.

    Raises:
        ValueError: a line is not a history; the message has the line number.
    """
    with Path(file).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield History.from_json(json.loads(line))
                except (ValueError, TypeError) as error:
                    raise ValueError(f"{file}:{number}: {error}") from None


@dataclass(frozen=True, slots=True)
class Given:
    """The values that a test supplies for its replays."""

    caller: Principal
    """The caller of outlines."""
    arguments: Mapping[str, Any]
    """The arguments of outlines."""
    values: Mapping[str, Any]
    """Results of steps and contents of answers. Outlines look them up by place or name; every
    history looks up the results of new steps by place."""

    def value(self, key: str) -> tuple[Any] | None:
        """Return the value for a place as a tuple, or `None`."""
        name = key.rpartition("/")[2].partition("#")[0]
        for spelling in (key, name, name.removeprefix("event:")):
            if spelling in self.values:
                return (self.values[spelling],)
        return None


async def replay(history: History, catalog: Catalog, supplied: Given) -> Replayed:
    """Replay a history.

    Raises:
        TimeoutError: the handler took longer than `WITHIN_S`.
    """
    offered = catalog.views.get(history.view) if history.view else catalog
    served = None if offered is None else offered.tools.get(history.tool)
    recorded = [entry for entry in history.entries() if _is_shown(entry)]
    if served is None:
        reason = "the gateway does not serve this tool"
        return Replayed(history.task, history.tool, (), (), _described(history, reason, (), (), ()))
    journal, missing = _journal(history, supplied)
    run = _Run(_call(history, supplied, served.tool.unasked_answers), journal, history, missing)
    arguments = fresh(
        dict(history.arguments if history.arguments is not None else supplied.arguments)
    )
    async with asyncio.timeout(WITHIN_S):
        outcome = await engine.run_handler(lambda: served.call(Context(run), arguments), run)
    reached = [entry for entry in recorded if _place(entry) in run.reached]
    unreached = [entry for entry in recorded if _place(entry) not in run.reached]
    is_stopped = any(place in run.reached for place in missing)
    new = [key for is_question, key in run.reached if (is_question, key) not in run.known]
    departure = _departure(history, run, outcome, unreached, new, is_stopped)
    return Replayed(
        *(history.task, history.tool),
        reached=[entry.key for entry in reached],
        unchecked=[entry.key for entry in unreached] if is_stopped else [],
        departure=departure and _described(history, departure, reached, unreached, new),
    )


class _Run(Run):
    """A run that records the places that the handler reaches, and begins no step."""

    stop_requested = True

    def __init__(
        self, call: Call, journal: Journal, history: History, missing: Collection[Place]
    ) -> None:
        super().__init__(call, journal)
        self._is_exact = not (history.is_outline or history.is_redacted)
        self.reached: dict[Place, None] = {}
        self.known = {_place(entry) for entry in [*history.entries(), *journal.entries()]}
        self._awaited = {_place(entry) for entry in journal.entries() if _is_shown(entry)}
        self._missing = missing
        self._looks_left = LOOKS
        self._reached_before = -1

    def come_to(self, branch: Branch, kind: str, name: str) -> str:
        key = super().come_to(branch, kind, name)
        if kind not in _VALUES:
            self.reached[kind == "question", key] = None
        return key

    def come_to_rest(self) -> None:
        """Suspend the run. First, give branches that wait for something other than ctx time to
        reach the recorded places that are missing."""
        if len(self.reached) > self._reached_before:
            self._reached_before = len(self.reached)
            self._looks_left = LOOKS
        is_stopped = any(place in self.reached for place in self._missing)
        is_there = not self._missing and self._awaited <= self.reached.keys()
        if is_there or is_stopped or not self._looks_left:
            super().come_to_rest()
        else:
            self._looks_left -= 1
            asyncio.get_running_loop().call_later(LOOK_S, self.quiescence.restart_quiet)

    def is_same(self, before: str, now: str | None) -> bool:
        if self._is_exact or now is None:
            return before == now
        return without_arguments(before) == without_arguments(now)


def _is_shown(entry: Entry) -> bool:
    """Return whether an entry shows that its handler reached a place."""
    return not isinstance(entry, Told | Cut | Remembered)


def _place(entry: Entry) -> Place:
    return isinstance(entry, _QUESTIONS), entry.key


def _call(history: History, supplied: Given, takes_unasked: bool) -> Call:
    caller = supplied.caller
    if history.principal is not None:
        issuer, subject, client_id, scopes, *kept = history.principal
        claims = kept[0] if kept else {}
        caller = Principal(issuer, subject, client_id, frozenset(scopes), kept_claims=claims)
    capabilities = ClientCapabilities(history.capabilities, history.substituted)
    return Call(
        principal=caller,
        meta=Meta(capabilities, dict(history.client_info or {}) or None, None, None),
        deadline=Deadline(VirtualClock(history.exported_ms), None),
        task_id=history.task,
        takes_unasked=takes_unasked,
    )


def _journal(history: History, supplied: Given) -> tuple[Journal, set[Place]]:
    """Return the journal for a replay, and the places whose values are missing in it."""
    journal = Journal(state=fresh(dict(history.state or {})), generation=history.generation)
    missing: set[Place] = set()
    for entry in history.entries():
        known_entry = _known(entry, history, supplied)
        if known_entry is not None:
            journal.add(known_entry)
        elif isinstance(entry, Opened):
            journal.add(replace(entry, outcome=None))  # the handler waits for the event
            missing.add((False, "wait:".join(entry.key.rsplit("event:", 1))))
        elif not isinstance(entry, Remembered):
            missing.add(_place(entry))
    for key, value in supplied.values.items():
        if key not in journal.steps and (False, key) not in missing:
            journal.steps[key] = Finished(key, value)
    return journal, missing


def _known(entry: Entry, history: History, supplied: Given) -> Entry | None:
    """Return an entry with its value, or `None` if the value is missing."""
    match entry:
        case TimedOutQuestion(digest=""):
            return None
        case Answered() if history.is_redacted:
            return replace(entry, digest=None)
        case _ if not history.is_outline:
            return entry
        case Remembered(key=key) if key.startswith(VERSION):
            return entry
        case Remembered(key=key) if key.rpartition("/")[2].startswith("now:"):
            return Remembered(key, history.exported_ms)
        case Remembered():
            return None
        case Opened() if entry.outcome == DELIVERED:
            payload = supplied.value(entry.key)
            return None if payload is None else replace(entry, payload=payload[0])
        case Finished() | Answered():
            value = supplied.value(entry.key)
            if value is None:
                return None
            if isinstance(entry, Finished):
                return replace(entry, value=value[0])
            return replace(entry, digest=None, response={"action": "accept", "content": value[0]})
    return entry


# Departures


def _departure(
    history: History,
    run: _Run,
    outcome: engine.Outcome[Returned],
    unreached: Sequence[Entry],
    new: Sequence[str],
    is_stopped: bool,
) -> str | None:
    """Return the reason why the handler departs from its history, or `None`."""
    if is_stopped and run.error is None:
        return None
    if isinstance(run.error, NondeterminismError):
        is_replaced = history.is_redacted and run.error.remembered == OTHER_TYPE
        return None if is_replaced else _of_error(run.error)
    again = [
        entry.key
        for entry in history.entries()
        if isinstance(entry, Answered) and isinstance(run.journal.questions.get(entry.key), Asked)
    ]
    if again and history.is_redacted:
        return None  # the replaced answer does not fit
    if again:
        return f"{again[0]!r} was answered, and is asked again because its text changed"
    if unreached and new:
        return f"it reaches {new[0]!r} before {unreached[0].key!r}, which is recorded"
    if isinstance(outcome, Failed) and (unreached or not isinstance(outcome.error, RoundgateError)):
        return f"it ends with {type(outcome.error).__name__}: {str(outcome.error)[:500]}"
    if not unreached:
        return None
    instead = "waits" if isinstance(outcome, Suspended) else "ends"
    return f"it {instead} before {unreached[0].key!r}, which is recorded"


def _of_error(error: NondeterminismError) -> str:
    if error.remembered is None or error.asked is None:
        return str(error)
    before, now = without_arguments(error.remembered), without_arguments(error.asked)
    if before == now and before.startswith(("step", "poll")):
        return f"{error.key!r} has other arguments than the recorded ones"
    return f"{error.key!r} is recorded as {before!r}, but the handler uses it as {now!r}"


_HOW: Final[Mapping[type[Entry], str]] = {
    Raised: ", failed",
    Asked: "question",
    Opened: "event",
    Answered: "question, answered",
    TimedOutQuestion: "question, not answered in time",
}


def _described(
    history: History,
    reason: str,
    reached: Sequence[Entry],
    unreached: Sequence[Entry],
    new: Sequence[str],
) -> str:
    rows = [
        *(("  ", entry.key, _what(entry)) for entry in reached[-MAX_SHOWN:]),
        *(("- ", entry.key, f"{_what(entry)} (recorded)") for entry in unreached[:MAX_SHOWN]),
        *(("+ ", key, "(new)") for key in new[:MAX_SHOWN]),
    ]
    width = max((len(key) for _, key, _ in rows), default=0)
    lines = (f"      {mark}{key:<{width}}  {what}".rstrip() for mark, key, what in rows)
    kind = " (an outline)" if history.is_outline else " (redacted)" if history.is_redacted else ""
    return "\n".join([f"task {history.task} of {history.tool}{kind}: {reason}", *lines])


def _what(entry: Entry) -> str:
    what = getattr(entry, "what", None)
    return f"{without_arguments(what) if what else ''}{_HOW.get(type(entry), '')}"
