"""Steps: a function runs once and its outcome is recorded; later runs get the recorded outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final
from weakref import WeakKeyDictionary

from roundgate.aio import Threads, of_this_loop
from roundgate.auth import Principal
from roundgate.clock import iso
from roundgate.errors import (
    NondeterminismError,
    NotJson,
    OutcomeUnknown,
    RoundgateError,
    StepFailed,
    StepTimeout,
    Suspend,
    ToolError,
)
from roundgate.json import digest, fresh
from roundgate.observability.correlation import CORRELATION
from roundgate.replay.asyncio_internals import engine_call
from roundgate.replay.branches import Branch, InStep, inside
from roundgate.replay.driving import InOwnContext, awaiting
from roundgate.replay.journal import (
    NOT_JSON,
    TIMED_OUT,
    Began,
    Cut,
    Entry,
    Finished,
    Raised,
    Step,
    Tried,
    plain,
)
from roundgate.replay.recording import (
    be_admitted,
    be_cut_again,
    compare,
    in_order,
    learn,
    noting_cut,
    remember,
)
from roundgate.replay.run import Run
from roundgate.replay.values import conversion_of, identity, is_converted
from roundgate.replay.waiting import SHED_MARGIN_MS, wait_until, within_scopes

log = logging.getLogger("roundgate.replay")

MAX_BACKOFF_S: Final = 300.0
SLOW_S: Final = 30.0
"""Seconds after which a running step is logged."""
THREADS: Final = 40
"""Plain functions of steps that one event loop runs at once, unless the call brings its own bound."""


@dataclass(frozen=True, slots=True)
class Options:
    timeout_s: float | None = None
    retries: int = 0
    backoff: float = 1.0
    at_most_once: bool = False

    def __post_init__(self) -> None:
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; a step gets more than 0 seconds")
        if self.retries < 0 or self.backoff < 0:
            raise ValueError("retries and backoff are not negative")
        if self.at_most_once and self.retries:
            raise ValueError("a step is either at_most_once or has retries")

    def pause_ms(self, attempts: int) -> int:
        """Return the pause after so many failed attempts: twice as long after each."""
        return round(min(self.backoff * 2.0 ** min(attempts - 1, 30), MAX_BACKOFF_S) * 1000)


ONCE: Final = Options()


class StepWatch:
    """Observes the steps of the runs in its context, for tests. A method that never returns has
    ended the run's process, as far as its steps can tell."""

    async def begins(self, key: str, what: str | None) -> None:
        """Handle that a step's function is about to be called; `what` is the step's identity."""

    async def has_run(self, key: str) -> None:
        """Handle that a step has ended. Its outcome is not recorded yet."""

    async def is_remembered(self, key: str) -> None:
        """Handle that a step's outcome is recorded."""

    def run_ended(self, run: Run) -> None:
        """Handle the end of a run, with any outcome."""


WATCH: Final[ContextVar[StepWatch | None]] = ContextVar("roundgate_step_watch", default=None)


@dataclass(frozen=True, slots=True)
class Task:
    """A step: its place, its identity, and the function with its arguments."""

    key: str
    what: str | None
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


