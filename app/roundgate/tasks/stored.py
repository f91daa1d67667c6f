"""The stored tasks: each method is one event, decided by `tasks.machine` and kept by compare-and-swap.

    read the record ──▶ apply(record, event, now) ──▶ swap ──▶ send the message, if there is one
                              ▲                        │ another process was first:
                              └──── the record as it is now

A message that is lost or cannot be sent is a delay: the record is due, and a sweep finds it.

Under a lease no read is needed: a `Lease` remembers the record as its last write left it. Every
method raises `Unavailable` when the store cannot be reached; a write may then have happened or not.
It may be tried again under the same lease: a `checkpoint` of the same entries then happens once and
returns; any other write happens once, or, if it had happened already, raises `LeaseLost`.

Every value counts for the task's owner (`roundgate.storage.accounts`) until the store forgets the
task. A write for which the account has no room raises `QuotaExceeded` and does not happen. An outcome
of up to `ROW` bytes always has room: it was counted with the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from roundgate.errors import LeaseLost, Unavailable
from roundgate.observability.metrics import Metrics
from roundgate.protocol import Status
from roundgate.storage import (
    ANY,
    Accounts,
    Change,
    Ending,
    Found,
    Lost,
    OpenTask,
    Part,
    Put,
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
    Added,
    Answered,
    Cancelled,
    Delivered,
    Event,
    Mark,
    NewTask,
    Next,
    No,
    NotClaimed,
    Postponed,
    Refused,
    Sending,
)

log = logging.getLogger("roundgate.tasks")

VALUE: Final = 64
"""Bytes that a value of a task counts besides its own: its name, its key, its place in an index."""

KEEP_MS: Final = 600_000
"""Milliseconds for which the end of a hidden task is kept for a client that resumes its stream."""

AddsEntries: TypeAlias = events.Checkpoint | events.Suspend | events.Release
"""The events that add entries to the journal."""


@dataclass(slots=True)
class _Held:
    """What a lease remembers."""

    known: TaskRecord
    """The record as the last write of this lease left it."""
    state_bytes: int = 0
    """How much of `ctx.state` has been counted."""
    number: int = 0
    """The number of the last write of entries."""
    in_doubt: dict[int, Sequence[bytes]] = field(default_factory=dict)
    """The entries of writes, by number, while it is not known whether they happened."""
    written: set[bytes] = field(default_factory=set)
    """Entries of writes that were in doubt and, as a later record showed, had happened."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One write after another."""

    def number_for(self, entries: Sequence[bytes]) -> int:
        """Return the number of the next write, which adds `entries`."""
        self.number += 1
        self.in_doubt[self.number] = entries
        return self.number

    def learn(self, record: TaskRecord, own: int) -> None:
        """End the doubts about all writes but `own` by a record that was read after them.

        A write is made from the record before it. So the last one that happened has its number in
        `noted`, and no other can happen any more.
        """
        if record.noted != own:
            self.written.update(self.in_doubt.get(record.noted, ()))
        self.in_doubt = {n: entries for n, entries in self.in_doubt.items() if n == own}


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to a task."""

    ref: TaskRef
    fence: int
    held: _Held | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, record: TaskRecord, state_bytes: int = 0) -> Lease:
        """Return the lease of a claimed task, as its claim left the record. `state_bytes` is the
        size of its state, which has been counted."""
        return cls(record.ref, record.fence, _Held(record, state_bytes))


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claimed task, with all that a run needs."""

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
class Glimpse:
    """A state of a task that its client can tell from others."""

    created_ms: int
    revision: int

    def is_before(self, other: Glimpse) -> bool:
        """Return whether this is an earlier state of the same task."""
        return self.created_ms == other.created_ms and self.revision < other.revision


@dataclass(frozen=True, slots=True)
class Move:
    """A task as it was seen, and its new due time."""

    task: OpenTask
    due_ms: int
    resends: int
    """The new `TaskRecord.resends`."""
    sending: Sending = Sending.NEEDED


