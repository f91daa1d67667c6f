"""The worker, which claims tasks, runs turns of them, and cleans up after tasks that ended early.

Two workers may get the same task, and a worker may die at any point:

    message ──▶ claim ──▶ a turn (`tasks.turn`)
                  │ not claimed: drop the message
                  │ a suspect: claim the task alone
                  ▼ over, but external work continues: clean up

The worker retries after faults of the gateway, such as an unavailable store, with growing pauses;
then the task fails. The death of a worker counts only against a task that it ran alone
(`tasks.pool`).

**Cleanup** cancels the external work of a task that ended early, such as a service's job:

    tasks/cancel ─ row: cancelled, due ─ message ─ claim_cleanup ─ the handler, once more ─ end_cleanup
                         │ lost: the sweep finds the row            │ refused, away: a pause, then again

The handler runs from the top on the task's journal and receives its recorded results. The run
writes nothing. Instead of its next action, the handler ends the work that it began
(`replay.Cleanup`). A cleanup happens at least once: if the worker dies before recording it, another
worker repeats it. The tries end after `turn.CLEANUP_PAUSES_S`.

The worker that had the task when it was cancelled cleans up immediately, and writes the results
that only it knows, such as the response to a start in progress. Other workers wait until that lease
is over. If the start took longer than the lease, and other workers found no job to cancel, that
worker cancels without a lease (`_clean_up_alone`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from roundgate.backends import Catalog, CatalogSource, ServedTool
from roundgate.clock import Clock, Deadline
from roundgate.errors import (
    ArgumentsRefused,
    CleanedUp,
    LeaseLost,
    NotCancelled,
    NotServedHere,
    TaskGivenUp,
    Unavailable,
)
from roundgate.observability.correlation import Correlation, correlated
from roundgate.observability.metrics import Metrics
from roundgate.observability.tracing import Tracing
from roundgate.protocol import Status
from roundgate.replay import (
    JOURNAL_VERSION,
    Call,
    Cleanup,
    Completed,
    Context,
    ExternalEvents,
    Failed,
    Publish,
    Run,
    Suspended,
    Texts,
    engine,
)
from roundgate.settings import TasksConfig
from roundgate.storage import OpenTask, RowsOf, TaskRecord, TaskRef
from roundgate.tasks.call import TaskCall, make_journal
from roundgate.tasks.events import NotClaimed, Sending
from roundgate.tasks.lease import ClockTrust
from roundgate.tasks.life import Life
from roundgate.tasks.outcome import failure_reason, tell_refused
from roundgate.tasks.running import Outcome, Patience, Running, to_its_end
from roundgate.tasks.stored import Claimed, Move, StoredTasks
from roundgate.tasks.turn import CLEANUP_PAUSES_S, Carrier, Means, Turn

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

_UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError)
"""The errors of decoding bytes from a later version or another program."""

ALONE_PAUSES_S: Final = (5, 30)
"""The pauses between tries of a worker that cleans up without a lease, in seconds."""
SHARE: Final = 0.8
"""The part of a lease that one cleanup attempt may take; the rest is for writing its result."""

log = logging.getLogger("roundgate.tasks")


class Left(Struct, frozen=True):
    """The knowledge of a worker about a task that it held when the task ended early."""

    claimed: Claimed
    journal: Sequence[bytes] | None
    """All entries of the journal if the store lacks some of them; otherwise `None`."""


class Worker:
    """The worker of a process."""

    def __init__(
        self,
        catalogs: CatalogSource,
        store: StoredTasks,
        clock: Clock,
        config: TasksConfig,
        publish: Publish,
        *,
        skew_s: float = 5.0,
        tracing: Tracing | None = None,
        metrics: Metrics | None = None,
        texts: Callable[[str], Texts] | None = None,
        rows_of: Callable[[str], RowsOf] | None = None,
        shows_errors: bool = False,
        trust: ClockTrust | None = None,
        external: Callable[[TaskRecord], ExternalEvents] | None = None,
        trail: Trail | None = None,
    ) -> None:
        """Make a worker.

        Args:
            catalogs: provides the tools.
            store: the stored tasks.
            clock: the clock of the process.
            config: the limits of tasks.
            publish: notifies clients of changes.
            skew_s: the maximum difference in seconds of the clocks that share the store, unless
                `config` sets one.
            tracing: the tracer of turns.
            metrics: counts turns.
            texts: returns the store of long texts of a view.
            rows_of: returns the rows of a view's callers, for back ends.
            shows_errors: whether callers see the messages of unexpected exceptions.
            trust: the `ClockTrust` of the process, if it has a sweep.
            external: opens the external events of a task.
            trail: the audit log, if there is one.
        """
        self._texts = texts
        self._rows_of = rows_of
        self._external = external
        self._catalogs = catalogs
        self._store = store
        self._trail = trail
        self._clock = clock
        self._config = config
        self._lease_ms = int(config.lease_s * 1000)
        self._skew_ms = config.skew_ms(skew_s)
        self._publish = publish
        self._tracing = tracing or Tracing()
        self._metrics = metrics or Metrics()
        self._trust = trust or ClockTrust(clock, self._lease_ms, self._skew_ms)
        life = Life.from_config(config)
        self._means = Means(store, clock, config, life, self._skew_ms, self._trust, shows_errors)
        self._running: dict[Running, None] = {}
        self._stop_requested = False
        self._reasons: dict[TaskRef, str | None] = {}
        """The reasons for failures of tools, until the turn is logged."""

    async def claim(self, ref: TaskRef, *, alone: bool = False) -> Claimed | NotClaimed:
        """Claim a task if its lease is free.

        Args:
            ref: the task.
            alone: whether this process runs no other task, so that it may claim a suspect.

        Raises:
            Unavailable: the store cannot be reached, or the audit log cannot be written.
        """
        if self._trail is not None:
            self._trail.check()
        now_ms = self._clock.now_ms()
        until_ms = now_ms + self._lease_ms
        lapsed_ms = now_ms - self._skew_ms if self._trust.acts else 0
        due_ms = until_ms + self._skew_ms
        return await self._store.claim(
            ref, now_ms, until_ms, due_ms=due_ms, lapsed_ms=lapsed_ms, alone=alone
        )

    async def remind(self, ref: TaskRef) -> None:
        """Move the due time of a suspect forward. The suspect waits in the memory of a process that
        may die, so a sweep has to find it soon.

        Earlier resends do not count; otherwise each death of a process would double the pause.

        Raises:
            Unavailable: the store cannot be reached.
        """
        now_ms = self._clock.now_ms()
        due_ms = now_ms + int(self._config.requeue_after_s * 1000)
        record = await self._store.read(ref, now_ms)
        if (
            record is not None
            and record.due_ms is not None
            and (record.due_ms > due_ms or record.resends)
        ):
            task = OpenTask(
                ref, record.tool, record.status, record.created_ms, record.expires_ms, record.due_ms
            )
            move = Move(task, due_ms, 0, Sending.LEFT)
            await self._store.postpone_many([move], now_ms, self._skew_ms)

    async def work(
        self, ref: TaskRef, deadline: Deadline | None = None, *, alone: bool = False
    ) -> Turn:
        """Claim a task and run a turn of it.

        Raises:
            Unavailable: the store or the queue cannot be reached; the message should be delivered
                again.
        """
        if ref.is_hidden:  # its client's requests run it
            return Turn.NOT_CLAIMED
        match await self.claim(ref, alone=alone):
            case NotClaimed.SUSPECT:
                return Turn.SUSPECT
            case NotClaimed.CLEAN_UP:
                return await self.clean_up(ref, deadline)
            case NotClaimed() as reason:
                log.debug(
                    "task not claimed", extra={"fields": {"task": str(ref), "reason": reason.value}}
                )
                return Turn.NOT_CLAIMED
            case Claimed() as claimed:
                return await self.run(claimed, deadline)

    async def run(self, claimed: Claimed, deadline: Deadline | None = None) -> Turn:
        """Run a turn of a claimed task, which has to end by the deadline, if any."""
        begun_ms, record = self._clock.monotonic_ms(), claimed.record
        ids = Correlation(record.tool, task=str(record.ref), known_call_id=record.call_id)
        turn = Turn.FAULT
        try:
            with correlated(ids):
                turn = await self._turn(
                    Carrier(self._means, claimed), deadline or Deadline(self._clock, None)
                )
        except LeaseLost:
            turn = Turn.LOST
        finally:
            took_ms = round(self._clock.monotonic_ms() - begun_ms, 2)
            reason = self._reasons.pop(record.ref, None)
            self._note(claimed, turn, took_ms, reason)
        if self._trail is not None:
            await self._trail.settled()
        return turn

    def _note(self, claimed: Claimed, turn: Turn, took_ms: float, reason: str | None) -> None:
        record = claimed.record
        self._metrics.turn(record.tool, turn.value, took_ms)
        facts = {
            "task": str(record.ref),
            "name": record.tool,
            "outcome": turn.value,
            "attempt": record.attempts + 1,
            "ms": took_ms,
            **({} if record.call_id is None else {"call": record.call_id}),
            **({} if reason is None else {"reason": reason}),
        }
        log.info("task", extra={"fields": facts})
        if self._trail is not None:
            ids = {"call": record.call_id, "task": str(record.ref), "tool": record.tool}
            ended = {"outcome": turn.value, "attempt": record.attempts + 1}
            self._trail.record("turn_ended", {**ids, **ended})

    def request_stop(self) -> None:
        """Ask every run, current or future, to release its task at the next step."""
        self._stop_requested = True
        for running in self._running:
            running.request_stop()

    def held(self) -> Sequence[Running]:
        """Return the runs that have a lease. Any thread may call this."""
        return list(self._running)

    async def _turn(self, carrier: Carrier, deadline: Deadline) -> Turn:
        claimed = carrier.claimed
        try:
            self._check(claimed.record)
            # the turn keeps this catalog, even if a reload replaces it
            with self._catalogs.use() as catalog:
                task_call, served = self._served(claimed, catalog)
                if claimed.record.suspect:
                    self._metrics.taken_over(claimed.record.tool)
                    _log_takeover(task_call, claimed.record)
                if self._trail is not None:
                    self._trail.turn(task_call.principal, claimed.record.attempts + 1)
                running = self._begin(carrier, task_call, catalog, deadline)
                return await self._carry(running, task_call, served)
        except (LeaseLost, asyncio.CancelledError):
            raise
        except NotServedHere as needs:
            return await carrier.decline(needs)
        except TaskGivenUp as error:
            return await carrier.give_up(error)
        except Exception as error:
            return await carrier.retry_or_fail(error)

    def _check(self, record: TaskRecord) -> None:
        """Check that this worker may run another turn.

        Raises:
            TaskGivenUp: too many workers died with the task.
            NotServedHere: this worker cannot read the journal.
        """
        if record.deaths >= self._config.max_deaths:
            raise TaskGivenUp(
                f"{record.deaths} workers died or stalled while they ran this task alone"
            )
        if record.journal_version > JOURNAL_VERSION:
            raise NotServedHere(f"reads journals of version {record.journal_version}")

    def _served(self, claimed: Claimed, catalog: Catalog) -> tuple[TaskCall, ServedTool]:
        try:
            task_call = TaskCall.from_bytes(claimed.call)
        except _UNREADABLE as error:
            raise NotServedHere("can read its call") from error
        offered = _offered(task_call, catalog)
        served = None if offered is None else offered.tools.get(task_call.tool)
        if served is None:
            where = f" in the view {task_call.view}" if task_call.view else ""
            raise NotServedHere(f"serves {task_call.tool}{where}")
        return task_call, served

    def _begin(
        self, carrier: Carrier, task_call: TaskCall, catalog: Catalog, deadline: Deadline
    ) -> Running:
        config, record = self._config, carrier.claimed.record
        try:
            carrier.begin(task_call, self._call(record, task_call, catalog, deadline))
        except _UNREADABLE as error:
            raise NotServedHere("can read its journal") from error
        return Running(carrier, task_call.tool, self._clock, self._trust, lease_s=config.lease_s)

    def _call(
        self,
        record: TaskRecord,
        task_call: TaskCall,
        catalog: Catalog,
        deadline: Deadline,
        cleanup: Cleanup | None = None,
    ) -> Call:
        offered = _offered(task_call, catalog)
        served = None if offered is None else offered.tools.get(task_call.tool)
        return Call(
            principal=task_call.principal,
            meta=task_call.meta(),
            deadline=deadline,
            publish=self._publish,
            task_id=task_call.continues or record.ref.id,
            last_ms=self._means.life.last_ms(record.created_ms),
            texts=None if self._texts is None else self._texts(task_call.view),
            rows_of=None if self._rows_of is None else self._rows_of(task_call.view),
            read=None if offered is None else offered.read_resource,
            external=None if self._external is None or cleanup else self._external(record),
            authorize=None
            if served is None or served.rules is None
            else served.rules.authorizer(task_call.principal),
            cleanup=cleanup,
        )

    async def _carry(self, running: Running, task_call: TaskCall, served: ServedTool) -> Turn:
        carrier = running.carrier
        self._running[running] = None
        if self._stop_requested:
            running.request_stop()
        try:
            outcome = await self._outcome(running, task_call, served)
            return await carrier.commit(task_call.tool, outcome)
        except LeaseLost:
            await self._leave(carrier)
            raise
        except asyncio.CancelledError:
            await to_its_end(carrier.stopped() if self._stop_requested else carrier.crashed())
            raise
        finally:
            self._running.pop(running, None)

    async def _outcome(self, running: Running, task_call: TaskCall, served: ServedTool) -> Outcome:
        context = Context(running.carrier.run)
        record = running.carrier.claimed.record
        ids = Correlation(record.tool, task=str(record.ref), known_call_id=record.call_id)
        with self._tracing.turn(task_call.origin, ids, record.attempts + 1) as span:
            outcome = await running.outcome(lambda: served.call(context, dict(task_call.arguments)))
            span.end("tool_error" if isinstance(outcome, Failed) else "ok")
        match outcome:
            case Failed(ArgumentsRefused() as refusal):
                tell_refused(refusal.rule, task_call.principal, self._metrics)
        if isinstance(outcome, Completed | Failed):
            self._reasons[running.carrier.ref] = failure_reason(outcome)
        return outcome

    # cleanup

    async def clean_up(
        self, ref: TaskRef, deadline: Deadline | None = None, left: Left | None = None
    ) -> Turn:
        """End the external work of a task that ended early, unless another worker does so. `left`
        is the knowledge of a worker that held the task.

        Raises:
            Unavailable: the store cannot be reached; a sweep finds the task.
        """
        deadline = deadline or Deadline(self._clock, None)
        if left is None:
            claimed = await self._claim_cleanup(ref)
        else:  # only this worker knows these results
            patience = Patience(lambda: deadline.is_past, task=ref.id)
            claimed = await patience.attempt(
                "a cleanup's claim", lambda: self._claim_cleanup(ref, left)
            )
        if claimed is None:
            return await self._clean_up_alone(ref, left)
        begun_ms = self._clock.monotonic_ms()
        reason = await self._try_cleanup(claimed, deadline)
        turn = await self._end_cleanup(claimed, reason)
        self._note_cleanup(claimed, turn, self._clock.monotonic_ms() - begun_ms, reason)
        return turn

    async def _claim_cleanup(self, ref: TaskRef, left: Left | None = None) -> Claimed | None:
        now_ms = self._clock.now_ms()
        until_ms = now_ms + self._lease_ms
        due_ms, lapsed_ms = until_ms + self._skew_ms, now_ms - self._skew_ms
        return await self._store.claim_cleanup(
            ref,
            now_ms,
            until_ms,
            due_ms=due_ms,
            lapsed_ms=lapsed_ms,
            fence=None if left is None else left.claimed.lease.fence,
            journal=None if left is None else left.journal,
        )

    async def _leave(self, carrier: Carrier) -> None:
        """Clean up after a task that this worker lost. If the task was cancelled, only this worker
        knows all of its external work."""
        if not carrier.cleans_up:
            return
        left = Left(carrier.claimed, carrier.news())
        try:
            await to_its_end(self.clean_up(carrier.ref, carrier.run.call.deadline, left))
        except Unavailable as error:
            fields = {"task": str(carrier.ref), "error": str(error)}
            log.warning("cannot clean up a cancelled task; a sweep will", extra={"fields": fields})

    async def _clean_up_alone(self, ref: TaskRef, left: Left | None) -> Turn:
        """Clean up without a lease, because the other workers lack this worker's results."""
        if left is None or left.journal is None:
            return Turn.NOT_CLAIMED
        record = await self._store.read(ref, 0)  # also if expired
        if record is not None and record.status not in (Status.CANCELLED, Status.FAILED):
            return Turn.NOT_CLAIMED
        for attempt, pause_s in enumerate((*ALONE_PAUSES_S, None), 1):
            record_of_attempt = replace(left.claimed.record, attempts=attempt)
            claimed = replace(left.claimed, record=record_of_attempt, journal=left.journal)
            begun_ms = self._clock.monotonic_ms()
            reason = await self._try_cleanup(claimed, Deadline(self._clock, None))
            turn = _cleanup_turn(reason, is_last=pause_s is None)
            self._note_cleanup(claimed, turn, self._clock.monotonic_ms() - begun_ms, reason)
            if turn is not Turn.TO_CLEAN_UP:
                break
            await self._clock.sleep(pause_s or 0)
        return turn

    async def _try_cleanup(self, claimed: Claimed, deadline: Deadline) -> Exception:
        """Run the handler once more, within a part of a lease. Return `CleanedUp`, or the error
        that prevents the cleanup."""
        left_ms, most_ms = deadline.remaining_ms(), self._lease_ms * SHARE
        bounded = self._clock.deadline(most_ms if left_ms is None else min(most_ms, left_ms))
        try:
            with self._catalogs.use() as catalog:
                task_call, served = self._served(claimed, catalog)
                call = self._call(claimed.record, task_call, catalog, bounded, _doubt(claimed))
                run = Run(call, make_journal(claimed, task_call))
                handler = partial(served.call, Context(run), dict(task_call.arguments))
                return _cleanup_error(await engine.run_handler(handler, run))
        except NotServedHere as needs:
            return NotServedHere(f"no worker of this process {needs}")
        except Exception as error:
            return error

    async def _end_cleanup(self, claimed: Claimed, reason: Exception) -> Turn:
        attempt = claimed.record.attempts
        if isinstance(reason, CleanedUp) or attempt > len(CLEANUP_PAUSES_S):
            await self._store.end_cleanup(claimed.lease, self._clock.now_ms())
            return _cleanup_turn(reason, is_last=True)
        now_ms = self._clock.now_ms()
        wake_ms = now_ms + CLEANUP_PAUSES_S[attempt - 1] * 1000
        due_ms = self._means.due_ms(wake_ms)
        await self._store.postpone_cleanup(claimed.lease, now_ms, wake_ms=wake_ms, due_ms=due_ms)
        return Turn.TO_CLEAN_UP

    def _note_cleanup(
        self, claimed: Claimed, turn: Turn, took_ms: float, reason: Exception
    ) -> None:
        record = claimed.record
        self._metrics.turn(record.tool, turn.value, took_ms)
        job = reason.job if isinstance(reason, NotCancelled) else None
        fields = {
            "task": str(record.ref),
            "name": record.tool,
            "outcome": turn.value,
            "attempt": record.attempts,
            "ms": round(took_ms, 2),
            "reason": str(reason)[:500],
            **({"job": job} if job else {}),
        }
        match turn:
            case Turn.CLEANED_UP:
                log.info("task", extra={"fields": fields})
            case Turn.TO_CLEAN_UP:
                log.warning("cannot cancel a job, trying again", extra={"fields": fields})
            case _:
                log.error("cannot cancel a job, which continues", extra={"fields": fields})


