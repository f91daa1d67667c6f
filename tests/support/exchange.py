"""One life of a random handler in this Python: what the life before left comes in on a
line, what it leaves goes out.

python -m tests.support.exchange < '{"seed": 7, "life": 0, "stored": "[[], {}, 2]",
"effects": {}, "skipped_ms": 0}' {"stored": …, "effects": …, "skipped_ms": …, "deaths": 0,
"value": null or [the value]}
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from typing import Any

from roundgate.replay.engine import Completed, Failed
from tests.support.lives import AtRandom, Story
from tests.support.programs import World, answer, perform, program


async def life(given: dict[str, Any]) -> dict[str, Any]:
    body, world = program(given["seed"]), World()
    world.effects.update(given["effects"])

    async def handler(ctx: Any) -> Any:
        return await perform(ctx, body, world)

    fate = AtRandom(random.Random(given["seed"] * 1000 + given["life"]), 0.1, 0.2)
    story = Story(handler, answer, fate, stored=given["stored"].encode())
    story.clock.skip(given["skipped_ms"] / 1000)
    world.is_alive = lambda: story.is_alive
    outcome = await story.life()
    ended: list[Any] | None = None
    if isinstance(outcome, Completed):
        ended = [outcome.value]
    elif isinstance(outcome, Failed):
        ended = [
            "failed"
            if type(outcome.error).__name__ in ("StepFailed", "ExceptionGroup")
            else repr(outcome)
        ]
    skipped_ms = story.clock.skipped_ms
    left = {
        "stored": story.stored.decode(),
        "effects": dict(world.effects),
        "skipped_ms": skipped_ms,
    }
    return left | {"deaths": story.deaths, "value": ended}


def main() -> None:
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        print(json.dumps(asyncio.run(life(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
