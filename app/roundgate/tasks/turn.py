"""One turn at a task: a run of the handler takes a claimed record to its next state.

    claimed ──▶ run the handler from the top ──▶ finish     the handler returned or raised
                                             ├─▶ suspend    the handler asks the client; no worker waits for the answer
                                             ├─▶ release    the handler sleeps, or its time is up; a message follows
                                             ├─▶ decline    this worker cannot serve the task; others may
                                             └─▶ (nothing)  the lease is lost: its new holder continues

    Worker.run ──▶ Turn.take ──▶ read_task ──▶ engine.run_handler ──▶ the handler
                       │                           └─▶ admit, checkpoint ──▶ StoredTasks.write ──▶ machine.apply
                       └─▶ _commit ──▶ outcome.ended ──▶ StoredTasks.write ──▶ machine.apply

**During the run** every finished step is a conditional write before the handler continues. A step
begins only while enough of the lease is left; a worker that was stopped and continued first checks
that it still holds the task. Each write also renews the lease, so the heartbeat writes only if no
step ends for half a lease:

    handler      step 1 ──── (process stopped, lease over) ──── admit ─── step 2
    checkpointer        ✓ checkpoint                              └ renew: yes, it is ours │ LeaseLost: the run ends

**A handler that does not end** is cancelled, then abandoned. The handler runs in an asyncio task of
its own, so the turn ends even if the handler ignores a cancellation. A handler that is starting
external work (`Run.is_beginning`) first receives the response.

    stopped (lease lost, time is up, suspended but still running) ── GRACE_S ── cancelled ── GRACE_S ── abandoned

**The end of the turn** is one write, with the message that makes a worker claim the task again:

| turn | the row | attempts | blame |
|---|---|---|---|
| finished | terminal | | |
| step failed | terminal; the work is kept for `tasks retry` | | |
| asked, released | free, or waits for its client | 0 | lifted |
| declined: no worker, or no place at the back end | free after a pause | as before | stays |
| restarted: `ctx.restart` | free, with a fresh journal | 0 | lifted |
| parked: the handler took another path | asleep until its operator wakes it | as before | stays |
| fault of the gateway | free after a pause | one more | stays |
| the process crashes, perhaps because of a handler | free, a suspect | as before | begins |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from roundgate.backends import Catalog, CatalogSource, Returned, ServedTool
from roundgate.clock import Clock, Deadline, Moment
from roundgate.errors import (
    ArgumentsRefused,
    BackendBusy,
    CallTimeout,
    HandlerVersionError,
    InternalError,
    JobLeft,
    LeaseLost,
    NondeterminismError,
    NotJson,
    NotServedHere,
    QuotaExceeded,
    Suspend,
    TaskGivenUp,
    TaskTimeout,
    ToolError,
    Unavailable,
    WorkerFault,
)
from roundgate.json import encode
from roundgate.observability.metrics import Metrics
from roundgate.observability.tracing import Correlation, Tracing
from roundgate.protocol import Status
from roundgate.replay import (
    HOLD_MS,
    JOURNAL_VERSION,
    Answered,
    Asked,
    Call,
    Cleanup,
    Completed,
    Context,
    Entry,
    Failed,
    HiddenRounds,
    Journal,
    LongTexts,
    Opened,
    Publish,
    Raised,
    Restarted,
    Run,
    Stop,
    Suspended,
    TimedOutQuestion,
    engine,
    plain,
    row,
)
from roundgate.settings import TasksConfig
from roundgate.storage import Ending, Mark, TaskRecord, TaskRef
from roundgate.tasks import watchdog
from roundgate.tasks.call import Life, TaskCall, read_task, waits_until_ms
from roundgate.tasks.events import (
    NOTHING,
    Added,
    Checkpoint,
    Finish,
    LetGo,
    Park,
    Release,
    Restart,
    UnderLease,
)
from roundgate.tasks.events import SuspendTask as Ask
from roundgate.tasks.external import EventsOfTask, EventSource
from roundgate.tasks.lease import (
    MAX_MESSAGE_DELAY_MS,
    ClockTrust,
    Heartbeat,
    LeaseTime,
    Patience,
    to_its_end,
)
from roundgate.tasks.outcome import (
    call_outcome,
    ended,
    failed,
    failure_reason,
    log_failure,
    tell_refused,
)
from roundgate.tasks.stored import Claimed, Lease, StoredTasks

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

BACKOFF_MS: Final = (1_000, 5_000, 20_000, 60_000)
DECLINED_MS: Final = (1_000, 60_000)
"""The shortest and the longest pause after a decline, in milliseconds; between them, a quarter of
the time since the first decline."""
PARKED: Final = "Waiting for the operator of this server"
"""The beginning of the status message of a parked task."""
GRACE_S: Final = 2.0
"""The time in seconds for which a stopped handler may continue before it is cancelled, and then
again before it is abandoned."""
LOOK_S: Final = 5.0
"""The time in seconds between two checks of the row while no step ends; the delay until a
cancellation takes effect."""
JOB_LOOK_S: Final = 1.0
"""The same for a task with a job, which its service should end soon."""
LATE_S: Final = 0.5
"""The grace in seconds after the turn's own deadline."""
TICK_S: Final = 0.25
"""The time in seconds between two checks whether to end a handler."""

