"""Writes the histories that are missing: `python -m tests.roundgate.replay.histories.record`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from roundgate.replay.context import Context
from roundgate.replay.engine import Suspended
from roundgate.replay.journal import Journal
from tests.roundgate.replay.histories.handlers import STORIES, Story
from tests.support.clocks import FixedClock
from tests.support.replay import Effects, elsewhere, play, value_of

HERE = Path(__file__).parent


class OneId(FixedClock):
    """Stands still, and has one id."""

    def new_id(self) -> str:
        return "one-id"


async def one_round(
    story: Story, journal: Journal, responses: Any
) -> tuple[Journal | None, dict[str, Any]]:
    """What one round makes of a journal and answers: what it runs, and what it asks or returns."""
    effects = Effects()

    async def handler(ctx: Context) -> Any:
        return await story.handler(ctx, effects)

    outcome = await play(
        handler, journal, responses, clock=OneId()
    )  # sleeps end at the same moment every time
    if isinstance(outcome, Suspended):
        return elsewhere(outcome.journal), {"runs": effects.seen, "asks": dict(outcome.requests)}
    return None, {"runs": effects.seen, "returns": value_of(outcome)}


async def record(story: Story) -> list[dict[str, Any]]:
    """Each round of a call: the journal as it was sealed before, the answers that came, and what the round did."""
    journal = Journal()
    rounds: list[dict[str, Any]] = []
    for responses in ({}, *story.responses):
        before = journal.to_json()
        after, did = await one_round(story, journal, responses)
        rounds.append({"journal": before, "responses": dict(responses), **did})
        if after is None:
            return rounds
        journal = after
    raise AssertionError(f"the story does not end: {rounds[-1]}")


def main() -> None:
    for name, story in STORIES.items():
        path = HERE / f"{name}.json"
        if not path.exists():
            path.write_text(
                json.dumps(asyncio.run(record(story)), indent=1, ensure_ascii=False) + "\n", "utf-8"
            )
            print(f"recorded {path.name}")


if __name__ == "__main__":
    main()
