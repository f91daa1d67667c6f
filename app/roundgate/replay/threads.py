"""Plain functions in threads, never more at once than allowed, however their callers give up on them.

anyio frees the place of a thread when whoever waits for it is cancelled, while its function still runs. Here it is
held until the function has really ended: callers that time out one after another cannot pile up threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

T = TypeVar("T")


async def in_thread(function: Callable[[], T], limiter: CapacityLimiter) -> T:
    """What the function returns. Waits for a place first; if the caller is cancelled the function goes on, unheard."""
    place, loop, owner = object(), asyncio.get_running_loop(), Lock()
    await limiter.acquire_on_behalf_of(place)

    def run() -> T:
        if not owner.acquire(blocking=False):
            raise RuntimeError("given up before it began")  # nobody hears this
        try:
            return function()
        finally:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(limiter.release_on_behalf_of, place)

    try:
        return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=CapacityLimiter(1))
    finally:
        if owner.acquire(blocking=False):  # the thread never took the place over, and will not any more
            limiter.release_on_behalf_of(place)
