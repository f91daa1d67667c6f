"""One turn at a task: a run of the handler takes a claimed record to its next state.

    claimed ──▶ run the handler from the top ──▶ finish     the handler returned or raised
                                             ├─▶ suspend    the handler asks the client; no worker waits for the answer
                                             ├─▶ release    the handler sleeps, or its time is up; a message follows
                                             ├─▶ decline    this worker cannot serve the task; others may
                                             └─▶ (nothing)  the lease is lost: its new holder continues

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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from roundgate.backends import Returned
from roundgate.clock import Deadline
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
    TaskGivenUp,
    TaskTimeout,
    ToolError,
    Unavailable,
    WorkerFault,
)
from roundgate.json import encode
from roundgate.replay import (
    HOLD_MS,
    JOURNAL_VERSION,
    Call,
    Completed,
    Context,
    Failed,
    Journal,
    Raised,
    Restarted,
    Run,
    Stop,
    Suspended,
    engine,
)
from roundgate.storage import Ending, TaskRef
from roundgate.tasks import watchdog
from roundgate.tasks.call import TaskCall
from roundgate.tasks.events import NOTHING, Added, Finish, LetGo, Park, Release, Restart, UnderLease
from roundgate.tasks.events import SuspendTask as Ask
from roundgate.tasks.lease import Heartbeat, Means, TaskCheckpointer, to_its_end
from roundgate.tasks.outcome import ended, failed, failure_reason, log_failure, tell_refused
from roundgate.tasks.stored import Claimed, Lease

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


class Turn:
    """A claimed task until its turn has ended.

    async with Turn(means, claimed, deadline) as turn:
        turn.begin(task_call, call)
        outcome = await turn.run(handler)
        await turn.commit(outcome)

    An error that leaves the block is committed as `Aborted`, and a cancellation as `Interrupted`.
    """

    def __init__(self, means: Means, claimed: Claimed, deadline: Deadline) -> None:
        self._means = means
        self._store = means.tasks
        self._clock = means.clock
        self._record = claimed.record
        self._deadline = deadline
        self._begun_ms = self._last_look_ms = means.clock.monotonic_ms()
        self._told_s: float | None = None
        self._is_stopping = False
        self.has_begun = False
        self._reason: str | None = None
        self.claimed = claimed
        self.result = TurnResult.FAULT

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

    async def __aenter__(self) -> Turn:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        try:
            match error:
                case LeaseLost():
                    self.result = TurnResult.LOST
                case asyncio.CancelledError():
                    await to_its_end(self.commit(Interrupted(crashes=not self._is_stopping)))
                case Exception():
                    await self.commit(Aborted(error))
        finally:
            self._note()
        return isinstance(error, Exception)

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

    def begin(self, task_call: TaskCall, journal: Journal, call: Call) -> None:
        """Make the run of the task's handler without starting it."""
        self.task_call = task_call
        if self._record.suspect:
            self._means.metrics.taken_over(self._record.tool)
            fields = {**task_call.principal.names, "deaths": self._record.deaths}
            log.warning("a task is taken over", extra={"fields": fields})
        if self._means.trail is not None:
            self._means.trail.turn(task_call.principal, self._record.attempts + 1)
        self.checkpointer = TaskCheckpointer(self._means, self.claimed, call, journal)
        self.has_begun = True

    def request_stop(self) -> None:
        """Ask the run to release its task at the next step."""
        self._is_stopping = True
        self._run.request_stop()

    @property
    def is_abandoned(self) -> bool:
        """Return whether the turn has ended while the handler still runs."""
        root = self._run.root_task
        return root is not None and not root.done()

    @property
    def _run(self) -> Run:
        return self.checkpointer.run

    async def run(
        self, handler: Callable[[Context, dict[str, Any]], Awaitable[Returned]]
    ) -> HandlerOutcome:
        """Return the outcome of the handler, or the reason for its forced end.

        Raises:
            LeaseLost: this worker no longer holds the task.
            Exception: a fault of the gateway, for instance of the store.
        """
        if self.checkpointer.error is not None:  # the task is past its time
            return Failed(self.checkpointer.error)
        context, arguments = Context(self._run), dict(self.task_call.arguments)

        async def run_handler() -> HandlerOutcome:
            watchdog.RUNNING.set(self)
            watchdog.attend()
            return await engine.run_handler(lambda: handler(context, arguments), self._run)

        root = asyncio.create_task(run_handler())
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
        return self._outcome(root)

    async def _beat(self) -> None:
        now_ms = self._clock.monotonic_ms()
        look_s = JOB_LOOK_S if self._record.cleans_up else LOOK_S
        is_time = now_ms - self._last_look_ms >= look_s * 1000
        if is_time:
            self._last_look_ms = now_ms
        await self.checkpointer.attend(look=is_time)

    def _is_given_up(self, root: asyncio.Task[HandlerOutcome]) -> bool:
        """Return whether to abandon the handler, because it was stopped long ago. Cancel it after
        half of that time; at once if a job has to be cancelled."""
        run = self._run
        if not self._deadline.is_past and (run.stopped is None or run.is_beginning):
            return False
        now_s = asyncio.get_running_loop().time()
        self._told_s = now_s if self._told_s is None else self._told_s
        grace_s = LATE_S if self._deadline.is_past else GRACE_S
        is_urgent = self.checkpointer.is_lost and self._record.cleans_up
        if is_urgent or now_s - self._told_s >= grace_s:
            root.cancel()
        return now_s - self._told_s >= 2 * grace_s

    def _outcome(self, root: asyncio.Task[HandlerOutcome]) -> HandlerOutcome:
        run, error = self._run, self.checkpointer.error
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

    # the end of the turn

    async def commit(self, outcome: Outcome) -> None:
        """Write the outcome of the turn, and set `result`.

        Raises:
            Unavailable: the store cannot be reached.
        """
        if isinstance(outcome, Completed | Failed):
            self._reason = failure_reason(outcome)
        try:
            self.result = await self._commit(outcome)
        except LeaseLost:
            self.result = TurnResult.LOST
        except NotJson as error:  # in ctx.state
            self.result = await self._commit(Failed(error))
        except QuotaExceeded as error:  # an outcome of this size is always stored
            self.result = await self._commit(Failed(ToolError(str(error))))

    async def _commit(self, outcome: Outcome) -> TurnResult:
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
        self.checkpointer.extend_life(self._clock.now_ms())
        self.checkpointer.extend_life()
        wake_ms = min(suspended.wake_ms or 0, self.checkpointer.end_ms)
        if self._run.is_message_over:
            self._run.message = ""
        await self.checkpointer.last_with_rest(
            lambda rest: Ask(wire, wake_ms, suspended.awaits, ready_ms, added=rest)
        )
        if log.isEnabledFor(logging.DEBUG):
            log.debug("a task asks its client", extra={"fields": {"questions": list(wire)}})

    async def _release(self, suspended: Suspended) -> None:
        self.checkpointer.extend_life()
        wake_ms = min(suspended.wake_ms or 0, self.checkpointer.end_ms)
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

        await self.checkpointer.last_with_rest(release)

    async def _restart(self, arguments: Mapping[str, Any]) -> None:
        generation = self.task_call.generation + 1
        call = replace(self.task_call, arguments=arguments, generation=generation).to_bytes()
        due_ms = self._means.due_ms()
        self.checkpointer.extend_life(self._clock.now_ms())
        expires_ms = self.checkpointer.later_expires_ms
        await self.checkpointer.last(Restart(call, (), b"{}", JOURNAL_VERSION, due_ms, expires_ms))

    async def _park(self, error: NondeterminismError) -> None:
        what = f"task {self.ref} (tool {self._record.tool})"
        reference = log_failure(what, error, self._clock)
        how = (
            f"does not support version {error.version} any more,"
            if isinstance(error, HandlerVersionError)
            else "took another path than before,"
        )
        why = f"{PARKED}: the handler {how} at {error.key!r} (reference {reference})"
        await self.checkpointer.last(Park(why))

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
        await self.checkpointer.last(finish)
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
                self.checkpointer.patience.hurry()
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
        await self._store.write(self.lease, release, self._clock.now_ms())

    async def _give_up(self, error: TaskGivenUp) -> TurnResult:
        """Fail the task for good."""
        what = f"task {self.ref} (tool {self._record.tool})"
        return await self._fail(f"because {error}", log_failure(what, error, self._clock))

    async def _fail(self, why: str, reference: str) -> TurnResult:
        end = failed(InternalError(reference))
        message = f"Given up {why} (reference {reference})"
        due_ms = self._means.due_ms() if self._record.cleans_up else None
        finish = Finish(end.status, end.outcome, message, due_ms)
        await self._store.write(self.lease, finish, self._clock.now_ms())
        return TurnResult.GIVEN_UP


def _retrieve_error(root: asyncio.Task[Any]) -> None:
    """Retrieve the exception of an abandoned handler, so that asyncio does not report it."""
    if not root.cancelled():
        root.exception()