async def attempt(
    task: Task, timeout_s: float | None, threads: Threads | None, caller: Principal
) -> tuple[Finished | Raised, BaseException | None]:
    """Call the function once. Return the outcome as an entry, with the exception whose traceback belongs
    in the log, if any. Only a cancellation is raised."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            value = await _call(task, threads or _of_this_loop(), caller)
        return Finished(task.key, _remembered(task, value), task.what), None
    except asyncio.CancelledError as error:
        current = asyncio.current_task()
        if current is None or current.cancelling():
            raise
        # its own: nobody has cancelled the step
        return _raised(task, f"CancelledError: {_text(error)}"), None
    except ToolError as error:
        return Raised(task.key, _text(error), told=True, what=task.what), None
    except TimeoutError as error:
        if limit.expired():
            return _raised(task, f"it was not over within {timeout_s:g} s", TIMED_OUT), None
        return _unexpected(task, error), error
    except NotJson as error:
        return _raised(task, _text(error), NOT_JSON), None
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return _unexpected(task, error), error


def _remembered(task: Task, value: Any) -> Any:
    """Return the JSON form of a value.

    Raises:
        NotJson: it has none.
    """
    where = f"the value of step {task.key!r}"
    conversion = conversion_of(task.function)
    if conversion is not None:
        return plain(conversion.to_json(value, where), where)
    try:
        return plain(value, where)
    except NotJson as error:
        if not is_converted(value):
            raise
        name = type(value).__name__
        raise NotJson(
            f"{error}; or annotate the function with what it returns (-> {name}), and it comes back as one"
        ) from None


def outcome_of(entry: Step, name: str) -> Any:
    """Return the result of a step.

    Raises:
        ToolError, StepFailed, StepTimeout, NotJson: it raised.
        OutcomeUnknown: it was begun by a worker that died.
    """
    if isinstance(entry, Finished):
        return entry.value
    error = _error_of(entry, name)
    # a step's own ToolError is meant for the caller, not for the operator
    if not (isinstance(entry, Raised) and entry.told):
        error.failed_step = entry.key
    raise error


def _error_of(entry: Step, name: str) -> RoundgateError:
    match entry:
        case Began():
            return OutcomeUnknown(name)
        case Raised(message=message, told=True):
            return ToolError(message)
        case Raised(message=message, how="timeout"):
            return StepTimeout(f"step {name!r} timed out: {message}")
        case Raised(message=message, how="value"):
            return NotJson(message)
        case Raised(message=message):
            return StepFailed(f"step {name!r} failed: {message}")
    raise AssertionError(f"{entry!r} is no outcome")


def log_failed(
    entry: Raised, error: BaseException | None, attempt: int, again_ms: int | None
) -> None:
    """Log an attempt that failed. The text of the entry is left out: it may be meant for the caller.

    Args:
        entry: the outcome.
        error: the exception whose traceback belongs in the log, if any.
        attempt: the number of the attempt, from 1.
        again_ms: the time of the retry in milliseconds since the epoch; `None` if there is none.
    """
    fields: dict[str, Any] = {"step": entry.key, "attempt": attempt, "reason": _reason(entry)}
    if again_ms is None and entry.told:
        log.info("a step ended with a tool error", extra={"fields": fields})
    elif again_ms is None:
        log.warning("a step failed", exc_info=error, extra={"fields": fields})
    else:
        fields["again"] = iso(again_ms)
        log.warning("a step failed, trying again", exc_info=error, extra={"fields": fields})


def _reason(entry: Raised) -> str:
    if entry.told:
        return "ToolError"
    return entry.how or entry.message.partition(":")[0]


class Running:
    """Counts a running step, and logs it if it takes longer than `SLOW_S`."""

    __slots__ = ("_attempt", "_correlation", "_key", "_steps", "_timer")

    def __init__(self, key: str, attempt: int, steps: set[str]) -> None:
        self._key = key
        self._attempt = attempt
        self._steps = steps
        self._timer = of_this_loop()
        self._correlation = CORRELATION.get()

    def __enter__(self) -> None:
        self._steps.add(self._key)
        self._timer.set(self, SLOW_S, self._warn)

    def __exit__(self, *raised: object) -> None:
        self._timer.cancel(self)
        self._steps.discard(self._key)

    def _warn(self) -> None:
        # the timer runs in the context of the code that set a timer first
        ids = {} if self._correlation is None else self._correlation.members()
        fields = {**ids, "step": self._key, "attempt": self._attempt, "seconds": SLOW_S}
        log.warning("a step takes long", extra={"fields": fields})


def _unexpected(task: Task, error: BaseException) -> Raised:
    return _raised(task, f"{type(error).__name__}: {_text(error)}")


def _raised(task: Task, message: str, how: str | None = None) -> Raised:
    return Raised(task.key, message[:1000], False, task.what, how)


def _text(error: BaseException) -> str:
    return str(error).encode(errors="replace").decode()  # a file name in it may be no Unicode


async def _call(task: Task, threads: Threads, caller: Principal) -> Any:
    if inspect.iscoroutinefunction(task.function):
        return await InOwnContext(task.function(*task.args, **task.kwargs))
    value = await threads.run(lambda: task.function(*task.args, **task.kwargs), caller)
    return await InOwnContext(awaiting(value)) if inspect.isawaitable(value) else value


_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, Threads] = WeakKeyDictionary()


def _of_this_loop() -> Threads:
    loop = asyncio.get_running_loop()
    found = _threads.get(loop)
    if found is None:
        found = _threads[loop] = Threads(THREADS)
    return found


def check_return(function: Callable[..., Any], name: str) -> None:
    """Refuse a function before it is called and has an effect.

    Raises:
        NotJson: it is annotated to return a class that JSON cannot hold.
    """
    if conversion_of(function) is not None:
        return
    try:
        returned = _unheld(function)
    except TypeError:  # it cannot be hashed
        returned = None
    if returned is not None:
        raise NotJson(
            f"step {name!r} would return {returned}, which JSON cannot hold: let its function return dict, list, str, "
            "int, float, bool, None, a pydantic model, a dataclass, or one of the types in `roundgate docs handlers`"
        )


_HELD: Final = (dict, list, tuple, str, int, float, bool, type(None))


@lru_cache(maxsize=512)
def _unheld(function: Callable[..., Any]) -> str | None:
    """Return the name of the annotated return class, if JSON can hold none of its values."""
    try:
        hint = typing.get_type_hints(function).get("return")
    except Exception:  # no function, or names that are not to be had
        return None
    if (
        type(hint) is types.GenericAlias
        or not isinstance(hint, type)
        or issubclass(hint, Awaitable)
    ):
        return None
    if (
        issubclass(hint, _HELD)
        or hint.__module__ == "typing"
        or getattr(hint, "_is_protocol", False)
    ):
        return None
    return hint.__name__ if not any(issubclass(held, hint) for held in _HELD) else None


SLOWER: Final = 1.25
"""The expected duration of a step, as a multiple of the longest one so far."""


@engine_call
async def step(
    run: Run,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Options = ONCE,
) -> Any:
    """Return the result of a step, of this run or an earlier one.

    Args:
        run: the run of the handler.
        name: the step's place in its branch.
        function: called with `args` and `kwargs`, in a thread if it is a plain function.
        args: must be the same in every run.
        kwargs: the same.
        options: time limit, retries, and whether it may run again after a crash.

    Raises:
        StepFailed: it raised, now or then. (A `ToolError` is raised again as such.)
        NotJson: the result cannot be recorded.
        OutcomeUnknown: an `at_most_once` step was begun by a worker that died.
    """
    branch = await run.enter("step", name)
    task = _task(run, "step", branch, name, function, args, kwargs or {})
    match run.journal.steps.get(task.key):
        case Finished() | Raised():
            await in_order(run, branch, task.key)
        case Began():
            async with noting_cut(run, task.key, task.what):
                await learn(run, branch, task.key)
    while not isinstance(known := run.journal.steps.get(task.key), (Finished, Raised, Began)):
        if isinstance(known, Cut):
            await be_cut_again(run, branch, known)
        check_return(function, name)
        async with noting_cut(run, task.key, task.what):
            await in_order(run, branch, task.key)
            if isinstance(known, Tried):
                await wait_until(run, branch, known.again_ms)
            await _before_step(run, branch, needs_task=options.at_most_once)
            await _run_step(
                run, branch, task, options, known.attempts if isinstance(known, Tried) else 0
            )
    return _value_of(run, known, name, function)


@engine_call
async def poll(
    run: Run, name: str, function: Callable[..., Any], args: tuple[Any, ...], every_s: float
) -> Any:
    """Call a function every `every_s` seconds until it returns something other than `None`.

    Raises:
        StepFailed, NotJson: as `step`.
    """
    branch = await run.enter("step", name)
    task = _task(run, "poll", branch, name, function, args, {})
    if isinstance(run.journal.steps.get(task.key), (Finished, Raised)):
        await in_order(run, branch, task.key)
    while not isinstance(known := run.journal.steps.get(task.key), (Finished, Raised)):
        if isinstance(known, Cut):
            await be_cut_again(run, branch, known)
        async with noting_cut(run, task.key, task.what):
            await in_order(run, branch, task.key)
            await _before_step(run, branch)
            said = await _run_step(run, branch, task, ONCE, 0, only_values=True)
            if said is None:
                await wait_until(run, branch, run.clock.now_ms() + round(every_s * 1000))
    return _value_of(run, known, name, function)


def _value_of(
    run: Run, entry: Finished | Raised | Began, name: str, function: Callable[..., Any]
) -> Any:
    """Return the handler's own copy of a recorded value, converted by the function's annotation.

    Raises:
        Suspend: the value does not fit the annotation; the run has ended.
    """
    run.has_learned(entry.key)
    value, conversion = outcome_of(entry, name), conversion_of(function)
    if conversion is None:
        return fresh(value)
    try:
        return conversion.from_json(value, entry.key)
    except NondeterminismError as error:
        run.fail(error)
        raise Suspend from None


def _task(
    run: Run,
    kind: str,
    branch: Branch,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Task:
    """Return the step at its place; end the run if another action is recorded there."""
    key = run.come_to(branch, "step", name)
    what = identity(kind, function, args, kwargs)
    compare(run, key, what)
    return Task(key, what, function, args, kwargs)


async def _before_step(run: Run, branch: Branch, *, needs_task: bool = False) -> None:
    """Suspend if there is no time for a step, or no certainty that it may begin."""
    if run.stopped is not None:  # while it waited
        await run.refuse()
    await within_scopes(run, branch)
    becomes_task = run.call.may_become_task and (run.call.needs_row or needs_task)
    remaining_ms = run.call.deadline.remaining_ms()
    short = remaining_ms is not None and remaining_ms < run.longest_ms * SLOWER + SHED_MARGIN_MS
    if run.stop_requested or becomes_task or (short and run.steps_run > 0):
        run.wants_task = True
        await run.park(branch)
    await be_admitted(run)


async def _run_step(
    run: Run,
    branch: Branch,
    task: Task,
    options: Options,
    attempts: int,
    *,
    only_values: bool = False,
) -> Entry | None:
    """Run a step; return its entry, or `None` if there is nothing to record."""
    run.is_beyond = True
    run.new_steps.append(task.key)
    running = Running(task.key, attempts + 1, run.running_steps)
    with run.quiescence.moving(), running:
        watch, begun_ms = WATCH.get(), run.clock.monotonic_ms()
        if options.at_most_once:
            await remember(run, Began(task.key, task.what))
            await be_admitted(run)  # to write that may have taken longer than the lease lasts
        if watch is not None:
            await watch.begins(task.key, task.what)
        entry: Finished | Raised | None = None
        try:
            with inside(InStep(run.owner, task.key)):
                entry, error = await attempt(
                    task, options.timeout_s, run.call.step_threads, run.call.principal
                )
        finally:
            run.longest_ms = max(run.longest_ms, run.clock.monotonic_ms() - begun_ms)
            run.steps_run += entry is not None
        if watch is not None:
            await watch.has_run(task.key)
        noted = await _note(
            run, branch, entry, error, options, attempts + 1, only_values=only_values
        )
        if watch is not None:
            await watch.is_remembered(task.key)
        return noted


async def _note(
    run: Run,
    branch: Branch,
    entry: Finished | Raised,
    error: BaseException | None,
    options: Options,
    attempts: int,
    *,
    only_values: bool,
) -> Entry | None:
    if only_values and isinstance(entry, Finished) and entry.value is None:
        return None
    if isinstance(entry, Raised) and entry.how != "value" and attempts <= options.retries:
        again_ms = run.clock.now_ms() + options.pause_ms(attempts)
        log_failed(entry, error, attempts, again_ms)
        tried = Tried(entry.key, attempts, again_ms, entry.what)
        await remember(run, tried)
        return tried
    if isinstance(entry, Raised):
        log_failed(entry, error, attempts, None)
        entry = replace(
            entry,
            attempts=attempts if attempts > 1 else None,
            beside=sorted(run.running_steps - {entry.key}) or None,
        )
    await remember(run, entry, branch)
    return entry


@engine_call
async def key_for(run: Run, name: str) -> str:
    """Return an idempotency key for a place in the handler."""
    branch = await run.enter("key", name)
    key = run.come_to(branch, "key", name)
    known = run.journal.steps.get(key)
    if not isinstance(known, Finished):
        source = run.call.idempotency or run.call.task_id
        known = Finished(key, run.clock.new_id() if source is None else digest([source, key]))
        run.journal.add(known)
    run.has_learned(key)
    text: str = known.value
    return text
