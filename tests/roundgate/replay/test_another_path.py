"""A handler of the same version that takes another path in a replay is stopped before the effect; a
handler of another version is changed in flight, and may take any path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from roundgate import Context, Url, tool
from roundgate.errors import NondeterminismError
from roundgate.replay import run_of
from roundgate.replay.engine import Completed, Failed, Suspended
from roundgate.replay.journal import HANDLER, Journal, Remembered
from roundgate.replay.run import Run
from roundgate.replay.values import identity
from roundgate_testing import Gateway
from tests.support.task_runs import SharedJournal

Way = Callable[[Context, "Shop", bool], Awaitable[Any]]


class Go(BaseModel):
    go: bool


class Shop:
    """What was charged."""

    def __init__(self) -> None:
        self.charged: list[str] = []

    async def charge(self, card: str) -> str:
        self.charged.append(card)
        return card


async def in_the_handler(ctx: Context, shop: Shop, other: bool) -> None:
    card = "amex" if other else "visa"
    await ctx.step(f"charge_{card}", shop.charge, card)


async def in_a_named_part(ctx: Context, shop: Shop, other: bool) -> None:
    async with ctx.branch("amex" if other else "visa"):
        await ctx.step("charge", shop.charge, "amex" if other else "visa")


async def in_a_part_or_without(ctx: Context, shop: Shop, other: bool) -> None:
    if other:
        await ctx.step("charge", shop.charge, "amex")
    else:
        await ctx.gather(in_the_handler(ctx, shop, False))


async def without_a_part_or_in_one(ctx: Context, shop: Shop, other: bool) -> None:
    async with ctx.branch("outer"):
        await in_a_part_or_without(ctx, shop, not other)


async def in_a_branch(ctx: Context, shop: Shop, other: bool) -> None:
    await asyncio.gather(in_the_handler(ctx, shop, other), ctx.step("side", shop.charge, "side"))


async def in_a_map(ctx: Context, shop: Shop, other: bool) -> None:
    async def one(number: int) -> None:
        await in_the_handler(ctx, shop, other and number == 1)

    await ctx.map(one, [0, 1])


async def another_function(ctx: Context, shop: Shop, other: bool) -> None:
    async def visa() -> None:
        await ctx.step("charge", shop.charge, "visa")

    async def amex() -> None:
        await ctx.step("charge", shop.charge, "amex")

    async with asyncio.TaskGroup() as group:
        group.create_task((amex if other else visa)())


async def before_a_question(ctx: Context, shop: Shop, other: bool) -> None:
    if other:
        await ctx.step("charge", shop.charge, "amex")
    await ctx.sleep(0.0)


WAYS: list[Way] = [
    in_the_handler,
    in_a_named_part,
    in_a_part_or_without,
    without_a_part_or_in_one,
    in_a_branch,
    in_a_map,
    another_function,
    before_a_question,
]


async def run_twice(
    way: Way, versions: tuple[str | None, str | None], task_id: str | None
) -> tuple[Any, list[str], list[str]]:
    """The second outcome, and what was charged in each run."""
    shop, home, charged = Shop(), SharedJournal(task_id=task_id), list[list[str]]()
    for other, version in zip((False, True), versions, strict=True):

        async def handler(ctx: Context, other: bool = other) -> str:
            await way(ctx, shop, other)
            await ctx.elicit("sure", "Sure?", Go)
            return "done"

        def prepare(run: Run, version: str | None = version) -> None:
            if version is not None:
                run.declare(version)

        outcome = await home.run(handler, prepare=prepare)
        charged.append(shop.charged[:])
        shop.charged.clear()
    return outcome, charged[0], charged[1]


@pytest.mark.parametrize("task_id", ["task", None])
@pytest.mark.parametrize("way", WAYS)
async def test_the_same_version_ends_before_the_effect_of_another_path(
    way: Way, task_id: str | None
) -> None:
    outcome, _, second = await run_twice(way, ("one", "one"), task_id)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, NondeterminismError)
    assert "must depend only on arguments, answers and steps" in str(outcome.error)
    assert second == []


@pytest.mark.parametrize("versions", [("one", "two"), (None, "two"), ("one", None)])
@pytest.mark.parametrize("way", WAYS)
async def test_another_version_may_take_another_path(
    way: Way, versions: tuple[str | None, str | None]
) -> None:
    outcome, _, second = await run_twice(way, versions, "task")
    assert isinstance(outcome, Suspended)
    assert second


async def test_a_call_that_two_versions_ran_is_lenient_for_the_rest_of_its_life() -> None:
    """One step of the first version, which the second has no more, is in its journal."""
    shop, home = Shop(), SharedJournal()
    for number, version in enumerate(("one", "two", "two", "two")):

        async def handler(ctx: Context, number: int = number) -> str:
            if number == 0:
                await ctx.step("gone", shop.charge, "gone")
            for step in range(number):
                await ctx.step(f"new{step}", shop.charge, str(step))
            await ctx.shed(f"shed{number}")
            return "done"

        def prepare(run: Run, version: str = version) -> None:
            run.declare(version)

        outcome = await home.run(handler, prepare=prepare)
        assert isinstance(outcome, Suspended), outcome
    assert shop.charged == ["gone", "0", "1", "2"]


async def test_a_branch_that_is_created_late_is_waited_for() -> None:
    """A handler that waits outside of ctx goes the same way, only slowly."""
    shop, home, released = Shop(), SharedJournal(), asyncio.Event()

    for is_replay in (False, True):

        async def handler(ctx: Context, is_replay: bool = is_replay) -> str:
            async def held() -> None:
                if not is_replay:
                    await released.wait()
                await ctx.step("held", shop.charge, "held")

            async def late() -> None:
                await ctx.step("late", shop.charge, "late")
                if not is_replay:
                    await ctx.shed()

            first = asyncio.create_task(held())
            await asyncio.sleep(1.0 if is_replay else 0.0)
            await asyncio.gather(first, asyncio.create_task(late()))
            return "done"

        outcome = await home.run(handler, prepare=lambda run: run.declare("one"))
    assert outcome == Completed("done")
    assert shop.charged == ["late", "held"]


async def test_what_code_in_front_of_the_handler_did_is_no_part_of_its_path() -> None:
    """An approval may be switched off while a call waits."""
    shop, home = Shop(), SharedJournal()
    for is_replay in (False, True):

        async def handler(ctx: Context, is_replay: bool = is_replay) -> Any:
            if not is_replay:
                await ctx.elicit("approve", "Go?", Go, timeout_s=0.0, default=Go(go=True))
            run_of(ctx).declare("one")
            await ctx.shed()
            return await ctx.step("charge", shop.charge, "visa")

        outcome = await home.run(handler)
    assert outcome == Completed("visa")
    assert shop.charged == ["visa"]


PATHS: list[bool] = []
CHARGED: list[str] = []


async def charge(card: str) -> str:
    CHARGED.append(card)
    return card


async def _pay(ctx: Context) -> str:
    card = "visa" if not PATHS or PATHS.pop() else "amex"
    await ctx.step(f"charge_{card}", charge, card)
    answer = await ctx.elicit("sure", "Sure?", Go)
    return f"paid {answer.go}"


@tool
async def pay(ctx: Context) -> str:
    """Pay, with any card."""
    return await _pay(ctx)


@tool(task="required")
async def pay_later(ctx: Context) -> str:
    """Pay, with any card, in a task."""
    return await _pay(ctx)


@pytest.mark.parametrize("name", ["pay", "pay_later"])
async def test_a_tool_whose_path_is_left_to_chance_charges_once(name: str) -> None:
    CHARGED.clear()
    PATHS[:] = [False, True]
    async with Gateway(pay, pay_later) as gateway:
        with pytest.raises(NondeterminismError, match=r"charge_\w+.*charge_\w+"):
            await gateway.call(name, answers={"sure": {"go": True}})
    assert len(CHARGED) == 1


def test_the_version_is_an_entry_that_every_engine_can_read() -> None:
    assert Journal.from_json([[["r", HANDLER, ["one"]]], {}, 1]).steps[HANDLER].key == HANDLER


async def test_a_resource_that_a_handler_reads_does_not_change_its_version() -> None:
    outcomes = []
    home = SharedJournal()
    for _ in range(2):

        async def handler(ctx: Context) -> str:
            run_of(ctx).declare("tool")
            run_of(ctx).declare("resource")
            await ctx.shed()
            return "done"

        outcomes.append(await home.run(handler))
    entry = home.journal.steps[HANDLER]
    assert isinstance(entry, Remembered)
    assert (outcomes[1], entry.value) == (Completed("done"), ["tool"])


def test_the_identity_of_a_step_with_a_value_of_ours_stays_as_recorded() -> None:
    page = Url("Pay", "https://a.example")
    assert identity("step", charge, (page,), {}) == "step charge OptqQxcuYvL"
