"""Watches over blocks that take longer than most, and the time limits of calls in such blocks.

A block registers its watch with one timer for all blocks of the event loop, and discards it at its
end. Most blocks end before the timer ticks, so they pay for neither a timer nor a watch.

When the process is about to stop, `Ticker.drain` shortens the limits of all blocks, current and
future:

    SIGTERM            drain_s                                     the process ends
    limits of calls ──────▶ calls end here, with an answer ──────────▶
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from types import coroutine
from typing import Any, Self, TypeVar

from roundgate.clock import SOON_S, Deadline, TickedWatch, Ticker, ticker

T = TypeVar("T")


class TaskWatch(TickedWatch):
    """A context manager that runs `_watch` beside a block that takes longer than most, and may cancel
    the block at a deadline."""

    _watcher: asyncio.Task[None] | None = None
    _ticker: Ticker | None = None
    _is_cancelled = False
    _deadline: Deadline | None = None
    _before: Callable[[], None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _is_late = False
    _cancelling = 0
    """The number of cancellations of the task before the time limit began."""

    def __init__(self) -> None:
        self._watched = asyncio.current_task()

    def __enter__(self) -> Self:
        self._ticker = ticker()
        self._ticker.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> bool | None:
        return self._end(kind)

    def cancel(self) -> None:
        """Cancel the block."""
        if self._watched is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._watched.cancel()

    def start(self) -> None:
        if self._deadline is not None and self._timer is None:
            self._start_timer()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    @property
    def is_of_this_task(self) -> bool:
        """Return whether the current task runs the block."""
        return self._watched is asyncio.current_task()

    def limit(self, deadline: Deadline, before: Callable[[], None] | None = None) -> float | None:
        """Cancel the block at a deadline, unless `end_limit` is called before. A block has one limit
        at a time. If the process is about to stop, the deadline is shortened, now or later.

        Args:
            before: a function that is called before the block is cancelled.

        Returns:
            The seconds that are left; `None` without a limit.
        """
        if self._ticker is not None and self._ticker.drained_ms is not None:
            deadline.shorten(self._ticker.drained_ms)
        self._deadline, self._before = deadline, before
        self._cancelling = 0 if self._watched is None else self._watched.cancelling()
        remaining_ms = deadline.remaining_ms()
        if remaining_ms is None:
            return None
        limit_s = remaining_ms / 1000
        if self._ticker is None or self._watcher is not None or limit_s < SOON_S:
            self._start_timer()
        return limit_s

    def drain(self, at_ms: float) -> None:
        if self._deadline is not None and self._deadline.shorten(at_ms):
            if self._timer is not None:
                self._timer.cancel()
            self._start_timer()

    def end_limit(self) -> bool:
        """End the time limit. Return whether the limit alone has cancelled the block; another
        cancellation stays in effect."""
        self._deadline = self._before = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_late or self._watched is None:
            return False
        self._is_late = False
        return self._watched.uncancel() <= self._cancelling

    def _start_timer(self) -> None:
        remaining_ms = None if self._deadline is None else self._deadline.remaining_ms()
        if remaining_ms is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(remaining_ms / 1000, self._expire)

    def _expire(self) -> None:
        if self._watched is not None:
            if self._before is not None:
                self._before()
            self._is_late = True
            self._watched.cancel()

    async def _watch(self) -> None:
        """Watch the block; do nothing by default."""

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


class Until(TaskWatch):
    """A context manager that ends its block at a deadline, without an error."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._until = deadline

    def __enter__(self) -> Self:
        super().__enter__()
        self.limit(self._until)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        is_late = self.end_limit()
        self._end(kind)
        return is_late and kind is not None and issubclass(kind, asyncio.CancelledError)


def is_draining() -> bool:
    """Return whether the process is about to stop, and ends the calls of this event loop."""
    return ticker().drained_ms is not None


@coroutine
def in_own_context(
    work: Coroutine[Any, Any, T], context: Context | None = None
) -> Generator[Any, Any, T]:
    """Run a coroutine in `context`, or in a copy of the current context, in the current task; return
    its result.

    A replay does not run a step again. So a handler must not see context variables that a step has
    set, and the next run must not see those that the handler has set. Pipelined requests share the
    context of their connection.
    """
    run = (copy_context() if context is None else context).run
    resume: Callable[[Any], Any] = work.send
    received: Any = None
    while True:
        try:
            awaited = run(resume, received)
        except StopIteration as ended:
            value: T = ended.value
            return value
        try:
            resume, received = work.send, (yield awaited)
        except BaseException as error:
            resume, received = work.throw, error
