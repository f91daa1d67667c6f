"""Hidden tasks: the rows of calls that outlive their request or process, and that are no tasks for
their clients.

**A call of an older client**, whose revision has no tasks, runs in the process that has its request.
It becomes a hidden task when it asks its client, or reports to a client that can resume its stream:

    first round ──▶ result                                        no row
                ──▶ asks ─────────▶ input_required ◀─┐            `ask`
                ──▶ reports ──▶ working, leased ─────┤ suspend    `report`
    the answers ──▶ working, free ──▶ claim ─────────┴─▶ finish   `claim`
    notifications/cancelled ──▶ cancelled                         `cancel_call`, also before it has a row

**A round of a call of an older server** is a row with the answers to the server's questions, until it
has the outcome: the result, or the next questions (`backends.mcp.held`). The first answers count:

    the answers, any replica ──▶ working ──▶ claim ──▶ finish      `send`, `receive`: the process with the
                                                                   stream of the call listens for the row
                             ──▶ working, leased ──▶ finish        `send`, of a call without such a process
    the call ends before ──▶ completed                             `close`

`tasks.machine` decides the life of a hidden task as of any task. But processes with a request or a
stream run it, so it needs no messages, and it is due when it expires. `tasks/get` does not find it.

**A process that dies** leaves its lease. A request that follows the task notices this after
`LEASE_MS` without a renewal, measured on its own monotonic clock, because clocks differ. If the
lease has ended by the wall clock, `UNRENEWED_MS` without a renewal are enough. The request takes the
task over, unless only the process that died could continue it.

**Questions** have names that are never reused, so a late or repeated answer never counts for a
later question.

**The id** of a hidden task derives from its session and the JSON-RPC id of its request, so that a
cancellation finds the task. A client that reuses the id of a request replaces the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from roundgate import json
from roundgate.auth import Principal, task_owner
from roundgate.clock import Clock
from roundgate.errors import CallCancelled, LeaseLost, QuotaExceeded, ToolError, Unavailable
from roundgate.protocol import Status
from roundgate.replay import NotSent
from roundgate.settings import TasksConfig
from roundgate.storage import HIDDEN, Ending, TaskRecord, TaskRef, Work
from roundgate.tasks.events import (
    Added,
    Cancel,
    Cancelled,
    Checkpoint,
    Claim,
    Expire,
    Finish,
    NewTask,
    Release,
    SuspendTask,
    TakeAnswers,
    UnderLease,
)
from roundgate.tasks.lease import Heartbeat
from roundgate.tasks.stored import KEEP_MS, Claimed, Lease, StoredTasks

T = TypeVar("T")

LEASE_MS: Final = 6_000
"""The length in milliseconds of the lease of a process that runs a round."""
BEAT_S: Final = 2.0
"""The time in seconds between two renewals."""
LOOKS_S: Final = (0.05, 1.0)
"""The first and the longest pause between two reads of a followed task, in seconds."""
UNRENEWED_MS: Final = 2_500
"""The minimum time in milliseconds for which a request watches an expired lease before it takes the
task over. A living process renews the lease within this time."""
SKEW_MS: Final = 5_000
"""The maximum difference of wall clocks in milliseconds."""
GAP_MS: Final = 3_000
"""The gap in milliseconds between two looks after which the watch restarts: if the store was
unavailable, the process that runs the round could not renew its lease."""
LEEWAY_MS: Final = 60_000
"""The time in milliseconds for which a task is kept after the wait for answers, so that each
request that follows the task gets its outcome."""
LONGEST_MS: Final = 86_400_000
"""The maximum lifetime of a hidden task in milliseconds."""
TIDY_MS: Final = 60_000
"""The time in milliseconds between two cleanups of expired hidden tasks by a process. A gateway
without other tasks has no sweep."""
TIDIED: Final = 200
"""The maximum number of tasks that one cleanup reads."""
TIDY_AFTER_MS: Final = 600_000
"""Milliseconds between the expiry of a task and the cleanup that ends it, because clocks differ."""
CANCELLED: Final = "The client cancelled the call"
_UNKNOWN_STATE: Final = b"null"
"""The state of a call whose first round has not ended."""
_LOST: Final = b"null"
"""The outcome of a round whose process has died."""


class Patiently(Protocol):
    """Repeats an operation while the store is unavailable for a short time."""

    def __call__(self, ask: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Return the result of `ask`.

        Raises:
            Unavailable: the store stays unavailable.
        """


