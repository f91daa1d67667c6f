"""The recording of a run's results, and their delivery to the branches in order.

A result is durable before the handler continues. If another action is recorded at its place, the
run ends. A handler may depend on which of two steps ended first. So each result has a rank. In a
replay, a branch gets a value only after all values of lower ranks have been delivered and their
consequences are complete.

A *cut* is a cancellation that the handler itself caused, by a timeout or a failed sibling. A replay
repeats every cut; otherwise a step that was cancelled in the first run could complete in the next
one. A call of ctx records its own cancellation. If a limit of asyncio or anyio ends another wait
(an event, a queue, a request of the handler's own), `engine` records it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

from roundgate.aio import to_its_end
from roundgate.errors import SAME_PATH, NondeterminismError, StepFailed, Suspend
from roundgate.replay.branches import Branch, Order, here, inside, is_cut_wait
from roundgate.replay.journal import Cut, Entry, Told
from roundgate.replay.run import Run

CUT_GRACE_S: Final = 5.0
"""The time in seconds by which a cut may come later than in the first run."""
CUT_HOLD_S: Final = 0.5
"""The part of `CUT_GRACE_S` in seconds during which the wait for a cut keeps a resting run from
being suspended."""
PATH_GRACE_S: Final = 5.0
"""The time in seconds within which a branch of an earlier run has to be created again."""
PATH_LOOK_S: Final = 0.1
TIMER_TURNS: Final = 3
"""The number of turns of the event loop within which a fired timer cancels a wait."""
CUT_EARLY: Final = (
    "in an earlier run, the handler continued past this place; in this run, a time limit of asyncio or "
    "anyio ended a wait outside of ctx before it: use `async with ctx.timeout(seconds)`, whose end is "
    "the same in every run, and move slow work into ctx.step"
)


class StepWatch:
    """An observer of the steps of the runs in its context, for tests. A method that never returns
    acts as the death of the run's process."""

    async def begins(self, key: str, what: str | None) -> None:
        """Handle the start of a step, before its function is called. `what` is the step's
        identity."""

    async def has_run(self, key: str) -> None:
        """Handle the end of a step, before its outcome is recorded."""

    async def is_remembered(self, key: str) -> None:
        """Handle a step after its outcome was recorded, or a poll that returned `None`."""

    def value(self, run: Run, key: str, value: Any) -> Any:
        """Return the value to remember at a place, given the value that the engine made."""
        return value

    def run_ended(self, run: Run) -> None:
        """Handle the end of a run, with any outcome."""


UNWATCHED: Final = StepWatch()
WATCH: Final[ContextVar[StepWatch]] = ContextVar("roundgate_step_watch", default=UNWATCHED)


async def within_scopes(run: Run, branch: Branch) -> None:
    """Return once no durable time limit around the branch is about to end its block.

    A passed limit usually cancels the branch during this wait, directly or through the task that
    entered the block. If that task continues in the block (it catches the cancellation, or waits
    for this branch in a `finally`), the branch continues too, as inside `asyncio.timeout`.

    Raises:
        Suspend: the run has ended meanwhile.
        TimeoutError: a limit has passed, and the branch is a thread, which cannot be cancelled.
    """
    while over := [
        s for s in branch.limits if s.until_ms <= run.clock.now_ms() and not s.has_fired
    ]:
        for scope in over:
            scope.fire()
        if branch.is_thread:
            raise TimeoutError("the time limit around this call is over")
        if run.stopped is not None:
            raise Suspend
        with run.quiescence.moving():
            await over[0].wait_until_settled()
        if over[0].is_pending:
            raise Suspend
    if any(scope.has_fired for scope in branch.limits):
        # after all consequences of the limit's end
        await take_turn(run, branch, run.order_here.new_rank())


async def admit(run: Run) -> None:
    """Return once a step may begin.

    Raises:
        Suspend: the step may not begin.
    """
    if run.checkpointer is not None:
        with run.quiescence.moving():
            await run.checkpointer.admit()


def compare(run: Run, key: str, what: str | None) -> None:
    """Compare `what`, the identity of an action, with the recorded identity at its place. End the
    run if they differ.

    Raises:
        Suspend: the run has ended with `NondeterminismError`.
    """
    entry = run.journal.steps.get(key)
    before = getattr(entry, "what", None)
    if before is not None and not run.is_same(before, what):
        run.fail(NondeterminismError(key, before, what))
        raise Suspend


async def repeat_path(run: Run, branch: Branch, key: str) -> None:
    """Return if a new step of this version may begin: an earlier run did nothing in its place.

    A branch of the handler is a sequence, so an earlier run that reached a place after this step
    has a record of the step. A branch that is not created yet may be about to be: the handler may
    wait outside of ctx first.

    Raises:
        Suspend: the handler has taken another path; the run has ended with `NondeterminismError`.
    """
    skipped = run.skipped(branch)
    if skipped is None and not branch.is_thread:
        for _ in range(round(PATH_GRACE_S / PATH_LOOK_S)):
            if (skipped := run.uncreated(branch)) is None:
                return
            with run.quiescence.moving():
                await asyncio.wait([run.ended], timeout=PATH_LOOK_S)
            if run.stopped is not None:
                await run.refuse()
    if skipped is not None:
        reason = (
            f"the handler begins this step where an earlier run of the same version came to {skipped!r}: "
            f"it took another path than before. {SAME_PATH}"
        )
        run.fail(NondeterminismError(key, reason=reason))
        raise Suspend


