"""The port of the task store: the data of a task and the writes that change it, in prose.

`tests/storage/task_contract.py` holds each implementation to every sentence here.

**One row decides.** Whatever a message, a worker or a client believes about a task, each write
checks its assumptions in a condition, and either happens as a whole or not at all. Payloads
(`bytes`) are opaque to a store; it returns them unchanged, whatever their size.

**Keys.** `TaskRef.owner` is a digest of the caller that owns the task. A read under another owner
finds nothing, exactly as for an unknown id. A task past `expires_ms` is not found either, deleted
or not.

**Leases.** `claim` gives one worker the task until `until_ms` and raises its *fence*. Each write
under a lease holds only while the fence is the same and the task is `working`; otherwise it raises
`roundgate.errors.LeaseLost` and has changed nothing:

    worker 1   claim (fence 1) ─── stalls ──────────────── checkpoint: LeaseLost
    worker 2             lease runs out · claim (fence 2) ─── checkpoint ─── finish

An expired lease holds until another worker claims the task. A write that raised `Unavailable`, or
whose caller was cancelled, may have happened or not. It may be tried again under the same lease: a
`checkpoint` of the same entries then happens once and returns; any other write happens once, or, if
it had happened already, raises `LeaseLost`.

**Blame.** A lease has *lapsed* when its time is over and it was not given back: its worker died or
stalled with the task. From then on, while the task is a *suspect*, only a claim with `alone=True`
gets it, from a worker that runs nothing else at the same time:

    claim ── lease lapses ── claim: SUSPECT ── claim alone (suspect) ── lease lapses ── claim alone (suspect, deaths 1)

`deaths` counts leases of claims with `alone=True` that lapsed, or that `let_go` ended with blame.
Progress sets it back to 0 and lifts the suspicion: `checkpoint` with entries, `suspend`, `restart`,
and `release` unless `keeps_blame`. `attempts` counts faults that a worker reports itself: `release`
sets it, other progress sets it to 0.

**Due.** Every open task has a `due_ms`, by which something should have happened to it. `due` lists
late tasks from an index, without a scan. Creation, `answer`, `release`, `let_go` and `checkpoint`
set `due_ms` as told; `suspend` and `park` set it to the task's end. A claim leaves it unchanged if
it is soon enough, because in DynamoDB moving it costs twice as much as the claim itself. So it may
pass while a worker has the task; a sweep then postpones it until that worker's lease will have
lapsed (`Postponed.HELD`):

    created, due at 30 ── claim, lease to 31 ── dies           30: held, due when the lease has lapsed ── late
                       ── claim, lease to 31 ── renewal: due later ── …

A task that becomes due with no message on its way is `unsent`: after `let_go`, when it is released
to be due within a second of its wake time, and when it is moved under a lease. A sweep that
postpones the task sends a message; a worker that makes it wait for its turn alone does not
(`Move.unsent`). If the worker died before moving the task, the sweep learns this when it postpones
it (`Postponed.LAPSED`).

**Cleaning up.** A task created with `cleans_up` may have started work elsewhere that continues by
itself. If the task ends early, by `cancel`, `expire`, or a `finish` that says so, it is terminal
for its client and for every `claim`, but keeps its call, its journal and its place in the index of
due tasks: `claim` then returns `CLEAN_UP`. `claim_cleanup` leases the task, `postpone_cleanup`
postpones the next try, and `end_cleanup` makes it an ordinary terminal task:

    cancel (due) ── claim_cleanup (attempts 1) ── postpone_cleanup ── claim_cleanup (attempts 2) ── end_cleanup

The worker that had the task when it was cancelled keeps it for the rest of its lease; no other
worker cleans up meanwhile.

**Failed steps.** A task that a failed step ended is `completed` for its client, like any task whose
tool failed. Its operator sees more: `ending` is `STEP_FAILED`, `failed_steps` names the places, and
the store keeps the data that a worker needs (`read_work`), so another task can continue the work.
`note_retry` names that task in the row, once.

**Shards.** The index of due tasks has `shards` parts. Sweepers share the work by taking shards
(`take_shard`). The right to a shard only avoids duplicate work; correctness does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Protocol

from roundgate.protocol import Status, TaskView


@dataclass(frozen=True, slots=True, order=True)
class TaskRef:
    """Which task: the digest of its owner, and its id. Both are free of dots."""

    owner: str
    id: str

    def __str__(self) -> str:
        return f"{self.owner}.{self.id}"

    @classmethod
    def parse(cls, text: str) -> TaskRef:
        """The inverse of `str`.

        Raises:
            ValueError: it is not one.
        """
        owner, dot, task_id = text.partition(".")
        if not (owner and dot and task_id):
            raise ValueError(f"{text[:100]!r} is no task reference")
        return cls(owner, task_id)


class Ending(StrEnum):
    """The way a task ended, as its operator sees it. Clients see only its `status`."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    """The tool failed: a result with `isError`."""
    STEP_FAILED = "step_failed"
    """The tool failed because of a step that nothing retries any more."""
    ERROR = "error"
    """A JSON-RPC error."""
    CANCELLED = "cancelled"


ENDING_OF: Final[Mapping[Status, Ending]] = MappingProxyType(
    {
        Status.COMPLETED: Ending.OK,
        Status.FAILED: Ending.ERROR,
        Status.CANCELLED: Ending.CANCELLED,
    }
)
"""The ending of a terminal status, unless a more specific one is known."""
STATUS_OF: Final[Mapping[Ending, Status]] = MappingProxyType(
    {
        Ending.OK: Status.COMPLETED,
        Ending.TOOL_ERROR: Status.COMPLETED,
        Ending.STEP_FAILED: Status.FAILED,
        Ending.ERROR: Status.FAILED,
        Ending.CANCELLED: Status.CANCELLED,
    }
)
"""The status that an operator sees for each ending."""
UNHAPPY: Final = frozenset(Ending) - {Ending.OK, Ending.TOOL_ERROR}
"""The endings that every store indexes: operators look for them, and they are few."""


def shown_status(status: Status, ending: Ending | None) -> Status:
    """Return the status as the operator sees it: a task that a failed step ended is `failed`."""
    return status if ending is None else STATUS_OF[ending]


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be created. Times are milliseconds since the epoch."""

    ref: TaskRef
    tool: str
    call: bytes
    """What is called, by whom, with what: never changed."""
    created_ms: int
    expires_ms: int
    due_ms: int
    journal: Sequence[bytes] = ()
    """What is known from the rounds before it became a task, an entry each."""
    state: bytes = b"{}"
    status: Status = Status.WORKING
    """`working`, or terminal for a call that is over already."""
    status_message: str | None = None
    outcome: bytes | None = None
    journal_version: int = 1
    """How its entries are written; what a worker must be able to read."""
    cleans_up: bool = False
    """Whether something may be left to do elsewhere if it ends early."""
    ending: Ending | None = None
    """The ending of a terminal task; by default the ending of its status."""
    call_id: str | None = None
    """The id of the call in the log (`roundgate.observability.correlation`)."""

    def first_row(self) -> dict[str, Any]:
        """What every store writes of it, by the names of `TaskRecord`; beside it
        stand its key and its data."""
        ending = self.ending or ENDING_OF.get(self.status)
        return {
            "tool": self.tool,
            "status": self.status.value,
            "status_message": self.status_message,
            "created_ms": self.created_ms,
            "updated_ms": self.created_ms,
            "expires_ms": self.expires_ms,
            "revision": 1,
            "fence": 0,
            "lease_until_ms": 0,
            "wake_ms": 0,
            "attempts": 0,
            "ending": None if ending is None else ending.value,
            "call_id": self.call_id,
        }

    def view(self) -> TaskView:
        """What a client can see of it."""
        return TaskView(
            self.ref.id,
            self.status,
            self.status_message,
            self.created_ms,
            self.created_ms,
            self.expires_ms,
            {},
            self.outcome,
        )


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """A task as it is now, without its call and journal."""

    ref: TaskRef
    tool: str
    status: Status
    status_message: str | None
    created_ms: int
    updated_ms: int
    """When the client could last see a change."""
    expires_ms: int
    revision: int
    """Counts the changes that a client can see."""
    requests: Mapping[str, bytes]
    """The questions that wait, by wire key, in the order in which they were asked;
    empty unless `input_required`."""
    outcome: bytes | None
    """The result of a completed task, the JSON-RPC error of a failed one, else `None`."""
    fence: int
    lease_until_ms: int
    """0 when no worker has it."""
    wake_ms: int
    """Not to be claimed before; 0 when it does not sleep."""
    due_ms: int | None
    """`None` once it is terminal and there is nothing to clean up."""
    attempts: int
    """Faults of ours in a row, as `release` was told; once it is terminal, tries to clean up."""
    deaths: int = 0
    """Workers that died or stalled with this task alone, since the last progress."""
    suspect: bool = False
    """A worker died or stalled with it: to be claimed alone."""
    alone: bool = False
    """Whether the present lease, or the last one, is of a claim with `alone=True`."""
    declined_ms: int = 0
    """Since when workers decline it, because they cannot serve it; 0 when none has."""
    journal_version: int = 1
    """Of the rows written before there were versions it is 1."""
    resends: int = 0
    """How often sweeps have postponed it to send it again, since its last claim."""
    cleans_up: bool = False
    """See `NewTask`; a terminal task with a `due_ms` has that to do."""
    ending: Ending | None = None
    """The ending; `None` while the task is open."""
    failed_steps: Sequence[str] = ()
    """The places of the steps whose failure ended the task."""
    retried_as: str | None = None
    """The id of the task, of the same owner, that continues this task's work."""
    call_id: str | None = None
    """See `NewTask`."""

    @property
    def shown_status(self) -> Status:
        """Return the status as the operator sees it."""
        return shown_status(self.status, self.ending)

    def view(self) -> TaskView:
        """What a client can see of it."""
        return TaskView(
            self.ref.id,
            self.status,
            self.status_message,
            self.created_ms,
            self.updated_ms,
            self.expires_ms,
            self.requests,
            self.outcome,
        )


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to a task. `notes` are the store's own."""

    ref: TaskRef
    fence: int
    notes: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A task that is now ours, with all that a run needs."""

    lease: Lease
    record: TaskRecord
    """As it is after the claim."""
    call: bytes
    journal: Sequence[bytes]
    """Every entry that was ever added, in order."""
    state: bytes
    answers: Mapping[str, bytes]
    """Every answer that was ever taken, by wire key."""


@dataclass(frozen=True, slots=True)
class Work:
    """The data of a task that a worker needs, read without a claim."""

    call: bytes
    journal: Sequence[bytes]
    """Every entry ever added, in order."""
    state: bytes
    answers: Mapping[str, bytes]
    """Every answer ever taken, by wire key."""


class NotClaimed(StrEnum):
    """Why a claim was refused."""

    GONE = "gone"
    """There is no such task, or no more: it is unknown or has expired."""
    OVER = "over"
    WAITING = "waiting for input"
    ASLEEP = "asleep"
    LEASED = "leased"
    SUSPECT = "suspect"
    """A worker died or stalled with it: only a claim with `alone=True` gets it."""
    CLEAN_UP = "to be cleaned up"
    """It is over, and there is something to clean up: `claim_cleanup`."""


class Cancelled(StrEnum):
    """What a cancel came to."""

    UNKNOWN_TASK = "unknown task"
    OVER = "over"
    """It is terminal, now or since before."""
    CLEAN_UP = "to be cleaned up"
    """It is terminal from now on, and wants a worker that cleans up."""


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


@dataclass(frozen=True, slots=True)
class Added:
    """What one write of a worker adds."""

    entries: Sequence[bytes] = ()
    state: bytes | None = None
    """`None` leaves it as it is."""
    status_message: str | None = None
    """`None` leaves it as it is. A change counts as one that the client can see."""


NOTHING = Added()

SHARD_AT_MOST_MS: Final = 60_000
"""The longest time for which a sweeper may hold a shard, in milliseconds."""


@dataclass(frozen=True, slots=True)
class OpenTask:
    """An open task as the index of due tasks has it, or one that is over and to be cleaned up."""

    ref: TaskRef
    tool: str
    status: Status
    created_ms: int
    expires_ms: int
    due_ms: int
    resends: int = 0
    """See `TaskRecord`."""
    unsent: bool = False
    """Whether nobody has sent a message for this due time: a worker has it or had it,
    or it sleeps until then."""


@dataclass(frozen=True, slots=True)
class Move:
    """A task as it was seen, and its new due time."""

    task: OpenTask
    due_ms: int
    resends: int
    """The new `TaskRecord.resends`."""
    unsent: bool = False
    """Whether no message is sent for it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which tasks an operator looks for; `None` is any."""

    owner: str | None = None
    tool: str | None = None
    statuses: frozenset[Status] | None = None
    """Statuses as the operator sees them (`TaskRecord.shown_status`)."""
    endings: frozenset[Ending] | None = None
    created_before_ms: int | None = None

    def takes(self, record: TaskRecord) -> bool:
        """Whether a task is one of them."""
        return (
            (self.owner is None or record.ref.owner == self.owner)
            and (self.tool is None or record.tool == self.tool)
            and (self.statuses is None or record.shown_status in self.statuses)
            and (self.endings is None or record.ending in self.endings)
            and (self.created_before_ms is None or record.created_ms < self.created_before_ms)
        )


ANY: Final = Wanted()


class Postponed(StrEnum):
    """What became of a move."""

    MOVED = "moved"
    LAPSED = "moved, and a lease had lapsed"
    """Whoever had it died or stalled with it, and the message that led there is gone."""
    HELD = "held"
    """A worker has it. It is due when that lease has lapsed."""
    MISSED = "missed"
    """Somebody else has moved it, or it is over."""


@dataclass(frozen=True, slots=True)
class Found:
    """Some of the tasks that were looked for."""

    records: Sequence[TaskRecord]
    cursor: str | None
    """Where to look on; `None` when there is nowhere left to look."""


def is_for_a_sweep(wake_ms: int, due_ms: int) -> bool:
    """Whether a task that is released is to be woken by a sweep, with no message on its way."""
    return wake_ms > 0 and due_ms <= wake_ms + 1_000


class TaskStore(Protocol):
    """Every method raises `Unavailable` when the store cannot be reached; a write may
    then have happened or not."""

    # for the owner

    async def create(self, task: NewTask) -> bool:
        """Keep a task. When this returns, `read` finds it, in any process.

        `False` if this owner has a task of this id already, which is left as it is. Safe to repeat
        after `Unavailable`: the answer is then `True` or `False`, and the task is there once.
        """

    async def count_open(self, owner: str, up_to: int) -> int:
        """How many open tasks an owner has, counted up to a bound. Eventually consistent."""

    async def read(self, ref: TaskRef, now_ms: int) -> TaskRecord | None:
        """The task as of the last write, strongly consistent; `None` if it is unknown or
        has expired. One call."""

    async def answer(
        self, ref: TaskRef, answers: Mapping[str, bytes], now_ms: int, due_ms: int
    ) -> Answered:
        """Take the answers to outstanding questions and drop the others; answered questions are no
        longer outstanding.

        After `go_on`, until the worker asks again or lets go, answers to the previous questions are
        not taken: `LATER`.

        With the last outstanding question answered the task is `working` and due at `due_ms`.
        The next `read` shows it. One call where all outstanding questions are answered at once
        and nothing else is sent.
        """

    async def cancel(
        self, ref: TaskRef, status_message: str, now_ms: int, due_ms: int | None = None
    ) -> Cancelled:
        """Make it `cancelled`, unless it is terminal. The next `read` shows it.

        If it is to be cleaned up, it is due at `due_ms`, by default at once. One
        call, or two for such a task.
        """

    # for the worker

    async def claim(
        self,
        ref: TaskRef,
        now_ms: int,
        until_ms: int,
        *,
        due_ms: int | None = None,
        lapsed_ms: int | None = None,
        alone: bool = False,
    ) -> Claimed | NotClaimed:
        """Lease a `working` task that is free and not asleep at `now_ms`. Of many claims one wins.

        A lease has lapsed if it ended at or before `lapsed_ms`, by default `now_ms`: a claimer
        gives an earlier time than its own, so that a clock that is ahead takes no living
        lease. A task whose lease has lapsed, or that is a suspect, is free for `alone=True`
        only. The first makes it a suspect, and counts in `deaths` if the lapsed lease was
        itself one of `alone=True`.

        Raises the fence, ends its sleep, and sets `resends` to 0. What is due later than
        `due_ms`, by default `until_ms`, is due then; what is due before stays so. One call, but
        for a task that is due later.
        """

    async def checkpoint(
        self,
        lease: Lease,
        added: Added,
        now_ms: int,
        until_ms: int | None = None,
        due_ms: int | None = None,
    ) -> None:
        """Add to the journal; extend the lease to `until_ms` and move the due time to
        `due_ms`, unless they are `None`.

        With entries it is progress: `attempts`, `deaths` and `declined_ms` are 0
        again, and it is no suspect.

        Raises:
            LeaseLost: see above.
        """

    async def suspend(
        self,
        lease: Lease,
        added: Added,
        requests: Mapping[str, bytes],
        now_ms: int,
        *,
        wake_ms: int = 0,
    ) -> None:
        """Ask the client: `input_required` with these questions, at least one. The lease
        is over. This is progress.

        With a `wake_ms` it is due then, to go on without the answers
        (`go_on`); else when it expires.

        Raises:
            LeaseLost
        """

    async def release(
        self,
        lease: Lease,
        added: Added,
        now_ms: int,
        *,
        wake_ms: int,
        due_ms: int,
        attempts: int = 0,
        declined_ms: int = 0,
        keeps_blame: bool = False,
    ) -> None:
        """Let go of a task that is to go on at `wake_ms` (0: at once). The lease is over.

        `attempts` and `declined_ms` are set as told. `keeps_blame` is for what is no progress, a
        fault or a decline: `deaths` and `suspect` stay.

        Raises:
            LeaseLost
        """

    async def restart(
        self,
        lease: Lease,
        call: bytes,
        journal: Sequence[bytes],
        state: bytes,
        journal_version: int,
        now_ms: int,
        due_ms: int,
    ) -> None:
        """Begin anew: another call and journal in place of all there was,
        answers too. The lease is over.

        Raises:
            LeaseLost
        """

    async def park(self, lease: Lease, status_message: str, now_ms: int) -> None:
        """Put it aside for the operator: still `working`, but asleep until
        its end. The lease is over.

        `requeue` brings it back.

        Raises:
            LeaseLost
        """

    async def let_go(
        self, ref: TaskRef, fence: int, now_ms: int, due_ms: int, *, blame: bool
    ) -> bool:
        """End the lease of that fence from outside the run, if it is still held: nothing is added.

        With `blame` the task is a suspect from now on, and if the lease was one of `alone=True`
        that is a death. May be called from another thread, on a store and in an event loop of its
        own. `False` if the lease is lost.
        """

    async def finish(
        self,
        lease: Lease,
        status: Status,
        outcome: bytes | None,
        status_message: str | None,
        now_ms: int,
        *,
        cleanup_due_ms: int | None = None,
        ending: Ending | None = None,
        failed_steps: Sequence[str] = (),
    ) -> None:
        """Make the task terminal. The message replaces the one before, also if it is `None`. The
        lease is over.

        With `cleanup_due_ms` the task needs a cleanup and is due then. `ending` is that of the
        status by default. With `STEP_FAILED` the store keeps what `read_work` returns.

        Raises:
            LeaseLost
        """

    async def claim_cleanup(
        self,
        ref: TaskRef,
        now_ms: int,
        until_ms: int,
        *,
        due_ms: int,
        lapsed_ms: int,
        fence: int | None = None,
        journal: Sequence[bytes] | None = None,
    ) -> Claimed | None:
        """Lease a terminal task for its cleanup; return `None` if there is nothing to clean up, or
        not now.

        The task is free if no lease of it ends after `lapsed_ms`, and always for the holder of the
        lease with this `fence`. Increments the fence and `attempts`, and sets `due_ms` as told. The
        entries of `journal`, if given, replace the stored ones.
        """

    async def postpone_cleanup(self, lease: Lease, *, wake_ms: int, due_ms: int) -> bool:
        """Let go of a task that is to be cleaned up at `wake_ms`. `False` if
        another has claimed it since."""

    async def end_cleanup(self, lease: Lease) -> bool:
        """Nothing is left to clean up, or nobody tries any more. `False` if
        another has claimed it since."""

    # for the sweep

    @property
    def shards(self) -> int:
        """How many parts the index of due tasks has."""

    async def due(self, now_ms: int, limit: int, shard: int | None = None) -> Sequence[OpenTask]:
        """Tasks whose `due_ms` has come, of one shard or of all, the longest overdue first: open
        ones, and those that are to be cleaned up.

        Eventually consistent.
        """

    async def late_shards(self, now_ms: int) -> Sequence[int]:
        """The shards in which `due` finds something now."""

    async def take_shard(self, shard: int, sweeper: str, now_ms: int, until_ms: int) -> bool:
        """Take a shard for one sweeper until `until_ms`; return `False` if another sweeper has it.
        An `until_ms` in the past gives the shard back. A right that ends later than
        `SHARD_AT_MOST_MS` from now came from a clock that was ahead, and is ignored."""

    async def tell_time(self, said: bytes) -> bytes | None:
        """Store a sweeper's report of its clock and return the previous one, or `None` if there is
        none. One call."""

    async def go_on(self, ref: TaskRef, now_ms: int, due_ms: int) -> bool:
        """Make a task `working` that is asking and whose `wake_ms` has passed. Its questions are no
        longer shown, and may be asked again: see `answer`. Return `False` if there is no such task,
        or it is not to go on yet.

        `False` if there is none, or no more, or it is not to go on yet.
        """

    async def postpone_many(
        self, moves: Sequence[Move], now_ms: int, skew_ms: int = 0
    ) -> Sequence[Postponed]:
        """Move due times, in as few writes as the store can; each move happens or not by itself.

        One happens if the due time still is `task.due_ms`; of many callers all but one have missed
        it. A lease lapses `skew_ms` after its end: a task under one that has not is due then, and
        nothing else of it changes but that it is `unsent`.
        """

    async def expire(self, ref: TaskRef, now_ms: int, due_ms: int | None = None) -> bool:
        """End an open task that is past its time: nobody will ask for it any
        more. Others are left alone.

        Whether it is now to be cleaned up; then it is due at `due_ms`, by default at once.
        """

    async def forget(self, now_ms: int) -> int:
        """Delete what expired long ago, if the store does not do so by itself; how many."""

    # for the operator

    async def open_tasks(self, limit: int) -> Sequence[OpenTask]:
        """Open tasks, the soonest due first; of more than 200 a store may give a
        sample. Eventually consistent."""

    async def find(
        self, wanted: Wanted = ANY, limit: int = 100, cursor: str | None = None
    ) -> Found:
        """Tasks that are still kept, expired ones too, in no particular order; `requests` and
        `outcome` may be left out.

        One call reads a bounded part of the store, so it may find fewer than there are, or none,
        and have a cursor all the same. Whoever goes on until there is none has each task once to
        which nothing happened meanwhile; another may be missing, or come twice. Open, failed and
        cancelled tasks are found by an index.

        Raises:
            ValueError: it is no cursor of such a search.
        """

    async def read_work(self, ref: TaskRef) -> Work | None:
        """Read the data of a task, expired or not, that a worker needs: its call, journal and
        answers. Return `None` if there is no such task, or the store has kept only its end.

        `None` if there is no such task, or the store keeps no more of it than its end. Open tasks
        and tasks that a failed step ended are kept whole.
        """

    async def note_retry(self, ref: TaskRef, as_id: str) -> bool:
        """Record the id of the task that continues this task's work.

        Return `False` unless a failed step ended the task and no id is recorded yet.
        """

    async def purge(self, ref: TaskRef, now_ms: int) -> bool:
        """Delete a task that is terminal or expired, with everything that is kept of it.

        `False` if there is none, or it is still open: then it is as it was. What a process that
        dies meanwhile leaves behind is found by nobody, and deleted in its time.
        """

    async def requeue(
        self, ref: TaskRef, now_ms: int, due_ms: int, *, fence: int | None = None
    ) -> bool:
        """Take a `working` task from whoever has it: no lease, no sleep, no attempts, no blame, a
        higher fence, due at `due_ms`.

        `False` if it is not working, or has another fence than the one that is told:
        somebody has claimed it since.
        """

    async def aclose(self) -> None:
        """Let go of connections."""
