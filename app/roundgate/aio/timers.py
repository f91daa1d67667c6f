"""A cheap, coarse timer for callbacks that are nearly always cancelled before their time.

Every call has a deadline, and most calls end long before it. A timer of the event loop costs 10 µs,
a tenth of a call. This timer stores callbacks in a dictionary, and scans the dictionary every
`TICK_S` seconds unless it is empty. A callback comes up to `TICK_S` late, never early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final
from weakref import WeakKeyDictionary, ref

TICK_S: Final = 0.02


class CoarseTimer:
    """The callbacks of one event loop."""

    def __init__(self) -> None:
        self._set: dict[object, tuple[float, Callable[[], None]]] = {}
        self._ticking = False

    def set(self, key: object, after_s: float, callback: Callable[[], None]) -> None:
        """Call a function once, after a time, unless `cancel` is called before.

        Args:
            key: identifies the callback for `cancel`; replaces an earlier callback under the same
                key.
            after_s: the time in seconds; the call comes up to `TICK_S` later.
            callback: the function, which must not block.
        """
        loop = asyncio.get_running_loop()
        self._set[key] = (loop.time() + after_s, callback)
        if not self._ticking:
            self._ticking = True
            loop.call_later(TICK_S, self._tick)

    def cancel(self, key: object) -> None:
        """Cancel a callback, if it has not been called."""
        self._set.pop(key, None)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        # a copy and a second check, because a callback may set or cancel others
        for key, (due, callback) in list(self._set.items()):
            if due <= now and self._set.pop(key, None) is not None:
                callback()
        self._ticking = bool(self._set)
        if self._ticking:
            loop.call_later(TICK_S, self._tick)


_timers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, CoarseTimer]] = WeakKeyDictionary()
_latest: tuple[ref[asyncio.AbstractEventLoop], CoarseTimer] | None = None
"""The loop of the last call of `of_this_loop`, and its timer. A process rarely has a second loop,
and searching `_timers` takes four times as long."""


def of_this_loop() -> CoarseTimer:
    """Return the coarse timer of the running event loop."""
    global _latest
    # read `_latest` once: other threads, with other loops, may replace it
    loop, latest = (
        asyncio.get_running_loop(),
        _latest,
    )
    if latest is not None and latest[0]() is loop:
        return latest[1]
    timers = _timers.get(loop)
    if timers is None:
        timers = _timers[loop] = CoarseTimer()
    _latest = (ref(loop), timers)
    return timers


class Limit:
    """A time limit like `asyncio.timeout`, on a coarse timer: `with Limit(seconds) as limit: …`"""

    def __init__(self, after_s: float | None) -> None:
        self.after_s = after_s
        self.expired = False

    def __enter__(self) -> Limit:
        if self.after_s is not None:
            task = asyncio.current_task()
            if task is None:
                raise RuntimeError("a time limit works only in an asyncio task")
            self._task, self._cancelling, self._timer = task, task.cancelling(), of_this_loop()
            self._timer.set(self, self.after_s, self._expire)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.after_s is None:
            return
        self._timer.cancel(self)
        # only the limit's own cancellation becomes TimeoutError; an external one propagates
        is_ours = self.expired and self._task.uncancel() <= self._cancelling
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def _expire(self) -> None:
        self.expired = True
        self._task.cancel()
