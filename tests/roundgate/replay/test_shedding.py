"""A call whose time is nearly up gives its turn back at a step boundary, never
without having got further."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from roundgate.clock import Clock, ticker
from roundgate.errors import CallTimeout, Draining
from roundgate.replay import steps
from roundgate.replay.context import Context
from roundgate.replay.engine import Suspended
from roundgate.replay.sync_context import SyncContext
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
from tests.support.rounds import accept

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


async def test_shed_beside_a_question_ends_in_one_round() -> None:
    async def handler(ctx: Context) -> str:
        _, who = await asyncio.gather(ctx.shed("here"), ctx.elicit("who", "Who?", Name))
        return who.name

    played = await play_to_the_end(handler, polite)
    assert (played.value, played.rounds) == ("who", [["who"]])


async def passed(limit_s: float) -> None:
    """Block the loop for longer than the limit, whose timer fires in the next turn."""
    time.sleep(2 * limit_s)  # noqa: ASYNC251


async def test_a_question_asked_at_the_deadline_is_asked_and_what_ran_before_is_kept() -> None:
    effects = Effects()

    async def handler(ctx: Context) -> str:
        await ctx.step("call", effects.do, 1)
        await passed(0.05)
        return (await ctx.elicit("who", "Who?", Name)).name

    asked = await play(handler, within_ms=50)
    assert [*asked_of(asked)] == ["who"]
    assert value_of(await play(handler, asked, {"who": accept(name="Ada")})) == "Ada"
    assert effects.seen == [1]


async def test_a_question_beside_work_that_exceeds_the_deadline_is_not_asked() -> None:
    async def handler(ctx: Context) -> None:
        await asyncio.gather(
            ctx.elicit("who", "Who?", Name), ctx.step("long", asyncio.Event().wait)
        )

    assert isinstance(error_of(await play(handler, within_ms=50)), CallTimeout)


async def drain_soon(reached: asyncio.Event) -> None:
    """Let the process stop once the handler has got so far."""
    await reached.wait()
    ticker().drain(Clock().monotonic_ms())


async def test_a_call_whose_process_stops_in_a_step_keeps_its_finished_steps() -> None:
    reached = asyncio.Event()

    async def second() -> int:
        if not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return 2

    effects = Effects()

    async def handler(ctx: Context) -> int:
        return int(await ctx.step("one", effects.do, 1)) + int(await ctx.step("two", second))

    stopping = asyncio.create_task(drain_soon(reached))
    shed = await play(handler, within_ms=60_000)
    assert isinstance(shed, Suspended)
    assert shed.wants_task
    await stopping
    ticker().drained_ms = None  # another process
    assert value_of(await play(handler, shed)) == 3
    assert effects.seen == [1]


async def test_a_call_whose_process_stops_in_a_wait_waits_for_the_rest_elsewhere() -> None:
    reached = asyncio.Event()

    async def handler(ctx: Context) -> str:
        reached.set()
        await ctx.sleep(30)
        return "rested"

    stopping = asyncio.create_task(drain_soon(reached))
    shed = await play(handler, within_ms=60_000)
    await stopping
    assert isinstance(shed, Suspended)
    ticker().drained_ms = None
    clock = FixedClock()
    clock.skip((Clock().now_ms() - clock.now_ms()) / 1000 + 31)
    assert value_of(await play(handler, shed, clock=clock)) == "rested"


async def test_a_call_whose_process_stops_outside_of_steps_may_have_taken_effect() -> None:
    reached = asyncio.Event()

    async def handler(ctx: Context) -> None:
        await ctx.step("one", int)
        reached.set()
        await asyncio.Event().wait()

    stopping = asyncio.create_task(drain_soon(reached))
    error = error_of(await play(handler, within_ms=60_000))
    await stopping
    assert isinstance(error, Draining)
    assert "may have taken effect" in str(error)


async def test_a_call_that_begins_while_its_process_stops_has_the_time_that_is_left() -> None:
    async def handler(ctx: Context) -> None:
        await asyncio.Event().wait()

    ticker().drain(Clock().monotonic_ms())
    assert isinstance(error_of(await play(handler, within_ms=60_000)), Draining)


async def test_a_plain_function_is_not_run_again_because_its_process_stops() -> None:
    begun, ended = threading.Event(), threading.Event()

    def handler(ctx: SyncContext) -> None:
        begun.set()
        ended.wait(60)

    async def stop() -> None:
        await asyncio.to_thread(begun.wait, 60)
        ticker().drain(Clock().monotonic_ms())

    stopping = asyncio.create_task(stop())
    assert isinstance(error_of(await play(handler, within_ms=60_000)), Draining)
    ended.set()
    await stopping


@pytest.mark.parametrize("has_finished", [True, False])
async def test_a_step_that_the_runtime_ends_is_repeated_if_the_round_has_finished_another(
    has_finished: bool,
) -> None:
    async def handler(ctx: Context) -> None:
        if has_finished:
            await ctx.step("one", int)
        await ctx.step("two", asyncio.Event().wait)

    clock = Clock()
    deadline = clock.deadline(60_000)
    deadline.shorten(clock.monotonic_ms() + MARGIN_MS)
    outcome = await play(handler, deadline=deadline)
    if has_finished:
        assert isinstance(outcome, Suspended)
    else:
        assert isinstance(error_of(outcome), CallTimeout)
