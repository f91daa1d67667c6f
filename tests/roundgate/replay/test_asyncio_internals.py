"""What the engine takes from the insides of asyncio, on each supported Python."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from roundgate.replay.asyncio_internals import (
    ByAsCompleted,
    ByWaitFor,
    creator,
    engine_call,
    entered_timeout,
    function_name,
    state,
    waits_alone,
)


async def test_the_state_of_a_timer_says_whether_it_has_fired() -> None:
    timer = asyncio.timeout(0)
    states: list[str] = []

    async def waits() -> None:
        async with timer:
            states.append(state(timer))
            try:
                await asyncio.sleep(1)
            finally:
                states.append(state(timer))

    with pytest.raises(TimeoutError):
        await waits()
    assert [*states, state(timer)] == ["active", "expiring", "expired"]


async def test_entering_a_timeout_is_recognized_by_its_frame() -> None:
    seen: list[object] = []

    class Task(asyncio.Task[Any]):
        def cancelling(self) -> int:
            seen.append(entered_timeout())
            return super().cancelling()

    async def enters() -> object:
        async with asyncio.timeout(1) as timer:
            await asyncio.sleep(0)
        return timer

    task = Task(enters(), loop=asyncio.get_running_loop())
    assert (await task) in seen
    task.cancelling()
    assert seen[-1] is None


async def work() -> str:
    return "worked"


async def makers_of(run: Callable[[], Awaitable[Any]]) -> list[object]:
    """Return who creates the tasks while a function runs."""
    makers: list[object] = []

    def factory(loop: Any, coroutine: Any, **options: Any) -> Any:
        makers.append(creator())
        return asyncio.Task(coroutine, loop=loop, **options)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        await run()
    finally:
        loop.set_task_factory(None)
    return makers


async def test_a_task_of_the_handler_itself_has_no_other_creator() -> None:
    async def gathers() -> None:
        await asyncio.gather(work(), asyncio.create_task(work()))
        async with asyncio.TaskGroup() as group:
            group.create_task(work())

    assert await makers_of(gathers) == [None] * 3


async def test_a_task_of_wait_for_has_its_timer() -> None:
    makers = await makers_of(lambda: asyncio.wait_for(work(), 60))
    if sys.version_info >= (3, 12):  # which makes no task
        assert makers == []
        return
    (maker,) = makers
    assert isinstance(maker, ByWaitFor)
    assert maker.timer is not None
    when = maker.timer.when()
    assert when is not None
    assert when > asyncio.get_running_loop().time() + 30
    assert state(maker.timer) == "finished"


async def test_a_task_of_as_completed_has_all_its_awaitables() -> None:
    given = [work(), work()]

    async def completes() -> None:
        for one in asyncio.as_completed(given):
            await one

    makers = await makers_of(completes)
    assert len(makers) == 2
    for maker in makers:
        assert isinstance(maker, ByAsCompleted)
        assert set(maker.awaitables) == set(given)


async def test_as_completed_with_a_limit_is_refused() -> None:
    async def completes() -> None:
        for one in asyncio.as_completed([work()], timeout=60):
            await one

    with pytest.raises(RuntimeError, match=r"ctx\.timeout"):
        await makers_of(completes)


async def test_a_task_of_an_anyio_group_is_named_after_its_function() -> None:
    names: list[str] = []

    def factory(loop: Any, coroutine: Any, **options: Any) -> Any:
        names.append(function_name(coroutine))
        return asyncio.Task(coroutine, loop=loop, **options)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
    finally:
        loop.set_task_factory(None)
    assert names == ["work"]


@engine_call
async def call_of_ctx(event: asyncio.Event) -> None:
    await event.wait()


async def directly(wait: Callable[[], Awaitable[Any]]) -> None:
    await wait()


async def in_a_generator(wait: Callable[[], Awaitable[Any]]) -> None:
    async def items() -> AsyncIterator[int]:
        await wait()
        yield 1

    async for _ in items():
        pass


async def in_a_manager(wait: Callable[[], Awaitable[Any]]) -> None:
    @asynccontextmanager
    async def waited() -> AsyncIterator[None]:
        await wait()
        yield

    async with waited():
        pass


async def in_an_object(wait: Callable[[], Awaitable[Any]]) -> None:
    class Waiting:
        def __await__(self) -> Any:
            return directly(wait).__await__()

    await Waiting()


@pytest.mark.parametrize("way", [directly, in_a_generator, in_a_manager, in_an_object])
async def test_what_a_suspended_coroutine_waits_for_is_found_behind_whatever_delegates(
    way: Callable[[Callable[[], Awaitable[Any]]], Coroutine[Any, Any, None]],
) -> None:
    async def waits(wait: Callable[[], Awaitable[Any]]) -> bool:
        coroutine = way(wait)
        coroutine.send(None)
        try:
            return waits_alone(coroutine)
        finally:
            coroutine.close()

    event = asyncio.Event()
    assert await waits(event.wait)
    assert not await waits(lambda: call_of_ctx(event))
    task = asyncio.create_task(event.wait())
    with pytest.raises(RuntimeError, match=r"asyncio\.wait\(timeout"):
        await waits(lambda: asyncio.wait([task], timeout=60))
    assert await waits(lambda: asyncio.wait([task]))
    task.cancel()
