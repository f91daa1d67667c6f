"""What a sweep does to one task that is late."""

from __future__ import annotations

from roundgate.storage import Move, OpenTask, TaskStore


async def postpone(store: TaskStore, task: OpenTask, due_ms: int) -> bool:
    """Move its due time, as if its message had been sent again."""
    (moved,) = await store.postpone_many([Move(task, due_ms, task.resends + 1)])
    return moved
