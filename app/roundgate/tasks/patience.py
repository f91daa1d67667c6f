"""Work that survives interruptions: writes that are repeated after errors, heartbeats, and work
that a cancellation does not cut off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Final, TypeVar

from roundgate import aio
from roundgate.errors import LeaseLost, QuotaExceeded
from roundgate.replay import inside

log = logging.getLogger("roundgate.tasks")

T = TypeVar("T")

PAUSES_S: Final = (0.1, 0.5, 2.0, *[5.0] * 60)
"""The pauses in seconds between attempts at a failing write: five minutes in all. If the lease
cannot be renewed meanwhile, other workers find the task once the store is back."""


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work. A cancellation is raised only after the work has ended."""
    task = _apart(work)
    cancelled = await aio.to_its_end(task)
    if cancelled is None or task.cancelled():
        return task.result()
    # the work has handled its error; retrieve it, so that asyncio does not report it
    task.exception()
    raise cancelled


class Patience:
    """Repeats a write after errors, until it succeeds, the lease is lost, or time is up."""

    def __init__(self, is_over: Callable[[], bool], **fields: Any) -> None:
        """Make a retrier. `is_over` returns whether the time is over; `fields` are logged with each
        failure."""
        self._is_over = is_over
        self._fields = fields
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Make one more attempt at most, because the process is about to end."""
        self._hurry.set()

    async def attempt(self, what: str, write: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a write, and repeat the write until it succeeds or the time is over.

        Raises:
            LeaseLost, QuotaExceeded: the write raised it; these errors are never retried.
            Exception: the error of the last attempt.
        """
        for pause_s in PAUSES_S:
            try:
                return await write()
            except (LeaseLost, QuotaExceeded):
                raise
            except Exception as error:
                if self._hurry.is_set() or self._is_over():
                    raise
                self._tell(what, error)
            await self._pause(pause_s)
        return await write()

    def _tell(self, what: str, error: Exception) -> None:
        fields = {**self._fields, "error": f"{type(error).__name__}: {error}"[:500]}
        log.warning("%s failed, trying again", what, extra={"fields": fields})

    async def _pause(self, pause_s: float) -> None:
        hurry = _apart(self._hurry.wait())
        try:
            await asyncio.wait([hurry], timeout=pause_s)
        finally:
            hurry.cancel()


def _apart(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start an asyncio task outside of every handler."""
    with inside(None):
        return asyncio.create_task(work)


class Heartbeat:
    """A context manager that calls `beat` repeatedly until the block ends: `async with
    Heartbeat(every_s, beat): …`.

    The heartbeat is an asyncio task of its own. It survives its own errors, which it logs, and a
    handler that cancels every task of the event loop.
    """

    def __init__(self, every_s: float, beat: Callable[[], Awaitable[None]], **fields: Any) -> None:
        """Make a heartbeat with a period of `every_s` seconds. `fields` are logged with each
        error."""
        self._every_s = every_s
        self._beat = beat
        self._fields = fields
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Heartbeat:
        self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
            # unlike `await task`, this does not confuse its end with a cancellation of this task
            await asyncio.wait([self._task])

    def _start(self) -> None:
        self._task = asyncio.create_task(self._go_on())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Start again if the task was ended from outside, perhaps before it started."""
        if self._is_over:
            return
        log.warning("a heartbeat was interrupted and continues", extra={"fields": self._fields})
        self._start()

    async def _go_on(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._every_s)
            try:
                await self._beat()
            except Exception as error:
                log.warning("a heartbeat failed", exc_info=error, extra={"fields": self._fields})
