"""Parts of a handler that run side by side and use the same names: each keeps its own,
whoever comes first to where."""

from __future__ import annotations

import asyncio
import random
from contextvars import copy_context
from typing import Any

import pytest

from roundgate.replay.context import Context
from roundgate.replay.engine import Suspended
from roundgate.replay.journal import Slept
from roundgate.replay.sync_context import SyncContext
from tests.support.clocks import FixedClock
from tests.support.replay import Effects, Name, error_of, play, play_to_the_end, polite, value_of
from tests.support.rounds import accept
from tests.support.task_runs import SharedJournal

ORDERS = range(6)


async def test_questions_of_branches_are_answered_each_for_itself_in_any_order() -> None:
    async def handler(ctx: Context) -> list[str]:
        async def one(number: int) -> str:
            await asyncio.sleep(random.random() / 100)
            return f"{number}: {(await ctx.elicit('who', f'Who takes {number}?', Name)).name}"

        return list(await asyncio.gather(*(one(number) for number in ORDERS)))

    def client(key: str, request: Any) -> Any:
        return accept(name=request["params"]["message"])

    played = await play_to_the_end(handler, client)
    assert played.value == [f"{number}: Who takes {number}?" for number in ORDERS]
    assert sorted({key for keys in played.rounds for key in keys}) == [
        "who",
        *(f"who#{n}" for n in range(2, 7)),
    ]


async def test_two_sleeps_side_by_side_keep_their_lengths() -> None:
    clock = FixedClock()
    home = SharedJournal(clock=clock)

    async def handler(ctx: Context) -> None:
        async def nap(seconds: float, first: float) -> None:
            await asyncio.sleep(first)
            await ctx.sleep(seconds)

        late = 0.02 if not home.journal.steps else 0
        await asyncio.gather(nap(10, late), nap(1_000, 0.02 - late))

    await home.run(handler)
    await home.run(handler)
    slept = [entry for entry in home.journal.steps.values() if isinstance(entry, Slept)]
    lengths = {entry.key: entry.until_ms - clock.now_ms() for entry in slept}
    assert lengths == {"nap@0/sleep:sleep": 10_000, "nap@1/sleep:sleep": 1_000_000}


async def test_tasks_of_libraries_and_of_steps_shift_nobody() -> None:
    runs: list[int] = []
    effects = Effects()

    async def connection() -> None:
        await asyncio.sleep(0)

    async def step(number: int) -> int:
        await asyncio.gather(*(connection() for _ in range(3)))
        return number

    async def handler(ctx: Context) -> Any:
        async def order(number: int) -> Any:
            value = await ctx.step("step", step, number)
            await ctx.elicit("who", f"Who takes {number}?", Name)
            return value

        runs.append(1)
        await asyncio.gather(
            *(connection() for _ in range(len(runs)))
        )  # another number in every run
        await ctx.step("before", effects.do, 1)
        return await asyncio.gather(order(1), order(2))

    assert (await play_to_the_end(handler, polite)).value == [1, 2]
    assert effects.seen == [1]


async def test_an_item_of_a_map_keeps_its_place_when_another_is_added_before_it() -> None:
    effects = Effects()

    def version(*items: str) -> Any:
        async def handler(ctx: Context) -> Any:
            async def one(item: str) -> Any:
                await ctx.step("do", effects.do_async, item)
                return (await ctx.elicit("who", f"Who takes {item}?", Name)).name

            return await ctx.map(one, items)

        return handler

    first = await play(version("b", "c"))
    assert isinstance(first, Suspended)
    second = await play(
        version("a", "b", "c"), first, {key: accept(name=key) for key in first.requests}
    )
    assert isinstance(second, Suspended)
    assert list(second.requests) == ["who#3"]
    assert value_of(await play(version("a", "b", "c"), second, {"who#3": accept(name="new")})) == [
        "new",
        "who",
        "who#2",
    ]
    assert effects.seen == ["b", "c", "a"]


async def test_a_map_runs_no_more_at_once_than_it_may_and_gives_results_in_order() -> None:
    running, most = 0, 0

    async def one(item: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(random.random() / 200)
        running -= 1
        return item

    async def handler(ctx: Context) -> Any:
        return await ctx.map(one, [{"id": 1}, {"id": 1}, (1, 2), "x", 7], at_most=2)

    assert value_of(await play(handler)) == [{"id": 1}, {"id": 1}, (1, 2), "x", 7]
    assert most == 2


async def test_what_an_item_raises_ends_the_map_and_cancels_the_others() -> None:
    ended: list[str] = []

    async def one(item: int) -> None:
        try:
            await asyncio.sleep(0.01 if item == 2 else 30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        raise ValueError(f"item {item}")

    async def handler(ctx: Context) -> Any:
        return await ctx.map(one, [1, 2, 3])

    assert str(error_of(await play(handler))) == "item 2"
    assert ended == ["cancelled"] * 2


async def test_a_named_branch_keeps_its_place_and_two_of_one_name_are_two() -> None:
    effects = Effects()

    def version(*names: str) -> Any:
        async def handler(ctx: Context) -> Any:
            values = []
            for name in names:
                async with ctx.branch(name):
                    values.append(await ctx.step("do", effects.do_async, name))
            return [values, (await ctx.elicit("who", "Who?", Name)).name]

        return handler

    first = await play(version("b", "b"))
    assert isinstance(first, Suspended)
    assert [*first.journal.steps] == ["b/do", "b#2/do"]
    outcome = await play(version("a", "b", "b"), first, {"who": accept(name="me")})
    assert value_of(outcome) == [["a", "b", "b"], "me"]
    assert effects.seen == ["b", "b", "a"]


async def test_threads_that_a_handler_starts_by_itself_are_told_what_to_use() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def handler(ctx: SyncContext) -> Any:
        with ThreadPoolExecutor() as pool:
            return pool.submit(lambda: ctx.step("one", lambda: 1)).result()

    assert "ctx.map" in str(error_of(await play(handler)))


async def test_two_tasks_cannot_share_a_context() -> None:
    async def handler(ctx: Context) -> Any:
        shared = copy_context()
        loop = asyncio.get_running_loop()
        tasks = []
        for number in range(2):
            coroutine = ctx.step("one", lambda number=number: number)
            try:
                tasks.append(loop.create_task(coroutine, context=shared))
            finally:
                if len(tasks) == number:
                    coroutine.close()
        return await asyncio.gather(*tasks)

    assert "context" in str(error_of(await play(handler)))


async def test_a_context_is_of_no_use_outside_of_its_handler() -> None:
    async def handler(ctx: Context) -> Any:
        return ctx

    ctx = value_of(await play(handler))
    with pytest.raises(RuntimeError, match="can use ctx; the handler has ended"):
        await ctx.step("late", lambda: 1)


async def test_gathered_coroutines_are_branches_named_after_their_functions() -> None:
    async def charge(ctx: Context, amount: int) -> int:
        return int(await ctx.step("charge", abs, amount))

    async def handler(ctx: Context) -> Any:
        one, two = await ctx.gather(charge(ctx, 1), charge(ctx, 2))
        return [one, two, await ctx.gather()]

    played = await play_to_the_end(handler, polite)
    assert played.value == [1, 2, []]
    home = SharedJournal()
    await home.run(handler)
    assert sorted(home.journal.steps) == ["charge@0/charge", "charge@1/charge"]


async def test_a_gathered_coroutine_that_fails_cancels_the_others_and_raises_its_error() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise LookupError("gone")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def handler(ctx: Context) -> None:
        await ctx.gather(waits(), fails())

    assert isinstance(error_of(await play(handler)), LookupError)
    assert ended == ["waits"]
