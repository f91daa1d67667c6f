"""A call as one line of time: its rounds, questions, steps, task turns, deaths and upstream calls.

`make_timeline` merges two sources and does no I/O:

    the task in the store      created ── plan ✓ ── confirm ? ── pay ✗ ── now      order, few times
    events of this process     request 3 ms   turn 66 ms   pay 12 ms   POST api…   times and durations

The journal has the order of steps and questions, but no times. An event with the same step gives its
entry a time; the other entries follow the entry before them without a time of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from roundgate.clock import iso, span
from roundgate.operators.continuing import StepDone
from roundgate.operators.facts import activity
from roundgate.storage import TaskRecord
from roundgate_console.recent import RecentEvent


class MomentKind(StrEnum):
    """The kind of a moment."""

    ROUND = "round"
    QUESTION = "question"
    STEP = "step"
    TURN = "turn"
    DEATH = "death"
    UPSTREAM = "upstream"
    TASK = "task"
    EVENT = "event"
    NOTE = "note"


class Tone(StrEnum):
    """The way in which a moment ended, for its colour."""

    GOOD = "good"
    BAD = "bad"
    WAITS = "waits"
    ACTIVE = "active"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class TimelineItem:
    """An item of a line of time."""

    kind: MomentKind
    title: str
    at_ms: int | None = None
    """When it began, in milliseconds since the epoch; `None` if another process did it and the
    store does not tell."""
    took_ms: float = 0.0
    tone: Tone = Tone.PLAIN
    outcome: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Further facts by their labels."""


_Mapper: TypeAlias = Callable[[RecentEvent], TimelineItem]

GOOD: Final = frozenset({"ok", "finished", "completed", "done", "answered", "delivered"})
_TONES: Final[Mapping[str, Tone]] = MappingProxyType(
    {
        **dict.fromkeys(GOOD | {"cleaned up", "kept", "wakes"}, Tone.GOOD),
        **dict.fromkeys(("input_required", "asked", "not yet", "retried", "declined"), Tone.WAITS),
        **dict.fromkeys(("working", "task", "released", "restarted", "begun"), Tone.ACTIVE),
        **dict.fromkeys(("", "cancelled", "expired", "lost", "nothing done"), Tone.PLAIN),
    }
)


def tone_of(outcome: str) -> Tone:
    """Return the tone of a status, or of the outcome of a round, turn, step or task."""
    return _TONES.get(outcome, Tone.BAD)


def _moment(
    kind: MomentKind, title: str, event: RecentEvent, *labels: str, **more: Any
) -> TimelineItem:
    """Return a moment of an event with the facts that `labels` names."""
    outcome = str(event.facts.get("outcome", ""))
    values = {
        "tone": tone_of(outcome),
        "outcome": outcome,
        "facts": {label: _text(event.facts[label]) for label in labels if label in event.facts},
        **more,
    }
    return TimelineItem(kind, title, int(event.began_ms), event.took_ms, **values)


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _request(event: RecentEvent) -> TimelineItem:
    method, name = str(event.facts.get("method", "")), event.facts.get("name", "")
    labels = ("subject", "client", "address", "through", "view", "reason", "code", "error")
    match method:
        case "tasks/update":
            return _moment(MomentKind.QUESTION, "answers from the client", event, *labels)
        case "tasks/cancel":
            return _moment(MomentKind.TASK, "cancelled by the client", event, *labels)
    return _moment(MomentKind.ROUND, f"{method} {name}".strip() or "request", event, *labels)


def _row(kind: MomentKind, title: str, *labels: str, **more: Any) -> _Mapper:
    """Return a mapper. `title` is formatted with the event's message and facts."""

    def moment(event: RecentEvent) -> TimelineItem:
        facts = {name: _text(value) for name, value in event.facts.items()}
        known = defaultdict(str, facts, message=event.message)
        return _moment(kind, title.format_map(known).strip(), event, *labels, **more)

    return moment


_WHO: Final = ("subject", "client")
_ASKS: Final = "asks"
_ASKING: Final = _row(MomentKind.QUESTION, f"{_ASKS} {{questions}}", tone=Tone.WAITS)
_DIED: Final = _row(MomentKind.DEATH, "{message}", "deaths", "status", tone=Tone.BAD)
_FAILED: Final = _row(MomentKind.STEP, "step {step}", "attempt", "reason")


def _failed_step(event: RecentEvent) -> TimelineItem:
    moment = _FAILED(event)
    facts, again = dict(moment.facts), event.facts.get("again")
    if again is not None:
        facts["will be retried at"] = str(again)
    outcome = "failed" if again is None else "retried"
    return replace(moment, outcome=outcome, tone=tone_of(outcome), facts=facts)


