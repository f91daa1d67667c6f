"""The events in the life of a task and their results. The module has only values: `tasks.machine`
decides.

An event under a lease has the lease's `fence`. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

from msgspec import Struct, field

from roundgate.protocol import Status
from roundgate.storage import Ending, Mark, Put, RecordChange, TaskRecord, TaskRef

# Outcomes


class NotClaimed(StrEnum):
    """The reason why a claim was refused."""

    GONE = "gone"
    """The task is unknown or has expired."""
    OVER = "over"
    WAITING = "waiting for input"
    ASLEEP = "asleep"
    LEASED = "leased"
    SUSPECT = "suspect"
    """A worker died or stalled with the task: only a claim with `alone=True` succeeds."""
    CLEAN_UP = "to be cleaned up"
    """The task is terminal and needs a cleanup (`ClaimCleanup`)."""


class Cancelled(StrEnum):
    """The result of a cancellation."""

    UNKNOWN_TASK = "unknown task"
    OVER = "over"
    """The task is terminal, because of this cancellation or already before."""
    CLEAN_UP = "to be cleaned up"
    """The task has become terminal, and a worker must clean up."""


class AnswersTaken(StrEnum):
    """The result of sending answers."""

    UNKNOWN_TASK = "unknown task"
    NOT_NEEDED = "not needed"
    """No answer is for an outstanding question, so all were dropped."""
    LATER = "later"
    """No answer was taken. The task continues because a time limit passed, and may ask these
    questions again; the end of its turn decides."""
    PARTLY = "partly"
    """The answers were taken; other questions are still outstanding."""
    FULLY = "fully"
    """The answers were taken; no question is outstanding, and the task is `working` and ready for a
    worker."""


class Delivered(StrEnum):
    """The result of delivering the payload of an external event."""

    UNKNOWN_TASK = "unknown task"
    CLOSED = "closed"
    """The event is closed: its time is over, the task has ended, or its handler restarted without
    the event."""
    KEPT = "kept"
    """The payload is stored for the handler's next wait."""
    WAKES = "wakes"
    """The payload is stored; the task awaits the event and is ready for a worker."""
    AGAIN = "again"
    """The same payload was stored before."""
    OTHER = "other"
    """Another payload was stored before."""


class Waited(StrEnum):
    """The result of releasing a task that awaits external events."""

    READY = "ready"
    """An awaited event was delivered or closed meanwhile: the task is ready for a worker at
    once."""


class Postponed(StrEnum):
    """The result of moving the due time."""

    MOVED = "moved"
    LAPSED = "moved, and a lease had lapsed"
    """The worker of the task died or stalled, and the message for the task is gone."""
    HELD = "held"
    """A worker holds the task's lease. The task is due when the lease lapses."""
    MISSED = "missed"
    """Another process has moved the due time, or the task is terminal."""


class No(StrEnum):
    """The reason why another event was refused."""

    LEASE_LOST = "lease lost"
    HAPPENED = "happened"
    """The journal has these entries, because an earlier doubtful write had happened."""
    NOT_NOW = "not now"
    """The task is not in a state in which the event can happen."""


class Sending(StrEnum):
    """The state of a task's message, as a process that moves the due time knows it."""

    NEEDED = "needed"
    """The queue has no message, so the move sends one."""
    DOUBTED = "in doubt"
    """The queue probably has a message, so the move sends another only if a worker died with the
    task."""
    WAITS = "waits"
    """The queue has a message, so the move sends none."""
    LEFT = "left to a sweep"
    """The move sends no message, and the task becomes `unsent`."""


class Next(RecordChange, frozen=True):
    """The change that an event makes to a task."""

    happened: ClassVar[bool] = True
    result: StrEnum | None = None
    message_ms: int | None = None
    """The delay in milliseconds of the message that makes a worker claim the task; `None` if no
    message is needed."""


class Refused(Struct, frozen=True):
    """The refusal of an event, which changes nothing."""

    happened: ClassVar[bool] = False
    result: StrEnum


Decision: TypeAlias = Next | Refused


KEPT_DELIVERIES: Final = 20
"""The number of delivered events that a record keeps, so that a service that repeats a request gets
the same answer. DynamoDB charges each write by the size of the record."""


# Creation


