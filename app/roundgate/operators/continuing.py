"""The retry of a task that a failed step ended or that was given up, and the steps that an operator sees of a task.

`steps_done` names steps, pauses and questions, without values, arguments and answers, which belong
to the task's owner. `retry` retries a task at the step that failed.

A terminal task never changes, so the work continues in another task of the same owner: the same
call, with the journal from before the failure (`replay.before_failure`). The new id derives from
the first one, so repeated requests and crashes never create a second retry. The journal of a task
that was given up is kept whole.

    owner.A   plan ✓  charge ✗             completed, isError           retried as B
    owner.B   plan ✓  charge …             working: `plan` is remembered, `charge` runs again

A service may deliver an external event to A until A's record has the id of B, and to B from then
on. So `retry` delivers the payloads of A to B again after it has recorded the id.

An operator can also choose a step (`from_step`): `retry` cuts off the journal before that step, so
the step and all later actions happen again. A parked task continues under its own id, because it is
open.

The handler and its services still see A (`TaskCall.continues`), so idempotency keys stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from roundgate import json, replay
from roundgate.errors import NotRetryable, ParseError
from roundgate.json import digest, encode
from roundgate.storage import Ending, Mark, TaskRecord, TaskRef, Work
from roundgate.tasks import machine
from roundgate.tasks.call import TaskCall
from roundgate.tasks.events import Deliver, NewTask, NoteRetry, Rewind
from roundgate.tasks.stored import StoredTasks

TRIES: Final = 5
"""The maximum number of times that a rewind reads a task that changes meanwhile."""
_OF_ANOTHER_VERSION: Final = (ParseError, ValueError, TypeError, KeyError)


async def retry(
    store: StoredTasks, ref: TaskRef, now_ms: int, from_step: str | None = None
) -> TaskRef:
    """Retry a task at the step whose failure ended it, or where it was given up. Return the task that
    continues the work.

    Args:
        store: the store of both tasks.
        from_step: the place to continue from, if not the failed step.

    Raises:
        NotRetryable: the task cannot be retried; the message gives the operator the reason.
        Unavailable: the store cannot be reached; repeat the call.
    """
    record = await store.read(ref, now_ms)
    if record is None:
        raise NotRetryable("does not exist any more")
    if not record.is_unfinished:
        raise NotRetryable("neither failed at a step nor was given up")
    if record.retried_as is not None:
        successor = TaskRef(ref.owner, record.retried_as)
        await _hand_on(store, ref, successor, now_ms)  # an earlier retry may have died before this
        raise NotRetryable(f"was already retried as {successor}")
    _, work = await store.read_work(ref)
    if work is None:
        raise NotRetryable("is no longer stored completely; call the tool again")
    task = _going_on(record, work, now_ms, from_step)
    is_new = await store.create(task)
    await store.apply(ref, NoteRetry(task.ref.id), 0)
    await _hand_on(store, ref, task.ref, now_ms)
    if not is_new:
        await store.send(task.ref)  # an interrupted retry may have sent no message
    if from_step is not None and not is_new:  # an earlier command died before `note_retry`
        raise NotRetryable(f"was already retried as {task.ref}, by an earlier command")
    return task.ref


async def _hand_on(store: StoredTasks, ref: TaskRef, successor: TaskRef, now_ms: int) -> None:
    """Deliver the payloads of a task to its successor, if the successor waits for the events."""
    record, work = await store.read_work(ref)
    if record is None or work is None:
        return
    for mark in record.events:
        if mark.digest is not None and mark.name in work.answers:
            event = Deliver(mark.name, work.answers[mark.name], mark.digest, now_ms)
            await store.apply(successor, event, now_ms)


async def rewind(store: StoredTasks, ref: TaskRef, now_ms: int, from_step: str) -> None:
    """Let a parked task continue from a place, and keep the entries before it.

    Raises:
        NotRetryable: the task is not parked, or has no such place.
        Unavailable: the store cannot be reached; repeat the call.
    """
    for _ in range(TRIES):
        record, work = await store.read_work(ref)
        if record is None or work is None or not machine.is_parked(record):
            break
        call, journal = _kept(record, work, from_step)
        rows = [encode(replay.row(entry)) for entry in journal.entries()]
        # repeated questions and events get other names, so that old answers do not fit them
        call = replace(call, generation=call.generation + 1)
        marks = _marks(record, journal)
        event = Rewind(call.to_bytes(), rows, marks, now_ms, record.fence, record.events)
        if (await store.apply(ref, event, now_ms)).happened:
            return
    raise NotRetryable("is neither parked nor ended by a failed step")


async def continue_from(store: StoredTasks, record: TaskRecord, now_ms: int, step: str) -> str:
    """Let a parked or failed task continue from a chosen step. Return the result in words.

    Raises:
        NotRetryable: the task is neither parked nor ended by a failed step, or has no such step.
    """
    if machine.is_parked(record):
        await rewind(store, record.ref, now_ms, step)
        return f"continues from {step}"
    return f"continues as {await retry(store, record.ref, now_ms, step)}, from {step}"


def _marks(record: TaskRecord, journal: replay.Journal) -> list[Mark]:
    names = {entry.name for entry in journal.steps.values() if isinstance(entry, replay.Opened)}
    return [replace(mark, is_awaited=False) for mark in record.events if mark.name in names]


def _kept(record: TaskRecord, work: Work, from_step: str | None) -> tuple[TaskCall, replay.Journal]:
    """Return the call and the part of the journal that a retry keeps. Raise NotRetryable if another
    version wrote the task."""
    try:
        return TaskCall.from_bytes(work.call), _journal(record, work, from_step)
    except _OF_ANOTHER_VERSION as error:
        raise NotRetryable(
            "was written by another version of Roundgate; call the tool again"
        ) from error


def _going_on(record: TaskRecord, work: Work, now_ms: int, from_step: str | None = None) -> NewTask:
    call, journal = _kept(record, work, from_step)
    call = replace(call, continues=call.continues or record.ref.id)
    if from_step is not None:
        call = replace(call, generation=call.generation + 1)
    return NewTask(
        ref=TaskRef(record.ref.owner, digest(["retry", record.ref.id])),
        tool=record.tool,
        call=call.to_bytes(),
        journal=[encode(replay.row(entry)) for entry in journal.entries()],
        state=work.state,
        created_ms=now_ms,
        expires_ms=now_ms + record.expires_ms - record.created_ms,
        due_ms=now_ms,
        journal_version=record.journal_version,
        cleans_up=record.cleans_up,
        call_id=record.call_id,
        events=_marks(record, journal),
    )


def _journal(record: TaskRecord, work: Work, from_step: str | None) -> replay.Journal:
    """Return the journal from before the failure, or from before a chosen step, with its answers
    and events.

    Raises:
        NotRetryable: the journal has no such step, or cannot be cut off at the failure.
    """
    entries = [replay.from_row(json.decode(entry)) for entry in work.journal]
    if from_step is not None:
        return _journal_with(_before(entries, from_step), record, work)
    if record.ending is Ending.STEP_FAILED:
        entries = replay.before_failure(entries, record.failed_steps)
    return _journal_with(entries, record, work)


def _before(entries: Sequence[replay.Entry], from_step: str) -> list[replay.Entry]:
    entries_before = replay.before_step(entries, from_step)
    if entries_before is None or not any(
        entry.key == from_step and _is_shown(entry) for entry in entries
    ):
        names = ", ".join(dict.fromkeys(entry.key for entry in entries if _is_shown(entry)))
        raise NotRetryable(f"has no step {from_step!r}; it has {names or 'none'}")
    return entries_before


def _journal_with(
    entries: Sequence[replay.Entry], record: TaskRecord, work: Work
) -> replay.Journal:
    journal = replay.Journal()
    for entry in entries:
        journal.add(entry)
    answers = {key: json.decode(answer) for key, answer in work.answers.items()}
    journal.receive(answers)
    journal.deliver(answers, {mark.name for mark in record.events})
    return journal


class Repeated(Struct, frozen=True):
    """The actions that a task repeats if it continues from a chosen step, by their places in the
    handler."""

    steps: Sequence[str]
    """The steps that ran or had started."""
    once: Sequence[str]
    """The steps among them with `at_most_once`."""
    questions: Sequence[str]
    """The questions that were asked."""
    events: Sequence[str]
    """The external events that were opened. Their tokens become invalid."""
    has_state: bool
    """Whether the handler has data in `ctx.state`, which stays unchanged."""

    def lines(self) -> list[tuple[str, str]]:
        """Return the actions in words: pairs of an effect and names."""
        effects = (
            ("runs again", self.steps),
            ("may take effect twice, although it is at_most_once", self.once),
            ("is asked again", self.questions),
            ("is awaited again, with a new URL", self.events),
            ("is kept", ["ctx.state"] * self.has_state),
        )
        return [(effect, ", ".join(names)) for effect, names in effects if names]


def repeated(work: Work, from_step: str) -> Repeated:
    """Return the actions that a task repeats if it continues from a place.

    Raises:
        NotRetryable: the task has no such place, or another version of Roundgate wrote it.
    """
    try:
        entries = [replay.from_row(json.decode(entry)) for entry in work.journal]
    except _OF_ANOTHER_VERSION as error:
        raise NotRetryable(
            "was written by another version of Roundgate; call the tool again"
        ) from error
    cut_off = entries[len(_before(entries, from_step)) :]
    return Repeated(
        _places(cut_off, replay.Finished, replay.Raised, replay.Tried, replay.Began, replay.Cut),
        _places(cut_off, replay.Began),
        _places(cut_off, replay.Asked, replay.Answered, replay.TimedOutQuestion),
        _places(cut_off, replay.Opened),
        has_state=json.decode(work.state) != {},
    )


def _places(entries: Sequence[replay.Entry], *kinds: type[replay.Entry]) -> list[str]:
    shown = (entry for entry in entries if isinstance(entry, kinds) and _is_shown(entry))
    return list(dict.fromkeys(entry.key for entry in shown))


_STATES: Final[dict[type, str]] = {
    replay.Finished: "done",
    replay.Raised: "failed",
    replay.Tried: "failed, will be retried",
    replay.Began: "begun",
    replay.Cut: "cancelled by its handler",
    replay.Slept: "pause begun",
    replay.Asked: "asked",
    replay.Answered: "answered",
    replay.TimedOutQuestion: "not answered in time",
    replay.Opened: "can be delivered",
}
"""The kinds of entries that an operator sees. Other kinds only record the order of branches."""


class FailedAttempt(Struct, frozen=True):
    """The failure of an attempt at a step."""

    type: str
    """The class of the error."""
    text: str
    at_ms: int
    """The time, in milliseconds since the epoch."""
    reference: str
    """The reference in the log."""

    @classmethod
    def of(
        cls, message: str, told: bool, how: str | None, at_ms: int | None, reference: str | None
    ) -> FailedAttempt | None:
        """Return the failure that an entry records; `None` if an earlier version wrote it."""
        if at_ms is None or reference is None:
            return None
        if told or how is not None:
            return cls("ToolError" if told else _TYPES[how or ""], message, at_ms, reference)
        kind, _, text = message.partition(": ")
        return cls(kind, text, at_ms, reference)


_TYPES: Final = {replay.TIMED_OUT: "StepTimeout", replay.NOT_JSON: "NotJson"}


class StepDone(Struct, frozen=True):
    """A step, pause or question that a task has done or begun."""

    name: str
    """The place in the handler."""
    state: str
    attempts: int | None = None
    """The number of failed attempts; `None` without any."""
    again_ms: int | None = None
    """The time of the retry, in milliseconds since the epoch."""
    failure: FailedAttempt | None = None
    """The last failure, if the step failed."""


def steps_done(record: TaskRecord, work: Work) -> list[StepDone] | None:
    """Return the progress of a task in order; `None` if a later version of Roundgate wrote the
    journal."""
    try:
        entries = [replay.from_row(json.decode(entry)) for entry in work.journal]
        journal = _journal_with(entries, record, work)
    except _OF_ANOTHER_VERSION:
        return None
    entry_of = {entry.key: entry for entry in journal.entries()}
    order = reversed(dict.fromkeys(entry.key for entry in reversed(entries)))
    return [_step(entry_of[key]) for key in order if _is_shown(entry_of[key])]


def _is_shown(entry: replay.Entry) -> bool:
    is_inner = entry.key.rpartition("/")[2].startswith("wait:")
    return type(entry) in _STATES and not is_inner


def _step(entry: replay.Entry) -> StepDone:
    state = _STATES[type(entry)]
    match entry:
        case replay.Raised(
            _, message, told, how=how, at_ms=at_ms, reference=reference, attempts=attempts
        ):
            failure = FailedAttempt.of(message, told, how, at_ms, reference)
            return StepDone(entry.key, state, attempts or 1, failure=failure)
        case replay.Tried(attempts=attempts, again_ms=again_ms, failure=failed):
            failure = None if failed is None else FailedAttempt.of(*failed)
            return StepDone(entry.key, state, attempts, again_ms, failure)
        case replay.Opened(outcome=str() as outcome):
            return StepDone(
                entry.key, "delivered" if outcome == replay.DELIVERED else "not delivered in time"
            )
    return StepDone(entry.key, state)
