"""Threads for plain functions are bounded, also when their callers give up."""

from __future__ import annotations

import asyncio
import threading

import pytest
from anyio import CapacityLimiter

from roundgate.replay.threads import in_thread


class Busy:
    """A function that runs until it is let go, and knows how many of it run at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.go.wait(10)
        with self._lock:
            self.running -= 1
        return "done"


async def given_up(busy: Busy, limiter: CapacityLimiter) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_thread(busy, limiter)


async def test_callers_that_give_up_do_not_free_the_place_of_a_function_that_still_runs() -> None:
    busy, limiter = Busy(), CapacityLimiter(1)
    for _ in range(5):
        await given_up(busy, limiter)
    assert busy.most == 1
    busy.go.set()


async def test_the_place_is_free_again_when_the_function_has_ended() -> None:
    busy, limiter = Busy(), CapacityLimiter(1)
    await given_up(busy, limiter)
    busy.go.set()
    async with asyncio.timeout(5):
        assert await in_thread(busy, limiter) == "done"
    assert limiter.borrowed_tokens <= 1


async def test_what_the_function_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0, CapacityLimiter(1))


async def test_one_that_was_cancelled_before_it_began_never_runs() -> None:
    busy, limiter = Busy(), CapacityLimiter(1)
    busy.go.set()
    task = asyncio.ensure_future(in_thread(busy, limiter))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(5):
        assert await in_thread(lambda: "next", limiter) == "next"
