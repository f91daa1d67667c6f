"""Handlers that go another way in their next run: nothing is ever served to another asker
than the one it belongs to.

Each handler here is run to a rest, then again with one thing changed. What it is told may differ
from before only because it is done anew; whatever is served must be what the asker itself would
have computed. What cannot be found:

- functions that differ in what they have closed over alone (`lambda: charge(order)`):
  nothing of that is remembered;
- a new name, or one that is not used any more: that is how handlers are changed in flight;
- a branch that has moved to a place of its own (another function, another parent):
  what is in it is done again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from roundgate.errors import NondeterminismError
from roundgate.replay.context import Context
from roundgate.replay.engine import Failed, Suspended
from tests.support.replay import Effects
from tests.support.task_runs import SharedJournal

ITEMS = list(range(6))


async def double(what: Any) -> Any:
    return ["double", what]


async def triple(what: Any) -> Any:
    return ["triple", what]


class Askers:
    """What was told to whom."""

    def __init__(self) -> None:
        self.wrong: list[tuple[Any, Any]] = []

    async def ask(self, ctx: Context, function: Callable[[Any], Awaitable[Any]], what: Any) -> None:
        told = await ctx.step("do", function, what)
        if told != await function(what):
            self.wrong.append((what, told))

    async def twice(self, ctx: Context, what: Any) -> None:
        await self.ask(ctx, double, what)
        await asyncio.sleep(0)
        await self.ask(ctx, double, [what])


Way = Callable[[Context, Askers, bool], Awaitable[Any]]
"""A handler; the flag is whether it goes the other way."""


async def other_arguments(ctx: Context, askers: Askers, other: bool) -> None:
    for item in ITEMS:
        await askers.ask(ctx, double, item + other)


async def another_function(ctx: Context, askers: Askers, other: bool) -> None:
    await askers.ask(ctx, triple if other else double, 1)


async def two_branches_swapped(ctx: Context, askers: Askers, other: bool) -> None:
    one, two = (9, 7) if other else (7, 9)
    await asyncio.gather(askers.twice(ctx, one), askers.twice(ctx, two))


async def created_in_shuffled_order(ctx: Context, askers: Askers, other: bool) -> None:
    items = [*ITEMS]
    if other:
        while items == ITEMS:
            random.shuffle(items)
    tasks = [asyncio.create_task(askers.twice(ctx, item)) for item in items]
    await asyncio.gather(*tasks)


async def a_branch_left_out(ctx: Context, askers: Askers, other: bool) -> None:
    await asyncio.gather(*(askers.twice(ctx, item) for item in ITEMS[other:]))


async def a_branch_inserted(ctx: Context, askers: Askers, other: bool) -> None:
    await asyncio.gather(*(askers.twice(ctx, item) for item in [*([99] if other else []), *ITEMS]))


async def a_loop_shifted(ctx: Context, askers: Askers, other: bool) -> None:
    for item in ITEMS[other:]:
        await askers.twice(ctx, item)


async def workers_pull_from_a_queue(ctx: Context, askers: Askers, other: bool) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    for item in ITEMS:
        queue.put_nowait(item)

    async def worker(number: int) -> None:
        await asyncio.sleep(0.01 * (number if other else 2 - number))
        while not queue.empty():
            await askers.ask(ctx, double, queue.get_nowait())

    await asyncio.gather(*(worker(number) for number in range(3)))


async def other_keywords(ctx: Context, askers: Askers, other: bool) -> None:
    await (ctx.step("do", dict, b=1) if other else ctx.step("do", dict, a=1))


async def a_sleep_of_another_length(ctx: Context, askers: Askers, other: bool) -> None:
    await ctx.sleep(0.002 if other else 0.001)


async def a_poll_in_place_of_a_step(ctx: Context, askers: Askers, other: bool) -> None:
    if other:
        await ctx.poll("do", double, 1, every_s=1)
    else:
        await ctx.step("do", double, 1)


async def a_map_over_other_items_of_the_same_keys(
    ctx: Context, askers: Askers, other: bool
) -> None:
    items = [[number, number + other] for number in ITEMS]
    await ctx.map(lambda item: askers.ask(ctx, double, item), items, key=lambda item: item[0])


WAYS: list[Way] = [
    other_arguments,
    another_function,
    two_branches_swapped,
    created_in_shuffled_order,
    a_branch_left_out,
    a_branch_inserted,
    a_loop_shifted,
    workers_pull_from_a_queue,
    other_keywords,
    a_sleep_of_another_length,
    a_poll_in_place_of_a_step,
    a_map_over_other_items_of_the_same_keys,
]


@pytest.mark.parametrize("task_id", ["task", None])
@pytest.mark.parametrize("swallows", [False, True], ids=["", "swallows"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_run_that_goes_another_way_is_found(
    way: Way, swallows: bool, task_id: str | None
) -> None:
    askers, home, went_on = Askers(), SharedJournal(task_id=task_id), Effects()
    for other in (False, True):

        async def handler(ctx: Context, other: bool = other) -> None:
            try:
                await way(ctx, askers, other)
            except BaseException:
                if not swallows:
                    raise
            await ctx.step("after", went_on.do, "once")
            await ctx.shed()

        outcome = await home.run(handler)
        assert isinstance(outcome, Failed if other else Suspended)
    assert isinstance(outcome, Failed)
    error = outcome.error
    assert isinstance(error, NondeterminismError)
    assert repr(error.remembered) in str(error)
    assert repr(error.asked) in str(error)
    assert (askers.wrong, went_on.seen) == ([], ["once"])


async def test_a_set_of_coroutines_is_found_or_served_rightly() -> None:
    askers, home = Askers(), SharedJournal()

    async def handler(ctx: Context) -> None:
        coroutines = {askers.twice(ctx, item) for item in ITEMS}
        await asyncio.gather(*coroutines)
        await ctx.shed()

    for _ in range(5):
        outcome = await home.run(handler)
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, NondeterminismError)
            break
    assert askers.wrong == []


@pytest.mark.parametrize("seed", range(40))
async def test_branches_that_ask_by_chance_are_never_told_what_belongs_to_another(
    seed: int,
) -> None:
    """A new run deals items, functions and nesting to branches at random;
    all names are the same."""
    askers, home = Askers(), SharedJournal()
    chances = random.Random(seed)

    async def some(ctx: Context, room: int) -> None:
        for _ in range(chances.randint(1, 3)):
            if room and chances.random() < 0.4:
                await asyncio.gather(*(some(ctx, room - 1) for _ in range(chances.randint(1, 3))))
            else:
                await askers.ask(ctx, chances.choice((double, triple)), chances.choice(ITEMS))

    async def handler(ctx: Context) -> None:
        await some(ctx, 2)
        await ctx.shed()

    for _ in range(6):
        outcome = await home.run(handler)
        assert not isinstance(outcome, Failed) or isinstance(outcome.error, NondeterminismError)
    assert askers.wrong == []
