"""A worker's turn at a task: claim → replay → commit. Safe to run twice, safe to die anywhere.

    message ──▶ claim ──▶ run the handler from the top ──▶ finish     it returned or raised
                  │                                    ├─▶ suspend    it asks the client; nobody waits with it
                  │ not ours: drop the message         ├─▶ release    it sleeps, or its time is up; a message follows
                  ▼                                    └─▶ (nothing)  the lease is lost: whoever has it carries on

A fault of ours (the store cannot be reached, the tool is not served here, a worker died) is retried with growing
pauses; when that does no good the task fails, so that it neither hangs nor spins for ever.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from typing import Final

from app.backends.catalog import Catalog, ServedTool
from app.clock import Clock, Deadline
from app.config import TasksConfig
from app.errors import CallTimeout, InternalError, LeaseLost, NotJson, ToolError, Unavailable
from app.metrics import Metrics, NoMetrics
from app.protocol.content import ToolResult
from app.replay import engine
from app.replay.call import Call, Publish
from app.replay.context import Context
from app.replay.engine import Completed, Failed, Outcome, Restarted, Suspended
from app.replay.run import HOLD_MS
from app.storage.queue import TaskQueue
from app.storage.tasks import NOTHING, Claimed, NotClaimed, TaskRef, TaskStore
from app.tasks.call import TaskCall
from app.tasks.home import Home
from app.tasks.outcome import ended, failed, log_failure
from app.tracing import NoTracing, Tracing

MAX_MESSAGE_DELAY_MS: Final = 900_000
"""Longer sleeps are woken by the sweep: SQS delays no message by more."""
BACKOFF_MS: Final = (1_000, 5_000, 20_000, 60_000)

log = logging.getLogger("app.tasks")


class Turn(StrEnum):
    """How a turn at a task ended, as the log says it."""

    NOT_CLAIMED = "not claimed"
    FINISHED = "finished"
    ASKED = "asked"
    RELEASED = "released"
    LOST = "lost"
    FAULT = "fault"


class Fault(Exception):
    """What is wrong with us rather than with the tool; its text is fit for a `statusMessage`."""


class Worker:
    """Takes turns at tasks."""

    def __init__(
        self,
        catalog: Catalog,
        store: TaskStore,
        queue: TaskQueue,
        clock: Clock,
        config: TasksConfig,
        publish: Publish,
        *,
        tracing: Tracing | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._queue = queue
        self._clock = clock
        self._config = config
        self._publish = publish
        self._tracing = tracing or NoTracing()
        self._metrics = metrics or NoMetrics()
        self._homes: set[Home] = set()
        self._is_stopping = False

    async def claim(self, ref: TaskRef) -> Claimed | NotClaimed:
        """Make a task ours, if it is to be had.

        Raises:
            Unavailable
        """
        now_ms = self._clock.now_ms()
        return await self._store.claim(ref, now_ms, now_ms + int(self._config.lease_s * 1000))

    async def work(self, ref: TaskRef, deadline: Deadline | None = None) -> Turn:
        """A whole turn.

        Raises:
            Unavailable: the store or the queue cannot be reached; the message should be delivered again.
        """
        match await self.claim(ref):
            case NotClaimed() as reason:
                log.debug("task not claimed", extra={"fields": {"task": ref.id, "reason": reason.value}})
                return Turn.NOT_CLAIMED
            case Claimed() as claimed:
                return await self.run(claimed, deadline)

    async def run(self, claimed: Claimed, deadline: Deadline | None = None) -> Turn:
        """The turn at a task that is ours; it has to be over by the deadline, if there is one."""
        begun_ms = self._clock.monotonic_ms()
        turn = Turn.FAULT
        try:
            turn = await self._turn(claimed, deadline or Deadline(self._clock, None))
        except LeaseLost:
            turn = Turn.LOST
        finally:
            self._note(claimed, turn, round(self._clock.monotonic_ms() - begun_ms, 2))
        return turn

    def _note(self, claimed: Claimed, turn: Turn, took_ms: float) -> None:
        record = claimed.record
        self._metrics.turn(record.tool, turn.value, took_ms)
        facts = {"name": record.tool, "outcome": turn.value, "attempt": record.attempts, "ms": took_ms}
        log.info("task", extra={"fields": {"task": record.ref.id, **facts}})

    def stop_soon(self) -> None:
        """Have every run let go of its task at its next step, also one that has yet to begin."""
        self._is_stopping = True
        for home in self._homes:
            home.run.stop_soon()

    async def _turn(self, claimed: Claimed, deadline: Deadline) -> Turn:
        try:
            return await self._carry(claimed, deadline)
        except (LeaseLost, asyncio.CancelledError):
            raise
        except Exception as error:
            return await self._retry_or_fail(claimed, error)

    async def _carry(self, claimed: Claimed, deadline: Deadline) -> Turn:
        if claimed.record.attempts > self._config.max_attempts:
            raise Fault("a worker died in each of them, or a step took longer than a worker lives")
        call = TaskCall.from_bytes(claimed.call)
        served = self._catalog.tools.get(call.tool)
        if served is None:
            raise Fault(f"the tool {call.tool} is not served any more")
        home = Home(self._store, claimed, self._call(claimed, call, deadline), self._clock, self._config)
        with self._tracing.turn(call.tool, call.origin) as span:
            outcome = await self._outcome(home, served, call)
            span.end("tool_error" if isinstance(outcome, Failed) else "ok", None)
        if home.lost:
            raise LeaseLost(str(claimed.record.ref))
        if isinstance(home.fault, ToolError):
            outcome = Failed(home.fault)
        elif home.fault is not None:
            raise home.fault
        try:
            return await self._commit(home, call, outcome)
        except NotJson as error:  # in ctx.state
            return await self._commit(home, call, Failed(error))

    def _call(self, claimed: Claimed, call: TaskCall, deadline: Deadline) -> Call:
        task_id = claimed.record.ref.id
        return Call(
            principal=call.principal,
            meta=call.meta(),
            deadline=deadline,
            publish=self._publish,
            task_id=task_id,
            idempotency=task_id,
        )

    async def _outcome(self, home: Home, served: ServedTool, call: TaskCall) -> Outcome[ToolResult]:
        context = Context(home.run)
        self._homes.add(home)
        if self._is_stopping:
            home.run.stop_soon()
        try:
            async with home.beating():
                return await engine.run(lambda: served.tool.call(context, dict(call.arguments)), home.run)
        except asyncio.CancelledError:
            if not home.lost:
                await asyncio.shield(self._let_go(home))
                raise
            uncancel()  # it was our own heartbeat that put an end to a handler whose task is gone
            raise LeaseLost(home.ref.id) from None
        finally:
            self._homes.discard(home)

    async def _commit(self, home: Home, call: TaskCall, outcome: Outcome[ToolResult]) -> Turn:
        match outcome:
            case Suspended(requests=requests) if requests:
                await home.suspend(requests)
                return Turn.ASKED
            case Suspended(wake_ms=wake_ms):
                await self._release(home, wake_ms or 0)
                return Turn.RELEASED
            case Restarted():
                raise Fault("restarting is not there yet")
            case Failed(CallTimeout()) if home.run.call.deadline.is_past:
                raise Fault("a step takes longer than a worker may run")
            case Completed() | Failed():
                await home.finish(ended(outcome, call.tool, self._clock, self._config.max_result_bytes))
                return Turn.FINISHED

    async def _release(self, home: Home, wake_ms: int) -> None:
        """Let go, and have the task taken up again at its time."""
        due_ms, delay_ms = self._next(wake_ms)
        # whose clock is a little behind ours may take it up when our message comes, and waits for the rest
        await home.release(wake_ms=max(0, wake_ms - HOLD_MS), due_ms=due_ms)
        await self._wake(home.ref, delay_ms)

    def _next(self, wake_ms: int) -> tuple[int, int | None]:
        """When the sweep should look at a task that is to go on at a time, and the delay of its message, if any."""
        now_ms = self._clock.now_ms()
        delay_ms = max(0, wake_ms - now_ms)
        if delay_ms > MAX_MESSAGE_DELAY_MS:
            return wake_ms, None
        return now_ms + delay_ms + int(self._config.requeue_after_s * 1000), delay_ms

    async def _wake(self, ref: TaskRef, delay_ms: int | None) -> None:
        if delay_ms is None:
            return
        try:
            await self._queue.send(ref, delay_ms)
        except Unavailable as error:
            fields = {"task": ref.id, "error": str(error)}
            log.warning("no message for a task, the sweep will send one", extra={"fields": fields})

    async def _let_go(self, home: Home) -> None:
        """The process is stopping: another one shall not have to wait for our lease to run out."""
        try:
            await self._release(home, 0)
        except (LeaseLost, Unavailable) as error:
            log.warning("a task could not be let go of", extra={"fields": {"task": home.ref.id, "error": str(error)}})

    async def _retry_or_fail(self, claimed: Claimed, error: Exception) -> Turn:
        ref, attempts = claimed.record.ref, claimed.record.attempts
        reference = log_failure(f"task {ref.id} (tool {claimed.record.tool}, attempt {attempts})", error, self._clock)
        now_ms = self._clock.now_ms()
        if attempts < self._config.max_attempts:
            wake_ms = now_ms + BACKOFF_MS[min(attempts, len(BACKOFF_MS)) - 1]
            due_ms, delay_ms = self._next(wake_ms)
            await self._store.release(
                claimed.lease, NOTHING, now_ms, wake_ms=wake_ms, due_ms=due_ms, keeps_attempts=True
            )
            await self._wake(ref, delay_ms)
        else:
            reason = str(error) if isinstance(error, Fault) else "the server's log has the details"
            message = f"Given up after {self._config.max_attempts} attempts: {reason} (reference {reference})"
            end = failed(InternalError(reference))
            await self._store.finish(claimed.lease, end.status, end.outcome, message, now_ms)
        return Turn.FAULT


def uncancel() -> None:
    """Go on after a cancellation that was meant for what is over now."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