class StoredTasks:
    """The tasks in a store. Methods that write under a lease raise `LeaseLost` once it is lost.

    The other parts of a process reach the store through this class alone, so some methods only pass
    a call on: tests count, delay and interrupt each call of a process at one seam.

    Args:
        store: the store.
        queue: takes messages; without one a sweep of another process sends them.
        metrics: counts tasks that are created, claimed and end.
        accounts: the accounts of owners; `None` for an operator's commands, which count nothing.
    """

    def __init__(
        self,
        store: TaskStore,
        queue: TaskQueue | None = None,
        metrics: Metrics | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        self.store = store
        self._queue = queue
        self._metrics = metrics or Metrics()
        self._accounts = accounts
        self._listening: dict[TaskRef, list[Callable[[], None]]] = {}

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        """Send the message that makes a worker claim a task, after some milliseconds. If the queue
        cannot be reached, a sweep finds the task."""
        if self._queue is None or ref.is_hidden:  # no worker runs a hidden task
            return
        try:
            await self._queue.send(ref, delay_ms)
        except Unavailable as error:
            fields = {"task": str(ref), "error": str(error)}
            log.warning(
                "no message was sent for a task, the sweep will send one", extra={"fields": fields}
            )

    def listen(self, ref: TaskRef, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each write of these `StoredTasks` that the client of a task can see,
        until the returned function is called. It must not block."""
        self._listening.setdefault(ref, []).append(changed)

        def end() -> None:
            listeners = self._listening.get(ref, [])
            if changed in listeners:
                listeners.remove(changed)
            if not listeners:
                self._listening.pop(ref, None)

        return end

    async def _reserve(self, record: TaskRecord, size: int) -> Reserved | None:
        """Count bytes for the owner of a task, until its store forgets it."""
        if self._accounts is None or size <= 0:
            return None
        until_ms = record.expires_ms + (KEEP_MS if record.ref.is_hidden else FORGET_AFTER_MS)
        return await self._accounts.reserve(record.ref.owner, size, until_ms)

    def _give_back(self, reserved: Reserved | None) -> None:
        if self._accounts is not None and reserved is not None:
            self._accounts.give_back(reserved)

    async def _swap(self, change: Change, state_bytes: int = 0) -> TaskRecord | Lost:
        """Count the values of a change, of which `state_bytes` replace as many, and write it. Then
        tell those who listen to the task."""
        reserved = await self._reserve(change.before, size_of(change.puts) - state_bytes)
        swapped = await self.store.swap(change)
        if isinstance(swapped, Lost):
            self._give_back(reserved)
        elif "revision" in change.changes:
            if change.before.is_open and swapped.ending is not None:
                self._metrics.ended(swapped.tool, swapped.ending)
            for changed in list(self._listening.get(swapped.ref, ())):
                changed()
        return swapped

    async def _apply(
        self, ref: TaskRef, event: Event, now_ms: int, known: TaskRecord | None = None
    ) -> Next | Refused:
        """Return what an event came to. A `Next` has been written, and its message sent."""
        decision = await self._write(known or await self.store.head(ref), event, now_ms)
        if isinstance(decision, Next) and decision.message_ms is not None:
            await self.send(ref, decision.message_ms)
        return decision

    async def _apply_many(
        self, happening: Sequence[tuple[TaskRef, Event]], now_ms: int
    ) -> Sequence[Next | Refused]:
        """Return what each event came to, in order, with few calls for heads and messages.

        Raises:
            Unavailable: a write failed, or the queue cannot be reached. The other events happened,
                and messages were sent for them.
        """
        if not happening:
            return []
        records = await self.store.heads([ref for ref, _ in happening])
        outcomes = await asyncio.gather(
            *(self._write(records.get(ref), event, now_ms) for ref, event in happening),
            return_exceptions=True,
        )
        decisions = [one for one in outcomes if isinstance(one, Next | Refused)]
        await self._send_many(decisions)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return decisions

    async def _send_many(self, decisions: Iterable[Next | Refused]) -> None:
        """Send the messages of decisions that call for one without delay."""
        refs = [
            decision.before.ref
            for decision in decisions
            if isinstance(decision, Next) and decision.message_ms is not None
        ]
        if refs and self._queue is not None:
            await self._queue.send_many(refs)

    async def _write(self, record: TaskRecord | None, event: Event, now_ms: int) -> Next | Refused:
        """Return what an event came to. A `Next` has been written."""
        while True:
            decision = machine.apply(record, event, now_ms)
            if isinstance(decision, Refused):
                return decision
            match await self._swap(decision):
                case Lost(record=record):
                    pass
                case TaskRecord():
                    return decision

    async def _happens(self, ref: TaskRef, event: Event, now_ms: int) -> bool:
        return isinstance(await self._apply(ref, event, now_ms), Next)

    # for the owner

    async def create(self, task: NewTask) -> bool:
        """Keep a task. When this returns, `read` finds it, in any process.

        `False` if this owner has a task of this id already, which is left as it is. Safe to repeat
        after `Unavailable`.
        """
        created = machine.create(task)
        record = created.record
        reserved = await self._reserve(record, 2 * ROW + size_of(created.puts))
        is_new = await self.store.insert(record, created.puts)
        if not is_new:
            self._give_back(reserved)
            return False
        self._metrics.created(task.tool)
        if record.ending is not None:
            self._metrics.ended(task.tool, record.ending)
        if created.message_ms is not None:
            await self.send(task.ref, created.message_ms)
        return is_new

    async def count_open(self, owner: str, up_to: int) -> int:
        """Count the open tasks of an owner, up to a bound. Eventually consistent."""
        return await self.store.count_open(owner, up_to)

    async def read(self, ref: TaskRef, now_ms: int) -> TaskRecord | None:
        """Return a task as of the last write; `None` if it is unknown or has expired."""
        record = await self.store.read(ref)
        return None if record is None or record.expires_ms <= now_ms else record

    async def glance(self, refs: Sequence[TaskRef], now_ms: int) -> Mapping[TaskRef, Glimpse]:
        """Return what shows whether tasks have changed, perhaps as of some seconds ago. Unknown and
        expired tasks are left out."""
        records = await self.store.heads(refs, may_lag=True)
        return {
            ref: Glimpse(record.created_ms, record.revision)
            for ref, record in records.items()
            if record.expires_ms > now_ms
        }

    async def answer(
        self, ref: TaskRef, answers: Mapping[str, bytes], now_ms: int, due_ms: int
    ) -> Answered:
        """See `events.Answer`."""
        match await self._apply(ref, events.Answer(answers, due_ms), now_ms):
            case Next(result=Answered() as result) | Refused(Answered() as result):
                return result
        raise AssertionError("an answer comes to something")

    async def cancel(
        self, ref: TaskRef, status_message: str, now_ms: int, due_ms: int | None = None
    ) -> Cancelled:
        """See `events.Cancel`. It is due at `due_ms`, by default at once."""
        due_ms = now_ms if due_ms is None else due_ms
        match await self._apply(ref, events.Cancel(status_message, due_ms), now_ms):
            case Next(result=Cancelled() as result) | Refused(Cancelled() as result):
                return result
        raise AssertionError("a cancellation comes to something")

    async def head(self, ref: TaskRef) -> TaskRecord | None:
        """Return a task without its values, expired or not; `None` if it is unknown."""
        return await self.store.head(ref)

    # for services

    async def deliver(
        self, ref: TaskRef, name: str, payload: bytes, digest: str, now_ms: int, due_ms: int
    ) -> Delivered:
        """See `events.Deliver`."""
        event = events.Deliver(name, payload, digest, due_ms)
        match await self._apply(ref, event, now_ms):
            case Next(result=Delivered() as result) | Refused(Delivered() as result):
                return result
        raise AssertionError("a delivery comes to something")

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
        """See `events.Claim`. Of many claims one wins. `due_ms` is by default `until_ms`, and
        `lapsed_ms` is `now_ms`."""
        due_ms = until_ms if due_ms is None else due_ms
        lapsed_ms = now_ms if lapsed_ms is None else lapsed_ms
        claimed = await self._claim(ref, events.Claim(until_ms, due_ms, lapsed_ms, alone), now_ms)
        if isinstance(claimed, Claimed):
            return claimed
        return NotClaimed(claimed.reason)

    async def _claim(
        self, ref: TaskRef, event: events.Claim | events.ClaimCleanup, now_ms: int
    ) -> Claimed | Refused:
        """Claim a task. The work is read before the swap; if the swap succeeds, the work has not
        changed since."""
        while True:
            record, work = await self.store.read_work(ref)
            decision = machine.apply(record, event, now_ms)
            if isinstance(decision, Refused):
                return decision
            swapped = await self.store.swap(decision)
            if isinstance(swapped, TaskRecord):
                break
        assert work is not None, "what can be claimed keeps its work"
        self._metrics.claimed(swapped.tool)
        journal = work.journal
        if isinstance(event, events.ClaimCleanup) and event.journal is not None:
            journal = list(event.journal)
        return Claimed(
            Lease.of(swapped, len(work.state)),
            swapped,
            work.call,
            journal,
            work.state,
            work.answers,
        )

    async def checkpoint(
        self,
        lease: Lease,
        added: Added,
        now_ms: int,
        until_ms: int | None = None,
        due_ms: int | None = None,
    ) -> None:
        """See `events.Checkpoint`."""
        event = events.Checkpoint(lease.fence, added, 0, until_ms, due_ms)
        await self._under_lease(lease, event, now_ms)

    async def suspend(
        self,
        lease: Lease,
        added: Added,
        requests: Mapping[str, bytes],
        now_ms: int,
        *,
        wake_ms: int = 0,
        awaits: Collection[str] = (),
        ready_ms: int = 0,
    ) -> None:
        """See `events.Suspend`."""
        event = events.Suspend(lease.fence, added, 0, requests, wake_ms, awaits, ready_ms)
        await self._under_lease(lease, event, now_ms)

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
        early_ms: int = 0,
        awaits: Collection[str] = (),
        ready_ms: int = 0,
    ) -> None:
        """See `events.Release`."""
        rest = (wake_ms, due_ms, attempts, declined_ms, keeps_blame, awaits, ready_ms, early_ms)
        await self._under_lease(lease, events.Release(lease.fence, added, 0, *rest), now_ms)

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
        """See `events.Restart`."""
        event = events.Restart(lease.fence, call, journal, state, journal_version, due_ms)
        await self._under_lease(lease, event, now_ms)

    async def park(self, lease: Lease, status_message: str, now_ms: int) -> None:
        """See `events.Park`."""
        event = events.Park(lease.fence, status_message)
        await self._under_lease(lease, event, now_ms)

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
        expires_ms: int | None = None,
    ) -> None:
        """See `events.Finish`."""
        event = events.Finish(
            *(lease.fence, status, outcome, status_message, cleanup_due_ms, ending, failed_steps),
            expires_ms,
        )
        await self._under_lease(lease, event, now_ms)

    async def let_go(
        self, ref: TaskRef, fence: int, now_ms: int, due_ms: int, *, blame: bool
    ) -> bool:
        """See `events.LetGo`. `False` if the lease is lost.

        May be called from another thread, on a store and in an event loop of its own.
        """
        return await self._happens(ref, events.LetGo(fence, due_ms, blame), now_ms)

    async def _under_lease(self, lease: Lease, event: events.UnderLease, now_ms: int) -> None:
        message_ms = await self._write_under_lease(lease, event, now_ms)
        if message_ms is not None:
            await self.send(lease.ref, message_ms)

    async def _write_under_lease(
        self, lease: Lease, event: events.UnderLease, now_ms: int
    ) -> int | None:
        """Write an event and return the delay of its message."""
        held = lease.held
        if held is None or held.known.ref != lease.ref:
            raise LeaseLost(str(lease.ref))
        async with held.writing:  # the record is as the write before left it
            number = 0
            if isinstance(event, AddsEntries):
                event = _without(event, held.written)
                if event.added.entries:
                    number = held.number_for(event.added.entries)
                    event = replace(event, number=number)
            record: TaskRecord | None = held.known
            while True:
                decision = machine.apply(record, event, now_ms)
                if isinstance(decision, Next):
                    state_bytes = _state_bytes(decision)
                    counted = min(state_bytes, held.state_bytes)
                    swapped = await self._swap(decision, counted)
                    if isinstance(swapped, Lost):
                        record = swapped.record
                        if record is not None and _creation(record) != _creation(held.known):
                            raise LeaseLost(str(lease.ref))
                        if record is not None:
                            held.learn(record, number)
                            if isinstance(event, AddsEntries):
                                event = _without(event, held.written)
                        continue
                    record = swapped
                    held.state_bytes = max(state_bytes, held.state_bytes)
                elif record is None or decision.reason is not No.HAPPENED:
                    raise LeaseLost(str(lease.ref))
                held.known = record
                held.in_doubt.clear()  # this write was made from the record before all of them
                return decision.message_ms if isinstance(decision, Next) else None

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
        """See `events.ClaimCleanup`. `None` if there is nothing to clean up, or not now."""
        event = events.ClaimCleanup(until_ms, due_ms, lapsed_ms, fence, journal)
        claimed = await self._claim(ref, event, now_ms)
        return claimed if isinstance(claimed, Claimed) else None

    async def postpone_cleanup(
        self, lease: Lease, now_ms: int, *, wake_ms: int, due_ms: int
    ) -> bool:
        """See `events.PostponeCleanup`. `False` if another worker has claimed it since."""
        event = events.PostponeCleanup(lease.fence, wake_ms, due_ms)
        return await self._cleaning(lease, event, now_ms)

    async def end_cleanup(self, lease: Lease, now_ms: int) -> bool:
        """See `events.EndCleanup`. `False` if another worker has claimed it since."""
        return await self._cleaning(lease, events.EndCleanup(lease.fence), now_ms)

    async def _cleaning(self, lease: Lease, event: Event, now_ms: int) -> bool:
        known = None if lease.held is None else lease.held.known
        return isinstance(await self._apply(lease.ref, event, now_ms, known), Next)

    # for the sweep

    @property
    def shards(self) -> int:
        """Return the number of parts of the index of due tasks."""
        return self.store.shards

    async def due(self, now_ms: int, limit: int, shard: int | None = None) -> Sequence[OpenTask]:
        """Return tasks whose `due_ms` has come, of one shard or of all, the longest overdue first:
        open ones, and those that are to be cleaned up. Eventually consistent."""
        return await self.store.scan(now_ms, limit, shard)

    async def late_shards(self, now_ms: int) -> Sequence[int]:
        """Return the shards in which `due` finds something now."""
        shards = range(self.store.shards)
        firsts = await asyncio.gather(*(self.store.scan(now_ms, 1, shard) for shard in shards))
        return [shard for shard, first in zip(shards, firsts, strict=True) if first]

    async def take_shard(self, shard: int, sweeper: str, now_ms: int, until_ms: int) -> bool:
        """See `TaskStore`."""
        return await self.store.take_shard(shard, sweeper, now_ms, until_ms)

    async def tell_time(self, report: bytes) -> bytes | None:
        """See `TaskStore`."""
        return await self.store.tell_time(report)

    async def go_on(self, refs: Sequence[TaskRef], now_ms: int, due_ms: int) -> int:
        """See `events.GoOn`. Return how many tasks went on."""
        event = events.GoOn(due_ms)
        return _happened(await self._apply_many([(ref, event) for ref in refs], now_ms))

    async def postpone_many(
        self, moves: Sequence[Move], now_ms: int, skew_ms: int = 0
    ) -> Sequence[Postponed]:
        """See `events.Postpone`. Each move happens or not by itself; of many callers all but one
        have missed it."""
        decisions = await self._apply_many(
            [(move.task.ref, _postponement(move, skew_ms)) for move in moves], now_ms
        )
        return [
            result
            if isinstance(decision, Next) and isinstance(result := decision.result, Postponed)
            else Postponed.MISSED
            for decision in decisions
        ]

    async def expire(self, refs: Sequence[TaskRef], now_ms: int, due_ms: int | None = None) -> int:
        """See `events.Expire`. Return how many tasks expired. One that is now to be cleaned up is
        due at `due_ms`, by default at once."""
        event = events.Expire(now_ms if due_ms is None else due_ms)
        return _happened(await self._apply_many([(ref, event) for ref in refs], now_ms))

    async def forget(self, now_ms: int) -> int:
        """See `TaskStore`."""
        return await self.store.forget(now_ms)

    # for the operator

    async def open_tasks(self, limit: int) -> Sequence[OpenTask]:
        """Return open tasks, the soonest due first; of more than 200 a store may give a sample.
        Eventually consistent."""
        return [task for task in await self.store.scan(None, limit) if not task.status.is_terminal]

    async def find(
        self, wanted: Wanted = ANY, limit: int = 100, cursor: str | None = None
    ) -> Found:
        """See `TaskStore`."""
        return await self.store.find(wanted, limit, cursor)

    async def read_whole(self, ref: TaskRef) -> tuple[TaskRecord | None, Work | None]:
        """Return a task and its work, as `read_work` does, as of one moment."""
        return await self.store.read_work(ref)

    async def read_work(self, ref: TaskRef) -> Work | None:
        """Return the work of a task, expired or not; `None` if there is no such task, or the store
        keeps no more of it than its end. Open tasks and tasks that a failed step ended are kept
        whole."""
        _, work = await self.store.read_work(ref)
        return work

    async def note_retry(self, ref: TaskRef, as_id: str) -> bool:
        """See `events.NoteRetry`."""
        return await self._happens(ref, events.NoteRetry(as_id), 0)

    async def purge(self, ref: TaskRef, now_ms: int) -> bool:
        """Delete a terminal or expired task with all its values. Return `False` if it does not
        exist or is open."""
        while (record := await self.store.head(ref)) is not None:
            if not machine.may_purge(record, now_ms):
                return False
            if await self.store.delete(record):
                return True
        return False

    async def requeue(
        self, ref: TaskRef, now_ms: int, due_ms: int, *, fence: int | None = None
    ) -> bool:
        """See `events.Requeue`. `False` if it is not working, or has another fence."""
        return await self._happens(ref, events.Requeue(due_ms, fence), now_ms)

    async def rewind(
        self,
        record: TaskRecord,
        call: bytes,
        journal: Sequence[bytes],
        marks: Sequence[Mark],
        now_ms: int,
        due_ms: int,
    ) -> bool:
        """See `events.Rewind`. `False` if the task is parked no more, or has changed."""
        event = events.Rewind(call, journal, marks, due_ms, record.fence, record.events)
        return await self._happens(record.ref, event, now_ms)

    async def aclose(self) -> None:
        """Close the connections."""
        await self.store.aclose()


def _without(event: AddsEntries, written: Collection[bytes]) -> AddsEntries:
    """Return an event without the entries that earlier writes have added."""
    if not written:
        return event
    entries = [entry for entry in event.added.entries if entry not in written]
    return replace(event, added=replace(event.added, entries=entries))


def _postponement(move: Move, skew_ms: int) -> events.Postpone:
    return events.Postpone(move.task.due_ms, move.due_ms, move.resends, move.sending, skew_ms)


def _creation(record: TaskRecord) -> tuple[int, str | None]:
    """Return what tells a task from one that is created under its id after it was deleted: the
    fences of both begin at the same number."""
    return record.created_ms, record.call_id


def _happened(decisions: Iterable[Next | Refused]) -> int:
    """Return how many events happened."""
    return sum(isinstance(decision, Next) for decision in decisions)


def size_of(puts: Sequence[Put]) -> int:
    """Return the bytes that values count; of an outcome, those beyond `ROW`."""
    return sum(
        max(0, len(put.value) - ROW)
        if put.part is Part.OUTCOME
        else VALUE + len(put.name) + len(put.value)
        for put in puts
    )


def _state_bytes(change: Change) -> int:
    return sum(len(put.value) for put in change.puts if put.part is Part.STATE)
