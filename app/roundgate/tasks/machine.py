"""The life of a task as a pure function: a record and an event give the next record, or a refusal.

    apply(record, event, now_ms) -> Next(before, after, puts, drops, result, message_ms) | Refused(result)

The module does no I/O. `roundgate.tasks.stored` reads a record, calls `apply`, swaps, calls `apply`
again if another process was first, and sends the message that `Next` requires. The states
themselves are in `roundgate.protocol.tasks`.

**Existence.** For its owner and for workers, a task past `expires_ms` does not exist, even before
it is deleted. A terminal task never changes its status again.

**Leases.** `Claim` gives one worker the task until `until_ms` and raises its *fence*. An event
under a lease happens only while the fence is the same, the task is `working` and the lease was not
released; otherwise the machine refuses it with `LEASE_LOST`:

    worker 1   claim (fence 1) ─── stalls ──────────────── checkpoint: LEASE_LOST
    worker 2             lease runs out · claim (fence 2) ─── checkpoint ─── finish

An expired lease holds until another worker claims the task. Each write of entries under a lease has
a `number`. The record stores the last number, so that a lease can recognize a doubtful write that
happened, and adds its entries once.

**Blame.** A lease has *lapsed* when its time is over and the worker did not release it: the worker
died or stalled with the task. From then on the task is a *suspect*: only a claim with `alone=True`
succeeds, from a worker that runs nothing else at the same time:

    claim ── lease lapses ── claim: SUSPECT ── claim alone (suspect) ── lease lapses ── claim alone (suspect, deaths 1)

`deaths` counts leases of claims with `alone=True` that lapsed, or that `LetGo` ended with blame.
Progress resets it to 0 and lifts the suspicion: `Checkpoint` with entries, `Suspend`, `Restart`,
and `Release` unless `keeps_blame`. `attempts` counts faults that a worker reports itself: `Release`
sets it, other progress resets it.

**Due.** Every open task has a `due_ms`, by which the task should have changed; a sweep finds late
tasks in an index. Creation, `Answer`, `Release`, `LetGo` and `Checkpoint` set the due time from the
event; `Suspend` and `Park` set it to the task's end. A claim keeps an early due time, because in
DynamoDB moving it costs twice as much as the claim itself. So the due time may pass while a worker
has the task; a sweep then postpones it until that worker's lease will have lapsed
(`Postponed.HELD`):

    created, due at 30 ── claim, lease to 31 ── dies           30: held, due when the lease has lapsed ── late
                       ── claim, lease to 31 ── renewal: due later ── …

**Messages.** An event after which a worker should claim the task requires a message. A task that
becomes due without a message is `unsent`: after `LetGo`, after a release with its due time at its
wake time, and after a move under a lease. A sweep that postpones the task (`Postpone`) sends a
message, unless the queue has one. A worker that makes the task wait for its turn alone sends none.
If the worker died before it moved the task, the sweep notices this when it postpones the task
(`Postponed.LAPSED`).

**Questions.** `Suspend` asks; `Answer` takes the answers to outstanding questions. A task whose
`wake_ms` passes while it asks continues without answers (`GoOn`). The record keeps these questions,
hidden from the client, until the task asks again or is released, because it may ask the same ones:
until then an answer is refused as `LATER`.

**External events.** The record has a mark for each event of the task (`storage.Mark`). An entry that
opens an event adds its mark; `Deliver` stores the payload beside the record, once, until the
event's time is over. Only the machine decides whether a payload came in time: `Deliver` refuses a
late payload, and the next `Claim` drops the marks of events whose time is over. A payload that
arrives while a worker has the task does not reach this turn. So `Suspend` and `Release` name the
awaited events, and if one has been delivered, the task is free at once (`Waited.READY`):

    release, waits for paid ── Deliver (wakes) ── claim: the payload is there
    claim ── Deliver (kept) ── release, waits for paid: ready ── claim: the payload is there
    release, waits for paid ── its time is over ── claim: no mark, no payload: the handler times out

The marks stay when the task ends, so that a service that repeats a request gets the result of the
first one.

**Cleaning up.** A task created with `cleans_up` may have started external work that continues by
itself. If the task ends early, by `Cancel`, `Expire`, or a `Finish` with `cleanup_due_ms`, it is
terminal for its client but keeps its work and its place in the index of due tasks; `Claim` is
refused as `CLEAN_UP`. `ClaimCleanup` leases the task, `PostponeCleanup` postpones the next try, and
`EndCleanup` makes it an ordinary terminal task:

    Cancel (due) ── ClaimCleanup (attempts 1) ── PostponeCleanup ── ClaimCleanup (attempts 2) ── EndCleanup

The worker that had the task when it was cancelled keeps it for the rest of its lease; no other
worker cleans up meanwhile.

**Failed steps.** A task that a failed step ended is `completed` for its client, like any task whose
tool failed. The operator sees more: `ending` is `STEP_FAILED`, `failed_steps` names the places, and
the store keeps the work, so that another task can continue it. `NoteRetry` records the id of that
task, once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from roundgate.protocol import Event as Step
from roundgate.protocol import Status, sources, target
from roundgate.storage import ENDING_OF, Drop, Ending, Mark, Put, RecordPart, TaskRecord
from roundgate.tasks import events
from roundgate.tasks.events import (
    KEPT_DELIVERIES,
    Added,
    AnswersTaken,
    Cancelled,
    Created,
    Decision,
    Delivered,
    Event,
    NewTask,
    Next,
    No,
    NotClaimed,
    Postponed,
    Refused,
    Sending,
    Waited,
)

AT_ONCE: Final = 0
"""The delay of a message for a task that can be claimed now."""


# Creation


def create(task: NewTask) -> Created:
    """Return the first record of a task, its values and the delay of its message."""
    is_leased = task.lease_until_ms > 0  # as after a first claim with `alone=True`
    record = TaskRecord(
        ref=task.ref,
        tool=task.tool,
        status=task.status,
        status_message=task.status_message,
        created_ms=task.created_ms,
        updated_ms=task.created_ms,
        expires_ms=task.expires_ms,
        revision=1,
        fence=int(is_leased),
        lease_until_ms=task.lease_until_ms,
        alone=is_leased,
        due_ms=None if task.status.is_terminal else task.due_ms,
        journal_version=task.journal_version,
        cleans_up=task.cleans_up,
        ending=task.ending or ENDING_OF.get(task.status),
        call_id=task.call_id,
        events=tuple(task.events),
        asked=tuple(task.requests),
    )
    outcome = [] if task.outcome is None else [Put(RecordPart.OUTCOME, task.outcome)]
    work = _work(task.call, task.journal, task.state)
    puts = [*work, *_questions(task.requests), *outcome]
    is_to_run = record.is_open and not record.asked and not is_leased
    return Created(record, puts, AT_ONCE if is_to_run else None)


def _questions(requests: Mapping[str, bytes]) -> list[Put]:
    return [Put(RecordPart.REQUEST, value, key) for key, value in requests.items()]


def may_lack_message(record: TaskRecord, now_ms: int, sweep_after_ms: int) -> bool:
    """Return whether the creator of a task may have died before it sent the message, and no sweep
    has sent one since."""
    is_new = record.status in sources(Step.RUN) and record.fence == 0
    return is_new and now_ms < record.created_ms + sweep_after_ms


def is_free(record: TaskRecord, now_ms: int) -> bool:
    """Return whether a task is ready for a worker: it is working and awake, and no worker has
    it."""
    is_working = record.status in sources(Step.RUN) and now_ms < record.expires_ms
    return is_working and record.lease_until_ms == 0 and record.wake_ms <= now_ms


def _work(call: bytes, journal: Sequence[bytes], state: bytes) -> list[Put]:
    return [Put(RecordPart.CALL, call), Put(RecordPart.STATE, state), *_entries(journal)]


def _entries(entries: Sequence[bytes]) -> list[Put]:
    return [Put(RecordPart.JOURNAL, entry) for entry in entries]


# Events of the owner


def _answer(record: TaskRecord | None, event: events.TakeAnswers, now_ms: int) -> Decision:
    if record is None or record.expires_ms <= now_ms:
        return Refused(AnswersTaken.UNKNOWN_TASK)
    taken = [key for key in record.asked if key in event.answers]
    if not taken:
        return Refused(AnswersTaken.NOT_NEEDED)
    if record.status not in sources(Step.ANSWER_ALL):
        return Refused(AnswersTaken.LATER)
    outstanding = tuple(key for key in record.asked if key not in event.answers)
    status = target(Step.ANSWER_SOME if outstanding else Step.ANSWER_ALL)
    after = _seen(replace(record, status=status, asked=outstanding), record.revision, now_ms)
    if not outstanding:
        after = replace(after, due_ms=event.due_ms, wake_ms=0)
    return Next(
        record,
        after,
        [Put(RecordPart.ANSWER, event.answers[key], key) for key in taken],
        [Drop(RecordPart.REQUEST, key) for key in taken],
        AnswersTaken.PARTLY if outstanding else AnswersTaken.FULLY,
        None if outstanding else AT_ONCE,
    )


def _cancel(record: TaskRecord | None, event: events.Cancel, now_ms: int) -> Decision:
    if record is None or record.expires_ms <= now_ms:
        return Refused(Cancelled.UNKNOWN_TASK)
    if record.status not in sources(Step.CANCEL):
        return Refused(Cancelled.OVER)
    return _end_early(record, Step.CANCEL, event.status_message, now_ms, event.due_ms)


# Events of a worker


def _claim(record: TaskRecord | None, event: events.Claim, now_ms: int) -> Decision:
    reason = _why_not(record, event, now_ms)
    if record is None or reason is not None:
        return Refused(reason or NotClaimed.GONE)
    has_lapsed = record.lease_until_ms > 0
    after = replace(
        record,
        fence=record.fence + 1,
        lease_until_ms=event.until_ms,
        wake_ms=0,
        suspect=record.suspect or has_lapsed,
        deaths=record.deaths + (has_lapsed and record.alone),
        alone=event.alone,
        resends=0,
        noted=0,
        events=_without_closed(record.events, now_ms),
    )
    if record.due_ms is None or record.due_ms > event.due_ms:
        after = _moved(after, event.due_ms)
    return Next(record, after)


def _without_closed(marks: Sequence[Mark], now_ms: int) -> tuple[Mark, ...]:
    """Return the events that were delivered, or can be."""
    return tuple(mark for mark in marks if mark.digest is not None or mark.is_open(now_ms))


def _why_not(record: TaskRecord | None, event: events.Claim, now_ms: int) -> NotClaimed | None:
    """Return the reason why a task cannot be claimed; `None` if it can."""
    if record is not None and record.is_to_clean_up:
        return NotClaimed.CLEAN_UP
    if record is None or record.expires_ms <= now_ms:
        return NotClaimed.GONE
    if record.status not in sources(Step.RUN):
        return NotClaimed.WAITING if record.is_open else NotClaimed.OVER
    if record.lease_until_ms > event.lapsed_ms:
        return NotClaimed.LEASED
    if record.wake_ms > now_ms:
        return NotClaimed.ASLEEP
    has_lapsed = record.lease_until_ms > 0
    return NotClaimed.SUSPECT if (has_lapsed or record.suspect) and not event.alone else None


def holds(record: TaskRecord, fence: int) -> bool:
    """Return whether a lease holds: the task is `working`, no other worker claimed it since, and
    the lease was not released."""
    is_the_last_claim = record.fence == fence
    return is_the_last_claim and record.status in sources(Step.RUN) and record.lease_until_ms > 0


def _checkpoint(record: TaskRecord, event: events.Checkpoint, now_ms: int) -> Decision:
    if event.added.entries and event.number <= record.noted:
        return Refused(No.HAPPENED)
    after, puts = _added(record, event.added, event.number, now_ms)
    if event.added.entries:
        after = _progressed(after)
    if event.until_ms is not None:
        after = replace(after, lease_until_ms=event.until_ms)
    if event.due_ms is not None:
        after = _moved(after, event.due_ms)
    return Next(record, after, puts)


def _suspend(record: TaskRecord, event: events.SuspendTask, now_ms: int) -> Decision:
    after, puts = _added(record, event.added, event.number, now_ms)
    after = replace(_progressed(after), lease_until_ms=0, unsent=False, asked=tuple(event.requests))
    after, waited = _wait(after, event.awaits, now_ms)
    message_ms = None
    if waited is Waited.READY:
        after = replace(after, wake_ms=0, due_ms=event.ready_ms)
        message_ms = AT_ONCE
    else:
        due_ms = min(after.expires_ms, event.wake_ms or after.expires_ms)
        asks = replace(after, status=target(Step.ASK), wake_ms=event.wake_ms, due_ms=due_ms)
        after = _seen(asks, record.revision, now_ms)
    puts = [*puts, *_questions(event.requests)]
    return Next(record, after, puts, _no_questions(record), waited, message_ms)


def _release(record: TaskRecord, event: events.Release, now_ms: int) -> Decision:
    after, puts = _added(record, event.added, event.number, now_ms)
    after, waited = _wait(after, event.awaits, now_ms)
    is_ready = waited is Waited.READY
    wake_ms, due_ms = (0, event.ready_ms) if is_ready else (event.wake_ms, event.due_ms)
    message_ms = _message_ms(wake_ms, due_ms, now_ms)
    if wake_ms and event.added.expires_ms is not None:
        after = _seen(after, record.revision, now_ms)
    after = replace(
        _free_until(after, max(0, wake_ms - event.early_ms), due_ms, message_ms),
        attempts=event.attempts,
        declined_ms=event.declined_ms,
    )
    if event.keeps_blame:  # after a fault, the next turn may still ask the previous questions
        return Next(record, after, puts, message_ms=message_ms)
    after = replace(after, deaths=0, suspect=False, asked=())
    return Next(record, after, puts, _no_questions(record), waited, message_ms)


def _restart(record: TaskRecord, event: events.Restart, now_ms: int) -> Decision:
    after = replace(
        _progressed(record),
        lease_until_ms=0,
        wake_ms=0,
        due_ms=event.due_ms,
        unsent=False,
        journal_version=event.journal_version,
        expires_ms=event.expires_ms or record.expires_ms,
        asked=(),
        events=(),
    )
    drops = [Drop(RecordPart.JOURNAL), Drop(RecordPart.ANSWER), *_no_questions(record)]
    work = _work(event.call, event.journal, event.state)
    return Next(record, after, work, drops, message_ms=AT_ONCE)


def _park(record: TaskRecord, event: events.Park, now_ms: int) -> Decision:
    after, _ = _added(record, Added(status_message=event.status_message), 0, now_ms)
    after, _ = _wait(after, (), now_ms)
    end_ms = record.expires_ms
    return Next(record, replace(after, lease_until_ms=0, wake_ms=end_ms, due_ms=end_ms))


def _finish(record: TaskRecord, event: events.Finish, now_ms: int) -> Decision:
    after = _ended(record, event.status, event.status_message, now_ms)
    after = replace(
        after,
        ending=event.ending or after.ending,
        failed_steps=tuple(event.failed_steps) or record.failed_steps,
        expires_ms=record.expires_ms if event.expires_ms is None else event.expires_ms,
    )
    if event.ending is Ending.ERROR:  # of its handler: its workers did not give it up
        after = replace(after, attempts=0, deaths=0, declined_ms=0)
    elif event.status is Status.FAILED and not (record.deaths or record.declined_ms):
        after = replace(after, attempts=record.attempts + 1)  # they did, after this turn
    message_ms = None
    if event.cleanup_due_ms is not None:
        after = _to_clean_up(after, event.cleanup_due_ms)
        message_ms = AT_ONCE
    outcome = [] if event.outcome is None else [Put(RecordPart.OUTCOME, event.outcome)]
    return Next(record, after, outcome, _no_questions(record), message_ms=message_ms)


def _let_go(record: TaskRecord, event: events.LetGo, now_ms: int) -> Decision:
    if record.expires_ms <= now_ms:
        return Refused(No.LEASE_LOST)
    after = replace(
        _moved(record, event.due_ms),
        lease_until_ms=0,
        wake_ms=0,
        suspect=record.suspect or event.blame,
        deaths=record.deaths + (event.blame and record.alone),
    )
    return Next(record, after, message_ms=_message_ms(0, event.due_ms, now_ms))


# Events of a cleanup


def _claim_cleanup(record: TaskRecord | None, event: events.ClaimCleanup, now_ms: int) -> Decision:
    if record is None or not record.is_to_clean_up or record.wake_ms > now_ms:
        return Refused(No.NOT_NOW)
    if record.lease_until_ms > event.lapsed_ms and record.fence != event.fence:
        return Refused(No.NOT_NOW)
    after = replace(
        _moved(record, event.due_ms),
        fence=record.fence + 1,
        lease_until_ms=event.until_ms,
        wake_ms=0,
        attempts=record.attempts + 1,
        resends=0,
    )
    if event.journal is None:
        return Next(record, after)
    return Next(record, after, _entries(event.journal), [Drop(RecordPart.JOURNAL)])


def _postpone_cleanup(record: TaskRecord, event: events.PostponeCleanup, now_ms: int) -> Decision:
    message_ms = _message_ms(event.wake_ms, event.due_ms, now_ms)
    after = _free_until(record, event.wake_ms, event.due_ms, message_ms)
    return Next(record, after, message_ms=message_ms)


def _end_cleanup(record: TaskRecord, event: events.EndCleanup, now_ms: int) -> Decision:
    return Next(record, replace(_not_due(record), lease_until_ms=0, wake_ms=0))


# Events of the sweep


def _go_on(record: TaskRecord | None, event: events.GoOn, now_ms: int) -> Decision:
    if record is None or record.expires_ms <= now_ms or record.status not in sources(Step.GO_ON):
        return Refused(No.NOT_NOW)
    if not 0 < record.wake_ms <= now_ms:
        return Refused(No.NOT_NOW)
    status = target(Step.GO_ON)
    after = replace(record, status=status, wake_ms=0, due_ms=event.due_ms, unsent=False)
    return Next(record, _seen(after, record.revision, now_ms), message_ms=AT_ONCE)


def _postpone(record: TaskRecord | None, event: events.Postpone, now_ms: int) -> Decision:
    if record is None or record.due_ms != event.seen_ms:
        return Refused(Postponed.MISSED)
    until_ms = record.lease_until_ms
    if until_ms > now_ms - event.skew_ms:
        return Next(record, _moved(record, until_ms + event.skew_ms), result=Postponed.HELD)
    result = Postponed.LAPSED if until_ms > 0 else Postponed.MOVED
    sends = event.sending is Sending.NEEDED
    if event.sending is Sending.DOUBTED:
        sends = result is Postponed.LAPSED
    unsent = event.sending is Sending.LEFT
    after = replace(record, due_ms=event.due_ms, resends=event.resends, unsent=unsent)
    return Next(record, after, result=result, message_ms=AT_ONCE if sends else None)


def _expire(record: TaskRecord | None, event: events.Expire, now_ms: int) -> Decision:
    if record is None or record.expires_ms > now_ms or record.status not in sources(Step.EXPIRE):
        return Refused(No.NOT_NOW)
    return _end_early(record, Step.EXPIRE, "expired", now_ms, event.due_ms)


# Events of a service


def _deliver(record: TaskRecord | None, event: events.Deliver, now_ms: int) -> Decision:
    if record is None:
        return Refused(Delivered.UNKNOWN_TASK)
    mark = next((mark for mark in record.events if mark.name == event.name), None)
    if mark is None:
        return Refused(Delivered.CLOSED)
    if mark.digest is not None:
        return Refused(Delivered.AGAIN if mark.digest == event.digest else Delivered.OTHER)
    is_over = record.expires_ms <= now_ms or not mark.is_open(now_ms)
    if is_over or not (record.is_open or record.may_be_retried):
        return Refused(Delivered.CLOSED)
    delivered = replace(mark, is_awaited=False, digest=event.digest)
    marks = tuple(delivered if other is mark else other for other in record.events)
    after = replace(record, events=marks)
    wakes = mark.is_awaited and record.is_open and record.lease_until_ms == 0
    if wakes:
        after = replace(after, wake_ms=0, due_ms=event.due_ms, unsent=False)
        if record.status in sources(Step.GO_ON):
            after = _seen(replace(after, status=target(Step.GO_ON)), record.revision, now_ms)
    payload = Put(RecordPart.ANSWER, event.payload, event.name)
    result, message_ms = (Delivered.WAKES, AT_ONCE) if wakes else (Delivered.KEPT, None)
    return Next(record, after, [payload], (), result, message_ms)


# Events of the operator


def is_parked(record: TaskRecord) -> bool:
    """Return whether a task waits for its operator: it sleeps until its end, and awaits no external
    event."""
    is_asleep = record.status in sources(Step.RUN) and record.wake_ms >= record.expires_ms
    return is_asleep and not any(mark.is_awaited for mark in record.events)


def _rewind(record: TaskRecord | None, event: events.Rewind, now_ms: int) -> Decision:
    if record is None or record.expires_ms <= now_ms or not is_parked(record):
        return Refused(No.NOT_NOW)
    if event.fence != record.fence or tuple(event.seen) != tuple(record.events):
        return Refused(No.NOT_NOW)
    after = replace(_taken(record, event.due_ms), asked=(), events=tuple(event.events))
    drops = [Drop(RecordPart.JOURNAL), Drop(RecordPart.ANSWER), *_no_questions(record)]
    puts = [Put(RecordPart.CALL, event.call), *_entries(event.journal)]
    return Next(record, after, puts, drops, message_ms=AT_ONCE)


def _requeue(record: TaskRecord | None, event: events.Requeue, now_ms: int) -> Decision:
    if record is None or record.expires_ms <= now_ms or record.status not in sources(Step.RUN):
        return Refused(No.NOT_NOW)
    if event.fence not in (None, record.fence):
        return Refused(No.NOT_NOW)
    return Next(record, _taken(record, event.due_ms), message_ms=AT_ONCE)


def _taken(record: TaskRecord, due_ms: int) -> TaskRecord:
    """Return a task that was taken from its worker."""
    return replace(
        _progressed(record),
        fence=record.fence + 1,
        lease_until_ms=0,
        wake_ms=0,
        due_ms=due_ms,
        resends=0,
        unsent=False,
    )


def _note_retry(record: TaskRecord | None, event: events.NoteRetry, now_ms: int) -> Decision:
    if record is None or not record.may_be_retried:
        return Refused(No.NOT_NOW)
    return Next(record, replace(record, retried_as=event.as_id))


def may_purge(record: TaskRecord, now_ms: int) -> bool:
    """Return whether a task may be deleted: it is terminal or expired."""
    return not record.is_open or record.expires_ms <= now_ms


# Changes that several events share


def _progressed(record: TaskRecord) -> TaskRecord:
    return replace(record, deaths=0, suspect=False, attempts=0, declined_ms=0)


def _message_ms(wake_ms: int, due_ms: int, now_ms: int) -> int | None:
    """Return the delay in milliseconds of the message for a task that continues at `wake_ms`.
    Return `None` if the task is due by then, so that a sweep wakes it."""
    begins_ms = max(wake_ms, now_ms)
    return None if due_ms <= begins_ms else begins_ms - now_ms


def _seen(record: TaskRecord, revision: int, now_ms: int) -> TaskRecord:
    """Return a record, marked as changed for its client since `revision`."""
    return replace(record, updated_ms=now_ms, revision=revision + 1)


def _moved(record: TaskRecord, due_ms: int) -> TaskRecord:
    """Move the due time without a message."""
    return replace(record, due_ms=due_ms, unsent=True)


def _free_until(
    record: TaskRecord, wake_ms: int, due_ms: int, message_ms: int | None
) -> TaskRecord:
    unsent = message_ms is None
    return replace(record, lease_until_ms=0, wake_ms=wake_ms, due_ms=due_ms, unsent=unsent)


def _added(
    record: TaskRecord, added: Added, number: int, now_ms: int
) -> tuple[TaskRecord, list[Put]]:
    """Return the record after the additions of an event, and their puts. Entries with a noted
    number are stored already and are not added again."""
    after, puts = record, []
    if added.entries and number > record.noted:
        puts = _entries(added.entries)
        names = {mark.name for mark in record.events}
        opened = [mark for mark in added.events if mark.name not in names]
        marks = _bounded([*record.events, *opened]) if opened else record.events
        after = replace(after, noted=number, events=marks)
    if added.state is not None:
        puts.append(Put(RecordPart.STATE, added.state))
    if added.status_message is not None and added.status_message != record.status_message:
        message = added.status_message or None
        after = _seen(replace(after, status_message=message), record.revision, now_ms)
    if added.expires_ms is not None:
        after = replace(after, expires_ms=added.expires_ms)
    return after, puts


def _bounded(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """Return the marks without the oldest delivered events beyond `KEPT_DELIVERIES`."""
    delivered = [mark for mark in marks if mark.digest is not None]
    forgotten = delivered[: max(0, len(delivered) - KEPT_DELIVERIES)]
    return tuple(mark for mark in marks if mark not in forgotten)


def _wait(
    record: TaskRecord, awaits: Collection[str], now_ms: int
) -> tuple[TaskRecord, Waited | None]:
    """Return the record with the events that the task awaits. If one of them was delivered or
    closed, the task awaits none and the result is `READY`."""
    open_names = {mark.name for mark in record.events if mark.is_open(now_ms)}
    is_ready = not open_names.issuperset(awaits)
    awaited = frozenset[str]() if is_ready else frozenset(awaits)
    marks = tuple(replace(mark, is_awaited=mark.name in awaited) for mark in record.events)
    return replace(record, events=marks), Waited.READY if is_ready else None


def _no_questions(record: TaskRecord) -> list[Drop]:
    return [Drop(RecordPart.REQUEST)] if record.asked else []


def _not_due(record: TaskRecord) -> TaskRecord:
    return replace(record, due_ms=None, unsent=False, cleans_up=False)


def _ended(record: TaskRecord, status: Status, message: str | None, now_ms: int) -> TaskRecord:
    """Return a terminal task: no due time, no questions, no lease."""
    after = replace(
        _not_due(record),
        status=status,
        status_message=message,
        ending=ENDING_OF[status],
        lease_until_ms=0,
        wake_ms=0,
        asked=(),
    )
    return _seen(after, record.revision, now_ms)


def _to_clean_up(record: TaskRecord, due_ms: int) -> TaskRecord:
    return replace(record, cleans_up=True, due_ms=due_ms, attempts=0, resends=0)


def _end_early(record: TaskRecord, step: Step, message: str, now_ms: int, due_ms: int) -> Next:
    """Return the change that ends a task before its work is finished. A task to be cleaned up keeps
    its lease."""
    over, drops = _ended(record, target(step), message, now_ms), _no_questions(record)
    if not record.cleans_up:
        return Next(record, over, (), drops, Cancelled.OVER)
    after = replace(_to_clean_up(over, due_ms), lease_until_ms=record.lease_until_ms)
    return Next(record, after, (), drops, Cancelled.CLEAN_UP, AT_ONCE)


# The table

_HANDLERS: Final[Mapping[type, Callable[[Any, Any, int], Decision]]] = MappingProxyType(
    {
        events.TakeAnswers: _answer,
        events.Cancel: _cancel,
        events.Claim: _claim,
        events.Checkpoint: _checkpoint,
        events.SuspendTask: _suspend,
        events.Release: _release,
        events.Restart: _restart,
        events.Park: _park,
        events.Finish: _finish,
        events.LetGo: _let_go,
        events.ClaimCleanup: _claim_cleanup,
        events.PostponeCleanup: _postpone_cleanup,
        events.EndCleanup: _end_cleanup,
        events.GoOn: _go_on,
        events.Postpone: _postpone,
        events.Expire: _expire,
        events.Deliver: _deliver,
        events.Requeue: _requeue,
        events.Rewind: _rewind,
        events.NoteRetry: _note_retry,
    }
)


def apply(record: TaskRecord | None, event: Event, now_ms: int) -> Decision:
    """Return the changes that an event makes to a task, or the refusal. `record` is `None` for an
    unknown task."""
    if isinstance(event, events.UnderLease) and not _may_write(record, event):
        return Refused(No.LEASE_LOST)
    return _HANDLERS[type(event)](record, event, now_ms)


def _may_write(record: TaskRecord | None, event: events.UnderLease) -> bool:
    if record is None:
        return False
    if isinstance(event, events.Cleaning):
        return record.fence == event.fence and record.is_to_clean_up
    return holds(record, event.fence)
