"""Threads for plain functions, limits on the time of calls, room for their answers, and waits for work
that continues when the waiter is cancelled.

**Threads.** anyio releases a slot when its waiter is cancelled, although the function still runs.
`Threads` holds a slot until the function has ended, so callers that time out one after another
cannot pile up threads. `roundgate serve` sets `ROOM` for each request (`http.unread`); other servers
do not bound answers that wait for their readers.

**Time limits.** A `TaskWatch` registers with one timer for all blocks of the event loop, and leaves
it at the end of its block. Most blocks end before the timer ticks, so they pay for neither a timer
nor a watch. When the process is about to stop, `clock.Ticker.drain` shortens the limits of all blocks,
current and future:

    SIGTERM            drain_s                                     the process ends
    limits of calls ──────▶ calls end here, with an answer ──────────▶

**Waits.** `to_its_end` waits until a task has ended, `all_ended` until several have. A `Flight` runs a
function once for all concurrent callers:

    first caller   ──▶ begins ───────────────▶ result
    others         ─────▶ wait ──────────────▶ the same result
    cancelled one  ──▶ leaves; the run continues for the others and for later callers
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from threading import Lock
from types import coroutine
from typing import Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

from roundgate.auth import LOCAL, Principal
from roundgate.background import detached
from roundgate.clock import SOON_S, Deadline, TickedWatch, Ticker, ticker
from roundgate.errors import Inside

T = TypeVar("T")
_Identity: TypeAlias = tuple[str, str, str]


class Threads:
    """A limit on all threads and on the threads of each caller, so that one caller's hanging
    functions cannot occupy all threads.

    Without authentication there is one caller, which may use all threads.
    """

    def __init__(self, total: int, share: int | None = None) -> None:
        """Make a pool of `total` threads. `share` is the maximum per caller; by default half of the
        threads."""
        self._all = CapacityLimiter(total)
        self._share = share or max(1, total // 2)
        self._of_caller: WeakValueDictionary[_Identity, CapacityLimiter] = WeakValueDictionary()

    async def run(self, function: Callable[[], T], caller: Principal) -> T:
        """Run a function for a caller, as `in_thread` does."""
        if caller.identity == LOCAL.identity:
            return await in_thread(function, self._all)
        limiter = self._of_caller.get(caller.identity)
        if limiter is None:
            limiter = self._of_caller[caller.identity] = CapacityLimiter(self._share)
        # first the caller's own limiter: waiting for it delays no other caller
        return await in_thread(function, limiter, self._all)


class RunningFunctions:
    """The plain functions of a call that run in threads, also after the call was cancelled."""

    def __init__(self) -> None:
        self._running = 0
        self._after: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Count a function."""
        self._running += 1

    def end(self) -> None:
        """Stop counting a function. After the last one, call what `after` got."""
        self._running -= 1
        if not self._running:
            actions, self._after = self._after, []
            for action in actions:
                action()

    def after(self, action: Callable[[], object]) -> None:
        """Call `action` as soon as no function runs."""
        if self._running:
            self._after.append(action)
        else:
            action()


FUNCTIONS: Final[ContextVar[RunningFunctions | None]] = ContextVar(
    "roundgate.functions", default=None
)


def after_functions(action: Callable[[], object]) -> None:
    """Call `action` as soon as no plain function of the current call runs."""
    functions = FUNCTIONS.get()
    if functions is None:
        action()
    else:
        functions.after(action)


async def in_thread(function: Callable[[], T], *limiters: CapacityLimiter) -> T:
    """Wait for a slot of each limiter in this order, run a function in a thread, and return its
    result. If the caller is cancelled, the function continues and its result is dropped."""
    place, loop, owner = object(), asyncio.get_running_loop(), Lock()
    acquired: list[CapacityLimiter] = []
    functions = FUNCTIONS.get() or RunningFunctions()
    functions.begin()

    def release() -> None:
        while acquired:
            acquired.pop().release_on_behalf_of(place)
        functions.end()

    def run() -> T:
        if not owner.acquire(blocking=False):
            raise RuntimeError("cancelled before it began")  # no caller sees this
        try:
            return function()
        finally:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(release)

    try:
        for limiter in limiters:
            await limiter.acquire_on_behalf_of(place)
            acquired.append(limiter)
        # a new limiter never waits; the slots of `limiters` are held until the function ends
        return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=CapacityLimiter(1))
    finally:
        # the function has not begun and can no longer begin
        if owner.acquire(blocking=False):
            release()


class Room(Protocol):
    """The room for the answers to the caller of a request."""

    @property
    def is_idle(self) -> bool:
        """Return whether no answer waits."""

    @property
    def has_room(self) -> bool:
        """Return whether the caller may cause further answers. Safe in any thread."""

    async def wait(self) -> None:
        """Wait until the caller may cause further answers; raise AnswersUnread after a while."""

    async def keep(self, size: int) -> None:
        """Count a finished result of about `size` bytes, and wait until it may be encoded.

        Raises:
            AnswersUnread: there is no room for the result.
        """

    def hold(self, size: int) -> None:
        """Count an encoded result until it is written."""


ROOM: Final[ContextVar[Room | None]] = ContextVar("roundgate.room", default=None)


def crowded_room() -> Room | None:
    """Return the room of the current request while answers wait, otherwise `None`."""
    room = ROOM.get()
    return None if room is None or room.is_idle else room


class _NoRoom(Inside):
    """The caller may not cause further answers now."""


async def run_with_room(threads: Threads, function: Callable[[], T], caller: Principal) -> T:
    """Run a function in a thread as `Threads.run` does, but not before the caller has room for its
    answer. A function that waits for room holds no thread."""
    room = ROOM.get()
    if room is None:
        return await threads.run(function, caller)

    def run() -> T:
        if not room.has_room:
            raise _NoRoom
        return function()

    while True:
        try:
            return await threads.run(run, caller)
        except _NoRoom:
            await room.wait()


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
    _limit_s: float | None = None

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
            The seconds that were left when the block first had a limit; `None` without a limit.
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
        self._limit_s = self._limit_s or limit_s
        return self._limit_s

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
