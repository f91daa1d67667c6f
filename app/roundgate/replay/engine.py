"""The engine: the function that runs every handler, for every back end and every journal.

A handler runs from the top each time, against the journal of its call. A question without an answer
*suspends* the run, and any process can continue from the outcome.

    run_handler(handler, run) → Completed(value)               the handler returned
                              | Suspended(requests, journal)   it waits: for answers, a time, a turn
                              | Restarted(arguments)           it begins again with these arguments
                              | Failed(error)                  it raised an error

Each asyncio task that a handler creates is a branch. `TaskFactory`, which the first run sets on the
event loop, assigns its place. A task of other code only costs a look-up of a context variable.

Every resumption of a branch passes through `Driven`, which records two events outside of ctx: a
branch that resumes by itself (`Owner.resumed`), and a cancelled wait outside of ctx.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from types import CoroutineType
from typing import Any, Final, Generic, NoReturn, TypeAlias, TypeVar

import anyio
from msgspec import Struct

from roundgate.aio import TaskWatch, in_own_context, is_draining
from roundgate.clock import Deadline
from roundgate.errors import (
    CallTimeout,
    Draining,
    GatewayError,
    MissingCapability,
    Suspend,
    Unrepeatable,
)
from roundgate.protocol import merged
from roundgate.replay.asyncio_internals import (
    NEVER_ENDS,
    ByAsCompleted,
    ByWaitFor,
    active_timeout,
    creator,
    entered_timeout,
    made_by_wait_for,
    refuse_as_completed,
    waits_alone,
)
from roundgate.replay.branches import END, Branch, Owner, here, inside
from roundgate.replay.journal import Journal
from roundgate.replay.recording import UNWATCHED, WATCH, begin_cut_wait, is_cut_next
from roundgate.replay.run import NAME, Run, Stop
from roundgate.replay.values import digest_of_value

I = TypeVar("I")  # noqa: E741  # an item
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
    """Suspend a call that is about to suspend itself, because all its branches wait; its questions
    may be known elsewhere. Also suspend a call whose process ends while a step runs or a wait lasts;
    the next round repeats that step. On AWS Lambda, each round must complete a step, because the
    next one has no more time."""
    if run.quiescence.is_at_rest:
        run.stop(Stop.SUSPENDED)
    elif (
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
        case Exception() if text_of(error) is not None:
            return error
        case Exception():
            return _caused_by(error, f"the handler raised {type(error).__name__} without a text")
        case asyncio.CancelledError() | GeneratorExit() | Suspend():
            raise error
    return ended_process(error)


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


Factory: TypeAlias = Callable[..., Any]


_given_up: Final[deque[Any]] = deque(maxlen=64)
"""The abandoned handlers. Without a reference, Python would close such a handler, which resists
being closed."""


@atexit.register
def _never_close_them() -> None:
    """Keep abandoned handlers alive until the process has ended.

    At exit Python closes the remaining coroutines. Every call of an abandoned handler would then
    fail, the handler would catch the error, and the process would never end.
    """
    if _given_up:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_given_up))


class Driven(Coroutine[Any, Any, T]):
    """A handler's coroutine, driven so that it cannot end the process.

    A handler that catches every error that should end it finally awaits `END`, and is never
    resumed. `sys.exit()` in a task would stop the event loop; here it becomes an error of the
    handler.

    The cancellation of a wait outside of ctx is first recorded (`_recording`), then raised.
    """

    __slots__ = ("_cancellation", "_coroutine", "_is_alone", "_owner", "_recording")

    def __init__(self, coroutine: Coroutine[Any, Any, T], owner: Owner) -> None:
        self._coroutine = coroutine
        self._owner = owner
        self._is_alone = True
        """Whether the coroutine has not begun, or waits outside of ctx."""
        self._recording: asyncio.Task[None] | None = None
        """The task that records a cancellation before it is raised."""
        self._cancellation: BaseException | None = None

    def send(self, value: Any = None) -> Any:
        if self._recording is not None:
            return self._raise_once_recorded(self._recording)
        return self._resume(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        # anyio cancels repeatedly until the coroutine has seen the cancellation
        if self._recording is not None:
            return self._raise_once_recorded(self._recording)
        run: Run | None = self._owner.run
        if (
            run is not None
            and run.stopped is None
            and self._is_alone
            and isinstance(error[0], asyncio.CancelledError)
            and isinstance(place := here.get(), Branch)
            and (_may_be_a_limit(run, place) or is_cut_next(run, place))
        ):
            with inside(None):
                self._recording = asyncio.ensure_future(begin_cut_wait(run, place))
            self._cancellation = error[0]
            return self._raise_once_recorded(self._recording)
        return self._resume(self._coroutine.throw, *error)

    def _resume(self, resume: Callable[..., Any], *arguments: Any) -> Any:
        """Resume the coroutine and return the object that it awaits next."""
        if self._is_alone:
            self._owner.resumed += 1
        try:
            awaited = resume(*arguments)
        except (Exception, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            _end(error)
        if awaited is END:
            self._give_up()
        try:
            self._is_alone = waits_alone(self._coroutine)
            if self._owner.asks_in_root and not self._is_alone:
                self._refuse_timeout()
        except RuntimeError as refusal:
            return self._resume(self._coroutine.throw, refusal)
        return awaited

    def _refuse_timeout(self) -> None:
        """Raise `RuntimeError` if an `asyncio.timeout` of the handler's own task is open around the
        question that it has just asked."""
        self._owner.asks_in_root = False
        if active_timeout(self._coroutine):
            raise Unrepeatable(NEVER_ENDS)

    def _raise_once_recorded(self, noting: asyncio.Task[None]) -> Any:
        """Raise the cancellation in the coroutine once it is recorded."""
        if not noting.done():
            return next(asyncio.shield(noting).__await__())
        failed = None if noting.cancelled() else noting.exception()
        error, self._cancellation, self._recording = failed or self._cancellation, None, None
        return self._resume(self._coroutine.throw, error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def __iter__(self) -> Driven[T]:
        return self

    __next__ = send  # saves a call: most handlers end at their first resumption

    def __getattr__(self, name: str) -> Any:
        # names and cr_frame, for tools that show where a task waits
        return getattr(self._coroutine, name)

    def _give_up(self) -> NoReturn:
        name = getattr(self._coroutine, "__qualname__", "handler")
        log.error("%s continued after the end of its run and is not resumed", name)
        _given_up.append(self._coroutine)
        raise Suspend


def _may_be_a_limit(run: Run, branch: Branch) -> bool:
    """Return whether a limit of asyncio or anyio may have caused a cancellation, rather than
    another branch.

    An ordinary call runs in the task of its request, whose cancellations have an unknown source.
    """
    task = asyncio.current_task()
    if run.root_task is task and not run.has_own_task:
        return True
    has_fired = run.owner.timeouts.has_ended_wait(task)
    return has_fired or -math.inf < anyio.current_effective_deadline() <= anyio.current_time()


def _end(error: BaseException) -> NoReturn:
    """Raise an exception instead of one that would stop the event loop or pass its callers."""
    if isinstance(error, Suspend):
        task = asyncio.current_task()
        # the branch may have no waiter that retrieves its exception
        if task is not None and isinstance(task.get_coro(), Driven):
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise error
    raise ended_process(error)


def ended_process(error: BaseException) -> RuntimeError:
    """Return the error of a handler that raised an exception which is not an `Exception`: sys.exit(),
    Ctrl-C, or the panic of an extension in Rust."""
    cause = (
        f"called sys.exit({error.code!r})" if isinstance(error, SystemExit) else f"raised {error!r}"
    )
    return _caused_by(error, f"the handler {cause}")


def text_of(error: BaseException) -> str | None:
    """Return the text of an exception, or `None` if its `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return None


class TaskFactory:
    """A task factory that assigns a branch to each task of a handler."""

    def __init__(self, before: Factory | None) -> None:
        self._before = before

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        place = here.get()
        if not isinstance(place, Branch):
            if self._before is None:  # the usual case: a server's task for a request
                return asyncio.Task(coroutine, loop=loop, **options)
            return self._make(loop, coroutine, options)
        maker = creator()
        branch = _find_branch(place, maker, coroutine)
        context = options.pop("context", None)
        if context is None:
            context = copy_context()
        elif (
            branch is not place
            and isinstance(context.get(here), Branch)
            and context[here] is not place
        ):
            raise RuntimeError(
                "two tasks of a handler cannot share one context=, because each is a branch; pass each its own"
            )
        context.run(here.set, branch)
        driven = Driven(coroutine, branch.owner)
        task = self._make(loop, driven, {**options, "context": context}, BranchTask)
        if isinstance(maker, ByWaitFor):
            made_by_wait_for.add(task)
            if maker.timer is not None:
                place.owner.timeouts.add(maker.timer, place.path, task)
        return task

    def _make(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Any,
        options: Mapping[str, Any],
        kind: type[asyncio.Task[Any]] = asyncio.Task,
    ) -> Any:
        if self._before is not None:
            # the earlier factory may also be a TaskFactory, and the task already has its branch
            with inside(None):
                return self._before(loop, coroutine, **options)
        return kind(coroutine, loop=loop, **options)


class BranchTask(asyncio.Task[Any]):
    """A task of a handler. The class detects `asyncio.timeout`, which calls `cancelling`, and
    `as_completed`, which calls `add_done_callback`."""

    def cancelling(self) -> int:
        place, timer = here.get(), entered_timeout()
        if timer is not None and isinstance(place, Branch):
            place.owner.timeouts.add(timer, place.path, self)
        return super().cancelling()

    def add_done_callback(self, *arguments: Any, **options: Any) -> None:
        refuse_as_completed()
        super().add_done_callback(*arguments, **options)


def spawn(branch: Branch, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Create a task that runs a coroutine as a branch."""
    context = copy_context()
    context.run(here.set, branch)
    return BranchTask(
        Driven(coroutine, branch.owner), loop=asyncio.get_running_loop(), context=context
    )


def number_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Set the task factory of the event loop, if it is not set yet."""
    factory = loop.get_task_factory()
    if not isinstance(factory, TaskFactory):
        loop.set_task_factory(TaskFactory(factory))


def _find_branch(
    parent: Branch, maker: ByWaitFor | ByAsCompleted | None, coroutine: object
) -> Branch:
    match maker:
        case ByWaitFor():
            # a journal may move from Python 3.11 to later versions, which create no task here
            return parent
        case ByAsCompleted(awaitables):
            return _as_completed_branch(parent, awaitables, coroutine)
    return parent.created(coroutine)


def _as_completed_branch(parent: Branch, awaitables: Any, coroutine: Any) -> Branch:
    """Return the branch of a coroutine of `as_completed`, numbered in the order of its list. Raise
    RuntimeError if the order is not fixed."""
    awaited = parent.awaited
    if id(coroutine) not in awaited:
        if not isinstance(awaitables, Sequence):
            raise Unrepeatable(
                "asyncio.as_completed starts coroutines in no fixed order; pass a list of them"
            )
        if not any(awaitable is coroutine for awaitable in awaitables):
            coroutine.close()  # the wrapper that asyncio made
            raise Unrepeatable(
                "asyncio.as_completed starts awaitable objects in no fixed order; pass coroutines or tasks"
            )
        awaited.clear()
        for awaitable in awaitables:
            if asyncio.iscoroutine(awaitable) and id(awaitable) not in awaited:
                awaited[id(awaitable)] = parent.created(awaitable)
    return awaited.pop(id(coroutine))


async def awaiting(awaitable: Awaitable[T]) -> T:
    """Return the result of an awaitable, as a coroutine."""
    return await awaitable


def item_branches(
    parent: Branch, name: str, items: Iterable[I], key: Callable[[I], Any] | None
) -> list[tuple[I, Branch]]:
    """Return each item with its branch: `name.7` for an item 7, and a digest for other types."""
    map_branch = parent.named(name)
    return [
        (item, map_branch.named(_segment(item if key is None else key(item)))) for item in items
    ]


def _segment(item: Any) -> str:
    text = str(item) if isinstance(item, (str, int)) and not isinstance(item, bool) else ""
    return text if NAME.fullmatch(text) else digest_of_value(item)


async def side_by_side(placed: Sequence[tuple[Branch, Coroutine[Any, Any, T]]]) -> list[T]:
    """Run each coroutine as its branch; return their results in order.

    Raises:
        Exception: the error of a coroutine; the other coroutines were cancelled.
    """
    parent = here.get()
    for branch, _ in placed:
        branch.within = parent if isinstance(parent, Branch) else None
    tasks = [spawn(branch, coroutine) for branch, coroutine in placed]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                task.result()
        return [task.result() for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
