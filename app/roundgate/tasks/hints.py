"""Messages that tell workers of tasks. What they tell is in the task's row: a message that is
lost costs time alone."""

from __future__ import annotations

import logging

from roundgate.errors import Unavailable
from roundgate.storage import TaskQueue, TaskRef

log = logging.getLogger("roundgate.tasks")


async def wake(queue: TaskQueue, ref: TaskRef, delay_ms: int = 0) -> None:
    """Have a worker look at a task in so many milliseconds. If the queue cannot be
    reached, the sweep will."""
    try:
        await queue.send(ref, delay_ms)
    except Unavailable as error:
        fields = {"task": str(ref), "error": str(error)}
        log.warning("no message for a task, the sweep will send one", extra={"fields": fields})