def _log_takeover(task_call: TaskCall, record: TaskRecord) -> None:
    """Log the takeover of a task whose worker died or stalled, with the task's caller."""
    fields = {**task_call.principal.names, "deaths": record.deaths}
    log.warning("a task is taken over", extra={"fields": fields})


def _offered(task_call: TaskCall, catalog: Catalog) -> Catalog | None:
    """Return the catalog of the view in which the call was made, or `None` if the view no longer
    exists."""
    return catalog.views.get(task_call.view) if task_call.view else catalog


def _doubt(claimed: Claimed) -> Cleanup:
    """Return whether the journal may lack work that the task has begun. After its first claim the
    journal is complete."""
    is_known = claimed.record.fence == 1
    return Cleanup.OF_WHAT_IS_KNOWN if is_known else Cleanup.IN_DOUBT


def _cleanup_turn(reason: Exception, *, is_last: bool) -> Turn:
    """Return the result of a cleanup attempt."""
    if isinstance(reason, CleanedUp):
        return Turn.CLEANED_UP
    return Turn.NOT_CLEANED_UP if is_last else Turn.TO_CLEAN_UP


def _cleanup_error(outcome: Outcome) -> Exception:
    match outcome:
        case Failed(error):
            return error
        case Suspended(requests=requests) if requests:
            return CleanedUp("no job to cancel: the task was waiting for answers")
    return RuntimeError("the tool ended before the place where it cancels its job")
