"""Events in the life of a task, and what they come to. Values only: `tasks.machine` decides.

An event under a lease has the lease's `fence`. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias

from roundgate.protocol import Status, TaskView
from roundgate.storage import Change, Ending, Put, TaskRecord, TaskRef

# Outcomes


class NotClaimed(StrEnum):
    """The reason a claim was refused."""

    GONE = "gone"
    """There is no such task, or no more: it is unknown or has expired."""
    OVER = "over"
    WAITING = "waiting for input"
    ASLEEP = "asleep"
    LEASED = "leased"
    SUSPECT = "suspect"
    """A worker died or stalled with it: only a claim with `alone=True` gets it."""
    CLEAN_UP = "to be cleaned up"
    """It is over, and there is something to clean up: `ClaimCleanup`."""


class Cancelled(StrEnum):
    """What a cancellation came to."""

    UNKNOWN_TASK = "unknown task"
    OVER = "over"
    """It is terminal, now or since before."""
    CLEAN_UP = "to be cleaned up"
    """The task has become terminal, and a worker must clean up."""


class Answered(StrEnum):
    """What became of answers."""

    UNKNOWN_TASK = "unknown task"
    NOT_NEEDED = "not needed"
    """None of them is for an outstanding question: all were dropped."""
    LATER = "later"
    """No answer was taken: the task goes on because a time limit passed, and may ask these
    questions again. The end of its turn decides."""
    PARTLY = "partly"
    """Taken; other questions are still outstanding."""
    FULLY = "fully"
    """Taken; nothing is outstanding any more, the task is `working` and wants a worker."""


class Delivered(StrEnum):
    """What became of the payload of an external event."""

    UNKNOWN_TASK = "unknown task"
    CLOSED = "closed"
    """Nothing is accepted for the event any more: its time is over, the task has ended, or its
    handler began anew without it."""
    KEPT = "kept"
    """Stored. The handler finds it when it waits for it."""
    WAKES = "wakes"
    """Stored; the task waits for it and wants a worker."""
    AGAIN = "again"
    """The same payload was stored before."""
    OTHER = "other"
    """Another payload was stored before."""


class Waited(StrEnum):
    """What became of a release of a task that waits for external events."""

    READY = "ready"
    """One of them was delivered, or closed, meanwhile: the task wants a worker at once."""


class Postponed(StrEnum):
    """What became of a move of the due time."""

    MOVED = "moved"
    LAPSED = "moved, and a lease had lapsed"
    """Whoever had it died or stalled with it, and the message that led there is gone."""
    HELD = "held"
    """A worker has it. It is due when that lease has lapsed."""
    MISSED = "missed"
    """Another process has moved it, or it is over."""


class No(StrEnum):
    """Why another event was refused."""

    LEASE_LOST = "lease lost"
    HAPPENED = "happened"
    """These entries are in the journal: an earlier write that was in doubt had happened."""
    NOT_NOW = "not now"
    """The task is not in the state in which the event happens."""


class Sending(StrEnum):
    """What a process that moves the due time knows of the task's message."""

    NEEDED = "needed"
    """The queue has none: one is sent."""
    DOUBTED = "in doubt"
    """The queue probably has it: another is sent only if a worker died with the task."""
    WAITS = "waits"
    """The queue has it: none is sent."""
    LEFT = "left to a sweep"
    """None is sent, and the task is `unsent`."""


@dataclass(frozen=True, slots=True)
class Next(Change):
    """What an event makes of a task."""

    result: StrEnum | None = None
    message_ms: int | None = None
    """The delay of the message that makes a worker claim the task, in milliseconds; `None` if the
    event calls for no message."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The event does not happen."""

    reason: StrEnum


# External events

KEPT_DELIVERIES: Final = 20
"""How many delivered events a record remembers, so that a service that repeats a request is told
that it was accepted. Every write of the record in DynamoDB is paid for by its size."""


