"""Whatever a handler is made of: as a task that dies and is gone on with elsewhere, it
ends as if it never was one.

The handlers are those of tests/roundgate/replay/test_any_handler.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.auth.principal import LOCAL
from roundgate.replay.context import Context
from roundgate.replay.sync_context import SyncContext
from roundgate.settings import TasksConfig
from tests.roundgate.replay.test_any_handler import (
    MANNERS,
    PROGRAMS,
    SEQUENCES,
    Timed,
    responses_to,
)
from tests.support.clocks import FixedClock
from tests.support.crashes import Crash, How, Plan, bury
from tests.support.long import examples
from tests.support.programs import Direct, Program, World, perform, perform_blocking
from tests.support.tasks import Fast, Files, Shared, Workshop, catalog_of

POINTS = st.dictionaries(st.integers(0, 30), st.sampled_from(["before", "after"]), max_size=4)


async def as_task(
    files: Files,
    make: Any,
    manners: list[str],
    plan: Plan,
    within_ms: int | None,
    clock: FixedClock,
) -> Any:
    """What a handler returns as a task whose workers die at some of their calls, each turn bounded by a deadline."""
    shared = Shared(files.new(), clock, TasksConfig(), database=Fast)
    left, told = [*manners], dict[str, str]()
    store, queue = shared.stores()
    ref = await Workshop(catalog_of(tool=make()), store, queue, clock).begin("tool")
    for _ in range(300):
        life = plan.life()
        shop = Workshop(catalog_of(tool=make()), *life.shares(store, queue), clock, shared.config)
        try:
            shown = await shop.shown(ref)
            if shown["status"] == "completed":
                await shared.aclose()
                assert "isError" not in shown["result"], shown
                return shown["result"]["structuredContent"]
            assert shown["status"] != "failed", shown
            requests = shown.get("inputRequests", {})
            for key, request in requests.items():
                assert told.setdefault(key, json.dumps(request)) == json.dumps(request)
            await shop.tasks.update(
                LOCAL, ref.id, responses_to(requests, left.pop(0) if requests and left else "all")
            )
            if not await shop.turns(clock.deadline(within_ms)):
                clock.skip(31)
                await shop.sweep.sweep()
        except Crash:
            await bury()
    raise AssertionError("it never ended")


def check(value: Any, expected: Any, effects: Any, expected_effects: Any, crashes: int) -> None:
    assert value == json.loads(json.dumps(expected))
    assert set(effects) == set(expected_effects)
    if not crashes:
        assert effects == expected_effects


async def scenario(
    files: Files,
    program: Program,
    manners: list[str],
    points: Mapping[int, How],
    within_ms: int | None,
    blocking: bool,
) -> None:
    plain, clock = World(), FixedClock()
    expected = await perform(Direct(), program, plain)
    world = Timed(clock)

    def make() -> Any:
        async def handler(ctx: Context) -> Any:
            return await perform(ctx, program, world)

        def function(ctx: SyncContext) -> Any:
            return perform_blocking(ctx, program, world)

        return function if blocking else handler

    value = await as_task(files, make, manners, Plan(points), within_ms, clock)
    check(value, expected, world.effects, plain.effects, len(points))


@examples(250)
@given(PROGRAMS, MANNERS, POINTS, st.sampled_from([None, 150_000]))
def test_a_handler_ends_as_a_task_as_if_nobody_ever_died(
    files: Files,
    program: Program,
    manners: list[str],
    points: Mapping[int, How],
    within_ms: int | None,
) -> None:
    asyncio.run(scenario(files, program, manners, points, within_ms, blocking=False))


@examples(80)
@given(SEQUENCES, MANNERS, POINTS, st.sampled_from([None, 150_000]))
def test_so_does_one_that_is_a_plain_function(
    files: Files,
    program: Program,
    manners: list[str],
    points: Mapping[int, How],
    within_ms: int | None,
) -> None:
    asyncio.run(scenario(files, program, manners, points, within_ms, blocking=True))


class AtEachCheckpoint(dict[int, How]):
    """A process dies before its checkpoint is written, unless it is spared."""

    plan: Plan

    def get(self, number: int, default: Any = None) -> Any:
        return "before" if self.plan.calls[number] == "checkpoint" else default


@pytest.mark.parametrize("max_deaths", [TasksConfig().max_deaths, None])
def test_only_the_process_is_spared_whose_death_alone_would_fail_the_task(
    files: Files, max_deaths: int | None
) -> None:
    begun: list[int] = []

    async def two_steps(ctx: Context) -> list[int]:
        return [await ctx.step(f"step{number}", step, number) for number in range(2)]

    def step(number: int) -> int:
        begun.append(number)
        return number

    points = AtEachCheckpoint()
    points.plan = plan = Plan(points, max_deaths=max_deaths)
    story = as_task(files, lambda: two_steps, [], plan, None, FixedClock())
    if max_deaths is None:
        with pytest.raises(AssertionError, match="Given up because 3 workers died"):
            asyncio.run(story)
        assert begun == [0] * 4, "one death with others, three alone"
        return
    assert asyncio.run(story) == [0, 1]
    assert begun == [0] * 4 + [1] * 3, "the last of each was spared"
