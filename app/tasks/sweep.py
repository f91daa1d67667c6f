"""The sweep: what no message reminds anybody of any more.

A message that was lost, a worker that died with its lease, a sleep longer than a queue can delay, a task past its time:
each is an open task whose `due_ms` has come. Any number of processes may sweep; each late task is sent once, because
moving its `due_ms` is a conditional write.
"""

from __future__ import annotations

import logging
from typing import Final

from app.clock import Clock
from app.config import TasksConfig
from app.metrics import Census
from app.protocol.tasks import OPEN, Status
from app.storage.queue import TaskQueue
from app.storage.tasks import OpenTask, TaskStore

AT_ONCE: Final = 200
COUNTED: Final = 1_000
"""Where the census stops: with more open tasks than this, those that are due first are looked at."""

log = logging.getLogger("app.tasks")


class Sweep:
    """Finds late tasks and has them taken up."""

    def __init__(self, store: TaskStore, queue: TaskQueue, clock: Clock, config: TasksConfig) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._requeue_after_ms = int(config.requeue_after_s * 1000)

    async def sweep(self) -> int:
        """One sweep; how many tasks were late.

        Raises:
            Unavailable: the rest is found by the next one.
        """
        found = 0
        while late := await self._store.due(self._clock.now_ms(), AT_ONCE):
            for task in late:
                await self._see_to(task)
            found += len(late)
            if len(late) < AT_ONCE:
                break
        while await self._store.forget(self._clock.now_ms()):
            pass  # in bites, so that others can write in between
        if found:
            log.info("late tasks", extra={"fields": {"count": found}})
        return found

    async def _see_to(self, task: OpenTask) -> None:
        now_ms = self._clock.now_ms()
        if task.expires_ms <= now_ms:
            await self._store.expire(task.ref, now_ms)
        elif await self._store.postpone(task, now_ms + self._requeue_after_ms):
            await self._queue.send(task.ref)

    async def census(self) -> Census:
        """How many tasks are open, and how old they are: for metrics and logs."""
        tasks = await self._store.open_tasks(COUNTED)
        now_ms = self._clock.now_ms()
        ages_ms = {status: [now_ms - task.created_ms for task in tasks if task.status is status] for status in OPEN}
        late_ms = [now_ms - task.due_ms for task in tasks if task.status is Status.WORKING]
        return Census(
            open={str(status): len(ages_ms[status]) for status in sorted(OPEN)},
            oldest_s={str(status): round(max(ages_ms[status], default=0) / 1000, 1) for status in sorted(OPEN)},
            overdue_s=round(max(0, *late_ms, 0) / 1000, 1),
        )
