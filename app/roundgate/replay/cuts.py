"""Cuts: cancellations that the handler itself caused, by a timeout or a failed sibling, and that a
replay repeats.

Otherwise a step that was cancelled in the first run could be found finished in the next one, and
the handler would take another path.

A call of ctx records its own cancellation. If a limit of asyncio or anyio ends another wait (an
event, a queue, a request of the handler's own), `driving` records it. The record has a rank, so a
later run delivers nothing of a higher rank before the cancellation has happened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, NoReturn

from roundgate.errors import NondeterminismError, StepFailed
from roundgate.replay.branches import Branch, here
from roundgate.replay.journal import Cut, Told
from roundgate.replay.order import is_cut_wait
from roundgate.replay.recording import in_order, remember, turn_though_cancelled, write
from roundgate.replay.run import Run

CUT_GRACE_S: Final = 5.0
"""For how much longer than the first time a step that was cut waits to be cut again."""
CUT_HOLD_S: Final = 0.5
"""For how much of that it holds up a run that is at rest otherwise."""

CUT_EARLY: Final = (
    "the handler went on here in an earlier run, and now a limit of asyncio or anyio has ended "
    "a wait of its own before that: use `async with ctx.timeout(seconds)`, whose end is "
    "the same in every run, and put what takes its own time into ctx.step"
)


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
        if run.stopped is None and not run.is_being_ended:
            if _is_cut_as_before(run, branch):
                _drop_cut_wait(run, branch)
            else:
                after_ms = round(run.clock.monotonic_ms() - begun_ms)
                await _remember_cut(run, Cut(key, after_ms, what))
        raise


async def _remember_cut(run: Run, cut: Cut) -> None:
    """Record a cancellation and wait for its turn, also if another cancellation comes meanwhile."""
    if not run.root.has_branched:
        await write(run, cut)
        return
    rank = run.order_here.new_rank()
    try:
        with suppress(asyncio.CancelledError):  # raised once the entry is durable
            await write(run, cut)
        await turn_though_cancelled(run, rank)
    except BaseException:
        run.order_here.drop(rank)
        raise


def _is_cut_as_before(run: Run, branch: Branch) -> bool:
    """Whether the cancellation only repeats one of an earlier run. One by a
    time limit never does."""
    if run.order is None or run.order.is_over or not run.root.has_branched:
        return False
    is_timer = run.root.timeouts is not None and run.root.timeouts.is_ending(branch.path)
    return not is_timer and not any(scope.has_fired for scope in branch.limits)


def _drop_cut_wait(run: Run, branch: Branch) -> None:
    """Drop the recorded cancellation of a wait outside of ctx; in this run it reached a call of
    ctx."""
    order = run.order_here
    upcoming = order.upcoming(branch.path)
    if upcoming is not None and is_cut_wait(run.journal.steps.get(upcoming[1])):
        branch.key("cut", "wait")
        order.drop(upcoming[0])


def was_cut_here(run: Run, branch: Branch) -> bool:
    """Return whether an earlier run recorded next that a wait of this branch outside of ctx was
    cancelled, perhaps by a limit and something else at once."""
    order = run.order
    upcoming = None if order is None or order.is_over else order.upcoming(branch.path)
    return upcoming is not None and is_cut_wait(run.journal.steps.get(upcoming[1]))


async def cut_wait(run: Run, branch: Branch) -> None:
    """Record that a limit cancelled a wait outside of ctx, before the branch sees the cancellation;
    in a later run, wait for its place in the order.

    The end of a `ctx.timeout` has an entry of its own. A branch that is cancelled where it received
    a result in an earlier run ends the run with `NondeterminismError`.
    """
    if run.is_being_ended or any(scope.has_fired for scope in branch.limits):
        return
    order = run.order
    upcoming = None if order is None or order.is_over else order.upcoming(branch.path)
    if upcoming is not None:
        _, key = upcoming
        known = run.journal.steps.get(key)
        if not isinstance(known, Cut):
            run.fail(NondeterminismError(key, reason=CUT_EARLY))
            return
        if is_cut_wait(known):
            branch.key("cut", "wait")
        await in_order(run, branch, key)
        return
    key = branch.key("cut", "wait")
    await in_order(run, branch, key)
    await remember(run, Cut(key, run.owner.elapsed_ms()), branch)


async def be_cut_if_before(run: Run, branch: Branch, key: str) -> None:
    known = run.journal.steps.get(key)
    if isinstance(known, Cut):
        await be_cut_again(run, branch, known)


async def be_cut_again(run: Run, branch: Branch, cut: Cut) -> NoReturn:
    """Wait to be cancelled as in the run in which it was cut, by the same
    time-out or the same sibling.

    If that does not happen any more, it raises after `CUT_GRACE_S`.
    """
    order = run.order_here
    order.drop(order.rank(Told.of(cut.key).key))
    rank = order.rank(cut.key)
    try:
        with run.quiescence.moving(), order.expected(rank):
            await asyncio.sleep(cut.after_ms / 1000 + CUT_HOLD_S)
        await asyncio.sleep(CUT_GRACE_S - CUT_HOLD_S)
    except asyncio.CancelledError:
        try:
            await turn_though_cancelled(run, rank)
        except BaseException:
            order.drop(rank)
            raise
        raise
    order.drop(rank)
    raise StepFailed(
        f"{cut.key!r} was given up by its handler in an earlier run, and was not in this one"
    )
