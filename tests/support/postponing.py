"""What a sweep does to one task that is late."""

from __future__ import annotations

from roundgate.storage import OpenTask
from roundgate.tasks.events import Postponed
from roundgate.tasks.stored import Move, StoredTasks


async def postpone(store: StoredTasks, task: OpenTask, due_ms: int) -> bool:
    """Move its due time when it is due, as if its message had been sent again."""
    move = Move(task, due_ms, task.resends + 1)
    (became,) = await store.postpone_many([move], task.due_ms)
    return became in {Postponed.MOVED, Postponed.LAPSED}