class NewTask(Struct, frozen=True):
    """A task to be created. Times are milliseconds since the epoch."""

    ref: TaskRef
    tool: str
    call: bytes
    """The tool, its caller and its arguments. Only `Restart` changes them."""
    created_ms: int
    expires_ms: int
    due_ms: int
    journal: Sequence[bytes] = ()
    """The entries of the rounds before the call became a task."""
    state: bytes = b"{}"
    status: Status = Status.WORKING
    """`working`, `input_required`, or a terminal status for a call that has already ended."""
    status_message: str | None = None
    outcome: bytes | None = None
    journal_version: int = 1
    cleans_up: bool = False
    """Whether the task may leave external work if it ends early."""
    ending: Ending | None = None
    """The ending of a terminal task; by default the ending of its status."""
    call_id: str | None = None
    events: Sequence[Mark] = ()
    """The external events of the task whose work this one continues."""
    requests: Mapping[str, bytes] = field(default_factory=dict)
    """The questions of a task that is created `input_required`."""
    lease_until_ms: int = 0
    """The end of the creator's lease; 0 if any worker may claim the task."""


class Created(Struct, frozen=True):
    """The first record of a task, its values and its message."""

    record: TaskRecord
    puts: Sequence[Put]
    message_ms: int | None
    """As `Next.message_ms`."""


# Events of the owner


class TakeAnswers(Struct, frozen=True):
    """Answers by wire key. Once all outstanding questions are answered, the task is due at
    `due_ms`."""

    answers: Mapping[str, bytes]
    due_ms: int


class Cancel(Struct, frozen=True):
    """A cancellation, which makes the task `cancelled` unless it is terminal. A task to be cleaned
    up is due at `due_ms`."""

    status_message: str
    due_ms: int


# Events of a worker


class Claim(Struct, frozen=True):
    """A claim of a `working` task that is free and awake.

    A lease has lapsed if it ended at or before `lapsed_ms`. The claimer passes a time before its
    own clock, so that a clock that is ahead takes no valid lease. Only a claim with `alone=True`
    gets a suspect or a task whose lease has lapsed. A later due time moves forward to `due_ms`.
    """

    until_ms: int
    due_ms: int
    lapsed_ms: int
    alone: bool = False


class Added(Struct, frozen=True):
    """The additions of an event under a lease."""

    entries: Sequence[bytes] = ()
    state: bytes | None = None
    """The new state; `None` for no change."""
    status_message: str | None = None
    """The new status message; `None` for no change. The client can see the change."""
    events: Sequence[Mark] = ()
    """The external events that `entries` open."""
    expires_ms: int | None = None
    """The new expiry; `None` for no change."""


NOTHING = Added()


class UnderLease(Struct, frozen=True, kw_only=True):
    """An event under a lease."""

    fence: int = 0
    """The fence of the lease; filled by `StoredTasks.write`."""


class Adding(UnderLease, frozen=True, kw_only=True):
    """An event under a lease that may add entries to the journal."""

    added: Added = NOTHING
    number: int = 0
    """The number of a write with entries; filled by `StoredTasks.write`."""


class Checkpoint(Adding, frozen=True):
    """New entries of the journal. The event also extends the lease to `until_ms` and moves the due
    time to `due_ms`, unless these are `None`. With entries it counts as progress."""

    until_ms: int | None = None
    due_ms: int | None = None


class SuspendTask(Adding, frozen=True):
    """Questions to the client, at least one. With a `wake_ms` the task is due then, to continue
    without the answers; otherwise when it expires. The event counts as progress.

    `awaits` names the external events that the task awaits. If one of them has been delivered or
    closed, the task continues at once without the answers and is due at `ready_ms`.
    """

    requests: Mapping[str, bytes]
    wake_ms: int = 0
    awaits: Collection[str] = ()
    ready_ms: int = 0


class Release(Adding, frozen=True):
    """The release of a task that continues at `wake_ms`; 0 means at once. `keeps_blame` is set
    after a fault or a decline: `deaths` and `suspect` stay. A worker may claim the task `early_ms`
    before it continues, and waits for the rest. If the task is due at its wake time, the sweep
    wakes it without a message. `awaits` and `ready_ms` are as in `SuspendTask`."""

    wake_ms: int
    due_ms: int
    attempts: int = 0
    declined_ms: int = 0
    keeps_blame: bool = False
    awaits: Collection[str] = ()
    ready_ms: int = 0
    early_ms: int = 0


