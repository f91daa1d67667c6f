"""The reference for all runs of a call: its handler runs once, from beginning to end.

Questions are answered in place, sleeps pass in place, and the turn never ends early. A handler in
the low-level form still starts again after its questions, as designed.
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
"""The most runs of one handler that restarts or is in the low-level form."""


def undisturbed(call: Call, clock: Clock) -> Call:
    """Return the call without a deadline, and unable to become a task."""
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
    """Return the ending of a call that is never replayed."""
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
