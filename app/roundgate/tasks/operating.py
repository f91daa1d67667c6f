"""What an operator sees of a task, and does with one that a failed step ended.

`steps_done` names steps, pauses and questions, without values, arguments and answers: those belong
to the task's owner. `retry` retries a task at the step that failed.

A terminal task never changes, so the work continues in another task of the same owner: the same
call, with the journal as it was when the step failed (`replay.retry`). The new id is derived from
the first one, so repeated requests and crashes never create a second retry.

    owner.A   plan ✓  charge ✗             completed, isError           retried as B
    owner.B   plan ✓  charge …             working: `plan` is remembered, `charge` runs again

The handler and its services still see A (`TaskCall.continues`), so idempotency keys stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from roundgate import json
from roundgate.errors import NotRetryable, ParseError
from roundgate.json import digest, encode
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
    before_failure,
    from_row,
    row,
)
from roundgate.storage import Ending, TaskRecord, TaskRef, Work
from roundgate.tasks.call import TaskCall
from roundgate.tasks.events import NewTask
from roundgate.tasks.stored import StoredTasks

_OF_ANOTHER_VERSION: Final = (ParseError, ValueError, TypeError, KeyError)


async def retry(store: StoredTasks, ref: TaskRef, now_ms: int) -> TaskRef:
    """Retry a task at the step whose failure ended it. Return the task that continues it.

    Args:
        store: the store of both tasks.
        ref: the task that ended.
        now_ms: the time, in milliseconds since the epoch.

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
        raise NotRetryable(f"was taken up again as {TaskRef(ref.owner, record.retried_as)}")
    work = await store.read_work(ref)
    if work is None:
        raise NotRetryable("is not kept whole any more; call the tool again")
    task = _going_on(record, work, now_ms)
    if not await store.create(task):
        await store.send(task.ref)  # a retry that was interrupted may not have sent it
    await store.note_retry(ref, task.ref.id)
    return task.ref


def _going_on(record: TaskRecord, work: Work, now_ms: int) -> NewTask:
    try:
        call, journal = TaskCall.from_bytes(work.call), _journal(record, work)
    except _OF_ANOTHER_VERSION as error:
        raise NotRetryable("is of another version of Roundgate; call the tool again") from error
    call = replace(call, continues=call.continues or record.ref.id)
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
    )


def _journal(record: TaskRecord, work: Work) -> Journal:
    """Return the journal as it was when the step failed, with the answers given by then."""
    entries = [from_row(json.decode(entry)) for entry in work.journal]
    journal = Journal()
    for entry in before_failure(entries, record.failed_steps):
        journal.add(entry)
    journal.receive({key: json.decode(answer) for key, answer in work.answers.items()})
    return journal


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
    except _OF_ANOTHER_VERSION:
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
