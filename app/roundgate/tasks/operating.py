"""What an operator sees of a task, and does with one that a failed step ended.

`steps_done` names steps, pauses and questions, without values, arguments and answers: those belong
to the task's owner. `retry` retries a task at the step that failed.

A terminal task never changes, so the work continues in another task of the same owner: the same
call, with the journal as it was when the step failed (`replay.retry`). The new id is derived from
the first one, so repeated requests and crashes never create a second retry.

    owner.A   plan ✓  charge ✗             completed, isError           retried as B
    owner.B   plan ✓  charge …             working: `plan` is remembered, `charge` runs again

A service may deliver an external event to A until B is noted in A's record, and to B from then on.
So the payloads that A has are delivered to B once more after the note.

An operator can also choose a step (`from_step`): the journal is cut off before it, so it and
everything recorded later happen again. A parked task goes on under its own id, because it is open.

The handler and its services still see A (`TaskCall.continues`), so idempotency keys stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from roundgate import json
from roundgate.errors import NotRetryable, ParseError
from roundgate.json import digest, encode
from roundgate.replay import (
    DELIVERED,
    Answered,
    Asked,
    Began,
    Cut,
    Entry,
    Finished,
    Journal,
    Opened,
    Raised,
    Slept,
    Tried,
    Unanswered,
    before_failure,
    before_step,
    from_row,
    row,
)
from roundgate.storage import Ending, TaskRecord, TaskRef, Work
from roundgate.tasks import machine
from roundgate.tasks.call import TaskCall
from roundgate.tasks.events import Mark, NewTask, marks_of
from roundgate.tasks.stored import StoredTasks

TRIES: Final = 5
"""How often a rewind reads a task that changes meanwhile."""
_OF_ANOTHER_VERSION: Final = (ParseError, ValueError, TypeError, KeyError)


async def retry(
    store: StoredTasks, ref: TaskRef, now_ms: int, from_step: str | None = None
) -> TaskRef:
    """Retry a task at the step whose failure ended it. Return the task that continues it.

    Args:
        store: the store of both tasks.
        ref: the task that ended.
        now_ms: the time, in milliseconds since the epoch.
        from_step: the place from which on everything happens again, if not the failed step.

    Raises:
        NotRetryable: the task cannot be retried; the text gives the operator the reason.
        Unavailable: the store cannot be reached; repeat the call.
    """
    record = await store.read(ref, now_ms)
    if record is None:
        raise NotRetryable("is not there any more")
    if record.ending is not Ending.STEP_FAILED:
        raise NotRetryable("was not ended by a failed step")
    if record.retried_as is not None:
        successor = TaskRef(ref.owner, record.retried_as)
        await _hand_on(store, ref, successor, now_ms)  # an earlier retry may have died before that
        raise NotRetryable(f"was taken up again as {successor}")
    work = await store.read_work(ref)
    if work is None:
        raise NotRetryable("is no longer stored completely; call the tool again")
    task = _going_on(record, work, now_ms, from_step)
    is_new = await store.create(task)
    await store.note_retry(ref, task.ref.id)
    await _hand_on(store, ref, task.ref, now_ms)
    if not is_new:
        await store.send(task.ref)  # a retry that was interrupted may not have sent it
    if from_step is not None and not is_new:  # by a command that died before its note
        raise NotRetryable(f"was taken up again as {task.ref}, by an earlier command")
    return task.ref


async def _hand_on(store: StoredTasks, ref: TaskRef, successor: TaskRef, now_ms: int) -> None:
    """Deliver the payloads that a task has to its successor, if that waits for the events."""
    record, work = await store.store.read_work(ref)
    if record is None or work is None:
        return
    for mark in marks_of(record):
        if mark.digest is not None and mark.name in work.answers:
            payload = work.answers[mark.name]
            await store.deliver(successor, mark.name, payload, mark.digest, now_ms, now_ms)


async def rewind(store: StoredTasks, ref: TaskRef, now_ms: int, from_step: str) -> None:
    """Let a parked task go on from a place: what was recorded before it is kept.

    Raises:
        NotRetryable: the task is not parked, or has no such place.
        Unavailable: the store cannot be reached; repeat the call.
    """
    for _ in range(TRIES):
        record, work = await store.store.read_work(ref)
        if record is None or work is None or not machine.is_parked(record):
            break
        call, journal = _kept(record, work, from_step)
        rows = [encode(row(entry)) for entry in journal.entries()]
        # questions and events that come again have other names: old answers do not fit them
        call = replace(call, generation=call.generation + 1)
        marks = _marks(record, journal)
        if await store.rewind(record, call.to_bytes(), rows, marks, now_ms, now_ms):
            return
    raise NotRetryable("is neither parked nor ended by a failed step")


def _marks(record: TaskRecord, journal: Journal) -> list[Mark]:
    """Return the marks of the external events that a journal has opened."""
    names = {entry.name for entry in journal.steps.values() if isinstance(entry, Opened)}
    return [replace(mark, is_awaited=False) for mark in marks_of(record) if mark.name in names]


def _kept(record: TaskRecord, work: Work, from_step: str | None) -> tuple[TaskCall, Journal]:
    """Return the call and the part of the journal that a retry keeps."""
    try:
        return TaskCall.from_bytes(work.call), _journal(record, work, from_step)
    except _OF_ANOTHER_VERSION as error:
        raise NotRetryable("is of another version of Roundgate; call the tool again") from error


def _going_on(record: TaskRecord, work: Work, now_ms: int, from_step: str | None = None) -> NewTask:
    call, journal = _kept(record, work, from_step)
    call = replace(call, continues=call.continues or record.ref.id)
    if from_step is not None:
        call = replace(call, generation=call.generation + 1)
    return NewTask(
        ref=TaskRef(record.ref.owner, digest(["retry", record.ref.id])),
        tool=record.tool,
        call=call.to_bytes(),
        journal=[encode(row(entry)) for entry in journal.entries()],
        state=work.state,
        created_ms=now_ms,
        expires_ms=now_ms + record.expires_ms - record.created_ms,
        due_ms=now_ms,
        journal_version=record.journal_version,
        cleans_up=record.cleans_up,
        call_id=record.call_id,
        events=_marks(record, journal),
    )


def _journal(record: TaskRecord, work: Work, from_step: str | None) -> Journal:
    """Return the journal as it was when the step failed, or before a chosen one, with the answers
    and events that belong to it.

    Raises:
        NotRetryable: it has no such step, or may not be cut off where the step failed.
    """
    entries = [from_row(json.decode(entry)) for entry in work.journal]
    if from_step is not None:
        return _journal_with(_before(entries, from_step), record, work)
    return _journal_with(before_failure(entries, record.failed_steps), record, work)


def _before(entries: Sequence[Entry], from_step: str) -> list[Entry]:
    kept = before_step(entries, from_step)
    if kept is None or not any(entry.key == from_step and _is_shown(entry) for entry in entries):
        known = ", ".join(dict.fromkeys(entry.key for entry in entries if _is_shown(entry)))
        raise NotRetryable(f"has no step {from_step!r}; it has {known or 'none'}")
    return kept


def _journal_with(entries: Sequence[Entry], record: TaskRecord, work: Work) -> Journal:
    journal = Journal()
    for entry in entries:
        journal.add(entry)
    answers = {key: json.decode(answer) for key, answer in work.answers.items()}
    journal.receive(answers)
    journal.deliver(answers, {mark.name for mark in marks_of(record)})
    return journal


@dataclass(frozen=True, slots=True)
class Repeated:
    """What happens again if a task goes on from a chosen step. All are places in the handler."""

    steps: Sequence[str]
    """Steps that ran, or had begun to."""
    once: Sequence[str]
    """Of these, the steps with `at_most_once`."""
    questions: Sequence[str]
    """Questions that were asked."""
    events: Sequence[str]
    """External events that were opened. Their tokens become invalid."""
    has_state: bool
    """Whether the handler keeps data in `ctx.state`, which stays as it is."""


def repeated(work: Work, from_step: str) -> Repeated:
    """Return what happens again if a task goes on from a place.

    Raises:
        NotRetryable: the task has no such place, or is of another version of Roundgate.
    """
    try:
        entries = [from_row(json.decode(entry)) for entry in work.journal]
    except _OF_ANOTHER_VERSION as error:
        raise NotRetryable("is of another version of Roundgate; call the tool again") from error
    cut_off = entries[len(_before(entries, from_step)) :]
    return Repeated(
        _places(cut_off, Finished, Raised, Tried, Began, Cut),
        _places(cut_off, Began),
        _places(cut_off, Asked, Answered, Unanswered),
        _places(cut_off, Opened),
        has_state=json.decode(work.state) != {},
    )


def _places(entries: Sequence[Entry], *kinds: type[Entry]) -> list[str]:
    shown = (entry for entry in entries if isinstance(entry, kinds) and _is_shown(entry))
    return list(dict.fromkeys(entry.key for entry in shown))


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
    Opened: "can be delivered",
}
"""The kinds of entries that an operator sees. Other kinds only keep branches in order."""


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


def steps_done(record: TaskRecord, work: Work) -> list[StepDone] | None:
    """Return the progress of a task in order; `None` if a later version of Roundgate wrote the
    journal."""
    try:
        entries = [from_row(json.decode(entry)) for entry in work.journal]
        journal = _journal_with(entries, record, work)
    except _OF_ANOTHER_VERSION:
        return None
    known = {entry.key: entry for entry in journal.entries()}
    order = reversed(dict.fromkeys(entry.key for entry in reversed(entries)))
    return [_step(known[key]) for key in order if _is_shown(known[key])]


def _is_shown(entry: Entry) -> bool:
    is_inner = entry.key.rpartition("/")[2].startswith("wait:")
    return type(entry) in _STATES and not is_inner


def _step(entry: Entry) -> StepDone:
    state = _STATES[type(entry)]
    match entry:
        case Raised(attempts=attempts):
            return StepDone(entry.key, state, attempts or 1)
        case Tried(attempts=attempts, again_ms=again_ms):
            return StepDone(entry.key, state, attempts, again_ms)
        case Opened(outcome=str() as outcome):
            return StepDone(
                entry.key, "delivered" if outcome == DELIVERED else "not delivered in time"
            )
    return StepDone(entry.key, state)
