"""The timer that all calls of an event loop share."""

from __future__ import annotations

import asyncio

from roundgate.aio import ticker


def started_in_a_loop() -> list[str]:
    """The work that starts in an event loop of its own: of three registrations, one is discarded."""

    async def run() -> list[str]:
        started: list[str] = []
        both = asyncio.Event()
        ticker().later(lambda: started.append("first"))
        ticker().later(lambda: started.append("never")).discard()
        ticker().later(both.set)
        async with asyncio.timeout(60):
            await both.wait()
        return started

    return asyncio.run(run())


def test_work_starts_unless_it_is_discarded_also_in_another_event_loop() -> None:
    assert started_in_a_loop() == ["first"]
    assert started_in_a_loop() == ["first"]


async def test_work_that_is_registered_during_a_tick_starts_later() -> None:
    again = asyncio.Event()
    ticker().later(lambda: ticker().later(again.set))
    async with asyncio.timeout(60):
        await again.wait()


async def test_work_may_discard_other_work_of_the_same_tick() -> None:
    started: list[str] = []
    done = asyncio.Event()
    first = ticker().later(lambda: second.discard())
    second = ticker().later(lambda: started.append("second"))
    ticker().later(done.set)
    async with asyncio.timeout(60):
        await done.wait()
    first.discard()
    assert started == []
