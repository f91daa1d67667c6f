"""Learning in order: in a replay, branches get what is remembered in the order in
which the first run got it.

A handler may depend on which of two steps ended first. So everything remembered has a rank, and
a branch is given its value only after all values of lower ranks have been given, and the code
that follows them has run.
"""

from __future__ import annotations

import asyncio
from typing import Any

from roundgate.replay.branches import Branch
from roundgate.replay.journal import Told
from roundgate.replay.order import Order
from roundgate.replay.run import Run


async def in_order(run: Run, branch: Branch, key: str) -> None:
    """Wait until every branch has what became known before this entry, and has run on from there.

    If the branch was cancelled in an earlier run after it had got a value, it gets the
    value first in this run too.
    """
    order = run.order
    if order is None or order.is_over:
        return
    if not run.root.has_branched and not order.is_cut_before(order.rank(key)):
        order.pass_by(key)
        return
    cancelled: list[asyncio.Task[Any]] = []
    if not order.is_new(key):
        order.leave_behind(branch.path, order.rank(key))
    while True:
        try:
            await _turn(run, branch, order, order.rank(key))
            break
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or order.is_new(key) or run.stopped is not None or run.is_being_ended:
                raise
            task.uncancel()
            cancelled.append(task)
    for task in cancelled:
        task.cancel()


async def learn(run: Run, branch: Branch, place: str) -> None:
    """Wait for the turn of something that has no entry of its own: the end of
    a sleep, or an answer."""
    if run.journal.version == 1 or (run.order is None and not run.root.has_branched):
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
