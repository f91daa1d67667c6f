"""What the engine finds out: made durable, and given to the branches in order.

An entry is durable before the handler goes on. If something else is at its place, the run ends.

A handler may depend on which of two steps ended first. So everything recorded has a rank, and in a
replay a branch gets its value only after all values of lower ranks have been given, and the code
that follows them has run.
"""

from __future__ import annotations

import asyncio

from roundgate.aio import to_its_end
from roundgate.errors import NondeterminismError, Suspend
from roundgate.replay.branches import Branch, inside
from roundgate.replay.journal import Entry, Told
from roundgate.replay.order import Order
from roundgate.replay.run import Run


async def be_admitted(run: Run) -> None:
    """Return once it is certain that a step may begin.

    Raises:
        Suspend: it may not.
    """
    if run.checkpointer is not None:
        with run.quiescence.moving():
            await run.checkpointer.admit()


def compare(run: Run, key: str, what: str | None) -> None:
    """End the run if something else is remembered at a place.

    Args:
        run: the run.
        key: the place.
        what: the identity of what the handler does there now.

    Raises:
        Suspend: the run has ended with `NondeterminismError`.
    """
    known = run.journal.steps.get(key)
    before = getattr(known, "what", None)
    if before is not None and not run.is_same(before, what):
        run.fail(NondeterminismError(key, before, what))
        raise Suspend


async def remember(run: Run, entry: Entry, told_to: Branch | None = None) -> None:
    """Make an entry durable, then wait for the turn of the branch that gets it, if `told_to` is
    one.

    If the handler is cancelled meanwhile, that is raised only once the entry is durable.
    """
    if told_to is None or not run.root.has_branched:
        await write(run, entry)
        return
    rank = run.order_here.new_rank()
    try:
        await write(run, entry)
    except BaseException:
        run.order_here.drop(rank)
        raise
    await tell(run, told_to, rank)


async def write(run: Run, entry: Entry) -> None:
    """Write an entry durably, with all unwritten ones.

    A cancellation of the caller is raised only once the entry is durable.
    """
    run.journal.add(entry)
    if run.checkpointer is None:
        return
    entries = [*run.unwritten, entry]
    run.unwritten.clear()
    with inside(None):
        writing = asyncio.ensure_future(run.checkpointer.checkpoint(*entries))
    cancelled = await to_its_end(writing)
    writing.result()
    if cancelled is not None:
        raise cancelled


async def in_order(run: Run, branch: Branch, key: str) -> None:
    """Wait until every branch has what became known before this entry, and has run on from there.

    If the branch was cancelled in an earlier run after it had got a value, it gets the
    value first in this run too.
    """
    order = run.order
    if order is None or (order.is_over and order.is_new(key)):
        return
    if not run.root.has_branched and not order.is_cut_before(order.rank(key)):
        order.pass_by(key)
        return
    if not order.is_new(key):
        order.leave_behind(branch.path, order.rank(key))
    try:
        await _turn(run, branch, order, order.rank(key))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or order.is_new(key) or run.stopped is not None or run.is_being_ended:
            raise
        await turn_though_cancelled(run, order.rank(key))
        task.uncancel()
        task.cancel()  # raised where the branch waits next


async def learn(run: Run, branch: Branch, place: str) -> None:
    """Wait for the turn of something that has no entry of its own: the end of
    a sleep, or an answer."""
    if run.order is None and not run.root.has_branched:
        return
    entry = Told.of(place)
    await in_order(run, branch, entry.key)
    if run.root.has_branched and entry.key not in run.journal.steps:
        run.journal.add(entry)
        run.unwritten.append(entry)
        await tell(run, branch, run.order_here.new_rank())


async def tell(run: Run, branch: Branch, rank: float) -> None:
    """Wait for the turn of a rank. If the branch is cancelled before, the rank is dropped."""
    try:
        await _turn(run, branch, run.order_here, rank)
    except BaseException:
        run.order_here.drop(rank)
        raise


async def _turn(run: Run, branch: Branch, order: Order, rank: float) -> None:
    with run.quiescence.moving():
        await order.turn(rank)
    if run.stopped is not None:
        await run.refuse()


async def turn_though_cancelled(run: Run, rank: float) -> None:
    """Wait for the turn of a rank, however often the branch is cancelled meanwhile.

    Raises:
        Suspend: the run has ended.
        CancelledError: the branch was cancelled because of that, or the event loop ends.
    """
    with run.quiescence.moving():
        with inside(None):
            turning = asyncio.ensure_future(run.order_here.turn(rank))
        while not turning.done():
            try:
                await asyncio.wait([turning])
            except asyncio.CancelledError:
                if run.stopped is not None or run.is_being_ended:
                    turning.cancel()
                    raise
    if run.stopped is not None:
        await run.refuse()