class Restart(UnderLease, frozen=True):
    """Another call and journal, which replace the present ones and all answers."""

    call: bytes
    journal: Sequence[bytes]
    state: bytes
    journal_version: int
    due_ms: int
    expires_ms: int | None = None
    """As `Added.expires_ms`."""


class Park(UnderLease, frozen=True):
    """The removal of a task from all workers until its operator acts. The task stays `working` but
    sleeps until it expires; `Requeue` wakes it."""

    status_message: str


class Finish(UnderLease, frozen=True):
    """The end of a task. The status message replaces the previous one, even with `None`. With
    `cleanup_due_ms` the task needs a cleanup and is due then."""

    status: Status
    outcome: bytes | None
    status_message: str | None = None
    cleanup_due_ms: int | None = None
    ending: Ending | None = None
    """The ending; by default the ending of the status."""
    failed_steps: Sequence[str] = ()
    expires_ms: int | None = None
    """As `Added.expires_ms`."""


class LetGo(UnderLease, frozen=True):
    """The end of a lease from outside the run, perhaps from another thread. With `blame` the task
    becomes a suspect; if the lease came from a claim with `alone=True`, the event counts as a
    death. If the task is due now, the sweep finds it without a message."""

    due_ms: int
    blame: bool


# Events of a cleanup


class ClaimCleanup(Struct, frozen=True):
    """A claim of a terminal task for its cleanup.

    The task is free if its lease ends at or before `lapsed_ms`, and always for the holder of the
    lease with this `fence`. The entries of `journal`, if set, replace the stored ones.
    """

    until_ms: int
    due_ms: int
    lapsed_ms: int
    fence: int | None = None
    journal: Sequence[bytes] | None = None


class Cleaning(UnderLease, frozen=True):
    """An event under the lease of a cleanup."""


class PostponeCleanup(Cleaning, frozen=True):
    """The release of a task whose cleanup continues at `wake_ms`."""

    wake_ms: int
    due_ms: int


class EndCleanup(Cleaning, frozen=True):
    """The end of a cleanup: all external work has ended, or the workers have given up."""


# Events of the sweep


class GoOn(Struct, frozen=True):
    """The end of the wait for answers. An `input_required` task whose `wake_ms` has passed becomes
    `working`."""

    due_ms: int


class Postpone(Struct, frozen=True):
    """A move of the due time, provided that it is still `seen_ms`. A lease lapses `skew_ms` after
    its end. If the lease of the task has not lapsed, the task becomes due at that time, and no
    message is sent."""

    seen_ms: int
    due_ms: int
    resends: int
    sending: Sending
    skew_ms: int


class Expire(Struct, frozen=True):
    """The end of an open task that is past its time. A task to be cleaned up is due at `due_ms`."""

    due_ms: int


# Events of a service


class Deliver(Struct, frozen=True):
    """The payload of an open external event. A task that awaits the event is due at `due_ms`. A
    task that a failed step ended also stores the payload, for its retry."""

    name: str
    payload: bytes
    digest: str
    due_ms: int


# Events of the operator


class Requeue(Struct, frozen=True):
    """A request to take a `working` task from its worker.

    The task loses its lease, wake time, attempts and blame, and gets a higher fence. If `fence` is
    set, the request is refused if a worker has claimed the task since.
    """

    due_ms: int
    fence: int | None = None


class Rewind(Struct, frozen=True):
    """The continuation of a parked task from an earlier place. The call, the entries of `journal`
    and `events` replace the present ones and all answers. The task must be unchanged since the
    operator read it: no claim since `fence`, and no delivered event since `seen`."""

    call: bytes
    journal: Sequence[bytes]
    events: Sequence[Mark]
    due_ms: int
    fence: int
    seen: Sequence[Mark]


class NoteRetry(Struct, frozen=True):
    """The id of the task that continues the work of a task that a failed step ended. Only the first
    id is recorded."""

    as_id: str


Event: TypeAlias = (
    UnderLease
    | TakeAnswers
    | Cancel
    | Claim
    | ClaimCleanup
    | GoOn
    | Postpone
    | Expire
    | Deliver
    | Requeue
    | Rewind
    | NoteRetry
)
