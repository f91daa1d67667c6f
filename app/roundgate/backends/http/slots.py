"""How many requests are under way to one host at once; others wait for their
turn, in order, for a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from roundgate.backends.http.reliability import LimitConfig
from roundgate.clock import Deadline
from roundgate.errors import BackendError


class Slots:
    """The places of one host, in one process."""

    def __init__(self, config: LimitConfig, backend: str) -> None:
        self._config = config
        self._backend = backend
        self._free = asyncio.Semaphore(config.concurrent)
        self._waiting = 0

    @asynccontextmanager
    async def one(self, deadline: Deadline) -> AsyncIterator[None]:
        """A place, for as long as the block lasts.

        Raises:
            BackendError: too many wait already, or none became free in time.
        """
        if self._free.locked():
            await self._wait(deadline)
        else:
            await self._free.acquire()
        try:
            yield
        finally:
            self._free.release()

    async def _wait(self, deadline: Deadline) -> None:
        config = self._config
        if self._waiting >= config.waiting:
            raise self._busy(f"and {self._waiting} more wait")
        left_ms = deadline.remaining_ms()
        wait_s = config.wait_s if left_ms is None else min(config.wait_s, left_ms / 1000)
        self._waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise self._busy(f"and none was over within {wait_s:.3g} s") from None
        finally:
            self._waiting -= 1

    def _busy(self, why: str) -> BackendError:
        return BackendError(
            f"{self._backend} is busy: {self._config.concurrent} requests to its service are under "
            f"way {why}; try again later"
        )