@dataclass(frozen=True, slots=True)
class Mark:
    """An external event as the record of its task has it: `event:paid 1790000000000 open`."""

    name: str
    until_ms: int
    """When nothing is accepted for it any more."""
    is_awaited: bool = False
    """Whether the task waits for it, with no worker."""
    digest: str | None = None
    """The digest of the payload that was delivered."""

    def __str__(self) -> str:
        state = self.digest or ("awaited" if self.is_awaited else "open")
        return f"{self.name} {self.until_ms} {state}"

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Parse the text that `str` returns."""
        name, until_ms, state = text.rsplit(" ", 2)  # a branch may have a space in its name
        is_digest = state not in ("open", "awaited")
        return cls(name, int(until_ms), state == "awaited", state if is_digest else None)

    def is_open(self, now_ms: int) -> bool:
        """Return whether the event can be delivered."""
        return self.digest is None and now_ms < self.until_ms


def marks_of(record: TaskRecord) -> list[Mark]:
    """Return the external events of a task in the order of their opening."""
    return [Mark.parse(text) for text in record.events]


# Creation


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be created. Times are milliseconds since the epoch."""

    ref: TaskRef
    tool: str
    call: bytes
    """What is called, by whom, with what: changed by `Restart` alone."""
    created_ms: int
    expires_ms: int
    due_ms: int
    journal: Sequence[bytes] = ()
    """What is known from the rounds before it became a task, an entry each."""
    state: bytes = b"{}"
    status: Status = Status.WORKING
    """`working`, `input_required`, or terminal for a call that is over already."""
    status_message: str | None = None
    outcome: bytes | None = None
    journal_version: int = 1
    cleans_up: bool = False
    """Whether something may be left to do elsewhere if it ends early."""
    ending: Ending | None = None
    """The ending of a terminal task; by default the ending of its status."""
    call_id: str | None = None
    events: Sequence[Mark] = ()
    """The external events of the task whose work this one continues."""
    requests: Mapping[str, bytes] = field(default_factory=dict)
    """The questions of a task that is created `input_required`."""
    lease_until_ms: int = 0
    """The end of its creator's lease; 0 if any worker may claim it."""

    def view(self) -> TaskView:
        """Return the part of the record that a client can see."""
        facts = self.ref.id, self.status, self.status_message, self.created_ms, self.created_ms
        return TaskView(*facts, self.expires_ms, {}, self.outcome)


@dataclass(frozen=True, slots=True)
class Created:
    """The first record of a task, its values and its message."""

    record: TaskRecord
    puts: Sequence[Put]
    message_ms: int | None
    """See `Next`."""


# Events of the owner


@dataclass(frozen=True, slots=True)
class Answer:
    """Answers by wire key. With the last outstanding question answered the task is due at
    `due_ms`."""

    answers: Mapping[str, bytes]
    due_ms: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Make it `cancelled`, unless it is terminal. If it is to be cleaned up, it is due at
    `due_ms`."""

    status_message: str
    due_ms: int


# Events of a worker


@dataclass(frozen=True, slots=True)
class Claim:
    """Lease a `working` task that is free and not asleep.

    A lease has lapsed if it ended at or before `lapsed_ms`: a claimer gives an earlier time than
    its own, so that a clock that is ahead takes no living lease. A task whose lease has lapsed, or
    that is a suspect, is free for `alone=True` only. What is due later than `due_ms` is due then.
    """

    until_ms: int
    due_ms: int
    lapsed_ms: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Added:
    """What an event under a lease adds."""

    entries: Sequence[bytes] = ()
    state: bytes | None = None
    """`None` leaves it as it is."""
    status_message: str | None = None
    """`None` leaves it as it is. A change counts as one that the client can see."""
    events: Sequence[Mark] = ()
    """External events that `entries` opens."""
    expires_ms: int | None = None
    """When the task now expires, for a hidden task; `None` leaves it as it is."""


NOTHING = Added()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Add to the journal; extend the lease to `until_ms` and move the due time to `due_ms`, unless
    they are `None`. With entries it is progress."""

    fence: int
    added: Added
    number: int
    until_ms: int | None = None
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Suspend:
    """Ask the client: at least one question. With a `wake_ms` the task is due then, to go on
    without the answers; otherwise when it expires. This is progress.

    If one of `awaits`, the external events that it waits for, is there already, the task goes on
    without the answers at once, and is due at `ready_ms`."""

    fence: int
    added: Added
    number: int
    requests: Mapping[str, bytes]
    wake_ms: int = 0
    awaits: Collection[str] = ()
    ready_ms: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    """Let go of a task that is to go on at `wake_ms` (0: at once). `keeps_blame` is for what is no
    progress, a fault or a decline: `deaths` and `suspect` stay. A worker may claim the task
    `early_ms` before it goes on, and then waits with it. A task due at its wake time is left to the
    sweep, without a message. `awaits` and `ready_ms` are as in `Suspend`."""

    fence: int
    added: Added
    number: int
    wake_ms: int
    due_ms: int
    attempts: int = 0
    declined_ms: int = 0
    keeps_blame: bool = False
    awaits: Collection[str] = ()
    ready_ms: int = 0
    early_ms: int = 0


