"""The stored tasks: each write is an event of `tasks.events`, decided by `tasks.machine` and stored
by compare-and-swap.

    read the record ──▶ apply(record, event, now) ──▶ swap ──▶ send the message, if there is one
                              ▲                        │ another process was first:
                              └──── the record as it is now

A lost message only causes a delay: the record becomes due, and a sweep finds it.

`apply` is for anybody, `write` for the holder of a lease. It needs no read, because a `Lease`
remembers the record of its last write. Every method raises `Unavailable` when the store cannot be
reached; the write may or may not have happened. The caller may repeat the write under the same
lease. A repeated `Checkpoint` of the same entries happens once and returns. Any other repeated
write happens once, or raises `LeaseLost` if the first one had happened.

Every value counts towards the account of the task's owner (`roundgate.storage.accounts`) until the
store forgets the task. A write that exceeds the account raises `QuotaExceeded` and does not happen.
An outcome of up to `ROW` bytes always fits, because the account counts that space from the start.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate import json
from roundgate.errors import LeaseLost, Unavailable
from roundgate.observability.metrics import Metrics
from roundgate.storage import (
    ANY,
    Accounts,
    Found,
    Lost,
    OpenTask,
    Put,
    RecordChange,
    RecordPart,
    TaskQueue,
    TaskRecord,
    TaskRef,
    TaskStore,
    Wanted,
    Work,
)
from roundgate.storage.accounts import ROW, Reserved
from roundgate.storage.tasks import FORGET_AFTER_MS
from roundgate.tasks import events, machine
from roundgate.tasks.events import (
    Adding,
    Claim,
    ClaimCleanup,
    Decision,
    Event,
    NewTask,
    Next,
    No,
    Refused,
    UnderLease,
)

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

log = logging.getLogger("roundgate.tasks")

VALUE: Final = 64
"""The overhead of a value of a task in bytes: its name, its key, its place in an index."""

DAY_MS: Final = 86_400_000
KEEP_MS: Final = 900_000
"""The minimum time in milliseconds for which a hidden task is kept after its end, for a client that
resumes its stream or repeats a round."""

E = TypeVar("E", bound=UnderLease)


class Lease(Struct, eq=False):
    """The right to write to a task, with the record and the doubtful writes that it remembers."""

    ref: TaskRef
    fence: int
    known: TaskRecord
    """The record after the last write of this lease."""
    state_bytes: int = 0
    """The number of bytes of `ctx.state` that the account has counted."""
    work_bytes: int = 0
    """The number of bytes of the task's work. They count again when the task is kept longer."""
    number: int = 0
    """The number of the last write of entries."""
    in_doubt: dict[int, Sequence[bytes]] = field(default_factory=dict)
    """The entries of writes that may or may not have happened, by number."""
    written: set[bytes] = field(default_factory=set)
    """Entries of doubtful writes that had happened, as a later record showed."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Serializes the writes of this lease."""

    def __repr__(self) -> str:
        return f"Lease({self.ref!r}, {self.fence})"

    @classmethod
    def of(cls, record: TaskRecord, work: Work | None = None) -> Lease:
        """Return the lease of a claimed task. `record` is the record after the claim; the account
        has counted its `work`."""
        lease = cls(record.ref, record.fence, record)
        if work is not None:
            values = [work.call, work.state, *work.journal, *work.answers.values()]
            lease.state_bytes = len(work.state)
            lease.work_bytes = 2 * ROW + sum(VALUE + len(value) for value in values)
        return lease

    def number_for(self, entries: Sequence[bytes]) -> int:
        """Return the number of the next write, which adds `entries`."""
        self.number += 1
        self.in_doubt[self.number] = entries
        return self.number

    def learn(self, record: TaskRecord, current: int) -> None:
        """Resolve the doubts about all writes but `current` by a record that was read after them.

        Each write is based on the record before it. So the last write that happened has its number
        in `noted`, and no other write in doubt can still happen.
        """
        if record.noted != current:
            self.written.update(self.in_doubt.get(record.noted, ()))
        self.in_doubt = {n: entries for n, entries in self.in_doubt.items() if n == current}


class Claimed(Work, frozen=True):
    """A claimed task with everything that a run needs."""

    lease: Lease
    record: TaskRecord
    """The record after the claim."""


class Glimpse(Struct, frozen=True):
    """The identity of a task's state, which changes whenever its client could see a change."""

    created_ms: int
    revision: int

    def is_before(self, other: Glimpse) -> bool:
        """Return whether this is an earlier state of the same task."""
        return self.created_ms == other.created_ms and self.revision < other.revision


