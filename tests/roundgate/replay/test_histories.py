"""Journals that an engine wrote once are gone on with by every later one: they
are in the hands of clients.

`histories/*.json` has each round of a call as it was recorded: the journal it began with,
the answers that came, and what the round did. When one of these tests fails, a gateway that
is upgraded would ask again or run again what its callers have behind them; change the
engine, not the recording.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from roundgate.replay.journal import Journal
from tests.roundgate.replay.histories.handlers import STORIES
from tests.roundgate.replay.histories.record import HERE, one_round

PATHS = {path.stem: path for path in sorted(HERE.glob("*.json"))}
ROUNDS = [
    (name, number)
    for name, path in PATHS.items()
    for number in range(len(json.loads(path.read_text("utf-8"))))
]


def recorded(name: str) -> list[dict[str, Any]]:
    rounds: list[dict[str, Any]] = json.loads(PATHS[name].read_text("utf-8"))
    return rounds


def test_there_is_a_history_of_every_story() -> None:
    assert set(PATHS) == set(STORIES)


@pytest.mark.parametrize(
    ("name", "number"), ROUNDS, ids=[f"{name} {number}" for name, number in ROUNDS]
)
async def test_a_recorded_round_does_today_what_it_did_then(name: str, number: int) -> None:
    then, *later = recorded(name)[number:]
    journal = Journal.from_json(then["journal"])
    after, now = await one_round(STORIES[name], journal, then["responses"])
    # functions of branches run in threads, side by side
    assert sorted(map(repr, now.pop("runs"))) == sorted(map(repr, then["runs"]))
    others = ("journal", "responses", "runs")
    assert now == {key: value for key, value in then.items() if key not in others}
    written = None if after is None else after.to_json()
    assert written == (later[0]["journal"] if later else None)
