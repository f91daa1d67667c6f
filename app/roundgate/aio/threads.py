"""Bounded pools of threads for plain functions.

anyio releases a slot when its waiter is cancelled, although the function still runs. These pools
hold a slot until the function has ended, so callers that time out one after another cannot pile up
threads.
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


async def in_thread(function: Callable[[], T], *limiters: CapacityLimiter) -> T:
    """Wait for a slot of each limiter in this order, run a function in a thread, and return its
    result. If the caller is cancelled, the function continues and its result is dropped."""
    place, loop, owner = object(), asyncio.get_running_loop(), Lock()
    acquired: list[CapacityLimiter] = []

    def release() -> None:
        while acquired:
            acquired.pop().release_on_behalf_of(place)

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
