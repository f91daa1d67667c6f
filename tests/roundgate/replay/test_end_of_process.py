"""A process ends although one of its handlers never would."""

from __future__ import annotations

import subprocess
import sys

from tests.support.documents import ROOT

PROGRAM = """
import asyncio
import sys

from tests.support.replay import Name
from tests.support.task_runs import SharedJournal

# Modules that something still refers to at the end are emptied one after the other; others are dropped.
sys.stdout.kept = list(sys.modules.values())


async def swallows(ctx):
    while True:
        try:
            await ctx.elicit("who", "Who?", Name)
        except BaseException:
            pass


print(type(asyncio.run(SharedJournal().run(swallows))).__name__)
"""


def test_a_process_ends_although_a_handler_swallows_whatever_ends_it() -> None:
    """Python closes coroutines last, when what this one calls is gone: it would
    swallow that for ever."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "Suspended\n"), ended.stderr
    assert ended.stderr.splitlines() == [
        "_coroutine continued after the end of its run and is not resumed"
    ]
