"""Alarms ring once, not early, and not when they were dropped; a limit is `asyncio.timeout` on one."""

from __future__ import annotations

import asyncio

import pytest

from roundgate.aio.timers import TICK_S, Alarms, Limit, of_this_loop


async def test_an_alarm_rings_once_and_not_before_its_time() -> None:
    loop, rung = asyncio.get_running_loop(), list[float]()
    began = loop.time()
    of_this_loop().set("a", 0.05, lambda: rung.append(loop.time() - began))
    await asyncio.sleep(0.05 + 4 * TICK_S)
    assert len(rung) == 1
    assert rung[0] >= 0.05


async def test_an_alarm_that_was_dropped_does_not_ring() -> None:
    alarms, rung = of_this_loop(), list[str]()
    alarms.set("a", 0.01, lambda: rung.append("a"))
    alarms.set("b", 0.01, lambda: rung.append("b"))
    alarms.drop("a")
    alarms.drop("unknown")
    await asyncio.sleep(4 * TICK_S)
    assert rung == ["b"]


async def test_an_alarm_can_drop_another_that_is_due_with_it() -> None:
    alarms, rung = Alarms(), list[str]()

    def ring() -> None:
        rung.append("a")
        alarms.drop("b")

    alarms.set("a", 0, ring)
    alarms.set("b", 0, lambda: rung.append("b"))
    await asyncio.sleep(4 * TICK_S)
    assert rung == ["a"]


async def test_alarms_that_are_set_later_ring_as_well() -> None:
    alarms, rung = of_this_loop(), list[str]()
    for name in ("first", "second"):
        alarms.set(name, 0, lambda name=name: rung.append(name))  # type: ignore[misc]
        await asyncio.sleep(4 * TICK_S)
    assert rung == ["first", "second"]


async def test_a_limit_ends_what_takes_too_long() -> None:
    with pytest.raises(TimeoutError), Limit(0.01) as limit:
        await asyncio.sleep(10)
    assert limit.expired
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_limit_leaves_what_is_in_time_alone() -> None:
    with Limit(10) as limit, Limit(None):
        await asyncio.sleep(0)
    assert not limit.expired


async def test_a_cancellation_from_elsewhere_is_not_a_time_out() -> None:
    async def limited() -> None:
        with Limit(10):
            await asyncio.sleep(10)

    task = asyncio.ensure_future(limited())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_inner_of_two_limits_is_the_one_that_ends() -> None:
    with Limit(10) as outer:
        with pytest.raises(TimeoutError), Limit(0.01):
            await asyncio.sleep(10)
        await asyncio.sleep(0)
    assert not outer.expired
