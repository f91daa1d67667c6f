"""Whatever branches a handler is made of, and however alike their names: lived through any number
of processes, it ends as if nothing had happened, and an effect is doubled only where a process died
between it and its note."""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import pytest

from roundgate.errors import NondeterminismError
from roundgate.replay.engine import Completed, Failed, Outcome
from tests.support.lives import AtRandom, Fate, Story, every_death, nothing_happens
from tests.support.long import is_long, sampled
from tests.support.programs import (
    Direct,
    Program,
    World,
    answer,
    perform,
    perform_blocking,
    program,
)

EXAMPLES = int(os.environ.get("HANDLERS", "150" if is_long() else "30"))
FIRST_SEED = int(os.environ.get("HANDLERS_SEED", "1"))
BATCH = 15


async def expected_of(body: Program) -> tuple[Any, World]:
    """What a handler does that nobody interrupts."""
    world = World()
    try:
        value: Any = await perform(Direct(), body, world)
    except Exception:
        value = "failed"
    return json.loads(json.dumps(value)), world


def story_of(
    body: Program, world: World, fate: Fate = nothing_happens, *, blocking: bool = False
) -> Story:
    async def handler(ctx: Any) -> Any:
        return await perform(ctx, body, world)

    def blocking_handler(ctx: Any) -> Any:
        return perform_blocking(ctx, body, world)

    story = Story(blocking_handler if blocking else handler, answer, fate)
    world.is_alive = lambda: story.is_alive
    return story


def value_of(outcome: Outcome[Any]) -> Any:
    if isinstance(outcome, Completed):
        return json.loads(json.dumps(outcome.value))
    text = repr(outcome)
    return "failed" if "StepFailed" in text and "given up" not in text else text


def doubled(world: World, expected: World, deaths: int) -> list[str]:
    """What is wrong with the effects."""
    certain = {what for what in expected.effects if not what.startswith("?")}
    missing = [what for what in certain if world.effects[what] < expected.effects[what]]
    usual = {what: 3 if what in world.retried else 1 for what in world.effects}
    many = [
        what
        for what, count in world.effects.items()
        if count - max(expected.effects[what], usual[what]) > deaths
    ]
    return missing + many + [what for what in world.at_most_once if world.effects[what] > 1]


async def told(
    body: Program, fate: Fate, expected: Any, plain: World, *, blocking: bool = False
) -> Story:
    """A story that ends as it should."""
    world = World()
    story = story_of(body, world, fate, blocking=blocking)
    value = value_of(await story.told())
    about = f"{fate}, {story.lives} lives: {json.dumps(body)}; stored: {story.stored.decode()}"
    assert value == expected, f"{value} instead of {expected}: {about}"
    wrong = doubled(world, plain, story.deaths)
    assert not wrong, f"{wrong} of {world.effects}: {about}"
    return story


def fates(seed: int) -> tuple[Fate, ...]:
    """Nothing happens; a process has to let go again and again; processes die too."""
    return (
        nothing_happens,
        AtRandom(random.Random(seed), 0.0, 0.3),
        AtRandom(random.Random(seed), 0.15, 0.1),
    )


async def check(seed: int, *, blocking: bool = False, wide: bool = False) -> None:
    """A handler with each fate."""
    body = program(seed, blocking=blocking, wide=wide)
    expected, plain = await expected_of(body)
    for fate in fates(seed):
        await told(body, fate, expected, plain, blocking=blocking)


async def check_paths(seed: int) -> None:
    """A handler that takes paths by chance: it ends as if nothing had happened, or because it took
    another path, and an effect on such a path is doubled only by a death."""
    body = program(seed, wide=True, chance=True)
    expected, _ = await expected_of(body)
    for fate in fates(seed):
        world = World()
        story = story_of(body, world, fate)
        outcome = await story.told()
        about = f"{fate}, {story.lives} lives: {json.dumps(body)}"
        if not (isinstance(outcome, Failed) and isinstance(outcome.error, NondeterminismError)):
            assert value_of(outcome) == expected, f"{outcome} instead of {expected}: {about}"
        charged = {what: n for what, n in world.effects.items() if "chance" in what}
        many = {what: n for what, n in charged.items() if n > 1 + story.deaths}
        assert not many, f"{many}: {about}"


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + EXAMPLES, BATCH))
def test_a_handler_ends_the_same_through_any_number_of_processes(
    first: int,
) -> None:
    for seed in range(first, first + BATCH):
        asyncio.run(check(seed))


def test_so_it_does_with_steps_of_all_kinds() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + max(1, EXAMPLES // 5)):
        asyncio.run(check(seed, wide=True))


def test_a_handler_that_takes_another_path_has_no_effect_twice() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + max(1, EXAMPLES // 5)):
        asyncio.run(check_paths(seed))


def test_so_it_does_on_the_event_loop_that_servers_use() -> None:
    uvloop = pytest.importorskip("uvloop")
    for seed in range(FIRST_SEED, FIRST_SEED + max(1, EXAMPLES // 10)):
        uvloop.run(check(seed))


def test_so_does_one_that_is_a_plain_function_whose_branches_are_threads() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + max(1, EXAMPLES // 10)):
        asyncio.run(check(seed, blocking=True))


def test_a_process_may_die_before_and_after_every_single_thing_that_it_writes() -> None:
    async def deaths(seed: int) -> None:
        body = program(seed)
        expected, plain = await expected_of(body)
        await every_death(lambda fate: told(body, fate, expected, plain), sampled)

    for seed in range(FIRST_SEED, FIRST_SEED + max(1, EXAMPLES // 40)):
        asyncio.run(deaths(seed))
