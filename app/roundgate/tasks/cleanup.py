"""What a task that ended early has begun elsewhere is ended there, as its tool says: a job
of a service is cancelled.

    tasks/cancel ─ row: cancelled, due ─ message ─ claim_cleanup ─ the handler, once more ─ end_cleanup
                         │ lost: the sweep finds the row            │ refused, away: a pause, then again

The handler runs from the top on the journal of the task. What it had come to know it gets again;
nothing is written, and in the place of what it would do next it ends what it began
(`replay.Cleanup`). So a worker that dies before it has written that it did has another do it again:
at least once. After `ending.CLEANUP_PAUSES_S` nobody tries any more.

Who had the task when it was cancelled does this at once, with what it knew and had not written yet.
Others wait until its lease is over.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from roundgate import json
from roundgate.clock import Clock, Deadline
from roundgate.errors import CleanedUp, NotServedHere
from roundgate.metrics import Metrics
from roundgate.replay import Cleanup, Failed, Journal, Suspended, from_row
from roundgate.storage import Claimed, TaskRef, TaskStore
from roundgate.tasks.call import TaskCall
from roundgate.tasks.ending import Endings, Turn
from roundgate.tasks.turn import Outcome
from roundgate.values import dataclass

SHARE: Final = 0.8
"""How much of a lease a try may take: the rest is for writing how it went."""

log = logging.getLogger("roundgate.tasks")


@dataclass(frozen=True, slots=True)
class Left:
    """What the worker that had the task knows of it."""

    fence: int
    entries: Sequence[bytes]
    """All entries of its journal, those included that the store does not have."""


Again: TypeAlias = Callable[[Claimed, Sequence[bytes], Deadline], Awaitable[Outcome]]
"""Runs the handler of a task on these entries, by the deadline; raises NotServedHere."""


class Cleaning:
    """Cleans up after tasks that ended early."""

    def __init__(
        self,
        store: TaskStore,
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
        claimed = await self._claim(ref, None if left is None else left.fence)
        if claimed is None:
            return Turn.NOT_CLAIMED
        begun_ms = self._clock.monotonic_ms()
        entries = claimed.journal if left is None else left.entries
        error = await self._try(claimed, again, entries, self._bounded(deadline))
        turn = await self._end(claimed, error)
        self._note(claimed, turn, self._clock.monotonic_ms() - begun_ms, error)
        return turn

    async def _claim(self, ref: TaskRef, fence: int | None) -> Claimed | None:
        now_ms = self._clock.now_ms()
        until_ms = now_ms + self._lease_ms
        due_ms, lapsed_ms = until_ms + self._skew_ms, now_ms - self._skew_ms
        return await self._store.claim_cleanup(
            ref, now_ms, until_ms, due_ms=due_ms, lapsed_ms=lapsed_ms, fence=fence
        )

    def _bounded(self, deadline: Deadline) -> Deadline:
        left_ms = deadline.remaining_ms()
        most_ms = self._lease_ms * SHARE
        return self._clock.deadline(most_ms if left_ms is None else min(most_ms, left_ms))

    async def _try(
        self, claimed: Claimed, again: Again, entries: Sequence[bytes], deadline: Deadline
    ) -> Exception:
        """How it went: `CleanedUp`, or what is in the way."""
        try:
            return _end_of(await again(claimed, entries, deadline))
        except NotServedHere as needs:
            return NotServedHere(f"there is no worker here that {needs}")
        except Exception as error:
            return error

    async def _end(self, claimed: Claimed, error: Exception) -> Turn:
        if isinstance(error, CleanedUp):
            await self._store.end_cleanup(claimed.lease)
            return Turn.CLEANED_UP
        is_tried_again = await self._endings.clean_up_again(claimed)
        return Turn.TO_CLEAN_UP if is_tried_again else Turn.NOT_CLEANED_UP

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


def journal_of(claimed: Claimed, task_call: TaskCall, entries: Sequence[bytes]) -> Journal:
    """The journal of a task, made of these entries and of the answers that were taken.

    Raises:
        ParseError, ValueError, TypeError, KeyError: this version did not write it.
    """
    version, generation = claimed.record.journal_version, task_call.generation
    journal = Journal(state=json.decode(claimed.state), version=version, generation=generation)
    for entry in entries:
        journal.add(from_row(json.decode(entry)))
    journal.receive({key: json.decode(answer) for key, answer in claimed.answers.items()})
    return journal


def _end_of(outcome: Outcome) -> Exception:
    match outcome:
        case Failed(error):
            return error
        case Suspended(requests=requests) if requests:
            return CleanedUp("nothing had been begun: the task was waiting for answers")
    return RuntimeError("the tool did not come to where it cancels its job")
