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
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from roundgate.clock import Deadline
from roundgate.errors import (
    CleanedUp,
    LeaseLost,
    NotCancelled,
    NotServedHere,
    Unavailable,
)
from roundgate.observability.tracing import correlated
from roundgate.protocol import Status
from roundgate.replay import (
    Cleanup,
    Context,
    Failed,
    Run,
    Suspended,
    engine,
)
from roundgate.storage import TaskRef
from roundgate.tasks.call import read_task
from roundgate.tasks.events import (
    Claim,
    ClaimCleanup,
    EndCleanup,
    NotClaimed,
    Postpone,
    PostponeCleanup,
    Sending,
)
from roundgate.tasks.lease import Patience, to_its_end
from roundgate.tasks.stored import Claimed
from roundgate.tasks.turn import HandlerOutcome, Means, Turn, TurnResult

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
    """The worker of a process, with the means of its turns."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._store = means.store
        self._clock = means.clock
        self._turns: dict[Turn, None] = {}
        self._stop_requested = False

    async def claim(self, ref: TaskRef, *, alone: bool = False) -> Claimed | NotClaimed:
        """Claim a task if its lease is free. A process that runs no other task is `alone`, and may
        claim a suspect.

        Raises:
            Unavailable: the store cannot be reached, or the audit log cannot be written.
        """
        means = self._means
        if means.trail is not None:
            means.trail.check()
        now_ms = self._clock.now_ms()
        until_ms = now_ms + means.lease_ms
        lapsed_ms = now_ms - means.skew_ms if means.trust.acts else 0
        event = Claim(until_ms, until_ms + means.skew_ms, lapsed_ms, alone)
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
        due_ms = now_ms + int(self._means.config.requeue_after_s * 1000)
        record = await self._store.read(ref, now_ms)
        if (
            record is not None
            and record.due_ms is not None
            and (record.due_ms > due_ms or record.resends)
        ):
            event = Postpone(record.due_ms, due_ms, 0, Sending.LEFT, self._means.skew_ms)
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
        return await self.act_on(await self.claim(ref, alone=alone), ref, deadline)

    async def act_on(
        self, claimed: Claimed | NotClaimed, ref: TaskRef, deadline: Deadline | None = None
    ) -> TurnResult:
        """Run a turn of a claimed task, or clean up after it."""
        if isinstance(claimed, Claimed):
            return await self.run(claimed, deadline)
        if claimed is NotClaimed.CLEAN_UP:
            return await self.clean_up(ref, deadline)
        if claimed is NotClaimed.SUSPECT:
            return TurnResult.SUSPECT
        fields = {"task": str(ref), "reason": claimed.value}
        log.debug("task not claimed", extra={"fields": fields})
        return TurnResult.NOT_CLAIMED

    async def run(self, claimed: Claimed, deadline: Deadline | None = None) -> TurnResult:
        """Run a turn of a claimed task, which has to end by the deadline, if any."""
        deadline = deadline or Deadline(self._clock, None)
        turn = Turn(self._means, claimed, deadline)
        if self._stop_requested:
            turn.request_stop()
        with correlated(turn.correlation):
            self._turns[turn] = None
            try:
                await turn.take()
            finally:
                del self._turns[turn]
            is_lost = turn.result is TurnResult.LOST and turn.has_begun
            if is_lost and claimed.record.cleans_up:
                await self._leave(turn, deadline)
        if self._means.trail is not None:
            await self._means.trail.settled()
        return turn.result

    def request_stop(self) -> None:
        """Ask every run, current or future, to release its task at the next step."""
        self._stop_requested = True
        for turn in self._turns:
            turn.request_stop()

    def held(self) -> Sequence[Turn]:
        """Return the turns whose handlers run. Any thread may call this."""
        return [turn for turn in list(self._turns) if turn.has_begun]

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
        until_ms = now_ms + self._means.lease_ms
        event = ClaimCleanup(
            until_ms,
            until_ms + self._means.skew_ms,
            now_ms - self._means.skew_ms,
            fence=None if left is None else left.claimed.lease.fence,
            journal=None if left is None else left.journal,
        )
        claimed = await self._store.claim(ref, event, now_ms)
        return claimed if isinstance(claimed, Claimed) else None

    async def _leave(self, turn: Turn, deadline: Deadline) -> None:
        """Clean up after a task that this worker lost. If the task was cancelled, only this worker
        knows all of its external work."""
        left = Left(turn.claimed, turn.unwritten_journal())
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
        left_ms, most_ms = deadline.remaining_ms(), self._means.lease_ms * SHARE
        bounded = self._clock.deadline(most_ms if left_ms is None else min(most_ms, left_ms))
        try:
            with self._means.catalogs.use() as catalog:
                task_call, journal = read_task(claimed)
                served, call = self._means.find(
                    catalog, task_call, claimed.record, bounded, _doubt(claimed)
                )
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
        self._means.metrics.turn(record.tool, turn.value, took_ms)
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