@dataclass(frozen=True, slots=True)
class Restart:
    """Begin anew: another call and journal in place of all there was, answers too."""

    fence: int
    call: bytes
    journal: Sequence[bytes]
    state: bytes
    journal_version: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Park:
    """Put it aside for the operator: still `working`, but asleep until its end. `Requeue` brings it
    back."""

    fence: int
    status_message: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Make the task terminal. The message replaces the one before, also if it is `None`. With
    `cleanup_due_ms` the task needs a cleanup and is due then."""

    fence: int
    status: Status
    outcome: bytes | None
    status_message: str | None
    cleanup_due_ms: int | None = None
    ending: Ending | None = None
    """The ending of the status by default."""
    failed_steps: Sequence[str] = ()
    expires_ms: int | None = None
    """See `Added`."""


@dataclass(frozen=True, slots=True)
class LetGo:
    """End a lease from outside the run. With `blame` the task is a suspect from now on, and if the
    lease was one of `alone=True` that is a death. A task that is due now is left to the sweep,
    without a message."""

    fence: int
    due_ms: int
    blame: bool


# Events of a cleanup


@dataclass(frozen=True, slots=True)
class ClaimCleanup:
    """Lease a terminal task for its cleanup.

    The task is free if no lease of it ends after `lapsed_ms`, and always for the holder of the
    lease with this `fence`. The entries of `journal`, if given, replace the stored ones.
    """

    until_ms: int
    due_ms: int
    lapsed_ms: int
    fence: int | None = None
    journal: Sequence[bytes] | None = None


@dataclass(frozen=True, slots=True)
class PostponeCleanup:
    """Let go of a task that is to be cleaned up at `wake_ms`."""

    fence: int
    wake_ms: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class EndCleanup:
    """Nothing is left to clean up, or no worker tries any more."""

    fence: int


# Events of the sweep


@dataclass(frozen=True, slots=True)
class GoOn:
    """Make a task `working` that is asking and whose `wake_ms` has passed."""

    due_ms: int


@dataclass(frozen=True, slots=True)
class Postpone:
    """Move the due time, if it is still `seen_ms`. A lease lapses `skew_ms` after its end: a task
    under one that has not is due then, nothing else of it changes, and no message is sent."""

    seen_ms: int
    due_ms: int
    resends: int
    sending: Sending
    skew_ms: int


@dataclass(frozen=True, slots=True)
class Expire:
    """End an open task that is past its time. If it is to be cleaned up, it is due at `due_ms`."""

    due_ms: int


# Events of a service


@dataclass(frozen=True, slots=True)
class Deliver:
    """Take the payload of an external event that is open. A task that waits for it is due at
    `due_ms`. A task that a failed step ended takes it, too: a retry finds it."""

    name: str
    payload: bytes
    digest: str
    due_ms: int


# Events of the operator


@dataclass(frozen=True, slots=True)
class Requeue:
    """A request to take a `working` task from its worker.

    The task loses its lease, wake time, attempts and blame, and gets a higher fence. If `fence` is
    set, the request is refused if a worker has claimed the task since.
    """

    due_ms: int
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class Rewind:
    """Let a parked task go on from an earlier place: the call, the entries of `journal` and `events`
    replace the present ones, and all answers. It must be as the operator read it: not claimed
    since `fence`, and no event delivered since `seen`."""

    call: bytes
    journal: Sequence[bytes]
    events: Sequence[Mark]
    due_ms: int
    fence: int
    seen: Sequence[str]


@dataclass(frozen=True, slots=True)
class NoteRetry:
    """Record the id of the task that continues this task's work, if a failed step ended it and no
    id is recorded yet."""

    as_id: str


UnderLease: TypeAlias = Checkpoint | Suspend | Release | Restart | Park | Finish | LetGo
Cleaning: TypeAlias = PostponeCleanup | EndCleanup
Event: TypeAlias = (
    UnderLease
    | Cleaning
    | Answer
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
