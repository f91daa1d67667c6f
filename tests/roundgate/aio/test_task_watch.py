"""Watches over blocks, which share the timer of their event loop, and their time limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from roundgate.aio import TaskWatch
from roundgate.clock import Clock


class Watch(TaskWatch):
    """A watch that calls a function once it has started."""

    def __init__(self, started: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._started = started
        self.is_cancelled = False

    async def _watch(self) -> None:
        self._started()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self.is_cancelled = self._end(kind)
        return self.is_cancelled


def started_in_a_loop() -> list[str]:
    """The watches that start in an event loop of its own: of two blocks, one ends at once."""

    async def run() -> list[str]:
        started: list[str] = []
        is_started = asyncio.Event()

        def note() -> None:
            started.append("first")
            is_started.set()

        with Watch(lambda: started.append("never")):
            pass
        with Watch(note):
            async with asyncio.timeout(60):
                await is_started.wait()
        return started

    return asyncio.run(run())


def test_a_watch_starts_unless_its_block_ends_before_also_in_another_event_loop() -> None:
    assert started_in_a_loop() == ["first"]
    assert started_in_a_loop() == ["first"]


async def test_a_block_that_begins_during_a_tick_is_watched() -> None:
    again = asyncio.Event()

    async def another() -> None:
        with Watch(again.set):
            await again.wait()

    tasks: list[asyncio.Task[None]] = []
    with Watch(lambda: tasks.append(asyncio.create_task(another()))):
        async with asyncio.timeout(60):
            await again.wait()
    await asyncio.gather(*tasks)


async def test_a_watch_cancels_its_block_alone() -> None:
    watch = Watch(lambda: watch.cancel())
    with watch:
        await asyncio.sleep(60)
    assert watch.is_cancelled
    await asyncio.sleep(0)  # the task itself goes on


async def test_a_limit_cancels_a_block_that_takes_longer() -> None:
    with Watch() as watch:
        for limit_s in (0.01, 0.15):
            watch.limit(Clock().deadline(limit_s * 1000))
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            assert watch.end_limit()
        watch.limit(Clock().deadline(150))
        await asyncio.sleep(0)
        assert not watch.end_limit()


async def test_a_block_that_is_cancelled_at_its_limit_is_cancelled() -> None:
    with Watch() as watch:
        watch.limit(Clock().deadline(0))
        asyncio.get_running_loop().call_later(0.0, watch.cancel)
        try:
            await asyncio.sleep(60)
        finally:
            assert not watch.end_limit()
    assert watch.is_cancelled
