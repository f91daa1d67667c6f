"""Remembering: an entry is durable before the handler goes on. If something else is at
its place, the run ends."""

from __future__ import annotations

import asyncio

from roundgate.aio import to_its_end
from roundgate.errors import NondeterminismError, Suspend
from roundgate.replay.branches import Branch, inside
from roundgate.replay.journal import Entry
from roundgate.replay.learning import tell
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
    if told_to is None or not run.root.has_branched or run.journal.version == 1:
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
