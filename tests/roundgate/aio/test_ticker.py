"""The timer that all calls of an event loop share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from roundgate.aio import ticker


class Work:
    """Work that calls a function."""

    def __init__(self, start: Callable[[], object]) -> None:
        self._start = start

    def start(self) -> None:
        self._start()


def later(start: Callable[[], object]) -> Work:
    """Register work that calls a function."""
    work = Work(start)
    ticker().add(work)
    return work


def started_in_a_loop() -> list[str]:
    """The work that starts in an event loop of its own: of three registrations, one is discarded."""

    async def run() -> list[str]:
        started: list[str] = []
        both = asyncio.Event()
        later(lambda: started.append("first"))
        ticker().discard(later(lambda: started.append("never")))
        later(both.set)
        async with asyncio.timeout(60):
            await both.wait()
        return started

    return asyncio.run(run())


def test_work_starts_unless_it_is_discarded_also_in_another_event_loop() -> None:
    assert started_in_a_loop() == ["first"]
    assert started_in_a_loop() == ["first"]


async def test_work_that_is_registered_during_a_tick_starts_later() -> None:
    again = asyncio.Event()
    later(lambda: later(again.set))
    async with asyncio.timeout(60):
        await again.wait()


async def test_work_may_discard_other_work_of_the_same_tick() -> None:
    started: list[Work] = []

    def start(work: Work) -> None:
        started.append(work)
        for other in works:
            ticker().discard(other)

    works = [later(lambda: start(works[0])), later(lambda: start(works[1]))]
    await asyncio.sleep(0.5)
    assert len(started) == 1
