"""Watches over blocks that take longer than most, and the time limits of calls in such blocks.

A block registers its watch with one timer for all blocks of the event loop, and discards it at its
end. Most blocks end before the timer ticks, so they pay for neither a timer nor a watch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

TICK_S: Final = 0.02
"""Seconds between two ticks. A watch starts after one to two ticks."""
SOON_S: Final = 0.1
"""Time limits in seconds below this get a timer at once; others wait until the watch starts."""


class TaskWatch:
    """A context manager that runs `_watch` beside a block that takes longer than most, and may cancel
    the block."""

    def __init__(self) -> None:
        self._watched = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._ticker: Ticker | None = None
        self._is_cancelled = False
        self._due: float | None = None
        """The end of the time limit, in seconds on the event loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_late = False
        self._cancelling = 0
        """The number of cancellations of the task before the time limit began."""

    def __enter__(self) -> Self:
        self._ticker = ticker()
        self._ticker.add(self)
        return self

    def cancel(self) -> None:
        """Cancel the block."""
        if self._watched is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._watched.cancel()

    def start(self) -> None:
        """Start watching."""
        loop = asyncio.get_running_loop()
        if self._due is not None and self._timer is None:
            self._timer = loop.call_at(self._due, self._expire)
        self._watcher = loop.create_task(self._watch())

    @property
    def is_of_this_task(self) -> bool:
        """Return whether the current task runs the block."""
        return self._watched is asyncio.current_task()

    def limit(self, limit_s: float) -> None:
        """Cancel the block after `limit_s` seconds, unless `end_limit` is called before. A block has
        one limit at a time."""
        loop = asyncio.get_running_loop()
        self._due = loop.time() + limit_s
        self._cancelling = 0 if self._watched is None else self._watched.cancelling()
        if self._ticker is None or self._watcher is not None or limit_s < SOON_S:
            self._timer = loop.call_at(self._due, self._expire)

    def end_limit(self) -> bool:
        """End the time limit. Return whether the limit alone has cancelled the block; another
        cancellation stays in effect."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_late or self._watched is None:
            return False
        self._is_late = False
        return self._watched.uncancel() <= self._cancelling

    def _expire(self) -> None:
        if self._watched is not None:
            self._is_late = True
            self._watched.cancel()

    async def _watch(self) -> None:
        raise NotImplementedError

    def _end(self, kind: type[BaseException] | None) -> bool:
        """Stop watching. Return whether `cancel` alone ended the block; another cancellation stays
        in effect."""
        if self._ticker is not None:
            self._ticker.discard(self)
        if self._watcher is not None:
            self._watcher.cancel()
        if not self._is_cancelled or self._watched is None:
            return False
        is_ours = self._watched.uncancel() == 0
        return is_ours and kind is not None and issubclass(kind, asyncio.CancelledError)


class Ticker:
    """The timer of one event loop. It is idle while no watch is registered."""

    def __init__(self) -> None:
        self._new: dict[TaskWatch, None] = {}
        self._old: dict[TaskWatch, None] = {}
        self._due: dict[TaskWatch, None] = {}
        self._is_ticking = False

    def add(self, watch: TaskWatch) -> None:
        """Start a watch after one to two ticks, unless it is discarded before."""
        self._new[watch] = None
        if not self._is_ticking:
            self._is_ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def discard(self, watch: TaskWatch) -> None:
        """Forget a watch. It may have started."""
        if watch in self._new:
            del self._new[watch]
        else:
            self._old.pop(watch, None)
            self._due.pop(watch, None)

    def _tick(self) -> None:
        self._due, self._old, self._new = self._old, self._new, {}
        self._is_ticking = bool(self._old)
        if self._is_ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        while self._due:
            self._due.popitem()[0].start()


_tickers: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Ticker]] = WeakKeyDictionary()


def ticker() -> Ticker:
    """Return the ticker of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _tickers.get(loop)
    if found is None:
        found = _tickers[loop] = Ticker()
    return found


class InOwnContext(Generic[T]):
    """An awaitable that runs a coroutine in a copy of the current context, in the current task.

    A replay does not run a step again. So a handler must not see context variables that a step has
    set, and the next run must not see those that the handler has set. Pipelined requests share the
    context of their connection.
    """

    __slots__ = ("_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._context = copy_context()

    def __await__(self) -> Generator[Any, Any, T]:
        run, coroutine = self._context.run, self._coroutine
        resume = partial(coroutine.send, None)
        while True:
            try:
                awaited = run(resume)
            except StopIteration as ended:
                value: T = ended.value
                return value
            try:
                resume = partial(coroutine.send, (yield awaited))
            except BaseException as error:
                resume = partial(coroutine.throw, error)
