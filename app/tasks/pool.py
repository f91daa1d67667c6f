"""The workers of one process: messages in, turns at tasks, and the sweep beside them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from app.config import TasksConfig
from app.errors import Unavailable
from app.metrics import Metrics, NoMetrics
from app.storage.queue import Message, TaskQueue
from app.storage.tasks import Claimed
from app.tasks.sweep import Sweep
from app.tasks.worker import Worker

WAIT_MS: Final = 10_000
CENSUS_EVERY_S: Final = 60
PAUSE_AFTER_FAULT_S: Final = 1.0
STOP_GRACE_S: Final = 5.0
"""How long runs may go on to their next step when the process is told to stop."""

log = logging.getLogger("app.tasks")


class Pool:
    """Up to `tasks.concurrency` turns at once; further messages stay in the queue for others."""

    def __init__(
        self,
        worker: Worker,
        sweep: Sweep,
        queue: TaskQueue,
        config: TasksConfig,
        metrics: Metrics | None = None,
    ) -> None:
        self._worker = worker
        self._sweep = sweep
        self._queue = queue
        self._metrics = metrics or NoMetrics()
        self._sweep_every_s = config.sweep_every_s
        self._free = asyncio.Semaphore(config.concurrency)
        self._concurrency = config.concurrency
        self._turns: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to work, in this event loop."""
        self._loops = [asyncio.create_task(loop()) for loop in (self._take, self._keep_sweeping, self._keep_counting)]

    async def stop(self) -> None:
        """Take nothing more, let runs come to their next step, and let go of what is not there by then."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._worker.stop_soon()
        if self._turns:
            await asyncio.wait(self._turns, timeout=STOP_GRACE_S)
        for turn in self._turns:
            turn.cancel()
        await asyncio.gather(*self._turns, return_exceptions=True)

    async def _take(self) -> None:
        while True:
            await self._free.acquire()
            self._free.release()
            room = self._concurrency - len(self._turns)
            try:
                messages = await self._queue.receive(max(1, min(10, room)), WAIT_MS)
            except Exception as error:
                _trouble("the queue", error)
                await asyncio.sleep(PAUSE_AFTER_FAULT_S)
                continue
            for message in messages:
                await self._free.acquire()
                self._begin(message)

    def _begin(self, message: Message) -> None:
        turn = asyncio.create_task(self._turn(message))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)

    async def _turn(self, message: Message) -> None:
        try:
            claimed = await self._worker.claim(message.ref)
            # from here on the row says what is to be done, and by when: the message has served
            with suppress(Unavailable):  # it comes again, and to nothing
                await self._queue.delete([message])
            if isinstance(claimed, Claimed):
                await self._worker.run(claimed)
        except Unavailable as error:  # the message comes again, or the sweep finds the task
            log.warning("a task has to wait", extra={"fields": {"task": message.ref.id, "error": str(error)}})
        except Exception as error:  # one task's trouble is no other's
            log.error("a turn failed", exc_info=error, extra={"fields": {"task": message.ref.id}})
        finally:
            self._free.release()

    async def _keep_sweeping(self) -> None:
        while True:
            try:
                await self._sweep.sweep()
            except Exception as error:
                _trouble("the sweep", error)
            await asyncio.sleep(self._sweep_every_s)

    async def _keep_counting(self) -> None:
        while True:
            await asyncio.sleep(CENSUS_EVERY_S)
            try:
                census = await self._sweep.census()
                self._metrics.census(census)
                log.info("tasks", extra={"fields": census.fields()})
            except Exception as error:
                _trouble("the census", error)


def _trouble(what: str, error: Exception) -> None:
    """Say so, and go on: a loop that ends leaves a process that works on nothing and looks well."""
    if isinstance(error, Unavailable):
        log.warning("%s has to wait", what, extra={"fields": {"error": str(error)}})
    else:
        log.error("%s failed", what, exc_info=error)
