"""A coarse timer calls back once, not early, and not what was cancelled; a limit is
`asyncio.timeout` on one."""

from __future__ import annotations

import asyncio
from collections.abc import Sized

import pytest

from roundgate.aio.timers import TICK_S, CoarseTimer, Limit, of_this_loop


async def calls(called: Sized, count: int) -> None:
    """Wait until so many callbacks were called, and for those that should not be."""
    async with asyncio.timeout(60):
        while len(called) < count:  # noqa: ASYNC110 - the timer is what is tested
            await asyncio.sleep(TICK_S)
    await asyncio.sleep(4 * TICK_S)


async def test_a_callback_comes_once_and_not_before_its_time() -> None:
    loop, called = asyncio.get_running_loop(), list[float]()
    began = loop.time()
    of_this_loop().set("a", 0.05, lambda: called.append(loop.time() - began))
    await calls(called, 1)
    assert len(called) == 1
    assert called[0] >= 0.05


async def test_a_callback_that_was_cancelled_does_not_come() -> None:
    timer, called = of_this_loop(), list[str]()
    timer.set("a", 0.01, lambda: called.append("a"))
    timer.set("b", 0.01, lambda: called.append("b"))
    timer.cancel("a")
    timer.cancel("unknown")
    await calls(called, 1)
    assert called == ["b"]


async def test_a_callback_can_cancel_another_that_is_due_with_it() -> None:
    timer, called = CoarseTimer(), list[str]()

    def call() -> None:
        called.append("a")
        timer.cancel("b")

    timer.set("a", 0, call)
    timer.set("b", 0, lambda: called.append("b"))
    await calls(called, 1)
    assert called == ["a"]


async def test_callbacks_that_are_set_later_come_as_well() -> None:
    timer, called = of_this_loop(), list[str]()
    for number, name in enumerate(("first", "second"), 1):
        timer.set(name, 0, lambda name=name: called.append(name))  # type: ignore[misc]
        await calls(called, number)
    assert called == ["first", "second"]


async def test_a_limit_ends_what_takes_too_long() -> None:
    with pytest.raises(TimeoutError), Limit(0.01) as limit:
        await asyncio.sleep(600)
    assert limit.expired
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_limit_leaves_what_is_in_time_alone() -> None:
    with Limit(600) as limit, Limit(None):
        await asyncio.sleep(0)
    assert not limit.expired


async def test_a_cancellation_from_elsewhere_is_not_a_time_out() -> None:
    async def limited() -> None:
        with Limit(600):
            await asyncio.sleep(600)

    task = asyncio.ensure_future(limited())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_inner_of_two_limits_is_the_one_that_ends() -> None:
    with Limit(600) as outer:
        with pytest.raises(TimeoutError), Limit(0.01):
            await asyncio.sleep(600)
        await asyncio.sleep(0)
    assert not outer.expired
