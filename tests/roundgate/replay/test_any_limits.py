"""Whatever limits a handler sets, around whatever waits, and however long its branches yield: what it
decided in the first run it decides in every later one, in any number of processes."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from roundgate.replay.engine import Completed
from tests.support.limited_programs import LimitedWorld, limited_program
from tests.support.lives import AtRandom, Fate, Story, every_death, nothing_happens
from tests.support.long import is_long, sampled
from tests.support.rounds import accept

EXAMPLES = int(os.environ.get("HANDLERS", "150" if is_long() else "30")) // 3
FIRST_SEED = int(os.environ.get("HANDLERS_SEED", "1"))
BATCH = 10


async def told(seed: int, fate: Fate) -> Story:
    """A story whose effects are what it returned; each death may repeat the one of any place."""
    program, world = limited_program(seed), LimitedWorld()

    async def handler(ctx: Any) -> Any:
        return await world.perform(ctx, program)

    story = Story(handler, lambda request: accept(name="Ada"), fate)
    world.is_alive = lambda: story.is_alive
    about = f"seed {seed}, {fate}: {json.dumps(program)}"
    async with asyncio.timeout(60):
        outcome = await story.told()
        assert isinstance(outcome, Completed), f"{outcome}: {about}"
        missing = [what for what in outcome.value if what not in world.effects]
        more = Counter(map(_place, world.effects)) - Counter(map(_place, outcome.value))
        assert not missing, f"{missing} never happened: {about}"
        # a death repeats every step that was running, and branches run theirs side by side
        repeated = max(more.values(), default=0)
        assert repeated <= story.deaths, f"{world.effects} but {outcome.value}: {about}"
        done = len(world.effects)
        story.clock.skip(1000)
        story.fate = nothing_happens
        again = await story.told()
    assert isinstance(again, Completed), f"{again}: {about}"
    assert again.value == outcome.value, f"{again.value} after {outcome.value}: {about}"
    assert len(world.effects) == done, f"done again: {about}"
    return story


def _place(decision: str) -> str:
    """Return the place at which a decision was made."""
    return decision.partition(" ")[0]


async def check_limits(seed: int) -> None:
    """A handler whom nothing happens to, one that lets go again and again, one whose processes die too."""
    for fate in (
        nothing_happens,
        AtRandom(random.Random(seed), 0.0, 0.3),
        AtRandom(random.Random(seed), 0.1, 0.1),
    ):
        await told(seed, fate)


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + EXAMPLES, BATCH))
def test_a_handler_decides_in_every_run_as_in_the_first(first: int) -> None:
    for seed in range(first, first + BATCH):
        asyncio.run(check_limits(seed))


def test_so_it_does_when_its_process_dies_before_or_after_any_write() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + max(1, EXAMPLES // 15)):
        asyncio.run(every_death(partial(told, seed), sampled))


def test_a_limit_cancels_nothing_after_its_block() -> None:
    # half of the runs of this program receive the value of a step while their limit ends its block
    for _ in range(8 if is_long() else 3):
        asyncio.run(check_limits(891808))
