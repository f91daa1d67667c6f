"""What a sweep does to tasks that are late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundgate.storage import OpenTask
from roundgate.tasks.events import Postpone, Postponed, Sending
from roundgate.tasks.stored import StoredTasks


@dataclass(frozen=True)
class Move:
    """A due task as the sweep read it, and its new due time."""

    task: OpenTask
    due_ms: int
    resends: int
    sending: Sending = Sending.NEEDED


async def postpone_many(
    store: StoredTasks, moves: Sequence[Move], now_ms: int, skew_ms: int = 0
) -> Sequence[Postponed]:
    """Move the due times of tasks, and say what became of each."""
    happening = [
        (
            move.task.ref,
            Postpone(move.task.due_ms, move.due_ms, move.resends, move.sending, skew_ms),
        )
        for move in moves
    ]
    decisions = await store.apply_many(happening, now_ms)
    return [Postponed(str(decision.result)) for decision in decisions]


async def postpone(store: StoredTasks, task: OpenTask, due_ms: int) -> bool:
    """Move its due time when it is due, as if its message had been sent again."""
    (became,) = await postpone_many(store, [Move(task, due_ms, task.resends + 1)], task.due_ms)
    return became in {Postponed.MOVED, Postponed.LAPSED}
