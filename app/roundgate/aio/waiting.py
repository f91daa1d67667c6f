"""Waits for work that continues when the waiter is cancelled.

`to_its_end` waits until a task has ended, `all_ended` until several have. A `Flight` runs a
function once for all concurrent callers:

    first caller   ──▶ begins ───────────────▶ result
    others         ─────▶ wait ──────────────▶ the same result
    cancelled one  ──▶ leaves; the run continues for the others and for later callers
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from roundgate.background import detached

T = TypeVar("T")


async def to_its_end(work: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait until `work` has ended. If the waiter was cancelled meanwhile, return that cancellation,
    which the caller must raise after handling the result."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def all_ended(works: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results of works that run side by side. If some fail, raise the first error after
    all have ended, so that none continues unnoticed."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


class Flight(Generic[T]):
    """A run that concurrent callers share. Its result is not stored."""

    def __init__(self) -> None:
        self._running: asyncio.Task[T] | None = None

    @property
    def is_under_way(self) -> bool:
        """Return whether a run in this event loop has begun and not ended."""
        running = self._running
        return (
            running is not None
            and not running.done()
            and running.get_loop() is asyncio.get_running_loop()
        )

    async def join(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the current run, or of a new one, or raise its exception. The run
        has an empty context, so the deadline of one request does not affect the others."""
        if not self.is_under_way or self._running is None:
            self._running = detached(asyncio.create_task, begin())
            self._running.add_done_callback(_look_at)
        return await asyncio.shield(self._running)


def _look_at(ended: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a run without waiters, so that asyncio does not report it."""
    if not ended.cancelled():
        ended.exception()