class NewCall(Struct, frozen=True):
    """A call that becomes a hidden task."""

    session: str
    request_id: str | int
    owner: Principal
    name: str
    """The name of the tool or prompt, or the URI of the resource."""
    call: bytes
    call_id: str | None
    """The id of the call in the log. The id also distinguishes two calls with the same request
    id."""


@dataclass(eq=False)
class HiddenTasks:
    """The hidden tasks of one view."""

    _store: StoredTasks
    clock: Clock
    _config: TasksConfig
    patiently: Patiently
    """Repeats operations while the store cannot be reached."""
    wait_ms: int
    """The time that a client has for its answers, in milliseconds."""
    repeatable_ms: int
    """The time for which a client can repeat a round, in milliseconds."""
    view: str
    """The view; empty for the endpoint of all tools."""

    def __post_init__(self) -> None:
        self.keep_ms = max(KEEP_MS, self.repeatable_ms)
        self._tidied_ms = self.clock.monotonic_ms()

    def ref(self, owner: Principal, *names: str | int) -> TaskRef:
        """Return the reference of the task for a request of a session, or for a round of a call,
        whether or not the task exists."""
        return self.ref_of(owner, HIDDEN + json.digest(list(names)))

    def ref_of(self, owner: Principal, task_id: str) -> TaskRef:
        """Return the reference of an owner's task."""
        return TaskRef(task_owner(owner, self.view), task_id)

    @property
    def until_ms(self) -> int:
        """Return the end of the wait for answers to a question asked now, in milliseconds since the
        epoch."""
        return self.clock.now_ms() + self.wait_ms

    @staticmethod
    def is_late(record: TaskRecord, now_ms: int) -> bool:
        """Return whether the wait for a task's answers is over."""
        return record.expires_ms - LEEWAY_MS < now_ms

    def expires_ms(self, created_ms: int) -> int:
        """Return the expiry of a task that waits or runs now, in milliseconds since the epoch."""
        return min(self.until_ms + LEEWAY_MS, created_ms + LONGEST_MS)

    # creation

    async def ask(self, call: NewCall, state: bytes, questions: Mapping[str, bytes]) -> TaskRef:
        """Store a call that asks, with the state of the round that has ended. `questions` has the form
        of each question for the operator, by name. Without questions, another request continues the
        call.

        Raises:
            CallCancelled: the client has cancelled the call.
            ToolError: the caller has too many open tasks.
            Unavailable: the store cannot be reached.
        """
        status = Status.INPUT_REQUIRED if questions else Status.WORKING
        task = replace(self._new(call), state=state, status=status, requests=questions)
        return (await self._create(task, self.patiently)).ref

    async def report(self, call: NewCall) -> Holding:
        """Store a call in its first round, which this process runs.

        Raises:
            CallCancelled, ToolError, Unavailable: as for `ask`.
        """
        until_ms = self.clock.now_ms() + LEASE_MS
        task = replace(self._new(call), lease_until_ms=until_ms)
        record = await self._create(task, _at_once)  # the report waits for this
        return self._holding(record, call.call)

    def _holding(self, record: TaskRecord, call: bytes) -> Holding:
        """Return a task that this process has created with a lease."""
        claimed = Claimed(call, (), _UNKNOWN_STATE, {}, Lease.of(record), record)
        return Holding(self, self._store, claimed)

    async def send(
        self, ref: TaskRef, tool: str, answers: bytes, *, secret: str, continues: bool
    ) -> bytes | Holding | NotSent:
        """Store the answers of a round, unless it has answers or an outcome; return the outcome once
        it is stored.

        If this process `continues` the call, return the round itself, claimed, unless another process
        runs it; otherwise the process that listens for the round (`receive`) has to run it. The
        digest in the row includes `secret`, a text that operators do not see, so that they cannot
        guess the answers from it.

        Raises:
            QuotaExceeded: the account of the owner has no room for the answers.
        """
        await self._tidy()
        digest = json.digest([secret, json.decode(answers)])
        lease_ms = LEASE_MS if continues else 0
        task = self._round(ref, tool, answers, lease_ms=lease_ms, call_id=digest)
        is_new = await self._always(lambda: self._store.create(task))
        sight = Sight(self.clock)
        with self.looks(ref) as looks:
            while True:
                looks.news.clear()
                record = await self._always(lambda: self._store.head(ref))
                if record is None:
                    return NotSent.LOST
                if is_new and continues and record.fence == 1:
                    return self._holding(record, answers)
                is_new = False
                if record.call_id not in (None, task.call_id):
                    return NotSent.OTHER
                if not record.is_open:
                    outcome = await self._always(lambda: self.outcome(ref))
                    return NotSent.LOST if outcome == _LOST else outcome or NotSent.ENDED
                if self._is_over(record):
                    return NotSent.LOST
                if sight.is_free(record, stays_free=continues):
                    holding = await self._always(partial(self.claim, record))
                    if holding is not None and continues:
                        return holding
                    if holding is not None:
                        await self._lose(holding)
                        return NotSent.LOST
                await looks.pause()

    async def _lose(self, holding: Holding) -> None:
        """End a round whose process has died, so that it is not open any more, and cannot run."""
        with suppress(LeaseLost):
            await self._always(lambda: holding.finish(_LOST, Ending.ERROR))

    async def _always(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `ask`, and repeat it while the store is unavailable; the deadline of
        the caller ends this."""
        while True:
            try:
                return await self.patiently(ask)
            except QuotaExceeded:
                raise
            except Unavailable:
                await self.clock.sleep(LOOKS_S[1])

    def _round(
        self, ref: TaskRef, tool: str, answers: bytes, *, lease_ms: int = 0, **facts: Any
    ) -> NewTask:
        now_ms = self.clock.now_ms()
        return NewTask(
            ref,
            tool,
            answers,
            created_ms=now_ms,
            expires_ms=now_ms + self.keep_ms,
            due_ms=now_ms + self.keep_ms,
            lease_until_ms=now_ms + lease_ms if lease_ms else 0,
            **facts,
        )

    async def close(self, ref: TaskRef, tool: str, outcome: bytes) -> bool:
        """End a round without answers; return `False` if it has answers.

        Raises:
            Unavailable: the store cannot be reached.
        """
        task = self._round(ref, tool, b"", status=Status.COMPLETED, outcome=outcome)
        await self.patiently(lambda: self._store.create(task))
        record = await self.patiently(lambda: self._store.head(ref))
        return record is None or record.call_id is None

    async def receive(self, ref: TaskRef) -> Holding | None:
        """Wait until a request sends the answers of a round, and claim the round. Return `None` if
        the round has ended instead."""
        with self.looks(ref) as looks:
            while True:
                looks.news.clear()
                with suppress(Unavailable):
                    record = await self._store.head(ref)
                    if record is not None and (holding := await self.claim(record)) is not None:
                        return holding
                    if record is not None and self._is_over(record):
                        return None
                await looks.pause()

    def _is_over(self, record: TaskRecord) -> bool:
        """Return whether a round has ended or expired, so that no process can claim it."""
        return not record.is_open or record.expires_ms <= self.clock.now_ms()

    @contextmanager
    def looks(self, ref: TaskRef) -> Iterator[Looks]:
        """Yield the pauses between reads of a task, which are made within the block."""
        looks = Looks()
        end = self._store.listen(ref, looks.news.set)
        try:
            yield looks
        finally:
            end()

    def _new(self, call: NewCall) -> NewTask:
        now_ms = self.clock.now_ms()
        return NewTask(
            self.ref(call.owner, call.session, call.request_id),
            call.name[:200],
            call.call,
            created_ms=now_ms,
            expires_ms=self.expires_ms(now_ms),
            due_ms=self.expires_ms(now_ms),
            state=_UNKNOWN_STATE,
            call_id=call.call_id or self.clock.new_id(),
        )

    async def _create(self, task: NewTask, patiently: Patiently) -> TaskRecord:
        await self._tidy()
        most = self._config.max_open_per_owner
        if await patiently(lambda: self._store.count_open(task.ref.owner, most)) >= most:
            raise ToolError(
                f"You have {most:,} open calls and tasks, the maximum (tasks.max_open_per_owner). "
                "Answer the questions of some, or cancel some, and call again"
            )
        while True:
            await patiently(lambda: self._store.create(task))
            record = await patiently(lambda: self._store.head(task.ref))
            if record is not None and record.call_id == task.call_id:
                return record
            if record is not None and self._was_cancelled(record):
                raise CallCancelled
            # the client reuses the id of an earlier request
            await self.cancel(task.ref)
            await patiently(lambda: self._store.purge(task.ref, task.created_ms))

    async def _tidy(self) -> None:
        now_ms, monotonic_ms = self.clock.now_ms(), self.clock.monotonic_ms()
        if monotonic_ms - self._tidied_ms < TIDY_MS:
            return
        self._tidied_ms = monotonic_ms
        with suppress(Unavailable):
            late = await self._store.due(now_ms - TIDY_AFTER_MS, TIDIED)
            refs = [task.ref for task in late if task.ref.is_hidden]
            await self._store.apply_many([(ref, Expire(now_ms)) for ref in refs], now_ms)
            await self._store.forget(now_ms)

    # for any process

    async def head(self, ref: TaskRef) -> TaskRecord | None:
        """Return the task without its values, expired or not; `None` if it is unknown.

        Raises:
            Unavailable: the store cannot be reached.
        """
        return await self._store.head(ref)

    async def outcome(self, ref: TaskRef) -> bytes | None:
        """Return the outcome of a terminal task, or `None` if the task ended without one.

        Raises:
            Unavailable: the store cannot be reached.
        """
        record = await self.patiently(lambda: self._store.read(ref, 0))
        return None if record is None else record.outcome

    async def whole(self, ref: TaskRef) -> tuple[TaskRecord | None, Work | None]:
        """Return the task with its work; `None` for an unknown task, and for work that the store
        has deleted because the task is terminal.

        Raises:
            Unavailable: the store cannot be reached.
        """
        return await self.patiently(lambda: self._store.read_work(ref))

    async def answer(self, ref: TaskRef, question: str, answer: bytes, *, ends: bool) -> None:
        """Store an answer, unless the question has been answered. If it `ends` the round, it also
        answers the other questions.

        Raises:
            Unavailable: the store cannot be reached.
        """
        answers = {question: answer}
        if ends:
            record = await self.patiently(lambda: self._store.head(ref))
            if record is not None and question in record.asked:
                answers = dict.fromkeys(record.asked, answer)
        now_ms = self.clock.now_ms()
        due_ms = self.until_ms + LEEWAY_MS  # at or after its expiry
        await self.patiently(lambda: self._store.apply(ref, TakeAnswers(answers, due_ms), now_ms))

    async def cancel(self, ref: TaskRef, why: str = CANCELLED) -> None:
        """Cancel a task, unless it is terminal or does not exist.

        Raises:
            Unavailable: the store cannot be reached.
        """
        now_ms = self.clock.now_ms()
        await self.patiently(lambda: self._store.apply(ref, Cancel(why, now_ms), now_ms))

    async def cancel_call(self, ref: TaskRef) -> None:
        """Cancel the call of a request. If the call has no task yet, the task exists from now on and
        is cancelled, which its process sees.

        Raises:
            QuotaExceeded: the account of the owner has no room for the task.
            Unavailable: the store cannot be reached.
        """
        while True:
            now_ms, until_ms = self.clock.now_ms(), self.until_ms
            event = Cancel(CANCELLED, now_ms)
            decision = await self.patiently(partial(self._store.apply, ref, event, now_ms))
            if decision.result is not Cancelled.UNKNOWN_TASK:
                return
            task = NewTask(ref, "", b"", now_ms, until_ms, until_ms, status=Status.CANCELLED)
            if await self.patiently(partial(self._store.create, task)):
                return
            await self.patiently(partial(self._store.purge, ref, now_ms))  # an expired one

    async def is_cancelled(self, ref: TaskRef) -> bool:
        """Return whether a call was cancelled before it had a task.

        Raises:
            Unavailable: the store cannot be reached.
        """
        record = await self.patiently(lambda: self._store.head(ref))
        return record is not None and self._was_cancelled(record)

    def _was_cancelled(self, record: TaskRecord) -> bool:
        is_early = record.call_id is None and record.status is Status.CANCELLED
        return is_early and record.expires_ms > self.clock.now_ms()

    async def claim(self, record: TaskRecord) -> Holding | None:
        """Claim a task that is free, or whose lease is lost, as `record` shows. Return `None` if
        another process was first.

        Raises:
            Unavailable: the store cannot be reached.
        """
        now_ms = self.clock.now_ms()
        due_ms, lapsed_ms = record.expires_ms + LONGEST_MS, record.lease_until_ms
        event = Claim(now_ms + LEASE_MS, due_ms, lapsed_ms, alone=True)
        claimed = await self.patiently(lambda: self._store.claim(record.ref, event, now_ms))
        if not isinstance(claimed, Claimed):
            return None
        holding = Holding(self, self._store, claimed)
        if claimed.record.call_id != record.call_id:  # a new call has replaced the call of `record`
            await holding.let_go()
            return None
        return holding

    def has_died_often(self, record: TaskRecord) -> bool:
        """Return whether so many processes died with a task that no other process tries it."""
        return record.deaths >= self._config.max_deaths


class Looks:
    """The pauses between two reads of a task."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Set when this process has changed the task, so that the next read follows at once."""
        self._pause_s = LOOKS_S[0]

    async def pause(self, longest_s: float = LOOKS_S[1]) -> None:
        """Wait until the next read. The pauses grow."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._pause_s, longest_s)):
                await self.news.wait()
        self._pause_s = min(1.5 * self._pause_s, LOOKS_S[1])


class Sight:
    """The observation of a task's lease by one request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lease: tuple[int, int] | None = None
        self._since_ms = self._looked_ms = 0.0

    def is_free(self, record: TaskRecord, *, stays_free: bool = True) -> bool:
        """Return whether no process runs the task any more. With `stays_free=False`, a process is
        expected to claim the free task, as if it had a lease from the beginning."""
        now_ms, lease = self._clock.monotonic_ms(), (record.fence, record.lease_until_ms)
        if lease != self._lease or now_ms - self._looked_ms > GAP_MS:
            self._lease, self._since_ms = lease, now_ms
        self._looked_ms = now_ms
        if record.lease_until_ms == 0 and stays_free:
            return True
        unrenewed_ms = now_ms - self._since_ms
        until_ms = record.lease_until_ms or record.created_ms + LEASE_MS
        has_lapsed = until_ms + SKEW_MS < self._clock.now_ms()
        return unrenewed_ms >= (UNRENEWED_MS if has_lapsed else LEASE_MS)


class Holding:
    """A hidden task whose round this process runs.

    Every method but `beat` and `renewed` releases the task. The methods raise `LeaseLost` if the task was
    cancelled or taken over, and `Unavailable` if the store cannot be reached; `let_go` ignores both
    errors.
    """

    def __init__(self, tasks: HiddenTasks, store: StoredTasks, claimed: Claimed) -> None:
        self._tasks = tasks
        self._store = store
        self.claimed = claimed
        self._expires_ms = claimed.record.expires_ms

    @property
    def ref(self) -> TaskRef:
        """Return the reference of the task."""
        return self.claimed.lease.ref

    @property
    def answers(self) -> bytes:
        """Return the answers of a round of an older server's call (`HiddenTasks.send`)."""
        return self.claimed.call

    def renewed(self) -> Heartbeat:
        """Return a context manager that renews the lease until its block ends."""
        return Heartbeat(BEAT_S, self.beat, task=str(self.ref))

    @property
    def is_first(self) -> bool:
        """Return whether this is the first round, which never runs again."""
        return self.claimed.state == _UNKNOWN_STATE

    async def beat(self, state: bytes | None = None) -> None:
        """Renew the lease. Also store the state of a round that ended without questions.

        Raises:
            LeaseLost: the task was cancelled or taken over.
            Unavailable: the store cannot be reached.
        """
        now_ms = self._tasks.clock.now_ms()
        later_ms = self._later_ms() if self._expires_ms < now_ms + LEEWAY_MS else None
        added = Added(state=state, expires_ms=later_ms)
        event = Checkpoint(now_ms + LEASE_MS, later_ms, added=added)
        await self._store.write(self.claimed.lease, event, now_ms)
        self._expires_ms = later_ms or self._expires_ms

    async def suspend(self, state: bytes, questions: Mapping[str, bytes]) -> None:
        """Ask the client, as `HiddenTasks.ask` does."""
        added = Added(state=state, expires_ms=self._later_ms())
        await self._write(SuspendTask(questions, added=added))

    async def release(self, state: bytes | None = None) -> None:
        """Leave the next round to another request, or this round if `state` is `None`."""
        later_ms = self._later_ms()
        await self._write(Release(0, later_ms, added=Added(state=state, expires_ms=later_ms)))

    async def finish(self, outcome: bytes, ending: Ending = Ending.OK) -> None:
        """End the task."""
        status = Status.FAILED if ending is Ending.ERROR else Status.COMPLETED
        expires_ms = self._tasks.clock.now_ms() + self._tasks.keep_ms
        await self._write(Finish(status, outcome, ending=ending, expires_ms=expires_ms))

    async def _write(self, event: UnderLease) -> None:
        lease, clock = self.claimed.lease, self._tasks.clock
        await self._tasks.patiently(lambda: self._store.write(lease, event, clock.now_ms()))

    async def let_go(self) -> None:
        """Release a round that did not end, without errors. If the store cannot be reached, another
        request takes the task over later."""
        with suppress(LeaseLost, Unavailable):
            await self.release()

    def _later_ms(self) -> int:
        return self._tasks.expires_ms(self.claimed.record.created_ms)


async def _at_once(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()
