"""A call whose time is nearly up gives its turn back at a step boundary, never
without having got further."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from roundgate.errors import CallTimeout
from roundgate.replay import steps
from roundgate.replay.context import Context
from roundgate.replay.engine import Suspended
from roundgate.replay.waiting import SHED_MARGIN_MS
from tests.support.clocks import FixedClock
from tests.support.replay import (
    Effects,
    Name,
    asked_of,
    error_of,
    play,
    play_to_the_end,
    polite,
    value_of,
)

MARGIN_MS = 100 * SHED_MARGIN_MS


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline itself runs by the loop's clock: all of it is a hundred times slower, so that no machine is too
    slow."""
    monkeypatch.setattr(steps, "SHED_MARGIN_MS", MARGIN_MS)


class Work(Effects):
    """Steps that take their time, on a clock that skips it."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.clock = FixedClock()
        self._seconds = seconds

    async def work(self, what: Any) -> Any:
        self.clock.skip(self._seconds)
        return self.do(what)


async def ninety_steps(ctx: Context, work: Work) -> int:
    return sum([await ctx.step("second", work.work, number) for number in range(90)])


async def test_ninety_seconds_of_steps_get_through_a_deadline_of_ten() -> None:
    work = Work(100)
    played = await play_to_the_end(
        lambda_of(ninety_steps, work), polite, max_rounds=12, clock=work.clock, within_ms=1_000_000
    )
    assert played.value == sum(range(90))
    assert work.seen == list(range(90))
    assert played.rounds == [[]] * 9


def lambda_of(function: Any, work: Work) -> Any:
    async def handler(ctx: Context) -> Any:
        return await function(ctx, work)

    return handler


@pytest.mark.parametrize("within_ms", [20_000, 90_000, 110_000, 130_000, 210_000, 500_000])
@pytest.mark.parametrize("step_s", [20, 100, 400])
async def test_every_round_that_sheds_has_finished_a_step_that_was_not_before(
    within_ms: int, step_s: float
) -> None:
    work = Work(step_s)
    handler = lambda_of(ninety_steps, work)
    outcome, finished = await play(handler, clock=work.clock, within_ms=within_ms), 0
    while isinstance(outcome, Suspended):
        assert asked_of(outcome) == {}
        assert len(work.seen) > finished
        finished = len(work.seen)
        outcome = await play(handler, outcome, clock=work.clock, within_ms=within_ms)
    assert value_of(outcome) == sum(range(90))
    assert work.seen == list(range(90))


@pytest.mark.parametrize(
    ("step_ms", "left_ms", "sheds"),
    [
        (100_000, 125_000 + MARGIN_MS - 1, True),
        (100_000, 125_000 + MARGIN_MS, False),
        (10_000, 12_500 + MARGIN_MS - 1, True),
        (10_000, 12_500 + MARGIN_MS, False),
    ],
    ids=[
        "no room for another",
        "just room",
        "no room for a short one",
        "just room for a short one",
    ],
)
async def test_the_next_step_begins_if_one_a_quarter_longer_than_any_so_far_would_fit(
    step_ms: int, left_ms: int, sheds: bool
) -> None:
    work = Work(step_ms / 1000)

    async def handler(ctx: Context) -> str:
        await ctx.step("one", work.work, 1)
        await ctx.step("two", work.do, 2)
        return "done"

    outcome = await play(handler, clock=work.clock, within_ms=step_ms + left_ms)
    assert isinstance(outcome, Suspended) == sheds
    assert work.seen == ([1] if sheds else [1, 2])


async def test_a_first_step_is_begun_however_little_time_is_left() -> None:
    work = Work(0)

    async def handler(ctx: Context) -> Any:
        return await ctx.step("one", work.work, 1)

    assert value_of(await play(handler, clock=work.clock, within_ms=MARGIN_MS - 50)) == 1


async def test_a_call_without_a_deadline_never_sheds() -> None:
    work = Work(1_000)
    assert (
        await play_to_the_end(lambda_of(ninety_steps, work), polite, clock=work.clock)
    ).rounds == []


async def test_branches_shed_together_and_what_is_asked_beside_them_comes_out_too() -> None:
    work = Work(100)

    async def steps(ctx: Context, branch: str) -> list[Any]:
        return [await ctx.step(branch, work.work, f"{branch}{number}") for number in range(4)]

    async def handler(ctx: Context) -> Any:
        *branches, who = await asyncio.gather(
            steps(ctx, "a"), steps(ctx, "b"), ctx.elicit("who", "Who?", Name)
        )
        return [*branches, who.name]

    played = await play_to_the_end(handler, polite, clock=work.clock, within_ms=300_000)
    assert played.rounds[0] == ["who"]
    assert played.rounds[1:] == [[]] * len(played.rounds[1:])
    assert len(played.rounds) > 1
    assert sorted(work.seen) == [f"{branch}{number}" for branch in "ab" for number in range(4)]
    assert played.value == [[f"a{n}" for n in range(4)], [f"b{n}" for n in range(4)], "who"]


async def test_what_a_round_finished_is_kept_when_the_deadline_of_a_later_one_is_missed() -> None:
    work = Work(100)

    async def handler(ctx: Context) -> None:
        await ctx.step("one", work.work, 1)
        await ctx.step("two", asyncio.Event().wait)

    shed = await play(handler, clock=work.clock, within_ms=101_000)
    assert isinstance(
        error_of(await play(handler, shed, clock=work.clock, within_ms=10)), CallTimeout
    )
    assert work.seen == [1]


async def test_shed_ends_the_round_once_without_a_question() -> None:
    effects = Effects()

    async def handler(ctx: Context) -> str:
        for number in range(3):
            await ctx.step("before", effects.do, number)
            await ctx.shed()
        return "done"

    played = await play_to_the_end(handler, polite)
    assert (played.value, played.rounds, effects.seen) == ("done", [[], [], []], [0, 1, 2])


async def test_shed_beside_a_question_ends_in_one_round() -> None:
    async def handler(ctx: Context) -> str:
        _, who = await asyncio.gather(ctx.shed("here"), ctx.elicit("who", "Who?", Name))
        return who.name

    played = await play_to_the_end(handler, polite)
    assert (played.value, played.rounds) == ("who", [["who"]])


async def test_a_step_and_a_shed_of_one_name_are_two_things() -> None:
    async def handler(ctx: Context) -> Any:
        await ctx.shed("plan")
        return await ctx.step("plan", lambda: "made")

    assert (await play_to_the_end(handler, polite)).value == "made"