log = logging.getLogger("roundgate.tasks")


class TurnResult(StrEnum):
    """The result of a turn at a task, as the log names it."""

    NOT_CLAIMED = "not claimed"
    SUSPECT = "suspect"
    """The task was not claimed: it has to run alone."""
    FINISHED = "finished"
    STEP_FAILED = "step failed"
    """The task ended because of a failed step that has no retries left."""
    ASKED = "asked"
    RELEASED = "released"
    RESTARTED = "restarted"
    PARKED = "parked"
    DECLINED = "declined"
    LOST = "lost"
    FAULT = "fault"
    GIVEN_UP = "given up"
    CLEANED_UP = "cleaned up"
    """The external work of the task was ended, or there was none."""
    TO_CLEAN_UP = "to be cleaned up"
    """The external work could not be ended; a worker will try again."""
    NOT_CLEANED_UP = "not cleaned up"
    """The external work could not be ended; the workers have given up."""


class Aborted(Struct, frozen=True):
    """The outcome of a turn whose handler has none: this worker cannot serve the task, nobody
    should try it again, or the gateway failed."""

    error: Exception


class Interrupted(Struct, frozen=True):
    """The outcome of a turn that was cancelled because its process ends."""

    crashes: bool
    """Whether the process ends unexpectedly, so that any of its tasks may be the cause."""


HandlerOutcome: TypeAlias = engine.Outcome[Returned]
Outcome: TypeAlias = HandlerOutcome | Aborted | Interrupted


@dataclass(eq=False)
class Means:
    """The resources that the turns of one worker share."""

    catalogs: CatalogSource
    store: StoredTasks
    clock: Clock
    config: TasksConfig
    publish: Publish
    """Notifies clients of changes."""
    skew_s: float = 5.0
    """The maximum difference in seconds of the clocks that share the store, unless `config` sets
    one."""
    tracing: Tracing = field(default_factory=Tracing)
    metrics: Metrics = field(default_factory=Metrics)
    texts: Callable[[str], LongTexts] | None = None
    """Returns the store of long texts of a view."""
    hidden: Callable[[str], HiddenRounds] | None = None
    """Returns the rounds of calls of older servers, in a view."""
    shows_errors: bool = False
    """Whether callers see the messages of unexpected exceptions."""
    clock_trust: ClockTrust | None = None
    """The `ClockTrust` of the process, if it has a sweep."""
    external: EventSource | None = None
    """The external events of all tasks."""
    trail: Trail | None = None
    """The audit log, if there is one."""

    def __post_init__(self) -> None:
        self.lease_ms = int(self.config.lease_s * 1000)
        self.skew_ms = self.config.skew_ms(self.skew_s)
        self.life = Life.from_config(self.config)
        self.trust = self.clock_trust or ClockTrust(self.clock, self.lease_ms, self.skew_ms)

    def due_ms(self, wake_ms: int = 0) -> int:
        """Return when a sweep should check a task that continues at `wake_ms`, in milliseconds
        since the epoch: at that time if no message can be delayed so long, otherwise when the
        message may be assumed lost."""
        now_ms = self.clock.now_ms()
        if wake_ms > now_ms + MAX_MESSAGE_DELAY_MS:
            return wake_ms
        return max(now_ms, wake_ms) + int(self.config.requeue_after_s * 1000)

    def find(
        self,
        catalog: Catalog,
        task_call: TaskCall,
        record: TaskRecord,
        deadline: Deadline,
        cleanup: Cleanup | None = None,
    ) -> tuple[ServedTool, Call]:
        """Return the tool of a task, and its call for the engine.

        Raises:
            NotServedHere: the view of the call, or the tool in it, does not exist any more.
        """
        view = catalog.views.get(task_call.view) if task_call.view else catalog
        served = None if view is None else view.tools.get(task_call.tool)
        if view is None or served is None:
            where = f" in the view {task_call.view}" if task_call.view else ""
            raise NotServedHere(f"serves {task_call.tool}{where}")
        principal, rules = task_call.principal, served.rules
        return served, Call(
            principal=principal,
            meta=task_call.meta(),
            deadline=deadline,
            publish=self.publish,
            task_id=task_call.continues or record.ref.id,
            last_ms=self.life.last_ms(record.created_ms),
            texts=None if self.texts is None else self.texts(task_call.view),
            hidden=None if self.hidden is None else partial(self.hidden, task_call.view),
            read=view.read_resource,
            external=None
            if self.external is None or cleanup
            else EventsOfTask(self.external, record.ref),
            authorize=None if rules is None else rules.authorizer(principal),
            cleanup=cleanup,
        )