async def record(run: Run, entry: Entry, told_to: Branch | None = None) -> None:
    """Make an entry durable, then wait for the turn of the branch `told_to`, if there is one.

    Once the entry has its place, a cancellation of the handler is raised only after the entry is
    durable.
    """
    if told_to is not None and run.root.has_branched:
        await _let_timers_act(run)
    await begin_record(run, entry, told_to)


async def _let_timers_act(run: Run) -> None:
    """Let a fired timer cancel its wait before a later result gets its place.

    `asyncio.wait_for` of Python 3.11 cancels its task a turn of the event loop after its timer.
    """
    loop = asyncio.get_running_loop()
    for _ in range(TIMER_TURNS):
        if not run.owner.timeouts.has_fired(loop.time()):
            break
        await asyncio.sleep(0)


def begin_record(
    run: Run, entry: Entry, told_to: Branch | None = None
) -> Coroutine[Any, Any, None]:
    """Give an entry its place in the order now. Return the rest of `record` as a coroutine."""
    if told_to is None or not run.root.has_branched:
        return begin_write(run, entry)
    rank = run.order_here.new_rank()
    return _tell(run, told_to, rank, begin_write(run, entry))


async def _tell(run: Run, branch: Branch, rank: int, write: Awaitable[None]) -> None:
    try:
        await write
    except BaseException:
        run.order_here.drop(rank)
        raise
    await take_turn(run, branch, rank)


async def write(run: Run, *entries: Entry) -> None:
    """Make entries durable, together with all unwritten entries.

    A cancellation of the caller is raised only once the entries are durable.
    """
    await begin_write(run, *entries)


def begin_write(run: Run, *entries: Entry) -> Coroutine[Any, Any, None]:
    """Add entries to the journal and begin to write them. Return the rest of `write` as a
    coroutine."""
    for entry in entries:
        run.journal.add(entry)
    if run.checkpointer is None:
        return _end_write(run, None, 0)
    written, values_made = [*run.unwritten, *entries], run.values_made
    run.unwritten.clear()
    with inside(None):
        writing = asyncio.ensure_future(run.checkpointer.checkpoint(*written))
    return _end_write(run, writing, values_made)


async def _end_write(run: Run, writing: asyncio.Task[None] | None, values_made: int) -> None:
    if writing is None:
        return
    cancelled = await to_its_end(writing)
    writing.result()
    run.values_durable = max(run.values_durable, values_made)
    if cancelled is not None:
        raise cancelled


async def write_values(run: Run) -> None:
    """Return once every value that the engine has made for the handler is durable, so that a step
    that runs again after a crash gets the same arguments."""
    if run.checkpointer is not None and run.values_durable < run.values_made:
        with run.quiescence.moving():
            await write(run)  # follows a running write, which may contain the values


async def in_order(run: Run, branch: Branch, key: str) -> None:
    """Wait until every branch has received all earlier results, and has run to its next wait.

    If the branch was cancelled in an earlier run after it had received a value, it receives the
    value first in this run too.
    """
    order = run.order
    if order is None or (order.is_over and order.is_new(key)):
        return
    if not run.root.has_branched and not order.is_cut_before(order.rank(key)):
        order.pass_by(key)
        return
    if not order.is_new(key):
        order.drop_passed(branch.path, order.rank(key))
    try:
        await _turn(run, branch, order, order.rank(key))
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or order.is_new(key) or run.stopped is not None or run.is_being_ended:
            raise
        await turn_despite_cancellation(run, order.rank(key))
        task.uncancel()
        task.cancel()  # raised at the next wait of the branch


async def take_event(run: Run, branch: Branch, place: str) -> None:
    """Wait for the turn of an event without an entry of its own, such as the end of a sleep."""
    if run.order is None and not run.root.has_branched:
        return
    entry = Told.of(place)
    await in_order(run, branch, entry.key)
    if run.root.has_branched and entry.key not in run.journal.steps:
        run.journal.add(entry)
        run.unwritten.append(entry)
        run.values_made += 1  # durable before the next step begins, which may follow from it
        await take_turn(run, branch, run.order_here.new_rank())


async def take_turn(run: Run, branch: Branch, rank: float) -> None:
    """Wait for the turn of a rank. If the branch is cancelled first, drop the rank."""
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


