"""The lease of a turn: the time that it has left, the heartbeat that renews it, and every write
under it, repeated until the store takes it.

    renewal sent ──────▶ store writes until = sent + lease ──────▶ answer
         └ counted from here, by two clocks; the shorter remaining time counts

A wall clock can be set forward or back; a monotonic clock stops while the machine sleeps. Using
both covers both cases.

A sweep finds tasks by their due time in an index, whose entry costs more to move than the lease. So
only one of several renewals moves the due time, shortly before it passes, and never beyond the
moment at which the lease will have lapsed:

    created, due at 30 ── claim at 0 ── renewal at 15 ── at 25: lease to 55, due at 115 ── … ── at 110: due at 200
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from msgspec import Struct

from roundgate import aio
from roundgate.clock import Clock, Moment
from roundgate.errors import LeaseLost, NotJson, QuotaExceeded, Suspend, TaskTimeout, ToolError
from roundgate.json import encode
from roundgate.observability.metrics import Metrics
from roundgate.protocol import Status
from roundgate.replay import (
    Answered,
    Asked,
    Call,
    Entry,
    Journal,
    Opened,
    Run,
    Stop,
    TimedOutQuestion,
    inside,
    plain,
    row,
)
from roundgate.settings import TasksConfig
from roundgate.storage import Mark
from roundgate.tasks.clock_trust import ClockTrust
from roundgate.tasks.events import Added, Checkpoint, UnderLease
from roundgate.tasks.life import Life, waits_until_ms
from roundgate.tasks.stored import Claimed, StoredTasks

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

log = logging.getLogger("roundgate.tasks")

MAX_MESSAGE_DELAY_MS: Final = 900_000
"""The maximum delay of a message in SQS, in milliseconds. The sweep wakes tasks that sleep
longer."""
MARGIN_MS = 2_000
"""The part of a lease in milliseconds that must be left for a step to begin, or a quarter of the
lease if that is more."""

SOON_PART = 1 / 6
"""The longest time between two heartbeats as a part of a lease: a renewal moves a due time within
this time."""


@dataclass(slots=True)
class LeaseTime:
    """The remaining time of a lease. `lease_ms` is the length of a lease, `skew_ms` the maximum
    difference of clocks, both in milliseconds."""

    clock: Clock
    lease_ms: int
    skew_ms: int
    _sent: Moment = field(init=False)

    def __post_init__(self) -> None:
        self._sent = Moment.now(self.clock)

    def claimed(self, until_ms: int) -> None:
        """Record a claim that holds until `until_ms`. Only the wall clock shows when the claim was
        made."""
        now = Moment.now(self.clock)
        sent_ms = until_ms - self.lease_ms
        self._sent = Moment(sent_ms, now.monotonic_ms - max(0, now.wall_ms - sent_ms))

    def renewed(self, sent: Moment) -> None:
        """Record that the store has a renewal that was sent at `sent` or later."""
        if sent.monotonic_ms >= self._sent.monotonic_ms:
            self._sent = sent

    @property
    def left_ms(self) -> float:
        """Return the milliseconds for which the lease certainly holds, if clocks differ by at most
        `skew_ms`."""
        now = Moment.now(self.clock)
        gone_ms = max(now.wall_ms - self._sent.wall_ms, now.monotonic_ms - self._sent.monotonic_ms)
        return self.lease_ms - gone_ms

    @property
    def lets_begin(self) -> bool:
        """Return whether enough of the lease is left to begin a step. The heartbeat normally renews
        the lease long before."""
        return self.left_ms >= min(max(MARGIN_MS, self.lease_ms / 4), self.lease_ms / 3)

    @property
    def is_half_over(self) -> bool:
        """Return whether the lease should be renewed. A quick step ends before that and costs no
        renewal."""
        return self.left_ms < self.lease_ms / 2

    def until_ms(self, sent: Moment) -> int:
        """Return the end of a lease that is claimed or renewed at a moment, in milliseconds since
        the epoch."""
        return sent.wall_ms + self.lease_ms

    def due_ms(self, sent: Moment, now_due_ms: int) -> int | None:
        """Return when a sweep has to check whether the worker died: as soon as other workers may
        claim the task, in milliseconds since the epoch. Return `None` if `now_due_ms` can stay."""
        return self.until_ms(sent) + self.skew_ms if self.is_due_soon(now_due_ms) else None

    def is_due_soon(self, due_ms: int) -> bool:
        """Return whether a sweep may find the task before the next heartbeat."""
        return due_ms < self.clock.now_ms() + self.lease_ms * SOON_PART


T = TypeVar("T")

PAUSES_S: Final = (0.1, 0.5, 2.0, *[5.0] * 60)
"""The pauses in seconds between attempts at a failing write: five minutes in all. If the lease
cannot be renewed meanwhile, other workers find the task once the store is back."""


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work. A cancellation is raised only after the work has ended."""
    task = _apart(work)
    cancelled = await aio.to_its_end(task)
    if cancelled is None or task.cancelled():
        return task.result()
    # the work has handled its error; retrieve it, so that asyncio does not report it
    task.exception()
    raise cancelled


