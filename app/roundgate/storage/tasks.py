"""The port of the task store: a record with values beside it, changed by compare-and-swap.

A store inserts, reads, swaps, scans and deletes. It decides nothing about a task's life: those
rules are in `roundgate.tasks.machine`, and `roundgate.tasks.stored` reads, asks the machine and
swaps. `tests/roundgate/storage/task_contract.py` tests each store against every sentence of this text.

**One record decides.** A `TaskRecord` has a `version`, which each write changes. `swap` replaces a
record by its successor, and happens as a whole or not at all:

    reader 1   read (version 7) ─── decide ───────────── swap 7 → 8
    reader 2   read (version 7) ─── decide ─ swap 7 → 8'        └ Lost: here is 8', decide again

**Values** (`RecordPart`) are opaque bytes of any size, kept beside the record: the call, the state, the
journal, answers, questions, the outcome. A swap puts and drops values in the same transaction. A
store returns them unchanged, and reads no value of another task to find one.

**Keys.** `TaskRef.owner` is a digest of the caller that owns the task. A read under another owner
finds nothing, exactly as for an unknown id.

**Unavailable.** Every method raises `roundgate.errors.Unavailable` when the store cannot be
reached; the write may or may not have happened. Because each write changes the version, such a
write cannot happen after another write to the same record.

**Due.** Every record with a `due_ms` is in the index that `scan` reads. The index has `shards`
parts, which sweepers share among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Protocol

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from roundgate.clock import iso
from roundgate.protocol import OPEN, TERMINAL, Status, TaskView

SHORT_WAIT_MS: Final = 60_000
"""The longest wait in milliseconds that the status message does not mention."""
HIDDEN: Final = "~"
"""The first character of a hidden task's id. No id that clients receive contains it."""


class TaskRef(Struct, frozen=True, order=True):
    """The key of a task: the digest of its owner, and its id. Neither contains a dot."""

    owner: str
    id: str

    def __str__(self) -> str:
        return f"{self.owner}.{self.id}"

    @property
    def is_hidden(self) -> bool:
        """Return whether this is a hidden task: the call of a client whose revision has no tasks.
        Clients cannot name its id."""
        return self.id.startswith(HIDDEN)

    @classmethod
    def parse(cls, text: str) -> TaskRef:
        """Parse the text that `str` returns.

        Raises:
            ValueError: the text is not a task reference.
        """
        owner, dot, task_id = text.partition(".")
        if not (owner and dot and task_id):
            raise ValueError(f"{text[:100]!r} is not a task reference")
        return cls(owner, task_id)


