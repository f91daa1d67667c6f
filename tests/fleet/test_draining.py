"""Replicas that stop under load: `scripts/chaos draining` in its short form."""

from __future__ import annotations

import random
from pathlib import Path

from tests.chaos.draining import drained


async def test_calls_in_flight_end_rightly_while_two_replicas_stop_in_turn(tmp_path: Path) -> None:
    told, at_signal = await drained(tmp_path, times=2, at_once=40, dice=random.Random(7))
    assert told.wrong == []
    assert at_signal == [40, 40]
    assert {"plain: done", "steps: done", "stream: done", "task: done", "listen: closed"} <= {
        *told.outcomes
    }
