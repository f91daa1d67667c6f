"""A client that hangs up cancels its call (streamable-http, "Cancellation").

Most calls are over before anyone could hang up, so nothing is watched for the first moments: a
coarse timer that is cancelled costs a microsecond, a task that reads `receive` costs thirty.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from starlette.types import Receive

from roundgate.aio import timers

GRACE_S: Final = 0.02


class DisconnectWatch:
    """`with DisconnectWatch(receive) as watch:` cancels the current task when the client hangs up.

    The cancellation ends the block as if the work were done; `watch.disconnected` tells.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watched = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._timer = timers.of_this_loop()
        self._is_cancelled = False
        self.disconnected = False

    def __enter__(self) -> DisconnectWatch:
        self._timer.set(self, GRACE_S, self._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._timer.cancel(self)
        if self._watcher is not None:
            self._watcher.cancel()
        if not self._is_cancelled or self._watched is None:
            return False
        # take back our own cancellation only: one that came from elsewhere as well still counts
        return (
            self._watched.uncancel() == 0
            and kind is not None
            and issubclass(kind, asyncio.CancelledError)
        )

    def hang_up(self) -> None:
        """End the block as if the client had hung up: it does not read what it is sent."""
        self.cancel()

    def cancel(self) -> None:
        """End the block."""
        self.disconnected = True
        if self._watched is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._watched.cancel()

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.hang_up()