class Patience:
    """Repeats a write after errors, until it succeeds, the lease is lost, or time is up."""

    def __init__(self, is_over: Callable[[], bool], **fields: Any) -> None:
        """Make a retrier. `is_over` returns whether the time is over; `fields` are logged with each
        failure."""
        self._is_over = is_over
        self._fields = fields
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Make one more attempt at most, because the process is about to end."""
        self._hurry.set()

    async def attempt(self, what: str, write: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a write, and repeat the write until it succeeds or the time is over.

        Raises:
            LeaseLost, QuotaExceeded: the write raised it; these errors are never retried.
            Exception: the error of the last attempt.
        """
        for pause_s in PAUSES_S:
            try:
                return await write()
            except (LeaseLost, QuotaExceeded):
                raise
            except Exception as error:
                if self._hurry.is_set() or self._is_over():
                    raise
                self._tell(what, error)
            await self._pause(pause_s)
        return await write()

    def _tell(self, what: str, error: Exception) -> None:
        fields = {**self._fields, "error": f"{type(error).__name__}: {error}"[:500]}
        log.warning("%s failed, trying again", what, extra={"fields": fields})

    async def _pause(self, pause_s: float) -> None:
        hurry = _apart(self._hurry.wait())
        try:
            await asyncio.wait([hurry], timeout=pause_s)
        finally:
            hurry.cancel()