@dataclass(eq=False)
class StoredTasks:
    """The tasks in a store.

    The other parts of a process reach the store through this class alone, so some methods only
    forward a call. Tests count, delay and interrupt all store calls of a process at this class.
    """

    store: TaskStore
    queue: TaskQueue | None = None
    """Takes messages; without a queue, the sweep of another process sends them."""
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    accounts: Accounts | None = None
    """The accounts of owners; `None` for an operator's commands, whose writes do not count."""
    trail: Trail | None = None
    """The audit log, which records the beginning, the questions and the end of tasks."""
    _listening: dict[TaskRef, list[Callable[[], None]]] = dataclasses.field(default_factory=dict)

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        """Send the message that makes a worker claim a task, after a delay in milliseconds. If the
        queue cannot be reached, a sweep finds the task."""
        if self.queue is None or ref.is_hidden:  # no worker runs a hidden task
            return
        try:
            await self.queue.send(ref, delay_ms)
        except Unavailable as error:
            fields = {"task": str(ref), "error": str(error)}
            log.warning(
                "cannot reach the queue; the sweep will send the message", extra={"fields": fields}
            )

    def listen(self, ref: TaskRef, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each write of this object that the client of a task can see, its
        creation included, until the returned function is called. `changed` must not block."""
        self._listening.setdefault(ref, []).append(changed)

        def end() -> None:
            listeners = self._listening.get(ref, [])
            if changed in listeners:
                listeners.remove(changed)
            if not listeners:
                self._listening.pop(ref, None)

        return end

    def _tell(self, ref: TaskRef) -> None:
        for changed in list(self._listening.get(ref, ())):
            changed()

    async def _reserve(self, record: TaskRecord, size: int, expires_ms: int) -> Reserved | None:
        """Count bytes for the owner of a task, until its store forgets it. Return `None` if
        there is nothing to count."""
        if self.accounts is None or size <= 0:
            return None
        keep_ms = KEEP_MS if record.ref.is_hidden else FORGET_AFTER_MS
        return await self.accounts.reserve(record.ref.owner, size, expires_ms + keep_ms)

    def _give_back(self, reserved: Reserved | None) -> None:
        if self.accounts is not None and reserved is not None:
            self.accounts.give_back(reserved)

    async def _swap(
        self, change: RecordChange, state_bytes: int = 0, work_bytes: int = 0
    ) -> TaskRecord | Lost:
        """Write a change and notify the listeners of the task. The values of the change count
        towards the account, less `state_bytes` for the state that they replace. If the change
        keeps the task for another day, the `work_bytes` of the task count again."""
        expires_ms = change.after.expires_ms
        is_longer = expires_ms // DAY_MS > change.before.expires_ms // DAY_MS
        size = counted_bytes(change.puts) - state_bytes + (work_bytes if is_longer else 0)
        reserved = await self._reserve(change.before, size, expires_ms)
        swapped = await self.store.swap(change)
        if isinstance(swapped, Lost):
            self._give_back(reserved)
        elif change.after.revision != change.before.revision:
            if swapped.status is not change.before.status:
                self.metrics.entered(swapped.tool, swapped.status)
            if change.before.is_open and swapped.ending is not None:
                took_ms = swapped.updated_ms - swapped.created_ms
                self.metrics.ended(swapped.tool, swapped.ending, took_ms)
                self._record("task_ended", swapped)
            self._tell(swapped.ref)
        return swapped

    async def apply(self, ref: TaskRef, event: Event, now_ms: int) -> Decision:
        """Apply an event and return the decision. If it is a `Next`, the change has been written
        and its message sent."""
        decision = await self._decide_and_swap(await self.store.head(ref), event, now_ms)
        if isinstance(decision, Next) and decision.message_ms is not None:
            await self.send(ref, decision.message_ms)
        if self.trail is not None and isinstance(event, events.Deliver):
            payload = self.trail.digest(json.decode(event.payload))
            facts = {"task": str(ref), "name": event.name, "outcome": str(decision.result)}
            self.trail.record("event", {**facts, "payload": payload})
        return decision

    async def apply_many(
        self, happening: Sequence[tuple[TaskRef, Event]], now_ms: int
    ) -> Sequence[Decision]:
        """Apply events and return their decisions in order, with few calls for heads and messages.

        Raises:
            Unavailable: a write failed, or the queue cannot be reached. The other events happened,
                and their messages were sent.
        """
        if not happening:
            return []
        records = await self.store.heads([ref for ref, _ in happening])
        outcomes = await asyncio.gather(
            *(self._decide_and_swap(records.get(ref), event, now_ms) for ref, event in happening),
            return_exceptions=True,
        )
        decisions = [outcome for outcome in outcomes if isinstance(outcome, Next | Refused)]
        await self._send_many(decisions)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return decisions

    async def _send_many(self, decisions: Iterable[Decision]) -> None:
        """Send the messages of decisions that require an immediate one."""
        refs = [
            decision.before.ref
            for decision in decisions
            if isinstance(decision, Next) and decision.message_ms is not None
        ]
        if refs and self.queue is not None:
            await self.queue.send_many(refs)

    async def _decide_and_swap(
        self, record: TaskRecord | None, event: Event, now_ms: int
    ) -> Decision:
        """Apply an event and return the decision. If it is a `Next`, the change has been
        written."""
        while True:
            decision = machine.apply(record, event, now_ms)
            if isinstance(decision, Refused):
                return decision
            match await self._swap(decision):
                case Lost(record=record):
                    pass
                case TaskRecord():
                    return decision

    # for the owner

    async def create(self, task: NewTask) -> bool:
        """Store a new task. When this returns, `read` finds the task in any process.

        Return `False` and change nothing if this owner already has a task of this id. The call is
        safe to repeat after `Unavailable`.
        """
        created = machine.create(task)
        record = created.record
        size = 2 * ROW + counted_bytes(created.puts)
        reserved = await self._reserve(record, size, record.expires_ms)
        is_new = await self.store.insert(record, created.puts)
        if not is_new:
            self._give_back(reserved)
            return False
        if record.is_open or not record.ref.is_hidden:  # a hidden task that has ended never ran
            self.metrics.created(task.tool)
            self.metrics.entered(task.tool, record.status)
            if record.ending is not None:
                self.metrics.ended(task.tool, record.ending, 0)
        self._record("task_created", record)
        self._tell(record.ref)
        if created.message_ms is not None:
            await self.send(task.ref, created.message_ms)
        return is_new

    def _record(self, event: str, record: TaskRecord) -> None:
        """Record a new or ended task in the audit log. A hidden task is part of its call's rounds."""
        if self.trail is not None and not record.ref.is_hidden:
            ending = {} if record.ending is None else {"outcome": record.ending.value}
            self.trail.record(event, {**_ids(record), **ending})

    async def count_open(self, owner: str, up_to: int) -> int:
        """Count the open tasks of an owner, up to a bound. Eventually consistent."""
        return await self.store.count_open(owner, up_to)

    async def read(self, ref: TaskRef, now_ms: int) -> TaskRecord | None:
        """Return the current record of a task; `None` if the task is unknown or has expired."""
        record = await self.store.read(ref)
        return None if record is None or record.expires_ms <= now_ms else record

    async def glance(self, refs: Sequence[TaskRef], now_ms: int) -> Mapping[TaskRef, Glimpse]:
        """Return the `Glimpse` of each task, perhaps some seconds old. Unknown and expired tasks
        are left out."""
        records = await self.store.heads(refs, may_lag=True)
        return {
            ref: Glimpse(record.created_ms, record.revision)
            for ref, record in records.items()
            if record.expires_ms > now_ms
        }

    async def head(self, ref: TaskRef) -> TaskRecord | None:
        """Return a task without its values, expired or not; `None` if the task is unknown."""
        return await self.store.head(ref)

    # for the worker

    async def claim(
        self, ref: TaskRef, event: Claim | ClaimCleanup, now_ms: int
    ) -> Claimed | StrEnum:
        """Claim a task; return the reason if the claim is refused. One of several concurrent claims
        succeeds.

        The method reads the work before the swap; if the swap succeeds, the work has not changed
        since.
        """
        while True:
            record, work = await self.store.read_work(ref)
            decision = machine.apply(record, event, now_ms)
            if isinstance(decision, Refused):
                return decision.result
            swapped = await self.store.swap(decision)
            if isinstance(swapped, TaskRecord):
                break
        assert work is not None, "a task that can be claimed keeps its work"
        self.metrics.claimed(swapped.tool)
        journal = work.journal
        if isinstance(event, ClaimCleanup) and event.journal is not None:
            journal = list(event.journal)
        lease = Lease.of(swapped, work)
        return Claimed(work.call, journal, work.state, work.answers, lease, swapped)

    async def write(self, lease: Lease, event: UnderLease, now_ms: int) -> None:
        """Apply an event under a lease.

        Raises:
            LeaseLost: the lease was released or lost.
            QuotaExceeded: the account of the owner has no room for the values.
        """
        message_ms = await self._write_under_lease(lease, replace(event, fence=lease.fence), now_ms)
        if message_ms is not None:
            await self.send(lease.ref, message_ms)
        if (
            self.trail is not None
            and isinstance(event, events.SuspendTask)
            and not lease.ref.is_hidden
        ):
            questions = {key: json.decode(request) for key, request in event.requests.items()}
            self.trail.asked(questions, _ids(lease.known))

    async def _write_under_lease(self, lease: Lease, event: UnderLease, now_ms: int) -> int | None:
        """Write an event and return the delay of its message in milliseconds; `None` if no message
        is needed. Raise LeaseLost if the lease is lost."""
        if lease.known.ref != lease.ref:
            raise LeaseLost(str(lease.ref))
        async with lease.writing:  # the previous write has updated the record
            number = 0
            event = _without(event, lease.written)
            if isinstance(event, Adding) and event.added.entries:
                number = lease.number_for(event.added.entries)
                event = replace(event, number=number)
            record: TaskRecord | None = lease.known
            while True:
                decision = machine.apply(record, event, now_ms)
                if isinstance(decision, Next):
                    state_bytes = _state_bytes(decision)
                    counted = min(state_bytes, lease.state_bytes)
                    swapped = await self._swap(decision, counted, lease.work_bytes)
                    if isinstance(swapped, Lost):
                        record = swapped.record
                        if record is not None and _creation(record) != _creation(lease.known):
                            raise LeaseLost(str(lease.ref))
                        if record is not None:
                            lease.learn(record, number)
                            event = _without(event, lease.written)
                        continue
                    record = swapped
                    lease.state_bytes = max(state_bytes, lease.state_bytes)
                    lease.work_bytes += counted_bytes(decision.puts) - counted
                elif record is None or decision.result is not No.HAPPENED:
                    raise LeaseLost(str(lease.ref))
                lease.known = record
                lease.in_doubt.clear()  # this write was made from the record before all of them
                return decision.message_ms if isinstance(decision, Next) else None

    # for the sweep

    async def due(self, now_ms: int, limit: int, shard: int | None = None) -> Sequence[OpenTask]:
        """Return tasks whose `due_ms` has passed, of one shard or of all, the longest overdue
        first: open tasks and tasks to be cleaned up. Eventually consistent."""
        return await self.store.scan(now_ms, limit, shard)

    async def late_shards(self, now_ms: int) -> Sequence[int]:
        """Return the shards that have due tasks now."""
        shards = range(self.store.shards)
        firsts = await asyncio.gather(*(self.store.scan(now_ms, 1, shard) for shard in shards))
        return [shard for shard, first in zip(shards, firsts, strict=True) if first]

    async def tell_time(self, report: bytes) -> bytes | None:
        return await self.store.tell_time(report)

    async def forget(self, now_ms: int) -> int:
        return await self.store.forget(now_ms)

    # for the operator

    async def open_tasks(self, limit: int) -> tuple[Sequence[OpenTask], bool]:
        """Return open tasks, the soonest due first, and whether there may be more. If there are
        more than 200, a store may return a sample. Eventually consistent."""
        due = await self.store.scan(None, limit)
        return [task for task in due if not task.status.is_terminal], len(due) >= limit

    async def find(
        self, wanted: Wanted = ANY, limit: int = 100, cursor: str | None = None
    ) -> Found:
        return await self.store.find(wanted, limit, cursor)

    async def read_work(self, ref: TaskRef) -> tuple[TaskRecord | None, Work | None]:
        """Return a task and its work, expired or not, as of one moment; `None` for an unknown task,
        and for work that the store has deleted. The store keeps the work of open tasks and of tasks
        that a failed step ended."""
        return await self.store.read_work(ref)

    async def purge(self, ref: TaskRef, now_ms: int) -> bool:
        """Delete a terminal or expired task with all its values. Return `False` if it does not
        exist or is open."""
        while (record := await self.store.head(ref)) is not None:
            if not machine.may_purge(record, now_ms):
                return False
            if await self.store.delete(record):
                return True
        return False

    async def aclose(self) -> None:
        await self.store.aclose()


def _without(event: E, written: Collection[bytes]) -> E:
    """Return an event without the entries that earlier writes added."""
    if not (written and isinstance(event, Adding)):
        return event
    entries = [entry for entry in event.added.entries if entry not in written]
    return replace(event, added=replace(event.added, entries=entries))


def _ids(record: TaskRecord) -> dict[str, str | None]:
    """Return the ids of a task as members of a record of the audit log."""
    return {"call": record.call_id, "task": str(record.ref), "tool": record.tool}


def _creation(record: TaskRecord) -> tuple[int, str | None]:
    """Return the facts that distinguish a task from one created under the same id after its
    deletion. The fences of both begin at the same number."""
    return record.created_ms, record.call_id


def counted_bytes(puts: Sequence[Put]) -> int:
    """Return the bytes that values count towards the account. Of an outcome, only the bytes beyond
    `ROW` count."""
    return sum(
        max(0, len(put.value) - ROW)
        if put.part is RecordPart.OUTCOME
        else VALUE + len(put.name) + len(put.value)
        for put in puts
    )


def _state_bytes(change: RecordChange) -> int:
    return sum(len(put.value) for put in change.puts if put.part is RecordPart.STATE)
