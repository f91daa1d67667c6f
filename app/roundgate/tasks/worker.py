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
worker repeats it. The tries end after `CLEANUP_PAUSES_S`.

The worker that had the task when it was cancelled cleans up immediately, and writes the results
that only it knows, such as the response to a start in progress. Other workers wait until that lease
is over. If the start took longer than the lease, and other workers found no job to cancel, that
worker cancels without a lease (`_clean_up_alone`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from roundgate.backends import Catalog, CatalogSource, ServedTool
from roundgate.clock import Clock, Deadline
from roundgate.errors import (
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
    HiddenRounds,
    LongTexts,
    Publish,
    Run,
    Suspended,
    engine,
)
from roundgate.settings import TasksConfig
from roundgate.storage import TaskRecord, TaskRef
from roundgate.tasks.call import TaskCall, read_task
from roundgate.tasks.clock_trust import ClockTrust
from roundgate.tasks.events import (
    Claim,
    ClaimCleanup,
    EndCleanup,
    NotClaimed,
    Postpone,
    PostponeCleanup,
    Sending,
)
from roundgate.tasks.lease import Means, Patience, to_its_end
from roundgate.tasks.life import Life
from roundgate.tasks.outcome import call_outcome
from roundgate.tasks.stored import Claimed, StoredTasks
from roundgate.tasks.turn import HandlerOutcome, Turn, TurnResult

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

CLEANUP_PAUSES_S: Final = (5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400)
"""The seconds between attempts to end the external work of a task: nine attempts in eight hours,
for a service that is unavailable."""
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
        texts: Callable[[str], LongTexts] | None = None,
        hidden: Callable[[str], HiddenRounds] | None = None,
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
            hidden: returns the rounds of calls of older servers, in a view.
            shows_errors: whether callers see the messages of unexpected exceptions.
            trust: the `ClockTrust` of the process, if it has a sweep.
            external: opens the external events of a task.
            trail: the audit log, if there is one.
        """
        self._texts = texts
        self._hidden = hidden
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
        self._means = Means(
            store,
            clock,
            config,
            Life.from_config(config),
            self._skew_ms,
            self._trust,
            self._metrics,
            trail,
            shows_errors,
        )
        self._turns: dict[Turn, None] = {}
        self._stop_requested = False

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
        event = Claim(until_ms, until_ms + self._skew_ms, lapsed_ms, alone)
        claimed = await self._store.claim(ref, event, now_ms)
        return claimed if isinstance(claimed, Claimed) else NotClaimed(claimed)

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
            event = Postpone(record.due_ms, due_ms, 0, Sending.LEFT, self._skew_ms)
            await self._store.apply(ref, event, now_ms)

    async def work(
        self, ref: TaskRef, deadline: Deadline | None = None, *, alone: bool = False
    ) -> TurnResult:
        """Claim a task and run a turn of it.

        Raises:
            Unavailable: the store or the queue cannot be reached; the message should be delivered
                again.
        """
        if ref.is_hidden:  # its client's requests run it
            return TurnResult.NOT_CLAIMED
        match await self.claim(ref, alone=alone):
            case NotClaimed.SUSPECT:
                return TurnResult.SUSPECT
            case NotClaimed.CLEAN_UP:
                return await self.clean_up(ref, deadline)
            case NotClaimed() as reason:
                log.debug(
                    "task not claimed", extra={"fields": {"task": str(ref), "reason": reason.value}}
                )
                return TurnResult.NOT_CLAIMED
            case Claimed() as claimed:
                return await self.run(claimed, deadline)

    async def run(self, claimed: Claimed, deadline: Deadline | None = None) -> TurnResult:
        """Run a turn of a claimed task, which has to end by the deadline, if any."""
        record, deadline = claimed.record, deadline or Deadline(self._clock, None)
        ids = Correlation(record.tool, task=str(record.ref), known_call_id=record.call_id)
        turn = Turn(self._means, claimed, deadline)
        with correlated(ids):
            try:
                # the turn keeps this catalog, even if a reload replaces it
                async with turn:
                    with self._catalogs.use() as catalog:
                        await self._take_turn(turn, catalog, deadline, ids)
            finally:
                self._turns.pop(turn, None)
            if turn.result is TurnResult.LOST and turn.has_begun and record.cleans_up:
                await self._leave(turn, deadline)
        if self._trail is not None:
            await self._trail.settled()
        return turn.result

    async def _take_turn(
        self, turn: Turn, catalog: Catalog, deadline: Deadline, ids: Correlation
    ) -> None:
        record = turn.claimed.record
        self._check(record)
        task_call, journal = read_task(turn.claimed)
        view, served = _find_tool(task_call, catalog)
        turn.begin(task_call, journal, self._call(record, task_call, view, served, deadline))
        self._turns[turn] = None
        if self._stop_requested:
            turn.request_stop()
        with self._tracing.turn(task_call.origin, ids, record.fence) as span:
            outcome = await turn.run(served.call)
            span.end("tool_error" if isinstance(outcome, Failed) else "ok")
        await turn.commit(outcome)
        if isinstance(outcome, Completed | Failed) and turn.result in (
            TurnResult.FINISHED,
            TurnResult.STEP_FAILED,
        ):
            self._metrics.called(served.name, served.backend, call_outcome(outcome))

    def request_stop(self) -> None:
        """Ask every run, current or future, to release its task at the next step."""
        self._stop_requested = True
        for turn in self._turns:
            turn.request_stop()

    def held(self) -> Sequence[Turn]:
        """Return the turns whose handlers run. Any thread may call this."""
        return list(self._turns)

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

    def _call(
        self,
        record: TaskRecord,
        task_call: TaskCall,
        view: Catalog,
        served: ServedTool,
        deadline: Deadline,
        cleanup: Cleanup | None = None,
    ) -> Call:
        principal, rules = task_call.principal, served.rules
        return Call(
            principal=principal,
            meta=task_call.meta(),
            deadline=deadline,
            publish=self._publish,
            task_id=task_call.continues or record.ref.id,
            last_ms=self._means.life.last_ms(record.created_ms),
            texts=None if self._texts is None else self._texts(task_call.view),
            hidden=None if self._hidden is None else partial(self._hidden, task_call.view),
            read=view.read_resource,
            external=None if self._external is None or cleanup else self._external(record),
            authorize=None if rules is None else rules.authorizer(principal),
            cleanup=cleanup,
        )

    # cleanup

    async def clean_up(
        self, ref: TaskRef, deadline: Deadline | None = None, left: Left | None = None
    ) -> TurnResult:
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
        event = ClaimCleanup(
            until_ms,
            until_ms + self._skew_ms,
            now_ms - self._skew_ms,
            fence=None if left is None else left.claimed.lease.fence,
            journal=None if left is None else left.journal,
        )
        claimed = await self._store.claim(ref, event, now_ms)
        return claimed if isinstance(claimed, Claimed) else None

    async def _leave(self, turn: Turn, deadline: Deadline) -> None:
        """Clean up after a task that this worker lost. If the task was cancelled, only this worker
        knows all of its external work."""
        left = Left(turn.claimed, turn.checkpointer.unwritten_journal())
        try:
            await to_its_end(self.clean_up(turn.ref, deadline, left))
        except Unavailable as error:
            fields = {"task": str(turn.ref), "error": str(error)}
            log.warning("cannot clean up a cancelled task; a sweep will", extra={"fields": fields})

    async def _clean_up_alone(self, ref: TaskRef, left: Left | None) -> TurnResult:
        """Clean up without a lease, because the other workers lack this worker's results."""
        if left is None or left.journal is None:
            return TurnResult.NOT_CLAIMED
        record = await self._store.read(ref, 0)  # also if expired
        if record is not None and record.status not in (Status.CANCELLED, Status.FAILED):
            return TurnResult.NOT_CLAIMED
        for attempt, pause_s in enumerate((*ALONE_PAUSES_S, None), 1):
            record_of_attempt = replace(left.claimed.record, attempts=attempt)
            claimed = replace(left.claimed, record=record_of_attempt, journal=left.journal)
            begun_ms = self._clock.monotonic_ms()
            reason = await self._try_cleanup(claimed, Deadline(self._clock, None))
            turn = _cleanup_turn(reason, is_last=pause_s is None)
            self._note_cleanup(claimed, turn, self._clock.monotonic_ms() - begun_ms, reason)
            if turn is not TurnResult.TO_CLEAN_UP:
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
                task_call, journal = read_task(claimed)
                view, served = _find_tool(task_call, catalog)
                call = self._call(claimed.record, task_call, view, served, bounded, _doubt(claimed))
                run = Run(call, journal)
                handler = partial(served.call, Context(run), dict(task_call.arguments))
                return _cleanup_error(await engine.run_handler(handler, run))
        except NotServedHere as needs:
            return NotServedHere(f"no worker of this process {needs}")
        except Exception as error:
            return error

    async def _end_cleanup(self, claimed: Claimed, reason: Exception) -> TurnResult:
        attempt, now_ms = claimed.record.attempts, self._clock.now_ms()
        is_last = isinstance(reason, CleanedUp) or attempt > len(CLEANUP_PAUSES_S)
        event: EndCleanup | PostponeCleanup = EndCleanup()
        if not is_last:
            wake_ms = now_ms + CLEANUP_PAUSES_S[attempt - 1] * 1000
            event = PostponeCleanup(wake_ms, self._means.due_ms(wake_ms))
        with suppress(LeaseLost):  # another worker cleans up meanwhile
            await self._store.write(claimed.lease, event, now_ms)
        return _cleanup_turn(reason, is_last=is_last)

    def _note_cleanup(
        self, claimed: Claimed, turn: TurnResult, took_ms: float, reason: Exception
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
            case TurnResult.CLEANED_UP:
                log.info("task", extra={"fields": fields})
            case TurnResult.TO_CLEAN_UP:
                log.warning("cannot cancel a job, trying again", extra={"fields": fields})
            case _:
                log.error("cannot cancel a job, which continues", extra={"fields": fields})


def _find_tool(task_call: TaskCall, catalog: Catalog) -> tuple[Catalog, ServedTool]:
    """Return the catalog of the view in which the call was made, and its tool. Raise NotServedHere
    if the view or the tool no longer exists."""
    view = catalog.views.get(task_call.view) if task_call.view else catalog
    served = None if view is None else view.tools.get(task_call.tool)
    if view is None or served is None:
        where = f" in the view {task_call.view}" if task_call.view else ""
        raise NotServedHere(f"serves {task_call.tool}{where}")
    return view, served


def _doubt(claimed: Claimed) -> Cleanup:
    """Return whether the journal may lack work that the task has begun. After its first claim the
    journal is complete."""
    is_known = claimed.record.fence == 1
    return Cleanup.OF_WHAT_IS_KNOWN if is_known else Cleanup.IN_DOUBT


def _cleanup_turn(reason: Exception, *, is_last: bool) -> TurnResult:
    """Return the result of a cleanup attempt."""
    if isinstance(reason, CleanedUp):
        return TurnResult.CLEANED_UP
    return TurnResult.NOT_CLEANED_UP if is_last else TurnResult.TO_CLEAN_UP


def _cleanup_error(outcome: HandlerOutcome) -> Exception:
    match outcome:
        case Failed(error):
            return error
        case Suspended(requests=requests) if requests:
            return CleanedUp("no job to cancel: the task was waiting for answers")
    return RuntimeError("the tool ended before the place where it cancels its job")
