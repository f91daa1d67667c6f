"""The engine: the function that runs every handler, for every back end and every journal.

A handler runs from the top each time, against the journal of its call. A question without an answer
*suspends* the run, and any process can continue from the outcome.

    run_handler(handler, run) → Completed(value)               the handler returned
                              | Suspended(requests, journal)   it waits: for answers, a time, a turn
                              | Restarted(arguments)           it begins again with these arguments
                              | Failed(error)                  it raised an error
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from types import CoroutineType
from typing import Any, Final, Generic, TypeAlias, TypeVar

from msgspec import Struct

from roundgate.aio import TaskWatch, in_own_context, is_draining
from roundgate.clock import Deadline
from roundgate.errors import CallTimeout, Draining, GatewayError, MissingCapability, Suspend
from roundgate.protocol import merged
from roundgate.replay.branches import here
from roundgate.replay.driving import (
    Driven,
    awaiting,
    ended_process,
    number_tasks,
    spawn,
)
from roundgate.replay.journal import Journal
from roundgate.replay.run import Run, Stop
from roundgate.replay.steps import UNWATCHED, WATCH

T = TypeVar("T")

log = logging.getLogger("roundgate.replay")

MAX_NAMED: Final = 10
"""The maximum number of steps that one log line names."""
ABANDON_S: Final = 2.0
"""The time limit in seconds for the end of a cancelled handler."""


class Completed(Struct, Generic[T], frozen=True):
    """The outcome of a handler that returned."""

    value: T


class Suspended(Struct, frozen=True):
    """The outcome of a handler that waits for answers to `requests` (by wire key) or, if there are
    none, for its next turn."""

    requests: Mapping[str, Any]
    journal: Journal
    wants_task: bool = False
    """As `Run.wants_task`."""
    wake_ms: int | None = None
    """The earliest time of the next turn in milliseconds since the epoch. Answers and delivered
    events continue the handler earlier."""
    awaits: Collection[str] = ()
    """The external events that the handler waits for, by their names in the task's record."""


class Restarted(Struct, frozen=True):
    """The outcome of a handler that begins again with these arguments."""

    arguments: dict[str, Any]


class Failed(Struct, frozen=True):
    """The outcome of a handler that raised an error; a passed deadline is a `CallTimeout`."""

    error: Exception


Outcome: TypeAlias = Completed[T] | Suspended | Restarted | Failed


async def run_handler(handler: Callable[[], Awaitable[T]], run: Run) -> Outcome[T]:
    """Run a handler to its end, to its next question, or to its deadline; then close the run.

    Raises:
        CancelledError: the call was cancelled.
    """
    number_tasks(asyncio.get_running_loop())
    watch = run.call.watch
    if watch is not None and watch.is_of_this_task:
        return await _run_watched(handler, run, watch)
    if run.call.task_id is not None:  # its worker ends the turn
        return await _run_watched(handler, run, TaskWatch())
    with TaskWatch() as watch:
        return await _run_watched(handler, run, watch)


async def _run_watched(
    handler: Callable[[], Awaitable[T]], run: Run, watch: TaskWatch
) -> Outcome[T]:
    deadline = run.call.deadline
    limit_s = watch.limit(deadline, partial(_shed, run))
    outcome: Outcome[T]
    try:
        try:
            value = await (
                _driven(handler, run)
                if run.call.task_id is None
                else _in_its_own_task(handler, run)
            )
            watch.end_limit()
            # a handler that swallows the suspension must not return a result that skipped a question
            outcome = Completed(value) if run.stopped is None else _suspended(run)
        except BaseException as error:
            late = late_error(deadline, limit_s) if watch.end_limit() else None
            outcome = _ended_by(error, run, late)
        if (steps := WATCH.get()) is not UNWATCHED:
            steps.run_ended(run)
        if run.journal.steps and _shows_what_is_gone(run, outcome):
            _warn_of_unasked(run)
        return outcome
    finally:
        run.close()


def _shed(run: Run) -> None:
    """Suspend a call whose process ends while a step runs or a wait lasts; the next round repeats
    that step. On AWS Lambda, each round must complete a step, because the next one has no more
    time."""
    if (
        run.call.task_id is None
        and run.call.deadline.ends_process
        and (run.running_steps or run.quiescence.is_waiting)
        and (run.steps_run or is_draining())
    ):
        run.wants_task = True
        run.stop(Stop.SUSPENDED)


def _shows_what_is_gone(run: Run, outcome: Outcome[Any]) -> bool:
    """Return whether the run has reached every recorded step that the handler still has: the run
    ended, or began a new step, which never precedes recorded ones."""
    match outcome:
        case Completed():
            return True
        case Failed(error):
            return run.error is None and not isinstance(error, CallTimeout)
        case Suspended():
            return run.stopped is Stop.SUSPENDED and bool(run.new_steps)
    return False


