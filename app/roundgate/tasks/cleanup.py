"""Cleanup after tasks that ended early: work that they began elsewhere, such as a service's job, is
cancelled.

    tasks/cancel ─ row: cancelled, due ─ message ─ claim_cleanup ─ the handler, once more ─ end_cleanup
                         │ lost: the sweep finds the row            │ refused, away: a pause, then again

The handler runs from the top on the task's journal. It receives its recorded results; nothing is
written, and instead of its next action it ends the work that it began (`replay.Cleanup`). If the
worker dies before recording the cleanup, another worker repeats it: at least once. Tries end after
`ending.CLEANUP_PAUSES_S`.

The worker that had the task when it was cancelled cleans up immediately, and writes the results
that only it knows: the answer of a start under way. Other workers wait until its lease is over. If
the start took longer than that, and others found nothing to cancel, that worker cancels without a
lease (`_alone`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from roundgate.clock import Clock, Deadline
from roundgate.errors import CleanedUp, NotCancelled, NotServedHere
from roundgate.observability.metrics import Metrics
from roundgate.protocol import Status
from roundgate.replay import Cleanup, Failed, Suspended
from roundgate.storage import TaskRef
from roundgate.tasks.ending import Endings, Turn
from roundgate.tasks.patience import Patience
from roundgate.tasks.stored import Claimed, StoredTasks
from roundgate.tasks.turn import Outcome

ALONE_PAUSES_S: Final = (5, 30)
"""The pauses between tries of a worker that cleans up without a lease, in seconds."""
SHARE: Final = 0.8
"""How much of a lease a try may take: the rest is for writing how it went."""

log = logging.getLogger("roundgate.tasks")


@dataclass(frozen=True, slots=True)
class Left:
    """What the worker that had the task knows of it."""

    claimed: Claimed
    journal: Sequence[bytes] | None
    """All entries of the journal, if the store lacks some of them."""


Again: TypeAlias = Callable[[Claimed, Deadline], Awaitable[Outcome]]
"""Runs a task's handler on its journal until the deadline; raises NotServedHere."""


class Cleaning:
    """Cleans up after tasks that ended early."""

    def __init__(
        self,
        store: StoredTasks,
        clock: Clock,
        endings: Endings,
        metrics: Metrics,
        *,
        lease_ms: int,
        skew_ms: int,
    ) -> None:
        """`skew_ms` is by how much the clocks of those who share the store may differ."""
        self._store = store
        self._clock = clock
        self._endings = endings
        self._metrics = metrics
        self._lease_ms = lease_ms
        self._skew_ms = skew_ms

    async def take(
        self, ref: TaskRef, again: Again, deadline: Deadline, left: Left | None = None
    ) -> Turn:
        """Clean up after a task, if that is to be done and nobody else does.

        Raises:
            Unavailable: a sweep finds the task again.
        """
        if left is None:
            claimed = await self._claim(ref)
        else:  # only this worker knows these results
            patience = Patience(lambda: deadline.is_past, task=ref.id)
            claimed = await patience.attempt("a cleanup's claim", lambda: self._claim(ref, left))
        if claimed is None:
            return await self._alone(ref, again, left)
        begun_ms = self._clock.monotonic_ms()
        error = await self._try(claimed, again, self._bounded(deadline))
        turn = await self._end(claimed, error)
        self._note(claimed, turn, self._clock.monotonic_ms() - begun_ms, error)
        return turn

    async def _claim(self, ref: TaskRef, left: Left | None = None) -> Claimed | None:
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

    async def _alone(self, ref: TaskRef, again: Again, left: Left | None) -> Turn:
        """Clean up without a lease, because the workers that hold or held it lack this worker's
        results."""
        if left is None or left.journal is None:
            return Turn.NOT_CLAIMED
        record = await self._store.read(ref, 0)  # also if expired
        if record is not None and record.status not in (Status.CANCELLED, Status.FAILED):
            return Turn.NOT_CLAIMED
        for attempt, pause_s in enumerate((*ALONE_PAUSES_S, None), 1):
            known = replace(left.claimed.record, attempts=attempt)
            claimed = replace(left.claimed, record=known, journal=left.journal)
            begun_ms = self._clock.monotonic_ms()
            error = await self._try(claimed, again, self._bounded(Deadline(self._clock, None)))
            turn = _turn_of(error, is_last=pause_s is None)
            self._note(claimed, turn, self._clock.monotonic_ms() - begun_ms, error)
            if turn is not Turn.TO_CLEAN_UP:
                break
            await self._clock.sleep(pause_s or 0)
        return turn

    def _bounded(self, deadline: Deadline) -> Deadline:
        left_ms = deadline.remaining_ms()
        most_ms = self._lease_ms * SHARE
        return self._clock.deadline(most_ms if left_ms is None else min(most_ms, left_ms))

    async def _try(self, claimed: Claimed, again: Again, deadline: Deadline) -> Exception:
        """How it went: `CleanedUp`, or what is in the way."""
        try:
            return _end_of(await again(claimed, deadline))
        except NotServedHere as needs:
            return NotServedHere(f"there is no worker here that {needs}")
        except Exception as error:
            return error

    async def _end(self, claimed: Claimed, error: Exception) -> Turn:
        if isinstance(error, CleanedUp):
            await self._store.end_cleanup(claimed.lease)
            return Turn.CLEANED_UP
        is_tried_again = await self._endings.clean_up_again(claimed)
        return _turn_of(error, is_last=not is_tried_again)

    def _note(self, claimed: Claimed, turn: Turn, took_ms: float, error: Exception) -> None:
        record = claimed.record
        self._metrics.turn(record.tool, turn.value, took_ms)
        fields = {
            "task": str(record.ref),
            "name": record.tool,
            "outcome": turn.value,
            "attempt": record.attempts,
            "ms": round(took_ms, 2),
            "reason": str(error)[:500],
            **({"job": error.job} if isinstance(error, NotCancelled) and error.job else {}),
        }
        match turn:
            case Turn.CLEANED_UP:
                log.info("task", extra={"fields": fields})
            case Turn.TO_CLEAN_UP:
                log.warning("a job could not be cancelled, trying again", extra={"fields": fields})
            case _:
                log.error("a job could not be cancelled, and goes on", extra={"fields": fields})


def doubt(claimed: Claimed) -> Cleanup:
    """Whether the task may have begun what its journal does not know: not if
    this is its first claim."""
    is_known = claimed.record.fence == 1
    return Cleanup.OF_WHAT_IS_KNOWN if is_known else Cleanup.IN_DOUBT


def _turn_of(error: Exception, *, is_last: bool) -> Turn:
    """Return the result of a try."""
    if isinstance(error, CleanedUp):
        return Turn.CLEANED_UP
    return Turn.NOT_CLEANED_UP if is_last else Turn.TO_CLEAN_UP


def _end_of(outcome: Outcome) -> Exception:
    match outcome:
        case Failed(error):
            return error
        case Suspended(requests=requests) if requests:
            return CleanedUp("nothing had been begun: the task was waiting for answers")
    return RuntimeError("the tool did not come to where it cancels its job")
