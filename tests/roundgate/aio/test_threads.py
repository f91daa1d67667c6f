"""Threads for plain functions are bounded, also when their callers give up."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from anyio import CapacityLimiter

from roundgate.aio import Threads, in_thread
from roundgate.auth.principal import LOCAL, Principal

ANN, EVE = Principal("https://issuer.example", "ann"), Principal("https://issuer.example", "eve")


class Busy:
    """A function that runs until it is let go, and knows how many of it run at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self._began = threading.Semaphore(0)
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self._began.release()
        self.go.wait(60)
        with self._lock:
            self.running -= 1
        return "done"

    async def have_begun(self, count: int) -> None:
        """Wait until so many more of them have."""
        for _ in range(count):
            assert await asyncio.to_thread(self._began.acquire, timeout=60)


async def given_up(busy: Busy, limiter: CapacityLimiter) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_thread(busy, limiter)


async def test_callers_that_give_up_do_not_free_the_place_of_a_function_that_still_runs() -> None:
    busy, limiter = Busy(), CapacityLimiter(1)
    begun = asyncio.ensure_future(in_thread(busy, limiter))
    await busy.have_begun(1)
    begun.cancel()
    for _ in range(5):
        await given_up(busy, limiter)
    assert busy.most == 1
    busy.go.set()


async def test_the_place_is_free_again_when_the_function_has_ended() -> None:
    busy, limiter = Busy(), CapacityLimiter(1)
    await given_up(busy, limiter)
    busy.go.set()
    async with asyncio.timeout(60):
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
    async with asyncio.timeout(60):
        assert await in_thread(lambda: "next", limiter) == "next"


async def test_a_caller_that_has_its_share_leaves_the_rest_to_others() -> None:
    busy, threads = Busy(), Threads(4, share=2)
    held = [asyncio.ensure_future(threads.run(busy, ANN)) for _ in range(10)]
    await busy.have_begun(2)
    async with asyncio.timeout(60):
        assert await threads.run(lambda: "done", EVE) == "done"
    assert busy.most == 2
    busy.go.set()
    assert await asyncio.gather(*held) == ["done"] * 10


async def test_a_caller_is_the_same_whatever_its_token_lets_it_do() -> None:
    busy, threads = Busy(), Threads(4, share=1)
    scopes = [frozenset({str(number)}) for number in range(3)]
    held = [
        asyncio.ensure_future(threads.run(busy, Principal("i", "ann", scopes=some)))
        for some in scopes
    ]
    await busy.have_begun(1)
    async with asyncio.timeout(60):
        assert await threads.run(lambda: "done", EVE) == "done"
    assert busy.most == 1
    busy.go.set()
    await asyncio.gather(*held)


async def test_without_authentication_the_one_caller_has_them_all() -> None:
    busy, threads = Busy(), Threads(4)
    held = [asyncio.ensure_future(threads.run(busy, LOCAL)) for _ in range(10)]
    await busy.have_begun(4)
    busy.go.set()
    await asyncio.gather(*held)
    assert busy.most == 4


async def test_who_gives_up_waiting_for_a_thread_of_another_keeps_none_of_its_own_share() -> None:
    busy, threads = Busy(), Threads(1, share=1)
    held = asyncio.ensure_future(threads.run(busy, ANN))
    await busy.have_begun(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await threads.run(busy, EVE)
    busy.go.set()
    await held
    async with asyncio.timeout(60):
        assert await threads.run(lambda: "done", EVE) == "done"


async def test_nothing_is_kept_of_callers_that_have_no_thread() -> None:
    threads = Threads(4)
    for number in range(10):
        await threads.run(lambda: None, Principal("i", str(number)))
    await asyncio.sleep(0)
    gc.collect()
    assert not threads._of_caller