def _warn_of_unasked(run: Run) -> None:
    if not (unasked := run.unasked()):
        return
    names = {"steps": unasked[:MAX_NAMED], "new": run.new_steps[:MAX_NAMED]}
    log.warning(
        "the handler no longer runs recorded steps; a renamed step runs again",
        extra={
            "fields": {**({} if run.call.task_id is None else {"task": run.call.task_id}), **names}
        },
    )


def _ended_by(
    error: BaseException, run: Run, late: Exception | None
) -> Suspended | Restarted | Failed:
    """Return the outcome of a handler that raised an error. `late` is the error of a handler that
    exceeded its time limit.

    Raises:
        BaseException: the error itself, if the call was cancelled or the process ends.
    """
    match error:
        case Suspend():
            return _suspended(run)
        case asyncio.CancelledError() | TimeoutError() if late is not None:
            return _suspended(run) if run.stopped is Stop.SUSPENDED else Failed(late)
        case asyncio.CancelledError() if _was_enforced(run):
            return _suspended(run)
    return _failed(failure_of(error), run)


def failure_of(error: BaseException) -> Exception:
    """Return the error with which a handler failed that raised `error`.

    Raises:
        BaseException: the error itself, if the call was cancelled or the process ends.
    """
    match error:
        case asyncio.CancelledError() if not _is_being_cancelled():
            message = "the awaited task or future was cancelled, but not the call itself"
            return _caused_by(error, message)
        case BaseExceptionGroup():
            return _cause_in(error)
        case Exception():
            return error
        case SystemExit() | KeyboardInterrupt():
            return ended_process(error)
    raise error


def late_error(deadline: Deadline, limit_s: float | None) -> Exception:
    """Return the error of a call that exceeded its deadline, which was `limit_s` seconds away when
    the call began."""
    if deadline.ends_process and is_draining():
        return Draining()
    after_s = limit_s or 0.0
    if after_s == 0:  # the process was busy before the handler began
        return CallTimeout("No time was left for the call when it began; call again later")
    limit = f"{max(0.01, round(after_s, 2)):g} s"
    return CallTimeout(f"The call did not finish within {limit} (limits.call_timeout_s)")


async def _coroutine(handler: Callable[[], Awaitable[T]]) -> T:
    return await handler()


def _driven(handler: Callable[[], Awaitable[T]], run: Run) -> Awaitable[T]:
    """Begin the run, and return an awaitable that runs the handler in the current task."""
    run.begin()
    context = copy_context()
    context.run(here.set, run.root)
    coroutine = context.run(handler)
    if not isinstance(coroutine, CoroutineType):
        coroutine = awaiting(coroutine)
    run.root_coroutine = coroutine
    return in_own_context(Driven(coroutine, run.owner), context)


async def _in_its_own_task(handler: Callable[[], Awaitable[T]], run: Run) -> T:
    """Run the handler in an asyncio task of its own, so that the engine can determine the cause of
    a cancellation."""
    root = spawn(run.root, _coroutine(handler))
    run.begin(root)
    try:
        await asyncio.wait([root])
    except asyncio.CancelledError:
        run.stop(Stop.OVER)
        root.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([root], timeout=ABANDON_S)
        root.add_done_callback(_look_at)
        raise
    value: T = root.result()
    return value


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieve an abandoned task's exception, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


def _failed(error: Exception, run: Run) -> Suspended | Restarted | Failed:
    """Return the outcome of a handler that raised an error. An error after a suspension is its
    consequence and does not count."""
    return Failed(error) if run.stopped is None else _suspended(run)


def _suspended(run: Run) -> Suspended | Restarted | Failed:
    if run.error is not None:
        return Failed(run.error)
    if run.restart_arguments is not None and run.stopped is Stop.SUSPENDED:
        return Restarted(run.restart_arguments)
    return Suspended(run.requests, run.journal, run.wants_task, run.wake_ms, run.awaited)


def _cause_in(group: BaseExceptionGroup[BaseException]) -> Exception:
    """Return the error that represents a group: one error with all missing capabilities, the first
    error if all are meant for the caller, otherwise the group."""
    leaves = list(_leaves(group))
    missing = [leaf for leaf in leaves if isinstance(leaf, MissingCapability)]
    if len(missing) == len(leaves):
        return MissingCapability(
            missing[0].what_for,
            merged(leaf.missing for leaf in missing),
            all(leaf.has_substitute for leaf in missing),
        )
    if isinstance(leaves[0], GatewayError) and all(
        isinstance(leaf, GatewayError) for leaf in leaves
    ):
        return leaves[0]
    return (
        group
        if isinstance(group, Exception)
        else _caused_by(group, "branches of the handler failed")
    )


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _was_enforced(run: Run) -> bool:
    """Return whether the engine cancelled the handler, which continued after its run's end. If so,
    undo the cancellation."""
    task = asyncio.current_task()
    if not run.is_enforced or task is None:
        return False
    return task is not run.root_task or task.uncancel() == 0


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _caused_by(error: BaseException, message: str) -> RuntimeError:
    failure = RuntimeError(message)
    failure.__cause__ = error
    return failure