async def turn_despite_cancellation(run: Run, rank: float) -> None:
    """Wait for the turn of a rank, even if the branch is cancelled meanwhile.

    Raises:
        Suspend: the run has ended.
        CancelledError: the branch was cancelled because the run or the event loop ends.
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


@asynccontextmanager
async def recording_cut(run: Run, key: str, what: str | None = None) -> AsyncIterator[None]:
    """Record that the handler cancelled the block, so that every replay repeats the cancellation.

    The entry replaces a value that became durable during the cancellation, because the handler has
    not received that value.
    """
    begun_ms = run.clock.monotonic_ms()
    try:
        yield
    except asyncio.CancelledError:
        place = here.get()
        branch = place if isinstance(place, Branch) else run.root
        if run.stopped is None and not run.is_being_ended:
            if _is_cut_as_before(run, branch):
                _drop_recorded_wait(run, branch)
            else:
                after_ms = round(run.clock.monotonic_ms() - begun_ms)
                await _record_cut(run, Cut(key, after_ms, what))
        raise


async def _record_cut(run: Run, cut: Cut) -> None:
    """Record a cancellation and wait for its turn, even if another cancellation comes meanwhile."""
    if not run.root.has_branched:
        await write(run, cut)
        return
    rank = run.order_here.new_rank()
    try:
        with suppress(asyncio.CancelledError):  # raised once the entry is durable
            await write(run, cut)
        await turn_despite_cancellation(run, rank)
    except BaseException:
        run.order_here.drop(rank)
        raise


def _is_cut_as_before(run: Run, branch: Branch) -> bool:
    """Return whether a cancellation repeats a recorded one. The cancellation by a limit never
    does."""
    if run.order is None or run.order.is_over or not run.root.has_branched:
        return False
    is_timer = run.owner.timeouts.is_ending(branch.path)
    return not is_timer and not any(scope.has_fired for scope in branch.limits)


def _drop_recorded_wait(run: Run, branch: Branch) -> None:
    """Drop the recorded cancellation of a wait outside of ctx, because in this run the cancellation
    reached a call of ctx."""
    order = run.order_here
    upcoming = order.upcoming(branch.path)
    if upcoming is not None and is_cut_wait(run.journal.steps.get(upcoming[1])):
        branch.key("cut", "wait")
        order.drop(upcoming[0])


def is_cut_next(run: Run, branch: Branch) -> bool:
    """Return whether the next recorded event of a branch is the cancellation of a wait outside of
    ctx."""
    order = run.order
    upcoming = None if order is None or order.is_over else order.upcoming(branch.path)
    return upcoming is not None and is_cut_wait(run.journal.steps.get(upcoming[1]))


def begin_cut_wait(run: Run, branch: Branch) -> Coroutine[Any, Any, None]:
    """Record that a limit cancelled a wait outside of ctx, before the branch sees the cancellation.
    In a later run, wait for its place in the order. Return the rest of this work as a coroutine.

    A new cancellation gets its place now. Otherwise a result that comes a turn of the event loop
    later, for instance because the loop was blocked until both were due, would precede it, and end
    the wait in a later run.

    The end of a `ctx.timeout` has an entry of its own. If the branch received a result at this
    place in an earlier run, the run ends with `NondeterminismError`.
    """
    is_new = run.order is None or run.order.is_over
    if is_new and not _is_cut_otherwise(run, branch):
        cut = Cut(branch.key("cut", "wait"), run.owner.elapsed_ms())
        return begin_record(run, cut, branch)
    return _cut_wait(run, branch)


def _is_cut_otherwise(run: Run, branch: Branch) -> bool:
    """Return whether a cancellation needs no entry: the event loop ends, or a `ctx.timeout` has an
    entry of its own."""
    return run.is_being_ended or any(scope.has_fired for scope in branch.limits)


async def _cut_wait(run: Run, branch: Branch) -> None:
    if _is_cut_otherwise(run, branch):
        return
    order = run.order
    upcoming = None if order is None or order.is_over else order.upcoming(branch.path)
    if upcoming is not None:
        _, key = upcoming
        entry = run.journal.steps.get(key)
        if not isinstance(entry, Cut):
            run.fail(NondeterminismError(key, reason=CUT_EARLY))
            return
        if is_cut_wait(entry):
            branch.key("cut", "wait")
        await in_order(run, branch, key)
        return
    key = branch.key("cut", "wait")
    await in_order(run, branch, key)
    await begin_record(run, Cut(key, run.owner.elapsed_ms()), branch)


async def repeat_cut(run: Run, key: str) -> None:
    """If a cut is recorded at a place, wait until the same timeout or sibling cancels the caller
    again.

    Raises:
        StepFailed: the cancellation does not come within `CUT_GRACE_S`.
        Suspend: the run has ended meanwhile.
    """
    cut = run.journal.steps.get(key)
    if not isinstance(cut, Cut):
        return
    order = run.order_here
    order.drop(order.rank(Told.of(key).key))
    rank = order.rank(key)
    try:
        with run.quiescence.moving(), order.expected(rank):
            await asyncio.wait([run.ended], timeout=cut.after_ms / 1000 + CUT_HOLD_S)
        await asyncio.wait([run.ended], timeout=CUT_GRACE_S - CUT_HOLD_S)
    except asyncio.CancelledError:
        try:
            await turn_despite_cancellation(run, rank)
        except BaseException:
            order.drop(rank)
            raise
        raise
    if run.stopped is not None:
        await run.refuse()
    order.drop(rank)
    raise StepFailed(f"the handler cancelled {key!r} in an earlier run, but not in this one")