def _upstream(event: RecentEvent) -> TimelineItem:
    facts = event.facts
    names = (facts.get("method"), facts.get("host") or facts.get("backend"), facts.get("function"))
    title = " ".join(str(name) for name in names if name is not None) or event.message
    status = str(facts.get("status", ""))
    is_good = status == "ok" or (status.isdecimal() and int(status) < 400)
    tone = Tone.GOOD if is_good else Tone.BAD
    return _moment(MomentKind.UPSTREAM, title, event, tone=tone, outcome=status)


def _external_event(event: RecentEvent) -> TimelineItem:
    title = f"external event {event.facts.get('event', '')}".strip()
    status = event.facts.get("status")
    is_good = isinstance(status, int) and status < 300
    return _moment(MomentKind.EVENT, title, event, tone=Tone.GOOD if is_good else Tone.BAD)


def _note(event: RecentEvent) -> TimelineItem:
    tone = Tone.PLAIN if event.level in ("debug", "info") else Tone.BAD
    labels = ("step", "attempt", "reason", "seconds", "reference", "error", "ended_by")
    return _moment(MomentKind.NOTE, event.message, event, *labels, tone=tone)


MAPPERS: Final[Mapping[str, _Mapper]] = MappingProxyType(
    {
        "request": _request,
        "a call asks its client": _ASKING,
        "a task asks its client": _ASKING,
        "a step ended": _row(MomentKind.STEP, "step {step}", "attempt"),
        "a step failed": _failed_step,
        "a step failed, trying again": _failed_step,
        "a step ended with a tool error": _failed_step,
        "task": _row(
            MomentKind.TURN, "turn of a worker", "turn", "faults", "attempt", "reason", "job"
        ),
        "a task is taken over": _DIED,
        "a process died while it ran a suspect task alone": _DIED,
        "request to a service": _upstream,
        "request to a server": _upstream,
        "call of AWS Lambda": _upstream,
        "a request is sent again": _row(
            MomentKind.UPSTREAM, "{message}", "backend", "attempt", "error", tone=Tone.WAITS
        ),
        "a call was approved": _row(MomentKind.QUESTION, "{message}", *_WHO, tone=Tone.GOOD),
        "a call was not approved": _row(MomentKind.QUESTION, "{message}", *_WHO, tone=Tone.BAD),
        "an external event": _external_event,
        "an operator acts on a task": _row(MomentKind.TASK, "operator: {action}", *_WHO),
    }
)
"""The moment of each message of the log; other messages are notes."""

SLACK_MS: Final = 5
"""The time by which the computed begin of a round or turn may be late, in milliseconds."""
_OUTER: Final = frozenset({MomentKind.ROUND, MomentKind.TURN})
_INNER: Final = frozenset({MomentKind.STEP, MomentKind.UPSTREAM})
_QUESTION_STATES: Final = frozenset({"asked", "answered", "not answered in time"})
_EVENT_STATES: Final = frozenset({"can be delivered", "delivered", "not delivered in time"})
_PAUSE: Final = "pause begun"


def make_timeline(
    events: Iterable[RecentEvent],
    record: TaskRecord | None = None,
    steps: Sequence[StepDone] | None = None,
    now_ms: int = 0,
) -> list[TimelineItem]:
    """Return the line of time of a call or task in order.

    Args:
        events: the events of this process for the call and its task.
        record: the task in the store, if there is one.
        steps: the progress of its journal, if it is known.
        now_ms: the current time, in milliseconds since the epoch; needed with a task.
    """
    moments = _numbered(_moments(events))
    if record is None:
        return moments
    created = TimelineItem(
        MomentKind.TASK, "task created", record.created_ms, facts={"tool": record.tool}
    )
    place = next(
        (
            index
            for index, moment in enumerate(moments)
            if (moment.at_ms or 0) + (moment.kind is not MomentKind.ROUND) > record.created_ms
        ),
        len(moments),
    )
    moments.insert(place, created)
    moments = _with_journal(moments, place, steps or ())
    if record.deaths and not any(moment.kind is MomentKind.DEATH for moment in moments):
        count = f"{record.deaths} since the last progress"
        moments.append(
            TimelineItem(
                MomentKind.DEATH, "workers died or stalled", tone=Tone.BAD, facts={"deaths": count}
            )
        )
    state, *coming = _present(record, now_ms)
    after = len(moments)
    if not record.is_open:  # an operator may have acted on it since
        later = (
            place for place, each in enumerate(moments) if (each.at_ms or 0) > record.updated_ms
        )
        after = next(later, after)
    return [*moments[:after], state, *moments[after:], *coming]


