"""Writes that must not be left halfway: shielded from the cancellation of
their caller, and retried."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from roundgate import aio
from roundgate.errors import LeaseLost
from roundgate.replay import inside

T = TypeVar("T")

PAUSES_S: Final = (0.1, 0.5, 2.0, *[5.0] * 60)
"""Pauses between attempts at a write that fails: five minutes. The lease is renewed meanwhile, if
that is possible; if it is not, others find the task when the store is back."""

log = logging.getLogger("roundgate.tasks")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What the work returns. A cancellation meanwhile does not reach it; it is raised
    when the work is done."""
    task = _apart(work)
    cancelled = await aio.to_its_end(task)
    if cancelled is None or task.cancelled():
        return task.result()
    # seen to by whoever did the work; here it only must not be reported as forgotten
    task.exception()
    raise cancelled


class Patience:
    """Retries after any error, until the write succeeds, the lease is known to
    be lost, or time is up."""

    def __init__(self, is_over: Callable[[], bool], **fields: Any) -> None:
        """`is_over` says whether time is up; `fields` are logged beside each failure."""
        self._is_over = is_over
        self._fields = fields
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Make one more attempt at most, because the process is about to end."""
        self._hurry.set()

    async def attempt(self, what: str, write: Callable[[], Awaitable[T]]) -> T:
        """What the write returns when it succeeds.

        Raises:
            LeaseLost: at once.
            Exception: the last one, when there is no more time.
        """
        for pause_s in PAUSES_S:
            try:
                return await write()
            except LeaseLost:
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
    """An asyncio task that belongs to no handler, even if one caused it."""
    with inside(None):
        return asyncio.create_task(work)
