"""The short form of `scripts/chaos questions`: clients and servers of either era, while a gateway or a
server is killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos import questions
from tests.chaos.tasks import store


@pytest.mark.parametrize("seed", [1])
async def test_a_call_ends_rightly_or_says_that_it_may_have_taken_effect(
    seed: int, tmp_path: Path
) -> None:
    with (
        store("sqlite", tmp_path) as shared,
        questions.world(tmp_path, shared.environment, random.Random(seed)) as at,
    ):
        assert await questions.run("servers that ask", 1, tmp_path, at)
