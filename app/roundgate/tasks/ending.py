"""The end of a turn: the write to the task, and the message that makes a worker claim it again.

| turn | the row | attempts | blame |
|---|---|---|---|
| finished | terminal | | |
| step failed | terminal; what a worker needs is kept for `tasks retry` | | |
| asked, released | free, or waits for its client | 0 | lifted |
| declined: this worker cannot serve it | free after a pause | as before | stays |
| restarted: `ctx.restart` | free, with a fresh journal | 0 | lifted |
| parked: the handler went another way | asleep until its operator wakes it | as before | stays |
| fault of ours | free after a pause | one more | stays |
| the process crashes, perhaps because of a handler | free, a suspect | as before | begins |
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final

from roundgate.clock import Clock
from roundgate.errors import (
    CallTimeout,
    InternalError,
    JobLeft,
    LeaseLost,
    NondeterminismError,
    NotJson,
    NotServedHere,
    TaskGivenUp,
    TaskTimeout,
    Unavailable,
    WorkerFault,
)
from roundgate.replay import HOLD_MS, Completed, Failed, Raised, Restarted, Suspended
from roundgate.settings import TasksConfig
from roundgate.storage import Ending, TaskQueue, TaskRef
from roundgate.tasks.checkpointer import Checkpointer
from roundgate.tasks.events import NOTHING, Added
from roundgate.tasks.hints import wake
from roundgate.tasks.lease import ClockTrust
from roundgate.tasks.outcome import Ended, ended, failed, log_failure
from roundgate.tasks.stored import Claimed, StoredTasks
from roundgate.tasks.turn import Outcome

MAX_MESSAGE_DELAY_MS: Final = 900_000
"""Longer sleeps are woken by the sweep: SQS delays no message by more."""
BACKOFF_MS: Final = (1_000, 5_000, 20_000, 60_000)
CLEANUP_PAUSES_S: Final = (5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400)
"""Between tries to end what a task has begun elsewhere: nine in eight hours, in which
a service may be away."""
DECLINED_MS: Final = (1_000, 60_000)
"""The shortest and the longest pause after a task was declined; in between, a quarter of
how long it has waited."""

PARKED: Final = "Waiting for the operator of this server"
"""How the status message of a task begins that was put aside."""

log = logging.getLogger("roundgate.tasks")


class Turn(StrEnum):
    """How a turn at a task ended, as the log says it."""

    NOT_CLAIMED = "not claimed"
    SUSPECT = "suspect"
    """Not claimed either: it has to be run alone."""
    FINISHED = "finished"
    STEP_FAILED = "step failed"
    """Finished because of a failed step that nothing retries any more."""
    ASKED = "asked"
    RELEASED = "released"
    RESTARTED = "restarted"
    PARKED = "parked"
    DECLINED = "declined"
    LOST = "lost"
    FAULT = "fault"
    GIVEN_UP = "given up"
    CLEANED_UP = "cleaned up"
    """What the task had begun elsewhere was ended, or there was nothing to end."""
    TO_CLEAN_UP = "to be cleaned up"
    """It could not be ended, and is tried again."""
    NOT_CLEANED_UP = "not cleaned up"
    """It could not be ended, and nobody tries any more."""


class Endings:
    """The last write of a turn, and the message after it."""

    def __init__(
        self,
        store: StoredTasks,
        queue: TaskQueue,
        clock: Clock,
        config: TasksConfig,
        trust: ClockTrust,
        *,
        shows_errors: bool = False,
    ) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._config = config
        self._trust = trust
        self._shows_errors = shows_errors

    async def commit(self, checkpointer: Checkpointer, tool: str, outcome: Outcome) -> Turn:
        """Write what the outcome of the handler means for its task.

        Raises:
            WorkerFault, LeaseLost, Unavailable
        """
        try:
            return await self._commit(checkpointer, tool, outcome)
        except NotJson as error:  # in ctx.state
            return await self._commit(checkpointer, tool, Failed(error))

    async def _commit(self, checkpointer: Checkpointer, tool: str, outcome: Outcome) -> Turn:
        match outcome:
            case Suspended(requests=requests, wake_ms=wake_ms) if requests:
                await checkpointer.suspend(requests, wake_ms)
                return Turn.ASKED
            case Suspended(wake_ms=wake_ms):
                await self.release(checkpointer, wake_ms or 0)
                return Turn.RELEASED
            case Restarted(arguments=arguments):
                due_ms, delay_ms = self._next(0)
                await checkpointer.restart(arguments, due_ms)
                await self._wake(checkpointer.ref, delay_ms)
                return Turn.RESTARTED
            case Failed(NondeterminismError() as error):
                await self._park(checkpointer, tool, error)
                return Turn.PARKED
            case Failed(CallTimeout()) if checkpointer.run.call.deadline.is_past:
                raise WorkerFault("a step takes longer than a worker may run")
            case Completed() | Failed():
                end = ended(
                    outcome,
                    tool,
                    self._clock,
                    self._config.max_result_bytes,
                    shows_errors=self._shows_errors,
                )
                is_early = isinstance(outcome, Failed) and isinstance(
                    outcome.error, (TaskTimeout, JobLeft)
                )
                await self._finish(checkpointer, end, is_early=is_early)
                if end.ending is not Ending.STEP_FAILED:
                    return Turn.FINISHED
                _log_failed_steps(checkpointer, end.failed_steps)
                return Turn.STEP_FAILED

    async def _finish(self, checkpointer: Checkpointer, end: Ended, *, is_early: bool) -> None:
        cleans_up = is_early and checkpointer.cleans_up
        await checkpointer.finish(end, cleanup_due_ms=self._next(0)[0] if cleans_up else None)
        if cleans_up:
            await self._wake(checkpointer.ref, 0)

    async def _park(
        self, checkpointer: Checkpointer, tool: str, error: NondeterminismError
    ) -> None:
        reference = log_failure(f"task {checkpointer.ref} (tool {tool})", error, self._clock)
        await checkpointer.park(
            f"{PARKED}: its handler went another way than before, at {error.key!r} (reference "
            f"{reference})"
        )

    async def release(self, checkpointer: Checkpointer, wake_ms: int) -> None:
        """Free the task, and have it claimed again at `wake_ms` (milliseconds since the epoch).

        Raises:
            LeaseLost, Unavailable
        """
        due_ms, delay_ms = self._next(wake_ms)
        # whose clock is a little behind ours may take it up when our message comes, and waits for
        # the rest
        await checkpointer.release(wake_ms=max(0, wake_ms - HOLD_MS), due_ms=due_ms)
        await self._wake(checkpointer.ref, delay_ms)

    async def stopped(self, checkpointer: Checkpointer) -> None:
        """Free the task because this process stops, so that nobody has to wait
        until its lease is over."""
        checkpointer.hurry()
        await self._quietly(checkpointer.ref, lambda: self.release(checkpointer, 0))

    async def crashed(self, checkpointer: Checkpointer) -> None:
        """Free the task as a suspect: the process is ending, and any task that it
        runs may be the cause."""
        now_ms, ref, fence = self._clock.now_ms(), checkpointer.ref, checkpointer.lease.fence

        async def let_go() -> None:
            await self._store.let_go(ref, fence, now_ms, self._next(0)[0], blame=True)
            await self._wake(ref, 0)

        await self._quietly(ref, let_go)

    async def _quietly(self, ref: TaskRef, write: Callable[[], Awaitable[None]]) -> None:
        try:
            await write()
        except (LeaseLost, Unavailable) as error:
            log.warning(
                "a task could not be let go of",
                extra={"fields": {"task": str(ref), "error": str(error)}},
            )

    async def decline(self, claimed: Claimed, needs: NotServedHere) -> Turn:
        """Free the task for a worker that can run it; fail it once none has
        come for `tasks.unserved_s`.

        Raises:
            LeaseLost, Unavailable
        """
        record, now_ms = claimed.record, self._clock.now_ms()
        since_ms = record.declined_ms or now_ms
        waited_ms = now_ms - since_ms
        if waited_ms >= self._config.unserved_s * 1000 and self._trust.expires:
            return await self.give_up(
                claimed, TaskGivenUp(f"for {waited_ms // 1000} s there was no worker that {needs}")
            )
        shortest_ms, longest_ms = DECLINED_MS
        wake_ms = now_ms + min(max(shortest_ms, waited_ms // 4), longest_ms)
        due_ms, delay_ms = self._next(wake_ms)
        await self._store.release(
            claimed.lease,
            Added(status_message=f"Waiting for a worker that {needs}"),
            now_ms,
            wake_ms=wake_ms,
            due_ms=due_ms,
            attempts=record.attempts,
            declined_ms=since_ms,
            keeps_blame=True,
        )
        await self._wake(record.ref, delay_ms)
        return Turn.DECLINED

    async def retry_or_fail(self, claimed: Claimed, error: Exception) -> Turn:
        """After a fault of the gateway: try again after a pause, or fail the
        task after `tasks.max_attempts`.

        Raises:
            LeaseLost, Unavailable
        """
        record, attempt = claimed.record, claimed.record.attempts + 1
        what = f"task {record.ref} (tool {record.tool}, attempt {attempt})"
        reference = log_failure(what, error, self._clock)
        if attempt >= self._config.max_attempts:
            reason = (
                str(error) if isinstance(error, WorkerFault) else "the server's log has the details"
            )
            return await self._fail(claimed, f"after {attempt} attempts: {reason}", reference)
        now_ms = self._clock.now_ms()
        wake_ms = now_ms + BACKOFF_MS[min(attempt, len(BACKOFF_MS)) - 1]
        due_ms, delay_ms = self._next(wake_ms)
        await self._store.release(
            claimed.lease,
            NOTHING,
            now_ms,
            wake_ms=wake_ms,
            due_ms=due_ms,
            attempts=attempt,
            keeps_blame=True,
        )
        await self._wake(record.ref, delay_ms)
        return Turn.FAULT

    async def give_up(self, claimed: Claimed, error: TaskGivenUp) -> Turn:
        """Fail a task for good.

        Raises:
            LeaseLost, Unavailable
        """
        reference = log_failure(
            f"task {claimed.record.ref} (tool {claimed.record.tool})", error, self._clock
        )
        return await self._fail(claimed, f"because {error}", reference)

    async def _fail(self, claimed: Claimed, why: str, reference: str) -> Turn:
        end = failed(InternalError(reference))
        message = f"Given up {why} (reference {reference})"
        lease, now_ms, cleans_up = claimed.lease, self._clock.now_ms(), claimed.record.cleans_up
        due_ms = self._next(0)[0] if cleans_up else None
        await self._store.finish(
            lease, end.status, end.outcome, message, now_ms, cleanup_due_ms=due_ms
        )
        if cleans_up:
            await self._wake(lease.ref, 0)
        return Turn.GIVEN_UP

    async def clean_up_again(self, claimed: Claimed) -> bool:
        """Have what a task has begun elsewhere ended later; `False` if it was tried
        often enough, and is over now.

        Raises:
            Unavailable
        """
        attempt = claimed.record.attempts
        if attempt > len(CLEANUP_PAUSES_S):
            await self._store.end_cleanup(claimed.lease)
            return False
        wake_ms = self._clock.now_ms() + CLEANUP_PAUSES_S[attempt - 1] * 1000
        due_ms, delay_ms = self._next(wake_ms)
        await self._store.postpone_cleanup(claimed.lease, wake_ms=wake_ms, due_ms=due_ms)
        await self._wake(claimed.lease.ref, delay_ms)
        return True

    def _next(self, wake_ms: int) -> tuple[int, int | None]:
        """For a task that goes on at `wake_ms`: when a sweep should look at it, and the delay of
        its message in milliseconds, or `None` if it is too long for a message.
        """
        now_ms = self._clock.now_ms()
        delay_ms = max(0, wake_ms - now_ms)
        if delay_ms > MAX_MESSAGE_DELAY_MS:
            return wake_ms, None
        return now_ms + delay_ms + int(self._config.requeue_after_s * 1000), delay_ms

    async def _wake(self, ref: TaskRef, delay_ms: int | None) -> None:
        if delay_ms is not None:
            await wake(self._queue, ref, delay_ms)


def _log_failed_steps(checkpointer: Checkpointer, places: Sequence[str]) -> None:
    """Log the steps that ended a task, each with its number of attempts."""
    steps = checkpointer.run.journal.steps
    for place in places:
        entry = steps.get(place)
        attempts = entry.attempts or 1 if isinstance(entry, Raised) else 1
        fields = {"step": place, "attempt": attempts}
        log.warning("a failed step has ended a task", extra={"fields": fields})
