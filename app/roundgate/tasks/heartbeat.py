"""A heartbeat that goes on until it is told to stop, whatever else happens.

It is an asyncio task of its own. Its errors are logged and never end it, nor does a handler that
cancels every task of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

log = logging.getLogger("roundgate.tasks")


class Heartbeat:
    """`async with Heartbeat(every_s, beat):` calls `beat` again and again until the block ends."""

    def __init__(self, every_s: float, beat: Callable[[], Awaitable[None]], **fields: Any) -> None:
        """`fields` go into the log beside an error."""
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
            # unlike `await task`, this tells its end from a cancellation of ours
            await asyncio.wait([self._task])

    def _start(self) -> None:
        self._task = asyncio.create_task(self._go_on())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Start again if something else ended it. It may have been cancelled before it started."""
        if self._is_over:
            return
        log.warning("a heartbeat was stopped, and goes on", extra={"fields": self._fields})
        self._start()

    async def _go_on(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._every_s)
            try:
                await self._beat()
            except Exception as error:
                log.warning("a heartbeat failed", exc_info=error, extra={"fields": self._fields})