def _apart(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start an asyncio task outside of every handler."""
    with inside(None):
        return asyncio.create_task(work)


class Heartbeat:
    """A context manager that calls `beat` repeatedly until the block ends: `async with
    Heartbeat(every_s, beat): …`.

    The heartbeat is an asyncio task of its own. It survives its own errors, which it logs, and a
    handler that cancels every task of the event loop.
    """

    def __init__(self, every_s: float, beat: Callable[[], Awaitable[None]], **fields: Any) -> None:
        """Make a heartbeat with a period of `every_s` seconds. `fields` are logged with each
        error."""
        self._every_s = every_s
        self._beat = beat
        self._fields = fields
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Heartbeat:
        self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
            # unlike `await task`, this does not confuse its end with a cancellation of this task
            await asyncio.wait([self._task])

    def _start(self) -> None:
        self._task = asyncio.create_task(self._go_on())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Start again if the task was ended from outside, perhaps before it started."""
        if self._is_over:
            return
        log.warning("a heartbeat was interrupted and continues", extra={"fields": self._fields})
        self._start()

    async def _go_on(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._every_s)
            try:
                await self._beat()
            except Exception as error:
                log.warning("a heartbeat failed", exc_info=error, extra={"fields": self._fields})


class Means(Struct, frozen=True):
    """The resources that the turns of one worker share."""

    tasks: StoredTasks
    clock: Clock
    config: TasksConfig
    life: Life
    skew_ms: int
    """The maximum difference in milliseconds of the clocks that share the store."""
    trust: ClockTrust
    metrics: Metrics
    trail: Trail | None = None
    shows_errors: bool = False

    def due_ms(self, wake_ms: int = 0) -> int:
        """Return when a sweep should check a task that continues at `wake_ms`, in milliseconds
        since the epoch: at that time if no message can be delayed so long, otherwise when the
        message may be assumed lost."""
        now_ms = self.clock.now_ms()
        if wake_ms > now_ms + MAX_MESSAGE_DELAY_MS:
            return wake_ms
        return max(now_ms, wake_ms) + int(self.config.requeue_after_s * 1000)


class TaskCheckpointer:
    """Every write of a run under the lease of its task. The engine's `replay.Checkpointer`.

    `error` is set once the run has to end: `LeaseLost` if another worker has the task or the task
    has ended, else the error of a write.
    """

    def __init__(self, means: Means, claimed: Claimed, call: Call, journal: Journal) -> None:
        """Make the run of a handler, which has not started."""
        record = claimed.record
        self._means = means
        self._store = means.tasks
        self._clock = means.clock
        self._record = record
        self._lease = claimed.lease
        self._time = LeaseTime(means.clock, int(means.config.lease_s * 1000), means.skew_ms)
        self._time.claimed(record.lease_until_ms)
        self._due_ms = record.due_ms or 0
        self._expires_ms = record.expires_ms
        """The expiry with every wait so far, perhaps not written yet."""
        self._written_expires_ms = self._expires_ms
        self._keeping = asyncio.Lock()
        self._renewing = asyncio.Lock()
        self._message = record.status_message
        self._state = claimed.state
        self._bytes = sum(map(len, [*claimed.journal, *claimed.answers.values()]))
        self.error: Exception | None = None
        self.patience = Patience(lambda: call.deadline.is_past, task=str(record.ref))
        self.run = Run(call, journal, self, self._message)
        if journal.received:  # an answer ends a wait
            self.extend_life(self._clock.now_ms())
        # the store has the initial entries already: answers are read again with their questions
        self._saved = {_place(entry): entry for entry in journal.entries()}
        self._check_time()

    # the time of the task

    @property
    def end_ms(self) -> int:
        """Return when the task is ended because it takes too long, in milliseconds since the
        epoch."""
        return self._means.life.end_ms(self._record.created_ms, self._expires_ms)

    def _check_time(self) -> None:
        """End the run if the task takes too long."""
        if self._clock.now_ms() >= self.end_ms and self._means.trust.expires:
            limit = self._means.life.limit(self._record.created_ms, self._expires_ms)
            text = f"The task exceeded the time limit of this server ({limit})"
            self.end(TaskTimeout(text))

    def extend_life(self, from_ms: int | None = None) -> None:
        """Keep the task after a wait until `from_ms`, by default until the end of the waits in the
        journal. The next write extends the row."""
        if from_ms is None:
            from_ms = waits_until_ms(self.run.journal.entries())
        self._expires_ms = self._means.life.extended_ms(
            self._record.created_ms, self._expires_ms, from_ms
        )

    @property
    def later_expires_ms(self) -> int | None:
        """Return the expiry if the record has an earlier one, otherwise `None`."""
        return self._expires_ms if self._expires_ms > self._written_expires_ms else None

    # for the engine

    async def admit(self) -> None:
        """Return once a step may begin.

        Raises:
            Suspend: the lease is lost, or the store cannot confirm it.
        """
        if self._time.lets_begin:
            return
        try:
            await self.patience.attempt("renewing a lease", self._renew_in_time)
        except Exception as error:
            self._stop_with(error)

    async def checkpoint(self, *entries: Entry) -> None:
        """Return once these entries and everything unwritten before them are durable.

        The engine calls this method in an asyncio task of its own, so cancelling the handler does
        not interrupt it.

        Raises:
            Suspend: the entries cannot be written.
            NotJson: `ctx.state` has no JSON form.
            ToolError: the journal exceeds `tasks.max_journal_bytes`.
        """
        try:
            rows = [encode(row(entry)) for entry in entries]
            self._account(entries, rows)
            # a failed write may have happened: repeat it before any other write
            async with self._keeping:
                added, begun = self._added(rows, entries), Moment.now(self._clock)
                await self.patience.attempt("a checkpoint", lambda: self._write(added))
                self._time.renewed(begun)  # any of the attempts may be the one that succeeded
                self._saved.update((_place(entry), entry) for entry in entries)
        except NotJson:  # in ctx.state, the handler's own data
            raise
        except QuotaExceeded as error:  # the caller's limit, not a fault of the gateway
            self._stop_with(ToolError(str(error)))
        except Exception as error:
            self._stop_with(error)

    def _account(self, entries: Sequence[Entry], rows: Sequence[bytes]) -> None:
        self._bytes += sum(map(len, rows))
        most = self._means.config.max_journal_bytes
        if self._bytes > most:
            journal = self.run.journal
            for entry in entries:
                journal.add(entry)
            raise ToolError(
                f"The journal of the task has more than {most} bytes (tasks.max_journal_bytes); "
                f"the largest entry is {journal.largest()}"
            )

    async def _write(self, added: Added) -> None:
        async with self._renewing:
            await self._extend(added, Moment.now(self._clock))
        self._state = self._state if added.state is None else added.state

    async def _renew_in_time(self) -> None:
        """Renew the lease.

        Raises:
            TimeoutError: too little of the lease was left for a step when the store answered.
        """
        await self._renew()
        if not self._time.lets_begin:
            raise TimeoutError("the store answered too late to begin a step within the lease")

    # for the heartbeat

    async def attend(self, *, look: bool) -> None:
        """Renew the lease and write the status message if either is due. End the run if the task
        takes too long, was cancelled or taken over, or has expired.

        Args:
            look: if nothing is due, read the row to check that the lease still holds.

        Raises:
            Exception: any error of the store.
        """
        self._check_time()
        try:
            if self._clock.now_ms() >= self._expires_ms and self._means.trust.expires:
                raise LeaseLost(self._record.ref.id)
            is_due = self._time.is_half_over or self._time.is_due_soon(self._due_ms)
            if is_due or self._unwritten_message() is not None:
                await self._renew()
            elif look:
                await self._look()
        except LeaseLost as error:
            self.end(error)

    async def _renew(self) -> None:
        """Extend the lease and write the status message. `ctx.state` is not written, because the
        handler may be changing it."""

        async def renew() -> None:
            async with self._renewing:  # the last write decides when the lease ends
                sent = Moment.now(self._clock)
                message = self._unwritten_message()
                await self._extend(
                    Added(status_message=message, expires_ms=self.later_expires_ms), sent
                )
                self._time.renewed(sent)

        await to_its_end(renew())

    async def _extend(self, added: Added, sent: Moment) -> None:
        """Write `added` and renew the lease in one write."""
        due_ms = self._time.due_ms(sent, self._due_ms)
        event = Checkpoint(self._time.until_ms(sent), due_ms, added=added)
        await self._store.write(self._lease, event, sent.wall_ms)
        self._due_ms = due_ms or self._due_ms
        self._written_expires_ms = added.expires_ms or self._written_expires_ms
        self._message = self._message if added.status_message is None else added.status_message

    async def _look(self) -> None:
        record = await self._store.read(self._record.ref, self._clock.now_ms())
        if (
            record is None
            or record.status is not Status.WORKING
            or record.fence != self._lease.fence
        ):
            raise LeaseLost(self._record.ref.id)

    # the end of the run

    @property
    def is_lost(self) -> bool:
        """Return whether another worker has the task, or the task has ended."""
        return isinstance(self.error, LeaseLost)

    def end(self, error: Exception) -> None:
        """End the run with an error that its handler cannot catch, at its next call of the
        context."""
        is_lost = isinstance(error, LeaseLost)
        if is_lost or self.error is None:
            self.error = error
        self.run.stop(Stop.LOST if is_lost else Stop.FAULT)

    def _stop_with(self, error: Exception) -> NoReturn:
        self.end(error)
        raise Suspend from None

    # the end of the turn

    async def last_with_rest(self, make_event: Callable[[Added], UnderLease]) -> None:
        """Write the event that ends the turn, with everything that the run has not written yet:
        questions, sleeps, answers that it read, state, status message. A running checkpoint ends
        first, so that its entries are not written twice."""

        async def when_kept() -> None:
            async with self._keeping:
                entries = self.run.journal.entries()
                unwritten = [entry for entry in entries if self._saved.get(_place(entry)) != entry]
                rest = self._added([encode(row(entry)) for entry in unwritten], unwritten)
                await self.last(make_event(rest))

        await to_its_end(when_kept())

    async def last(self, event: UnderLease) -> None:
        """Write the event that ends the turn, or raise as `Patience.attempt` does."""

        async def write() -> None:
            await self._store.write(self._lease, event, self._clock.now_ms())

        await to_its_end(self.patience.attempt("the last write of a turn", write))

    def unwritten_journal(self) -> list[bytes] | None:
        """Return the whole journal if it has unwritten entries; otherwise `None`."""
        entries = list(self.run.journal.entries())
        if all(self._saved.get(_place(entry)) == entry for entry in entries):
            return None
        return [encode(row(entry)) for entry in entries]

    def _added(self, rows: Sequence[bytes], entries: Sequence[Entry]) -> Added:
        state = encode(plain(self.run.journal.state, "ctx.state"))
        return Added(
            entries=rows,
            state=state if state != self._state else None,
            status_message=self._unwritten_message(),
            expires_ms=self.later_expires_ms,
            events=[
                Mark(entry.name, entry.until_ms)
                for entry in entries
                if isinstance(entry, Opened) and entry.outcome is None
            ],
        )

    def _unwritten_message(self) -> str | None:
        """Return the handler's status message, or `None` if the record already has it. Lone
        surrogates, as in some file names, are replaced."""
        message = self.run.message
        shown = None if message is None else message.encode(errors="replace").decode()
        return shown if shown != self._message else None


_QUESTIONS: Final = (Asked, Answered, TimedOutQuestion)


def _place(entry: Entry) -> tuple[bool, str]:
    """Return whether an entry belongs to a question, and its key. The journal holds one entry for
    each such pair."""
    return isinstance(entry, _QUESTIONS), entry.key
