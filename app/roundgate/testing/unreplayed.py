"""A call whose handler runs once from its beginning to its end: what every other run of it has to
come to.

Its questions are answered where they are asked, its sleeps pass where they are slept, and nothing
takes its turn away. A handler of the low-level form begins again after its questions: it is made
for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from roundgate.backends import ServedTool
from roundgate.client import Answers
from roundgate.clock import Clock, Deadline
from roundgate.json import fresh
from roundgate.replay import Call, Context, Journal, Restarted, Suspended, engine
from roundgate.testing.contexts import AnsweredRun
from roundgate.testing.endings import Ending, ending_of_outcome

MAX_RUNS: Final = 100
"""Runs of one handler that restarts, or is of the low-level form."""


def undisturbed(call: Call, clock: Clock) -> Call:
    """Return a call that nothing ends and that becomes no task."""
    return replace(
        call,
        deadline=Deadline(clock, None),
        notify=None,
        may_become_task=False,
        needs_row=False,
        round=None,
    )


async def ending_without_replay(
    served: ServedTool, arguments: Mapping[str, Any], call: Call, answers: Answers, clock: Clock
) -> Ending:
    """Return how a call ends that is never replayed."""
    journal = Journal()
    for _ in range(MAX_RUNS):
        run = AnsweredRun(undisturbed(call, clock), answers, journal)
        given = fresh(dict(arguments))
        outcome = await engine.run_handler(lambda: served.call(Context(run), given), run)  # noqa: B023
        match outcome:
            case Restarted(arguments=arguments):
                journal = journal.restarted(dict(arguments))
            case Suspended():
                journal = outcome.journal
            case _:
                break
    return ending_of_outcome(outcome, served.name, clock)
