"""`ctx.gather` and `ctx.map`: coroutines side by side, each a branch. Those of `map` are named after their items.

So what is remembered of an item stays with it, whatever is done for the others, when the list
grows, and in another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter

from roundgate.aio import in_thread
from roundgate.replay.branches import Branch, inside
from roundgate.replay.driving import spawn
from roundgate.replay.identity import digest_of_value
from roundgate.replay.run import NAME, Run

I = TypeVar("I")  # noqa: E741  # an item
T = TypeVar("T")


def branches(
    parent: Branch, name: str, items: Iterable[I], key: Callable[[I], Any] | None
) -> list[tuple[I, Branch]]:
    """Each item with its branch: `name.7` for an item 7, `name.Xy3…` for one that is no name;
    twice the same is numbered."""
    own = parent.named(name)
    return [(item, own.named(_segment(item if key is None else key(item)))) for item in items]


def _segment(item: Any) -> str:
    text = str(item) if isinstance(item, (str, int)) and not isinstance(item, bool) else ""
    return text if NAME.fullmatch(text) else digest_of_value(item)


async def side_by_side(placed: Sequence[tuple[Branch, Coroutine[Any, Any, T]]]) -> list[T]:
    """Run each coroutine as its branch; return their results in order.

    If one raises, the others are cancelled, and its error is raised.
    """
    tasks = [spawn(branch, coroutine) for branch, coroutine in placed]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# threads: the thread of the handler works on items too, so it never waits for a thread that only
# itself could free

HELPERS: Final = 40
"""Threads that help at once, in one event loop."""


@dataclass(frozen=True, slots=True, eq=False)
class ThreadLimit:
    """A durable time limit of a thread. A thread cannot be cancelled, so the limit is
    checked at each engine call."""

    until_ms: int
    is_left: bool = False
    has_fired: bool = False

    async def wait_until_settled(self) -> None:
        """Nobody waits: see `fire`."""

    @property
    def is_pending(self) -> bool:
        """It ends nothing by itself."""
        return False

    def fire(self) -> None:
        """Nothing: the engine raises where it looks."""


@dataclass(slots=True)
class Items(Generic[I, T]):
    """What is left to do, and what came of the rest. Any number of threads may work on it."""

    function: Callable[[I], T]
    placed: list[tuple[I, Branch]]
    _next: int = 0
    _values: dict[int, T] = field(default_factory=dict)
    _errors: dict[int, BaseException] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __len__(self) -> int:
        return len(self.placed)

    def work(self) -> None:
        """Run one item after the other until none is left, or one has raised."""
        while (index := self._take()) is not None:
            item, branch = self.placed[index]
            try:
                with inside(branch):
                    self._values[index] = self.function(item)
            except (
                BaseException
            ) as error:  # it belongs to who asked for the map, not to this thread
                self._errors[index] = error

    def _take(self) -> int | None:
        with self._lock:
            if self._errors or self._next == len(self.placed):
                return None
            self._next += 1
            return self._next - 1

    def results(self) -> list[T]:
        """What the function returned, in the order of the items.

        Raises:
            BaseException: what it raised for the first of those for which it did.
        """
        for _, error in sorted(self._errors.items()):
            raise error
        return [self._values[index] for index in range(len(self.placed))]


_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()


def helper(work: Callable[[], None], run: Run) -> asyncio.Future[None] | None:
    """Start a thread that does the work, or return `None` if none is free."""
    limiter = _limiters.setdefault(asyncio.get_running_loop(), CapacityLimiter(HELPERS))
    if limiter.available_tokens < 1:
        return None
    with inside(None):
        return asyncio.ensure_future(_help(work, run, limiter))


async def _help(work: Callable[[], Any], run: Run, limiter: CapacityLimiter) -> None:
    with run.quiescence.moving():
        await in_thread(work, limiter)