def _moments(events: Iterable[RecentEvent]) -> list[TimelineItem]:
    """Return the moments of events in the order in which they began. The two lines of a failed
    attempt become one moment."""
    begun: list[tuple[float, TimelineItem]] = []
    failed: dict[tuple[str, Any], tuple[float, TimelineItem]] = {}
    for event in events:
        moment = MAPPERS.get(event.message, _note)(event)
        attempt = (moment.title, event.facts.get("attempt"))
        if moment.kind is MomentKind.STEP and event.message != "a step ended":
            failed[attempt] = (event.began_ms, moment)
            continue
        if moment.kind is MomentKind.STEP and (reason := failed.pop(attempt, None)) is not None:
            moment = replace(moment, facts={**moment.facts, **reason[1].facts})
        began_ms = event.began_ms
        if moment.kind in _OUTER:
            began_ms = min([began_ms, *_inner_begins(begun, began_ms)])
            moment = replace(moment, at_ms=int(began_ms))
        begun.append((began_ms, moment))
    begun += failed.values()
    begun.sort(key=lambda each: (each[0], each[1].kind not in _OUTER))
    return [moment for _, moment in begun]


def _inner_begins(begun: Sequence[tuple[float, TimelineItem]], began_ms: float) -> Iterator[float]:
    """Yield the begins of the moments within a round or turn whose line follows theirs. Its own line
    is written after its duration was measured, so the computed begin can be late."""
    for inner_ms, moment in reversed(begun):
        if moment.kind in _OUTER:
            break
        if moment.kind in _INNER and inner_ms + moment.took_ms >= began_ms - SLACK_MS:
            yield inner_ms


def _numbered(moments: Iterable[TimelineItem]) -> list[TimelineItem]:
    """Return the moments with the rounds that this process served numbered in order."""
    numbered: list[TimelineItem] = []
    number = 0
    for moment in moments:
        if moment.kind is MomentKind.ROUND:
            number += 1
            moment = replace(moment, title=f"round {number}: {moment.title}")
        numbered.append(moment)
    return numbered


def _with_journal(
    moments: Sequence[TimelineItem], created: int, steps: Sequence[StepDone]
) -> list[TimelineItem]:
    """Return the moments with the entries of the journal that no event tells. An entry follows the
    entry before it, or the creation of the task at `created`. A question that an event tells gets
    its state from the journal."""
    place_of = {moment.title: index for index, moment in enumerate(moments)}
    told = list(moments)
    after: dict[int, list[TimelineItem]] = {}
    place = created
    for step in steps:
        entry = _entry(step)
        title = f"{_ASKS} {step.name}" if entry.kind is MomentKind.QUESTION else entry.title
        index = place_of.get(title)
        if index is None:
            after.setdefault(place, []).append(entry)
            continue
        place = max(place, index)
        if entry.kind is MomentKind.QUESTION:
            told[index] = replace(told[index], outcome=entry.outcome, tone=entry.tone)
    return [item for index, moment in enumerate(told) for item in (moment, *after.get(index, ()))]


def _entry(step: StepDone) -> TimelineItem:
    """Return the moment of an entry of the journal, which has no time."""
    facts = {} if step.attempts is None else {"attempt": str(step.attempts)}
    if step.again_ms is not None:
        facts["will be retried at"] = iso(step.again_ms)
    kind, title, tone = MomentKind.STEP, f"step {step.name}", Tone.GOOD
    if step.state in _QUESTION_STATES:
        kind, title = MomentKind.QUESTION, f"question {step.name}"
    elif step.state in _EVENT_STATES:
        kind, title = MomentKind.EVENT, f"external event {step.name}"
    elif step.state == _PAUSE:
        kind, title = MomentKind.NOTE, f"pause {step.name}"
    if step.again_ms is not None or step.state in ("asked", "can be delivered", _PAUSE, "begun"):
        tone = Tone.WAITS
    elif step.state not in GOOD:
        tone = Tone.BAD
    return TimelineItem(kind, title, tone=tone, outcome=step.state, facts=facts)


def _present(record: TaskRecord, now_ms: int) -> list[TimelineItem]:
    """Return the current state of a task, and its time to continue or to expire."""
    status, doing = record.shown_status, activity(record, now_ms)
    state = TimelineItem(
        MomentKind.TASK,
        f"task {status.value}",
        record.updated_ms,
        tone=tone_of(status.value),
        outcome="" if record.ending is None else record.ending.value,
        facts={
            **({} if doing == "-" or record.retried_as else {"now": doing}),
            **({"message": record.status_message} if record.status_message else {}),
        },
    )
    moments = [state]
    if record.is_open and now_ms < record.wake_ms < record.expires_ms:
        moments.append(
            TimelineItem(
                MomentKind.TASK, f"continues in {span(record.wake_ms - now_ms)}", record.wake_ms
            )
        )
    if record.is_open:
        verb = "expires" if now_ms < record.expires_ms else "expired"
        moments.append(TimelineItem(MomentKind.TASK, f"task {verb}", record.expires_ms))
    return moments
