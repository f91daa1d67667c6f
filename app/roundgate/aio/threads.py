"""Plain functions in threads, never more at once than allowed, however their callers give up on
them.

anyio frees the place of a thread when whoever waits for it is cancelled, while its function
still runs. Here it is held until the function has really ended: callers that time out one after
another cannot pile up threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread

from roundgate.auth import LOCAL, Principal

T = TypeVar("T")
_Identity: TypeAlias = tuple[str, str, str]


class Threads:
    """A bound on threads, and one on those of a single caller: functions that hang take
    no more of them than that.

    Without authentication there is one caller, who may have them all.
    """

    def __init__(self, total: int, share: int | None = None) -> None:
        """Make the threads. `share` is the number that one caller may use; `None` is half of them."""
        self._all = CapacityLimiter(total)
        self._share = share or max(1, total // 2)
        self._of_caller: WeakValueDictionary[_Identity, CapacityLimiter] = WeakValueDictionary()

    async def run(self, function: Callable[[], T], caller: Principal) -> T:
        """Run a function for a caller, as `in_thread`."""
        if caller.identity == LOCAL.identity:
            return await in_thread(function, self._all)
        limiter = self._of_caller.get(caller.identity)
        if limiter is None:
            limiter = self._of_caller[caller.identity] = CapacityLimiter(self._share)
        # first the caller's own: who has to wait for that stands in nobody else's way
        return await in_thread(function, limiter, self._all)


async def in_thread(function: Callable[[], T], *limiters: CapacityLimiter) -> T:
    """Run a function in a thread, after waiting for a place at each limiter in this order, and
    return its result. If the caller is cancelled, the function continues and its result is
    dropped."""
    place, loop, owner = object(), asyncio.get_running_loop(), Lock()
    held: list[CapacityLimiter] = []

    def release() -> None:
        while held:
            held.pop().release_on_behalf_of(place)

    def run() -> T:
        if not owner.acquire(blocking=False):
            raise RuntimeError("given up before it began")  # nobody hears this
        try:
            return function()
        finally:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(release)

    try:
        for limiter in limiters:
            await limiter.acquire_on_behalf_of(place)
            held.append(limiter)
        return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=CapacityLimiter(1))
    finally:
        # the thread never took the places over, and will not any more
        if owner.acquire(blocking=False):
            release()
