"""A worker's turn at a task: claim → replay → commit. Safe to run twice, safe to die anywhere.

    message ──▶ claim ──▶ run the handler from the top ──▶ finish     it returned or raised
                  │                                    ├─▶ suspend    it asks the client; nobody waits with it
                  │ not ours: drop the message         ├─▶ release    it sleeps, or its time is up; a message follows
                  │ a suspect: claim it alone          ├─▶ decline    nobody here can serve it; others may
                  ▼                                    └─▶ (nothing)  the lease is lost: whoever has it carries on

A fault of the gateway (the store cannot be reached) is retried with growing pauses; if that
does not help, the task fails. The death of a worker counts only against a task that it ran
alone: see `tasks.isolation`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from roundgate.backends import Catalog, CatalogSource, ServedTool
from roundgate.clock import Clock, Deadline
from roundgate.errors import LeaseLost, NotServedHere, TaskGivenUp, Unavailable
from roundgate.observability.correlation import Correlation, correlated
from roundgate.observability.metrics import Metrics
from roundgate.observability.tracing import NoTracing, Tracing
from roundgate.replay import (
    JOURNAL_VERSION,
    Call,
    Cleanup,
    Completed,
    Context,
    Failed,
    Publish,
    Run,
    Texts,
    engine,
)
from roundgate.settings import TasksConfig
from roundgate.storage import OpenTask, TaskQueue, TaskRecord, TaskRef
from roundgate.tasks.call import TaskCall, journal_of
from roundgate.tasks.checkpointer import Checkpointer
from roundgate.tasks.cleanup import Cleaning, Left, doubt
from roundgate.tasks.ending import Endings, Turn
from roundgate.tasks.events import NotClaimed
from roundgate.tasks.lease import ClockTrust
from roundgate.tasks.outcome import reason_of
from roundgate.tasks.patience import to_its_end
from roundgate.tasks.stored import Claimed, Move, StoredTasks
from roundgate.tasks.turn import Outcome, Running

_UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError)
"""What comes of bytes that a later version wrote, or none of ours."""

log = logging.getLogger("roundgate.tasks")


class Worker:
    """Takes turns at tasks."""

    def __init__(
        self,
        catalogs: CatalogSource,
        store: StoredTasks,
        queue: TaskQueue,
        clock: Clock,
        config: TasksConfig,
        publish: Publish,
        *,
        skew_s: float = 5.0,
        tracing: Tracing | None = None,
        metrics: Metrics | None = None,
        texts: Callable[[str], Texts] | None = None,
        shows_errors: bool = False,
        trust: ClockTrust | None = None,
    ) -> None:
        """Make a worker. `texts` keeps texts that are too long for a view's result. `skew_s` is how
        far the clocks that share the store may differ, in seconds, unless `config` sets it; `trust`
        is that of this process's sweep, if it has one."""
        self._texts = texts
        self._catalogs = catalogs
        self._store = store
        self._clock = clock
        self._config = config
        self._lease_ms = int(config.lease_s * 1000)
        self._skew_ms = config.skew_ms(skew_s)
        self._publish = publish
        self._tracing = tracing or NoTracing()
        self._metrics = metrics or Metrics()
        self._trust = trust or ClockTrust(clock, self._lease_ms, self._skew_ms)
        self._endings = Endings(
            *(store, queue, clock, config, self._trust), shows_errors=shows_errors
        )
        self._cleaning = Cleaning(
            *(store, clock, self._endings, self._metrics),
            lease_ms=self._lease_ms,
            skew_ms=self._skew_ms,
        )
        self._running: dict[Running, None] = {}
        self._abandoned: set[Running] = set()
        self._stop_requested = False
        self._reasons: dict[TaskRef, str | None] = {}
        """Why tools failed, until the line of the turn is written."""

    async def claim(self, ref: TaskRef, *, alone: bool = False) -> Claimed | NotClaimed:
        """Claim a task: get its lease, if it is free.

        Args:
            ref: the task.
            alone: nothing else runs in this process. Only then is a suspect claimed.

        Raises:
            Unavailable
        """
        now_ms = self._clock.now_ms()
        until_ms = now_ms + self._lease_ms
        lapsed_ms = now_ms - self._skew_ms if self._trust.acts else 0
        due_ms = until_ms + self._skew_ms
        return await self._store.claim(
            ref, now_ms, until_ms, due_ms=due_ms, lapsed_ms=lapsed_ms, alone=alone
        )

    async def remind(self, ref: TaskRef) -> None:
        """Move the due time of a suspect forward. It waits in the memory of a process that may die,
        so a sweep has to find it soon.

        How often it was sent before does not count here; otherwise each death of a
        process would double the pause.

        Raises:
            Unavailable
        """
        now_ms = self._clock.now_ms()
        due_ms = now_ms + int(self._config.requeue_after_s * 1000)
        found = await self._store.read(ref, now_ms)
        if (
            found is not None
            and found.due_ms is not None
            and (found.due_ms > due_ms or found.resends)
        ):
            task = OpenTask(
                ref, found.tool, found.status, found.created_ms, found.expires_ms, found.due_ms
            )
            move = Move(task, due_ms, resends=0, unsent=True)
            await self._store.postpone_many([move], now_ms, self._skew_ms)

    async def work(
        self, ref: TaskRef, deadline: Deadline | None = None, *, alone: bool = False
    ) -> Turn:
        """Claim a task and take a turn at it.

        Raises:
            Unavailable: the store or the queue cannot be reached; the message
                should be delivered again.
        """
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

    async def clean_up(
        self, ref: TaskRef, deadline: Deadline | None = None, left: Left | None = None
    ) -> Turn:
        """End what a task that ended early has begun elsewhere. `left` is what this
        worker knows that had it.

        Raises:
            Unavailable: the store cannot be reached; a sweep finds the task.
        """
        deadline = deadline or Deadline(self._clock, None)
        return await self._cleaning.take(ref, self._run_again, deadline, left)

    async def _run_again(self, claimed: Claimed, deadline: Deadline) -> Outcome:
        with self._catalogs.use() as catalog:
            task_call, served = self._served(claimed, catalog)
            call = self._call(claimed.record.ref, task_call, catalog, deadline, doubt(claimed))
            run = Run(call, journal_of(claimed, task_call))
            handler = partial(served.call, Context(run), dict(task_call.arguments))
            return await engine.run_handler(handler, run)

    async def run(self, claimed: Claimed, deadline: Deadline | None = None) -> Turn:
        """Take a turn at a claimed task; it has to be over by the deadline, if there is one."""
        begun_ms, record = self._clock.monotonic_ms(), claimed.record
        ids = Correlation(record.tool, task=str(record.ref), known_call_id=record.call_id)
        turn = Turn.FAULT
        try:
            with correlated(ids):
                turn = await self._turn(claimed, deadline or Deadline(self._clock, None))
        except LeaseLost:
            turn = Turn.LOST
        finally:
            took_ms = round(self._clock.monotonic_ms() - begun_ms, 2)
            reason = self._reasons.pop(record.ref, None)
            self._note(claimed, turn, took_ms, reason)
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

    def request_stop(self) -> None:
        """Ask every run to free its task at its next step, including those that have not begun."""
        self._stop_requested = True
        for running in self._running:
            running.request_stop()

    def held(self) -> Sequence[Running]:
        """The runs that have a lease. May be called from any thread."""
        return list(self._running)

    @property
    def has_abandoned(self) -> bool:
        """Whether a handler goes on although its turn is over."""
        return any(running.is_abandoned for running in self._abandoned)

    async def _turn(self, claimed: Claimed, deadline: Deadline) -> Turn:
        try:
            self._check(claimed.record)
            # to the end of the turn, whatever is swapped meanwhile
            with self._catalogs.use() as catalog:
                task_call, served = self._served(claimed, catalog)
                if claimed.record.suspect:
                    _log_takeover(task_call, claimed.record)
                return await self._carry(
                    self._begin(claimed, task_call, catalog, deadline), task_call, served
                )
        except (LeaseLost, asyncio.CancelledError):
            raise
        except NotServedHere as needs:
            return await self._endings.decline(claimed, needs)
        except TaskGivenUp as error:
            return await self._endings.give_up(claimed, error)
        except Exception as error:
            return await self._endings.retry_or_fail(claimed, error)

    def _check(self, record: TaskRecord) -> None:
        """Check that another turn makes sense.

        Raises:
            TaskGivenUp, NotServedHere
        """
        if record.deaths >= self._config.max_deaths:
            raise TaskGivenUp(
                f"{record.deaths} workers died or stalled that ran nothing but this task"
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
        self, claimed: Claimed, task_call: TaskCall, catalog: Catalog, deadline: Deadline
    ) -> Running:
        config, call = self._config, self._call(claimed.record.ref, task_call, catalog, deadline)
        try:
            checkpointer = Checkpointer(
                *(self._store, claimed, task_call, call, self._clock, config, self._skew_ms),
                self._trust,
            )
        except _UNREADABLE as error:
            raise NotServedHere("can read its journal") from error
        give_up_ms = claimed.record.created_ms + int(config.task_timeout_s * 1000)
        return Running(
            *(checkpointer, task_call.tool, self._clock, self._trust),
            lease_s=config.lease_s,
            give_up_ms=give_up_ms,
        )

    def _call(
        self,
        ref: TaskRef,
        task_call: TaskCall,
        catalog: Catalog,
        deadline: Deadline,
        cleanup: Cleanup | None = None,
    ) -> Call:
        offered = _offered(task_call, catalog)
        return Call(
            principal=task_call.principal,
            meta=task_call.meta(),
            deadline=deadline,
            publish=self._publish,
            task_id=task_call.continues or ref.id,
            texts=None if self._texts is None else self._texts(task_call.view),
            read=None if offered is None else offered.read_resource,
            cleanup=cleanup,
        )

    async def _carry(self, running: Running, task_call: TaskCall, served: ServedTool) -> Turn:
        self._running[running] = None
        if self._stop_requested:
            running.request_stop()
        try:
            outcome = await self._outcome(running, task_call, served)
            return await self._endings.commit(running.checkpointer, task_call.tool, outcome)
        except LeaseLost:
            await self._leave(running.checkpointer)
            raise
        except asyncio.CancelledError:
            end = self._endings.stopped if self._stop_requested else self._endings.crashed
            await to_its_end(end(running.checkpointer))
            raise
        finally:
            self._running.pop(running, None)
            self._abandoned = {one for one in {*self._abandoned, running} if one.is_abandoned}

    async def _leave(self, checkpointer: Checkpointer) -> None:
        """A task was taken from us. If it was cancelled, nobody else knows what we have just
        begun elsewhere for it."""
        if not checkpointer.cleans_up:
            return
        ref, deadline = checkpointer.ref, checkpointer.run.call.deadline
        left = Left(checkpointer.claimed, checkpointer.news())
        try:
            await to_its_end(self.clean_up(ref, deadline, left))
        except Unavailable as error:
            fields = {"task": str(ref), "error": str(error)}
            log.warning("a cancelled task has to wait to be cleaned up", extra={"fields": fields})

    async def _outcome(self, running: Running, task_call: TaskCall, served: ServedTool) -> Outcome:
        context = Context(running.checkpointer.run)
        with self._tracing.turn(task_call.tool, task_call.origin) as span:
            outcome = await running.outcome(lambda: served.call(context, dict(task_call.arguments)))
            span.end("tool_error" if isinstance(outcome, Failed) else "ok", None)
        if isinstance(outcome, Completed | Failed):
            self._reasons[running.checkpointer.ref] = reason_of(outcome)
        return outcome


def _log_takeover(task_call: TaskCall, record: TaskRecord) -> None:
    """Log that this worker takes over a task from one that died or stalled, and the task's
    caller."""
    fields = {**task_call.principal.names, "deaths": record.deaths}
    log.warning("a task is taken over", extra={"fields": fields})


def _offered(task_call: TaskCall, catalog: Catalog) -> Catalog | None:
    """What is served where the call was made; `None` where that is gone."""
    return catalog.views.get(task_call.view) if task_call.view else catalog