class Ending(StrEnum):
    """The way a task ended, as its operator sees it. Clients see only its `status`."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    """The tool failed; the result has `isError`."""
    STEP_FAILED = "step_failed"
    """The tool failed because of a step that has no retries left."""
    ERROR = "error"
    """The task failed with a JSON-RPC error."""
    CANCELLED = "cancelled"


ENDING_OF: Final[Mapping[Status, Ending]] = MappingProxyType(
    {
        Status.COMPLETED: Ending.OK,
        Status.FAILED: Ending.ERROR,
        Status.CANCELLED: Ending.CANCELLED,
    }
)
"""The ending of a terminal status, unless a more specific ending is known."""
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


class Mark(Struct, frozen=True):
    """An external event of a task. Stores keep it as text: `event:paid 1790000000000 open`."""

    name: str
    until_ms: int
    """The end of the time for delivery, in milliseconds since the epoch."""
    is_awaited: bool = False
    """Whether the task awaits the event without a worker."""
    digest: str | None = None
    """The digest of the delivered payload; `None` before."""

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


class TaskRecord(Struct, frozen=True):
    """The current state of a task, without its values. Times are milliseconds since the epoch."""

    ref: TaskRef
    tool: str
    status: Status
    status_message: str | None
    created_ms: int
    updated_ms: int
    """When the task last changed visibly for its client."""
    expires_ms: int
    revision: int
    """The number of changes that a client can see."""
    requests: Mapping[str, bytes] = field(default_factory=dict)
    """The outstanding questions by wire key, in the order in which they were asked. Filled by
    `TaskStore.read` while the task is `input_required`."""
    outcome: bytes | None = None
    """The result of a completed task, the JSON-RPC error of a failed one. Filled by
    `TaskStore.read`."""
    fence: int = 0
    """The number of claims."""
    lease_until_ms: int = 0
    """The end of the lease; 0 while no worker has one."""
    wake_ms: int = 0
    """The earliest time of the next claim; 0 unless the task sleeps."""
    due_ms: int | None = None
    """When a sweep checks the task; `None` for a terminal task that needs no cleanup."""
    attempts: int = 0
    """The number of consecutive faults of the gateway; in a terminal task, the number of tries to
    clean up."""
    deaths: int = 0
    """The number of workers that died or stalled while they ran this task alone, since the last
    progress."""
    suspect: bool = False
    """Whether a worker died or stalled with the task, so that it must be claimed alone."""
    alone: bool = False
    """Whether the current or last lease comes from a claim with `alone=True`."""
    declined_ms: int = 0
    """When a worker first declined the task because it cannot serve it; 0 before that."""
    journal_version: int = 1
    """The journal format that a worker must be able to read."""
    resends: int = 0
    """The number of times that sweeps postponed the task since its last claim, except while its
    message was known to wait in the queue."""
    cleans_up: bool = False
    """Whether the task may leave external work if it ends early, such as a service's job. A
    terminal task with a `due_ms` has such work."""
    ending: Ending | None = None
    """The ending; `None` while the task is open."""
    failed_steps: Sequence[str] = ()
    """The places of the steps whose failure ended the task."""
    retried_as: str | None = None
    """The id of the task of the same owner that continues this task's work."""
    call_id: str | None = None
    """The id of the call in the log (`roundgate.observability.tracing`)."""
    events: Sequence[Mark] = ()
    """The external events of the task in the order in which they were opened."""
    asked: Sequence[str] = ()
    """The wire keys of the stored questions in order: outstanding questions, or questions that the
    task stopped waiting for and may ask again."""
    unsent: bool = False
    """Whether the current `due_ms` was set without sending a message."""
    noted: int = 0
    """The number of the last write of entries under the current lease."""
    version: Any = None
    """The store's version of the record. Each write changes it."""
    notes: Any = None
    """The store's own data about the record."""

    def __eq__(self, other: object) -> bool:
        """Compare the fields before `asked`, which do not depend on the store and its messages."""
        return isinstance(other, TaskRecord) and astuple(self)[:-5] == astuple(other)[:-5]

    @property
    def shown_status(self) -> Status:
        """Return the status that the operator sees: `failed` for a task that a failed step
        ended."""
        return self.status if self.ending is None else STATUS_OF[self.ending]

    @property
    def is_open(self) -> bool:
        """Return whether the task has not ended."""
        return self.status in OPEN

    @property
    def is_to_clean_up(self) -> bool:
        """Return whether the task is terminal and has external work to end."""
        return self.due_ms is not None and self.status in TERMINAL

    @property
    def keeps_work(self) -> bool:
        """Return whether a worker or a retry still needs the call, the state, the journal and the
        answers. Otherwise a store may delete them."""
        return self.due_ms is not None or self.is_unfinished

    @property
    def is_unfinished(self) -> bool:
        """Return whether the task ended before its work: a failed step ended it, or its workers gave it
        up. So an operator can let another task continue, unless external work was cancelled."""
        if self.ending is not Ending.ERROR or self.cleans_up or self.ref.is_hidden:
            return self.ending is Ending.STEP_FAILED
        return bool(self.deaths or self.attempts or self.declined_ms)

    @property
    def may_be_retried(self) -> bool:
        """Return whether the task is unfinished and no other task continues its work."""
        return self.is_unfinished and self.retried_as is None

    def view(self, now_ms: int) -> TaskView:
        """Return the part of the record that a client can see."""
        return TaskView(
            self.ref.id,
            self.status,
            self._message(now_ms),
            self.created_ms,
            self.updated_ms,
            self.expires_ms,
            self.requests,
            self.outcome,
        )

    def _message(self, now_ms: int) -> str | None:
        """Return the status message. During a long wait it says until when the task waits."""
        if self.wake_ms <= now_ms + SHORT_WAIT_MS or self.wake_ms >= self.expires_ms:
            return self.status_message
        until = f"aiting until {iso(-(-self.wake_ms // 60_000) * 60_000)}"
        message = self.status_message
        return f"W{until}" if message is None else f"{message} (w{until})"


class RecordPart(StrEnum):
    """The kinds of values beside a record."""

    CALL = "call"
    """The tool, its caller and its arguments."""
    STATE = "state"
    JOURNAL = "journal"
    """An entry of the journal. Each put appends one."""
    ANSWER = "answer"
    """An answer by wire key. The last put of a key counts."""
    REQUEST = "request"
    """A question, by wire key."""
    OUTCOME = "outcome"


class Put(Struct, frozen=True):
    """A value to store. An unnamed part keeps only its last value."""

    part: RecordPart
    value: bytes
    name: str = ""


class Drop(Struct, frozen=True):
    """Values to delete: all values of a part, or the value with a name."""

    part: RecordPart
    name: str | None = None


class RecordChange(Struct, frozen=True):
    """The record `after` in place of `before`. Drops happen before puts."""

    before: TaskRecord
    after: TaskRecord
    puts: Sequence[Put] = ()
    drops: Sequence[Drop] = ()

    @property
    def changes(self) -> dict[str, Any]:
        """Return the fields that differ, with their new values."""
        names, before = TaskRecord.__struct_fields__, astuple(self.before)
        pairs = zip(names, before, astuple(self.after), strict=True)
        return {name: after for name, before, after in pairs if before != after}

    def record(self, **stored_fields: Any) -> TaskRecord:
        """Return the new record without the values that `read` fills in. `stored_fields` has fields that
        the store sets."""
        return replace(self.after, requests={}, outcome=None, **stored_fields)