class Turn:
    """A claimed task until its turn has ended, and the `replay.Checkpointer` of its run."""

    def __init__(self, means: Means, claimed: Claimed, deadline: Deadline) -> None:
        record = claimed.record
        self.claimed = claimed
        self.result = TurnResult.FAULT
        self.correlation = Correlation(
            record.tool, task=str(record.ref), known_call_id=record.call_id
        )
        self.has_begun = False
        self._means = means
        self._store = means.store
        self._clock = means.clock
        self._record = record
        self._deadline = deadline
        self._begun_ms = self._last_look_ms = means.clock.monotonic_ms()
        self._told_s: float | None = None
        self._is_stopping = self._is_over = False
        self._reason: str | None = None
        self._error: Exception | None = None
        """The error that ends the run."""
        self._patience = Patience(lambda: deadline.is_past, task=str(record.ref))
        # the lease and the row, as the last write left them
        self._time = LeaseTime(means.clock, means.lease_ms, means.skew_ms)
        self._time.claimed(record.lease_until_ms)
        self._due_ms = record.due_ms or 0
        self._expires_ms = self._written_expires_ms = record.expires_ms
        """The expiry with every wait so far, and as it was last written."""
        self._message = record.status_message
        self._state = claimed.state
        self._bytes = sum(map(len, [*claimed.journal, *claimed.answers.values()]))
        self._keeping = asyncio.Lock()
        self._renewing = asyncio.Lock()

    @property
    def ref(self) -> TaskRef:
        """Return the reference of the task."""
        return self.claimed.lease.ref

    @property
    def lease(self) -> Lease:
        """Return the lease of the task."""
        return self.claimed.lease

    def facts(self) -> dict[str, Any]:
        """Return the fields for the log."""
        return {"task": str(self.ref), "name": self._record.tool}

    def ids(self) -> dict[str, Any]:
        """Return the ids of the task as members of a record of the audit log."""
        record = self._record
        return {"call": record.call_id, "task": str(self.ref), "tool": record.tool}

    async def take(self) -> None:
        """Run the handler, and write the end of the turn; set `result`.

        Raises:
            Unavailable: the store cannot be reached.
        """
        try:
            # the turn keeps this catalog, even if a reload replaces it
            with self._means.catalogs.use() as catalog:
                await self._take(catalog)
        except LeaseLost:
            self.result = TurnResult.LOST
        except asyncio.CancelledError:
            if not self._is_over:
                crashes = not (self._is_stopping and self.has_begun)
                await to_its_end(self._commit(Interrupted(crashes)))
            raise
        except Exception as error:
            await self._commit(Aborted(error))
        finally:
            self._note()

    async def _take(self, catalog: Catalog) -> None:
        means, record = self._means, self._record
        self._check()
        self.task_call, journal = read_task(self.claimed)
        served, call = means.find(catalog, self.task_call, record, self._deadline)
        self._begin(call, journal)
        with means.tracing.turn(self.task_call.origin, self.correlation, record.fence) as span:
            outcome = await self._outcome(served)
            span.end("tool_error" if isinstance(outcome, Failed) else "ok")
        await to_its_end(self._commit(outcome))
        if isinstance(outcome, Completed | Failed) and self.result in _ENDED:
            means.metrics.called(served.name, served.backend, call_outcome(outcome))

    def _check(self) -> None:
        """Check that this worker may run another turn.

        Raises:
            TaskGivenUp: too many workers died with the task.
            NotServedHere: this worker cannot read the journal.
        """
        record = self._record
        if record.deaths >= self._means.config.max_deaths:
            raise TaskGivenUp(
                f"{record.deaths} workers died or stalled while they ran this task alone"
            )
        if record.journal_version > JOURNAL_VERSION:
            raise NotServedHere(f"reads journals of version {record.journal_version}")

    def _note(self) -> None:
        record, took_ms = self._record, round(self._clock.monotonic_ms() - self._begun_ms, 2)
        self._means.metrics.turn(record.tool, self.result.value, took_ms)
        facts = {
            **self.facts(),
            "outcome": self.result.value,
            "turn": record.fence,
            **({"faults": record.attempts} if record.attempts else {}),
            "ms": took_ms,
            **({} if record.call_id is None else {"call": record.call_id}),
            **({} if self._reason is None else {"reason": self._reason}),
        }
        log.info("task", extra={"fields": facts})
        if self._means.trail is not None:
            ended = {"outcome": self.result.value, "attempt": record.attempts + 1}
            self._means.trail.record("turn_ended", {**self.ids(), **ended})

    # the run

    def _begin(self, call: Call, journal: Journal) -> None:
        """Make the run of the task's handler without starting it."""
        names = self.task_call.principal.names
        if self._record.suspect:
            self._means.metrics.taken_over(self._record.tool)
            fields = {**names, "deaths": self._record.deaths}
            log.warning("a task is taken over", extra={"fields": fields})
        if self._means.trail is not None:
            self._means.trail.turn(self.task_call.principal, self._record.attempts + 1)
        self._run = Run(call, journal, self, self._message)
        if journal.received:  # an answer ends a wait
            self._extend_life(self._clock.now_ms())
        # the store has the initial entries already: answers are read again with their questions
        self._saved = {_place(entry): entry for entry in journal.entries()}
        self._check_time()
        self.has_begun = True
        if self._is_stopping:
            self._run.request_stop()

    def request_stop(self) -> None:
        """Ask the run to release its task at the next step."""
        self._is_stopping = True
        if self.has_begun:
            self._run.request_stop()

    @property
    def is_abandoned(self) -> bool:
        """Return whether the turn has ended while the handler still runs."""
        root = self._run.root_task
        return root is not None and not root.done()

    async def _outcome(self, served: ServedTool) -> HandlerOutcome:
        """Return the outcome of the handler, or the reason for its forced end.

        Raises:
            LeaseLost: this worker no longer holds the task.
            Exception: a fault of the gateway, for instance of the store.
        """
        if self._error is not None:  # the task is past its time
            return Failed(self._error)
        context, arguments = Context(self._run), dict(self.task_call.arguments)

        async def watched() -> HandlerOutcome:
            watchdog.RUNNING.set(self)
            watchdog.attend()
            return await engine.run_handler(lambda: served.call(context, arguments), self._run)

        root = asyncio.create_task(watched())
        every_s = min(1.0, self._means.config.lease_s / 6)
        try:
            async with Heartbeat(every_s, self._beat, **self.facts()):
                while not root.done() and not self._is_given_up(root):
                    await asyncio.wait([root], timeout=TICK_S)
        except asyncio.CancelledError:  # the process stops: wait at most `GRACE_S` for the handler
            root.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([root], timeout=GRACE_S)
            self._leave(root)
            raise
        return self._root_outcome(root)

    def _is_given_up(self, root: asyncio.Task[HandlerOutcome]) -> bool:
        """Return whether to abandon the handler, because it was stopped long ago. Cancel it after
        half of that time; at once if a job has to be cancelled."""
        run = self._run
        if not self._deadline.is_past and (run.stopped is None or run.is_beginning):
            return False
        now_s = asyncio.get_running_loop().time()
        self._told_s = now_s if self._told_s is None else self._told_s
        grace_s = LATE_S if self._deadline.is_past else GRACE_S
        is_urgent = isinstance(self._error, LeaseLost) and self._record.cleans_up
        if is_urgent or now_s - self._told_s >= grace_s:
            root.cancel()
        return now_s - self._told_s >= 2 * grace_s

    def _root_outcome(self, root: asyncio.Task[HandlerOutcome]) -> HandlerOutcome:
        run, error = self._run, self._error
        if error is None and root.done() and not root.cancelled():
            return root.result()
        self._leave(root)
        if isinstance(error, ToolError):
            return Failed(error)
        if error is not None:
            raise error
        if self._deadline.is_past:
            return Failed(CallTimeout("The call did not finish within the time of its worker"))
        # the run was suspended, but the handler continued
        if run.stopped is Stop.SUSPENDED:
            return Suspended(run.requests, run.journal, run.wants_task, run.wake_ms, run.awaited)
        return Failed(RuntimeError("the handler cancelled itself"))

    def _leave(self, root: asyncio.Task[HandlerOutcome]) -> None:
        root.add_done_callback(_retrieve_error)
        if self.is_abandoned:
            log.error("a handler does not end and is abandoned", extra={"fields": self.facts()})

    # the time of the task

    @property
    def _end_ms(self) -> int:
        """Return when the task is ended because it takes too long, in milliseconds since the
        epoch."""
        return self._means.life.end_ms(self._record.created_ms, self._expires_ms)

    def _check_time(self) -> None:
        """End the run if the task takes too long."""
        if self._clock.now_ms() >= self._end_ms and self._means.trust.expires:
            limit = self._means.life.limit(self._record.created_ms, self._expires_ms)
            text = f"The task exceeded the time limit of this server ({limit})"
            self._end_run(TaskTimeout(text))

    def _extend_life(self, from_ms: int | None = None) -> None:
        """Keep the task after a wait until `from_ms`, by default until the end of the waits in the
        journal. The next write extends the row."""
        if from_ms is None:
            from_ms = waits_until_ms(self._run.journal.entries())
        self._expires_ms = self._means.life.extended_ms(
            self._record.created_ms, self._expires_ms, from_ms
        )

    @property
    def _later_expires_ms(self) -> int | None:
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
            await self._patience.attempt("renewing a lease", self._renew_in_time)
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
                await self._patience.attempt("a checkpoint", lambda: self._write(added))
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
            journal = self._run.journal
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

    async def _beat(self) -> None:
        """Renew the lease and write the status message if either is due; otherwise, at times, read
        the row to check that the lease still holds. End the run if the task takes too long, was
        cancelled or taken over, or has expired."""
        now_ms = self._clock.monotonic_ms()
        look_s = JOB_LOOK_S if self._record.cleans_up else LOOK_S
        is_time = now_ms - self._last_look_ms >= look_s * 1000
        if is_time:
            self._last_look_ms = now_ms
        self._check_time()
        try:
            if self._clock.now_ms() >= self._expires_ms and self._means.trust.expires:
                raise LeaseLost(self.ref.id)
            is_due = self._time.is_half_over or self._time.is_due_soon(self._due_ms)
            if is_due or self._unwritten_message() is not None:
                await self._renew()
            elif is_time:
                await self._look()
        except LeaseLost as error:
            self._end_run(error)

    async def _renew(self) -> None:
        """Extend the lease and write the status message. `ctx.state` is not written, because the
        handler may be changing it."""

        async def renew() -> None:
            async with self._renewing:  # the last write decides when the lease ends
                sent = Moment.now(self._clock)
                message = self._unwritten_message()
                await self._extend(
                    Added(status_message=message, expires_ms=self._later_expires_ms), sent
                )
                self._time.renewed(sent)

        await to_its_end(renew())

    async def _extend(self, added: Added, sent: Moment) -> None:
        """Write `added` and renew the lease in one write."""
        due_ms = self._time.due_ms(sent, self._due_ms)
        event = Checkpoint(self._time.until_ms(sent), due_ms, added=added)
        await self._store.write(self.lease, event, sent.wall_ms)
        self._due_ms = due_ms or self._due_ms
        self._written_expires_ms = added.expires_ms or self._written_expires_ms
        self._message = self._message if added.status_message is None else added.status_message

    async def _look(self) -> None:
        record = await self._store.read(self.ref, self._clock.now_ms())
        if (
            record is None
            or record.status is not Status.WORKING
            or record.fence != self.lease.fence
        ):
            raise LeaseLost(self.ref.id)

    # the end of the run

    def _end_run(self, error: Exception) -> None:
        """End the run with an error that its handler cannot catch, at its next call of the
        context: `LeaseLost` if another worker has the task or the task has ended."""
        is_lost = isinstance(error, LeaseLost)
        if is_lost or self._error is None:
            self._error = error
        self._run.stop(Stop.LOST if is_lost else Stop.FAULT)

    def _stop_with(self, error: Exception) -> NoReturn:
        self._end_run(error)
        raise Suspend from None

    async def _last_with_rest(self, make_event: Callable[[Added], UnderLease]) -> None:
        """Write the event that ends the turn, with everything that the run has not written yet:
        questions, sleeps, answers that it read, state, status message. A running checkpoint ends
        first, so that its entries are not written twice."""

        async def when_kept() -> None:
            async with self._keeping:
                entries = self._run.journal.entries()
                unwritten = [entry for entry in entries if self._saved.get(_place(entry)) != entry]
                rest = self._added([encode(row(entry)) for entry in unwritten], unwritten)
                await self._last(make_event(rest))

        await to_its_end(when_kept())

    async def _last(self, event: UnderLease) -> None:
        """Write the event that ends the turn, or raise as `Patience.attempt` does."""
        attempt = self._patience.attempt(
            "the last write of a turn", partial(self._write_event, event)
        )
        await to_its_end(attempt)

    async def _write_event(self, event: UnderLease) -> None:
        await self._store.write(self.lease, event, self._clock.now_ms())

    def unwritten_journal(self) -> list[bytes] | None:
        """Return the whole journal if it has unwritten entries; otherwise `None`."""
        entries = list(self._run.journal.entries())
        if all(self._saved.get(_place(entry)) == entry for entry in entries):
            return None
        return [encode(row(entry)) for entry in entries]

    def _added(self, rows: Sequence[bytes], entries: Sequence[Entry]) -> Added:
        state = encode(plain(self._run.journal.state, "ctx.state"))
        return Added(
            entries=rows,
            state=state if state != self._state else None,
            status_message=self._unwritten_message(),
            expires_ms=self._later_expires_ms,
            events=[
                Mark(entry.name, entry.until_ms)
                for entry in entries
                if isinstance(entry, Opened) and entry.outcome is None
            ],
        )

    def _unwritten_message(self) -> str | None:
        """Return the handler's status message, or `None` if the record already has it. Lone
        surrogates, as in some file names, are replaced."""
        message = self._run.message
        shown = None if message is None else message.encode(errors="replace").decode()
        return shown if shown != self._message else None

    # the end of the turn

    async def _commit(self, outcome: Outcome) -> None:
        """Write the outcome of the turn, and set `result`. Raise Unavailable if the store cannot be
        reached."""
        if isinstance(outcome, Completed | Failed):
            self._reason = failure_reason(outcome)
        try:
            self.result = await self._write_end(outcome)
        except LeaseLost:
            self.result = TurnResult.LOST
        except NotJson as error:  # in ctx.state
            self.result = await self._write_end(Failed(error))
        except QuotaExceeded as error:  # an outcome of this size is always stored
            self.result = await self._write_end(Failed(ToolError(str(error))))
        self._is_over = True

    async def _write_end(self, outcome: Outcome) -> TurnResult:
        match outcome:
            case Suspended(requests=requests) if requests:
                await self._ask(outcome)
                return TurnResult.ASKED
            case Suspended():
                await self._release(outcome)
                return TurnResult.RELEASED
            case Restarted(arguments=arguments):
                await self._restart(arguments)
                return TurnResult.RESTARTED
            case Failed(HandlerVersionError() as error) if error.is_newer:
                needs = f"knows version {error.version} of {error.name!r} in {self._record.tool}"
                return await self._decline_as(NotServedHere(needs))
            case Failed(BackendBusy() as busy):
                return await self._decline(f"there was no place: {busy}", "a place at its back end")
            case Failed(NondeterminismError() as error):
                await self._park(error)
                return TurnResult.PARKED
            case Failed(CallTimeout()) if self._deadline.is_past:
                return await self._retry_or_fail(
                    WorkerFault("a step exceeds the time limit of a worker")
                )
            case Completed() | Failed():
                return await self._finish(outcome)
            case Aborted(NotServedHere() as needs):
                return await self._decline_as(needs)
            case Aborted(TaskGivenUp() as error):
                return await self._give_up(error)
            case Aborted(error):
                return await self._retry_or_fail(error)
            case Interrupted(crashes):
                await self._interrupt(crashes)
                return TurnResult.FAULT

    async def _ask(self, suspended: Suspended) -> None:
        wire = {key: encode(request) for key, request in suspended.requests.items()}
        ready_ms = self._means.due_ms()
        self._extend_life(self._clock.now_ms())
        self._extend_life()
        wake_ms = min(suspended.wake_ms or 0, self._end_ms)
        if self._run.is_message_over:
            self._run.message = ""
        await self._last_with_rest(
            lambda rest: Ask(wire, wake_ms, suspended.awaits, ready_ms, added=rest)
        )
        if log.isEnabledFor(logging.DEBUG):
            log.debug("a task asks its client", extra={"fields": {"questions": list(wire)}})

    async def _release(self, suspended: Suspended) -> None:
        self._extend_life()
        wake_ms = min(suspended.wake_ms or 0, self._end_ms)
        due_ms, ready_ms = self._means.due_ms(wake_ms), self._means.due_ms()

        def release(rest: Added) -> UnderLease:
            return Release(
                wake_ms,
                due_ms,
                # a worker whose clock is slightly behind may claim the task when the message comes
                early_ms=HOLD_MS,
                awaits=suspended.awaits,
                ready_ms=ready_ms,
                added=rest,
            )

        await self._last_with_rest(release)

    async def _restart(self, arguments: Mapping[str, Any]) -> None:
        generation = self.task_call.generation + 1
        call = replace(self.task_call, arguments=arguments, generation=generation).to_bytes()
        due_ms = self._means.due_ms()
        self._extend_life(self._clock.now_ms())
        expires_ms = self._later_expires_ms
        await self._last(Restart(call, (), b"{}", JOURNAL_VERSION, due_ms, expires_ms))

    async def _park(self, error: NondeterminismError) -> None:
        what = f"task {self.ref} (tool {self._record.tool})"
        reference = log_failure(what, error, self._clock)
        how = (
            f"does not support version {error.version} any more,"
            if isinstance(error, HandlerVersionError)
            else "took another path than before,"
        )
        why = f"{PARKED}: the handler {how} at {error.key!r} (reference {reference})"
        await self._last(Park(why))

    async def _finish(self, outcome: Completed[Returned] | Failed) -> TurnResult:
        most, shows_errors = self._means.config.max_result_bytes, self._means.shows_errors
        end = ended(outcome, self._record.tool, self._clock, most, shows_errors=shows_errors)
        error = outcome.error if isinstance(outcome, Failed) else None
        if isinstance(error, ArgumentsRefused):
            tell_refused(error.rule, self.task_call.principal, self._means.metrics)
        is_early = isinstance(error, TaskTimeout | JobLeft | ArgumentsRefused)
        finish = Finish(
            end.status,
            end.outcome,
            end.status_message,
            self._means.due_ms() if is_early and self._record.cleans_up else None,
            end.ending,
            end.failed_steps,
        )
        await self._last(finish)
        if end.ending is not Ending.STEP_FAILED:
            return TurnResult.FINISHED
        self._log_failed_steps(end.failed_steps)
        return TurnResult.STEP_FAILED

    def _log_failed_steps(self, places: Sequence[str]) -> None:
        """Log the steps that ended the task, each with its number of attempts."""
        steps = self._run.journal.steps
        for place in places:
            entry = steps.get(place)
            attempts = entry.attempts or 1 if isinstance(entry, Raised) else 1
            fields = {"step": place, "attempt": attempts}
            log.warning("a failed step has ended a task", extra={"fields": fields})

    async def _interrupt(self, crashes: bool) -> None:
        """Release the task, so that another worker can claim it at once; as a suspect if the
        process crashes."""
        try:
            if crashes:
                let_go = LetGo(self._means.due_ms(), blame=True, fence=self.lease.fence)
                await self._store.apply(self.ref, let_go, self._clock.now_ms())
            else:
                self._patience.hurry()
                try:
                    await self._release(Suspended({}, self._run.journal))
                except (NotJson, QuotaExceeded):  # the next turn writes the rest, or fails
                    await self._pause(NOTHING, 0, attempts=self._record.attempts)
        except (LeaseLost, Unavailable) as error:
            fields = {"task": str(self.ref), "error": str(error)}
            log.warning("cannot release a task", extra={"fields": fields})

    async def _decline_as(self, needs: NotServedHere) -> TurnResult:
        """Release the task for a worker that can run it."""
        return await self._decline(f"there was no worker that {needs}", f"a worker that {needs}")

    async def _decline(self, reason: str, needed: str) -> TurnResult:
        """Release the task until it can run. Fail the task for a reason if that takes longer than
        `tasks.unserved_s`."""
        record, now_ms = self._record, self._clock.now_ms()
        since_ms = record.declined_ms or now_ms
        waited_ms = now_ms - since_ms
        if waited_ms >= self._means.config.unserved_s * 1000 and self._means.trust.expires:
            return await self._give_up(TaskGivenUp(f"for {waited_ms // 1000} s {reason}"))
        shortest_ms, longest_ms = DECLINED_MS
        wake_ms = now_ms + min(max(shortest_ms, waited_ms // 4), longest_ms)
        message = Added(status_message=f"Waiting for {needed}")
        await self._pause(message, wake_ms, attempts=record.attempts, declined_ms=since_ms)
        return TurnResult.DECLINED

    async def _retry_or_fail(self, error: Exception) -> TurnResult:
        """Retry after a pause because of a fault of the gateway, or fail the task after
        `tasks.max_attempts`."""
        record, attempt = self._record, self._record.attempts + 1
        what = f"task {record.ref} (tool {record.tool}, attempt {attempt})"
        reference = log_failure(what, error, self._clock)
        if attempt >= self._means.config.max_attempts:
            reason = (
                str(error) if isinstance(error, WorkerFault) else "the server's log has the details"
            )
            return await self._fail(f"after {attempt} attempts: {reason}", reference)
        wake_ms = self._clock.now_ms() + BACKOFF_MS[min(attempt, len(BACKOFF_MS)) - 1]
        await self._pause(NOTHING, wake_ms, attempts=attempt)
        return TurnResult.FAULT

    async def _pause(
        self, added: Added, wake_ms: int, *, attempts: int, declined_ms: int = 0
    ) -> None:
        """Release the task until `wake_ms` without counting the release as progress."""
        due_ms = self._means.due_ms(wake_ms)
        release = Release(wake_ms, due_ms, attempts, declined_ms, keeps_blame=True, added=added)
        await self._write_event(release)

    async def _give_up(self, error: TaskGivenUp) -> TurnResult:
        """Fail the task for good."""
        what = f"task {self.ref} (tool {self._record.tool})"
        return await self._fail(f"because {error}", log_failure(what, error, self._clock))

    async def _fail(self, why: str, reference: str) -> TurnResult:
        end = failed(InternalError(reference))
        message = f"Given up {why} (reference {reference})"
        due_ms = self._means.due_ms() if self._record.cleans_up else None
        finish = Finish(end.status, end.outcome, message, due_ms)
        await self._write_event(finish)
        return TurnResult.GIVEN_UP


def _retrieve_error(root: asyncio.Task[Any]) -> None:
    """Retrieve the exception of an abandoned handler, so that asyncio does not report it."""
    if not root.cancelled():
        root.exception()


_ENDED: Final = frozenset({TurnResult.FINISHED, TurnResult.STEP_FAILED})
_QUESTIONS: Final = (Asked, Answered, TimedOutQuestion)


def _place(entry: Entry) -> tuple[bool, str]:
    """Return whether an entry belongs to a question, and its key. The journal holds one entry for
    each such pair."""
    return isinstance(entry, _QUESTIONS), entry.key
