"""Cuts: what the handler itself cancelled, by a time-out or because a sibling failed, is
cancelled again in a replay.

Otherwise a step that was cancelled in the first run could be found finished in the next one, and
the handler would take another path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NoReturn

from roundgate.errors import StepFailed
from roundgate.replay.branches import Branch, here
from roundgate.replay.journal import Cut, Told
from roundgate.replay.learning import tell
from roundgate.replay.remembering import remember
from roundgate.replay.run import Run
from roundgate.replay.scopes import around, fire_scopes

CUT_GRACE_S: Final = 5.0
"""For how much longer than the first time a step that was cut waits to be cut again."""
CUT_HOLD_S: Final = 0.5
"""For how much of that it holds up a run that is at rest otherwise."""


@asynccontextmanager
async def noting_cut(run: Run, key: str, what: str | None = None) -> AsyncIterator[None]:
    """Remember that the handler cancelled what is inside (`asyncio.timeout`, a failed sibling), so
    that every replay does the same, however much is known by then.

    A value that became durable during the cancellation is replaced, because
    the handler has not seen it.
    """
    begun_ms = run.clock.monotonic_ms()
    try:
        yield
    except asyncio.CancelledError:
        place = here.get()
        branch = place if isinstance(place, Branch) else run.root
        if run.stopped is None and not run.is_being_ended and not _is_cut_as_before(run, branch):
            await remember(run, Cut(key, round(run.clock.monotonic_ms() - begun_ms), what), branch)
        raise


def _is_cut_as_before(run: Run, branch: Branch) -> bool:
    """Whether the cancellation only repeats one of an earlier run. One by a
    time limit never does."""
    if run.order is None or run.order.is_over or not run.root.has_branched:
        return False
    is_timer = run.root.timeouts is not None and run.root.timeouts.is_ending(branch.path)
    return not is_timer and not any(scope.has_fired for scope in around(branch))


async def be_cut_if_before(run: Run, branch: Branch, key: str) -> None:
    known = run.journal.steps.get(key)
    if isinstance(known, Cut):
        await be_cut_again(run, branch, known)


async def be_cut_again(run: Run, branch: Branch, cut: Cut) -> NoReturn:
    """Wait to be cancelled as in the run in which it was cut, by the same
    time-out or the same sibling.

    If that does not happen any more, it raises after `CUT_GRACE_S`.
    """
    fire_scopes(run, branch)
    order = run.order_here
    order.drop(order.rank(Told.of(cut.key).key))
    rank = order.rank(cut.key)
    try:
        with run.quiescence.moving(), order.expected(rank):
            await asyncio.sleep(cut.after_ms / 1000 + CUT_HOLD_S)
        await asyncio.sleep(CUT_GRACE_S - CUT_HOLD_S)
    except asyncio.CancelledError:
        await tell(run, branch, rank)
        raise
    order.drop(rank)
    raise StepFailed(
        f"{cut.key!r} was given up by its handler in an earlier run, and was not in this one"
    )