class Lost(Struct, frozen=True):
    """The record has changed since the read."""

    record: TaskRecord | None
    """The current record; `None` if it was deleted."""


class Work(Struct, frozen=True):
    """The values of a task that a worker needs."""

    call: bytes
    journal: Sequence[bytes]
    """Every entry that was added, in order."""
    state: bytes
    answers: Mapping[str, bytes]
    """Every answer that was taken, by wire key."""


class OpenTask(Struct, frozen=True):
    """A task in the index of due tasks: open, or terminal and to be cleaned up."""

    ref: TaskRef
    tool: str
    status: Status
    created_ms: int
    expires_ms: int
    due_ms: int
    resends: int = 0
    """As `TaskRecord.resends`."""
    unsent: bool = False
    """As `TaskRecord.unsent`."""


class Wanted(Struct, frozen=True):
    """An operator's search filter. `None` matches any value."""

    owner: str | None = None
    tool: str | None = None
    statuses: frozenset[Status] | None = None
    """Statuses as the operator sees them (`TaskRecord.shown_status`)."""
    endings: frozenset[Ending] | None = None
    created_before_ms: int | None = None

    def takes(self, record: TaskRecord) -> bool:
        """Return whether a task matches the filter."""
        return (
            (self.owner is None or record.ref.owner == self.owner)
            and (self.tool is None or record.tool == self.tool)
            and (self.statuses is None or record.shown_status in self.statuses)
            and (self.endings is None or record.ending in self.endings)
            and (self.created_before_ms is None or record.created_ms < self.created_before_ms)
        )


ANY: Final = Wanted()


class Found(Struct, frozen=True):
    """A page of search results."""

    records: Sequence[TaskRecord]
    cursor: str | None
    """The cursor of the next page; `None` after the last."""


FORGET_AFTER_MS: Final = 2 * 86_400_000
"""The time for which an expired task stays in the store for its operator, in milliseconds."""


class TaskStore(Protocol):
    """Records of tasks, their values, and the indexes on them."""

    async def insert(self, record: TaskRecord, puts: Sequence[Put]) -> bool:
        """Store a new record. When this returns, every process can read the record.

        Return `False` and change nothing if the reference already has a record. The call is safe to
        repeat after `Unavailable`.
        """

    async def read(self, ref: TaskRef) -> TaskRecord | None:
        """Return a record with the values that its client sees, strongly consistent; `None` if the
        task is unknown. One call."""

    async def head(self, ref: TaskRef) -> TaskRecord | None:
        """Return a record without its values, strongly consistent; `None` if the task is unknown.
        One call."""

    async def heads(
        self, refs: Sequence[TaskRef], *, may_lag: bool = False
    ) -> Mapping[TaskRef, TaskRecord]:
        """Return many records as `head` does; omit missing ones.

        With `may_lag`, a store may return records as they were some seconds ago, and omit new ones,
        if that is cheaper.
        """

    async def read_work(self, ref: TaskRef) -> tuple[TaskRecord | None, Work | None]:
        """Return a record and the values that a worker needs, as of one moment.

        The values are `None` if the store no longer keeps them (`TaskRecord.keeps_work`).
        """

    async def swap(self, change: RecordChange) -> TaskRecord | Lost:
        """Write a record and its values if the stored version is the version of `change.before`.

        Return the new record, or `Lost` if nothing was written.
        """

    async def delete(self, record: TaskRecord) -> bool:
        """Delete a record and its values if its version is unchanged; return whether that was the
        case.

        If the process dies meanwhile, leftover values are unreachable and are deleted later.
        """

    @property
    def shards(self) -> int:
        """Return the number of parts of the index of due tasks."""

    async def scan(
        self, until_ms: int | None, limit: int, shard: int | None = None
    ) -> Sequence[OpenTask]:
        """Return tasks that are due by `until_ms`, of one shard or of all, the longest overdue
        first.

        With `until_ms=None` any due time matches, and a store may return a sample of more than 200
        such tasks. Eventually consistent.
        """

    async def count_open(self, owner: str, up_to: int) -> int:
        """Count the open tasks of an owner, up to a bound. Eventually consistent."""

    async def find(
        self, wanted: Wanted = ANY, limit: int = 100, cursor: str | None = None
    ) -> Found:
        """Return stored tasks, including expired ones, in no particular order and without values.

        One call reads a bounded part of the store, so a page may be short or empty and still have a
        cursor. A caller that continues until the cursor is `None` gets each unchanged task exactly
        once; a task that changes meanwhile may be missing or repeated. An index finds open, failed
        and cancelled tasks.

        Raises:
            ValueError: `cursor` does not belong to this search.
        """

    async def forget(self, now_ms: int) -> int:
        """Delete some of the tasks that expired long ago, and some expired hidden tasks, if the
        store does not delete them by itself. Return the number of deleted tasks."""

    async def tell_time(self, report: bytes) -> bytes | None:
        """Store a sweeper's report of its clock and return the previous report, or `None`. One
        call."""

    async def aclose(self) -> None:
        """Close the connections."""
