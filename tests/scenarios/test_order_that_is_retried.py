"""The order of `examples/shop`, played with real processes: two questions, a flaky payment, a question
in the middle, `kill -9`, a step that fails for good, and its retry."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support.documents import ROOT


def test_the_order_is_killed_in_the_middle_fails_for_good_and_is_taken_up_again() -> None:
    played = subprocess.run(
        [sys.executable, "examples/shop/story.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert played.returncode == 0, played.stderr
    told = [re.split(r" {2,}|(?<=replica [AB]) ", line)[0] for line in played.stdout.splitlines()]
    survivor = told[4]
    assert told == [
        "customer",
        "payment",
        "customer",
        "kill -9",
        survivor,
        "operator",
        "log",
        "operator",
        survivor,
        "ledger",
    ]
    assert survivor in ("replica A", "replica B")
