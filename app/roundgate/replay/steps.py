"""Steps: a function runs once and its outcome is recorded; later runs get the recorded outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from roundgate.aio import Threads, in_own_context
from roundgate.clock import iso
from roundgate.errors import (
    BackendBusy,
    NondeterminismError,
    NotJson,
    OutcomeUnknown,
    RoundgateError,
    StepFailed,
    StepTimeout,
    Suspend,
    ToolError,
)
from roundgate.json import fresh
from roundgate.observability.metrics import instruments
from roundgate.observability.tracing import CORRELATION
from roundgate.replay.asyncio_internals import engine_call
from roundgate.replay.branches import Branch, InStep, inside
from roundgate.replay.engine import awaiting, text_of
from roundgate.replay.journal import (
    NOT_JSON,
    TIMED_OUT,
    Began,
    Entry,
    Finished,
    Raised,
    Tried,
    plain,
)
from roundgate.replay.recording import (
    WATCH,
    admit,
    compare,
    in_order,
    record,
    recording_cut,
    repeat_cut,
    repeat_path,
    take_event,
    within_scopes,
    write_values,
)
from roundgate.replay.run import Run
from roundgate.replay.values import REMEDY, find_conversion, identity, is_converted, returned
from roundgate.replay.waiting import SHED_MARGIN_MS, wait_until

log = logging.getLogger("roundgate.replay")

MAX_INTERVAL_S: Final = 300.0
SLOW_S: Final = 30.0
"""The time in seconds after which a running step is logged."""
SLOWER: Final = 1.25
"""The expected duration of a step, as a multiple of the longest one so far."""
THREADS: Final = 40
"""The maximum number of concurrent step functions in threads per event loop; `Call.step_threads`
replaces it."""


RetryIf: TypeAlias = (
    Callable[[BaseException], bool] | type[BaseException] | tuple[type[BaseException], ...]
)
"""The errors after which a step is tried again: a function, or types of errors."""


class StepOptions(Struct, frozen=True):
    """The options of `ctx.step`."""

    timeout_s: float | None = None
    retries: int = 0
    backoff: float = 1.0
    max_interval_s: float = MAX_INTERVAL_S
    retry_if: RetryIf | None = None
    at_most_once: bool = False

    def __post_init__(self) -> None:
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be greater than 0")
        if self.retries < 0 or self.backoff < 0:
            raise ValueError("retries and backoff must not be negative")
        if self.max_interval_s <= 0:
            raise ValueError(f"max_interval_s is {self.max_interval_s}; it must be greater than 0")
        if self.retry_if is not None and not self.retries:
            raise ValueError("retry_if has no effect without retries; set retries")
        if self.at_most_once and self.retries:
            raise ValueError("a step cannot have both at_most_once and retries; leave one out")

    def pause_ms(self, attempts: int, fraction: float) -> int:
        """Return the pause in milliseconds after a number of failed attempts. The pause doubles
        with each attempt. `fraction`, a random number from 0 to 1, shortens it by up to a half, so
        that calls that failed together do not return together."""
        longest_s = min(self.backoff * 2.0 ** min(attempts - 1, 30), self.max_interval_s)
        return round(longest_s * (1 - fraction / 2) * 1000)

    def retries_after(self, error: BaseException, attempt: int) -> bool:
        """Return whether the step is tried again. A `ToolError` is an answer, and a value without
        JSON form is the same in every attempt."""
        if attempt > self.retries or isinstance(error, (ToolError, NotJson)):
            return False
        if self.retry_if is None:
            return True
        if isinstance(self.retry_if, (type, tuple)):
            return isinstance(error, self.retry_if)
        return bool(self.retry_if(error))


ONCE: Final = StepOptions()


class StepTask(Struct, frozen=True):
    """A step: its place, its identity, and the function with its arguments."""

    key: str
    what: str | None
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def raised(self, message: str, how: str | None = None) -> Raised:
        """Return the entry of a failure whose message is not meant for the caller."""
        return Raised(self.key, message[:1000], False, self.what, how)

    def raised_by(self, error: BaseException) -> Raised:
        """Return the entry of an unexpected error."""
        return self.raised(f"{type(error).__name__}: {_text(error)}")


@engine_call
async def step(
    run: Run,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    options: StepOptions = ONCE,
    every_s: float | None = None,
) -> Any:
    """Return the result of a step, of this run or an earlier one.

    Args:
        run: the run of the handler.
        name: the step's place in its branch.
        function: called with `args` and `kwargs`, in a thread if it is a plain function.
        args: positional arguments, the same in every run.
        kwargs: keyword arguments, the same in every run.
        options: the time limit, the retries, and whether the step may run again after a crash.
        every_s: seconds between two calls of a poll, which repeats the function while it returns
            `None`.

    Raises:
        StepFailed: the function raised an error, in this run or an earlier one. A `ToolError` is
            raised unchanged.
        StepTimeout: the function took longer than its time limit.
        NotJson: the result cannot be recorded.
        OutcomeUnknown: a worker died after it began an `at_most_once` step.
    """
    branch = await run.enter("step", name)
    key = run.come_to(branch, "step", name)
    what = identity("step" if every_s is None else "poll", function, args, kwargs or {})
    compare(run, key, what)
    task = StepTask(key, what, function, args, kwargs or {})
    match run.journal.steps.get(key):
        case Finished() | Raised():
            await in_order(run, branch, key)
        case Began():
            async with recording_cut(run, key, what):
                await take_event(run, branch, key)
    while not isinstance(recorded := run.journal.steps.get(key), (Finished, Raised, Began)):
        await repeat_cut(run, key)
        if every_s is None:
            check_return(function, name)
        async with recording_cut(run, key, what):
            await in_order(run, branch, key)
            if isinstance(recorded, Tried):
                await wait_until(run, branch, recorded.again_ms)
            elif run.is_same_version:
                await repeat_path(run, branch, key)
            await _before_step(run, branch, needs_task=options.at_most_once)
            attempts = recorded.attempts if isinstance(recorded, Tried) else 0
            entry = await _run_step(run, branch, task, options, attempts + 1, every_s is not None)
            if entry is None and every_s is not None:
                await wait_until(run, branch, run.clock.now_ms() + round(every_s * 1000))
    return _recorded_value(run, recorded, name, function)


async def _before_step(run: Run, branch: Branch, *, needs_task: bool) -> None:
    """Suspend if too little time is left for a step, or if the step may not begin."""
    if not needs_task:  # the start of an at_most_once step writes them
        await write_values(run)
    if run.stopped is not None:  # the run may have ended while the step waited
        await run.refuse()
    await within_scopes(run, branch)
    becomes_task = run.call.may_become_task and (run.call.needs_row or needs_task)
    remaining_ms = run.call.deadline.remaining_ms()
    short = remaining_ms is not None and remaining_ms < run.longest_ms * SLOWER + SHED_MARGIN_MS
    if run.stop_requested or becomes_task or (short and run.steps_run > 0):
        run.wants_task = True
        await run.park(branch)
    await admit(run)


async def _run_step(
    run: Run, branch: Branch, task: StepTask, options: StepOptions, attempt: int, is_poll: bool
) -> Entry | None:
    """Run a step and return its entry, or `None` if a poll has no result yet."""
    run.is_beyond = True
    run.new_steps.append(task.key)
    with run.quiescence.moving(), _running(run, task.key, attempt):
        watch, begun_ms = WATCH.get(), run.clock.monotonic_ms()
        if options.at_most_once:
            await record(run, Began(task.key, task.what))
            await admit(run)  # the lease may have expired during that write
        await watch.begins(task.key, task.what)
        entry: Finished | Raised | None = None
        try:
            with inside(InStep(run.owner, task.key)):
                entry, error = await _attempt(run, task, options.timeout_s)
        finally:
            took_ms = run.clock.monotonic_ms() - begun_ms
            run.longest_ms = max(run.longest_ms, took_ms)
            run.steps_run += entry is not None
        await watch.has_run(task.key)
        recorded = None
        if not (is_poll and isinstance(entry, Finished) and entry.value is None):
            recorded = await _record(run, branch, entry, error, options, attempt)
        _measure(task.key, attempt, entry, recorded, took_ms)
        await watch.is_remembered(task.key)
        return recorded


def _measure(key: str, attempt: int, entry: Entry, recorded: Entry | None, took_ms: float) -> None:
    """Record the duration and the outcome of an attempt, in metrics and in a line for debugging."""
    made = instruments()
    if made is None and not log.isEnabledFor(logging.DEBUG):
        return
    match recorded:
        case None:
            outcome = "not yet"  # a poll
        case Tried():
            outcome = "retried"
        case Finished():
            outcome = "ok"
        case _:
            outcome = "tool_error" if isinstance(entry, Raised) and entry.told else "failed"
    fields = {"step": key, "attempt": attempt, "outcome": outcome, "ms": round(took_ms, 2)}
    log.debug("a step ended", extra={"fields": fields})
    correlation = CORRELATION.get()
    if made is not None:
        tool = {} if correlation is None else {"gen_ai.tool.name": str(correlation.tool)}
        made.steps.record(took_ms / 1000, {**tool, "outcome": outcome})


async def _record(
    run: Run,
    branch: Branch,
    entry: Finished | Raised,
    error: BaseException | None,
    options: StepOptions,
    attempt: int,
) -> Entry:
    if isinstance(entry, Raised):
        now_ms = run.clock.now_ms()
        if isinstance(error, BackendBusy) and (run.steps_run == 1 or run.checkpointer is not None):
            # the step has done nothing, so a later run may begin it
            await record(run, Tried(entry.key, attempt, now_ms, entry.what))
            run.fail(error)
            raise Suspend
        if run.call.task_id is not None:  # nobody looks up an ordinary call
            entry = replace(entry, at_ms=now_ms, reference=run.clock.new_id())
        try:
            is_retried = error is not None and options.retries_after(error, attempt)
        except Exception as fault:  # of the handler's `retry_if`
            message = f"retry_if raised {type(fault).__name__}: {_text(fault)}"
            entry, error, is_retried = replace(entry, message=message[:1000]), fault, False
        if is_retried:
            failure = [entry.message, entry.told, entry.how, entry.at_ms, entry.reference]
            is_kept = entry.reference is not None
            again_ms = now_ms + options.pause_ms(attempt, run.clock.fraction())
            tried = Tried(entry.key, attempt, again_ms, entry.what, failure if is_kept else None)
            _log_failed(entry, error, attempt, tried.again_ms)
            await record(run, tried)
            return tried
        _log_failed(entry, error, attempt, None)
        attempts = attempt if attempt > 1 else None
        beside = sorted(run.running_steps - {entry.key}) or None
        entry = replace(entry, attempts=attempts, beside=beside)
    await record(run, entry, branch)
    return entry


@contextmanager
def _running(run: Run, key: str, attempt: int) -> Iterator[None]:
    """Count a running step, and log it if it takes longer than `SLOW_S`."""

    def warn() -> None:
        correlation = CORRELATION.get()
        ids = {} if correlation is None else correlation.members()
        fields = {**ids, "step": key, "attempt": attempt, "seconds": SLOW_S}
        log.warning("a step takes long", extra={"fields": fields})

    timer = asyncio.get_running_loop().call_later(SLOW_S, warn)
    run.running_steps.add(key)
    try:
        yield
    finally:
        run.running_steps.discard(key)
        timer.cancel()


async def _attempt(
    run: Run, task: StepTask, timeout_s: float | None
) -> tuple[Finished | Raised, BaseException | None]:
    """Call the function once. Return the outcome as an entry, and the exception of a failure.

    Raises:
        CancelledError: the step was cancelled.
    """
    try:
        async with asyncio.timeout(timeout_s) as limit:
            value = await _call(run, task)
        return Finished(task.key, _recordable(task, value), task.what), None
    except asyncio.CancelledError as error:
        current = asyncio.current_task()
        if current is None or current.cancelling():
            raise
        # raised by the function itself: its caller did not cancel the step
        return task.raised(f"CancelledError: {_text(error)}"), error
    except ToolError as error:
        return Raised(task.key, _text(error), told=True, what=task.what), error
    except TimeoutError as error:
        if limit.expired():
            return task.raised(f"it was not over within {timeout_s:g} s", TIMED_OUT), error
        return task.raised_by(error), error
    except NotJson as error:
        return task.raised(_text(error), NOT_JSON), error
    except (GeneratorExit, Suspend):
        raise
    except BaseException as error:  # sys.exit(), or the panic of an extension in Rust
        return task.raised_by(error), error


_threads: WeakKeyDictionary[asyncio.AbstractEventLoop, Threads] = WeakKeyDictionary()


async def _call(run: Run, task: StepTask) -> Any:
    if inspect.iscoroutinefunction(task.function):
        return await in_own_context(task.function(*task.args, **task.kwargs))
    threads = run.call.step_threads
    if threads is None:
        threads = _threads.setdefault(asyncio.get_running_loop(), Threads(THREADS))
    value = await threads.run(lambda: task.function(*task.args, **task.kwargs), run.call.principal)
    return await in_own_context(awaiting(value)) if inspect.isawaitable(value) else value


def _recordable(task: StepTask, value: Any) -> Any:
    """Return the JSON form of a value.

    Raises:
        NotJson: the value has no JSON form.
    """
    where = f"the value of step {task.key!r}"
    conversion = find_conversion(task.function)
    if conversion is not None:
        return plain(conversion.to_json(value, where), where)
    try:
        return plain(value, where, exact=True)
    except NotJson as error:
        if not is_converted(value):
            raise
        name = type(value).__name__
        raise NotJson(f"{error}; or annotate the function's return type (-> {name})") from None


def _text(error: BaseException) -> str:
    # it may contain an undecodable file name
    return (text_of(error) or "").encode(errors="replace").decode()


def _log_failed(
    entry: Raised, error: BaseException | None, attempt: int, again_ms: int | None
) -> None:
    """Log a failed attempt, and the time of the retry in milliseconds since the epoch. The log
    omits the message of the entry, because the message may be meant for the caller."""
    reason = "ToolError" if entry.told else entry.how or entry.message.partition(":")[0]
    fields: dict[str, Any] = {"step": entry.key, "attempt": attempt, "reason": reason}
    if entry.reference is not None:
        fields["reference"] = entry.reference
    if entry.how is not None or isinstance(error, asyncio.CancelledError):
        error = None  # its traceback says nothing
    if again_ms is None and entry.told:
        log.info("a step ended with a tool error", extra={"fields": fields})
    elif again_ms is None:
        log.warning("a step failed", exc_info=error, extra={"fields": fields})
    else:
        fields["again"] = iso(again_ms)
        log.warning("a step failed, trying again", exc_info=error, extra={"fields": fields})


def _recorded_value(
    run: Run, entry: Finished | Raised | Began, name: str, function: Callable[..., Any]
) -> Any:
    """Return the handler's own copy of a recorded value, converted by the function's annotation.
    Raise the recorded error of a failed step.

    Raises:
        Suspend: the value does not fit the annotation; the run has ended.
    """
    run.mark_received(entry.key)
    run.is_message_over = True
    if not isinstance(entry, Finished):
        error = _recorded_error(entry, name)
        # a step's own ToolError is meant for the caller, not for the operator
        if not (isinstance(entry, Raised) and entry.told):
            error.failed_step = entry.key
        if isinstance(entry, Raised):
            error.reference = entry.reference
        raise error
    conversion = find_conversion(function)
    if conversion is None:
        return fresh(entry.value)
    try:
        return conversion.from_json(entry.value, entry.key)
    except NondeterminismError as other:
        run.fail(other)
        raise Suspend from None


def _recorded_error(entry: Raised | Began, name: str) -> RoundgateError:
    if isinstance(entry, Began):
        return OutcomeUnknown(name)
    message = entry.message
    if entry.told:
        return ToolError(message)
    if entry.how == TIMED_OUT:
        return StepTimeout(f"step {name!r} timed out: {message}")
    if entry.how == NOT_JSON:
        return NotJson(message)
    return StepFailed(f"step {name!r} failed: {message}")


def check_return(function: Callable[..., Any], name: str) -> None:
    """Check a function's return annotation before a call has effects.

    Raises:
        NotJson: the function is annotated to return a class that JSON cannot hold, or a type whose
            values would come back as others.
    """
    conversion = find_conversion(function)
    if conversion is not None and conversion.loss is not None:
        raise NotJson(
            f"step {name!r} returns {conversion.name}, which JSON cannot represent ({conversion.loss}): {REMEDY}"
        )
    if conversion is not None:
        return
    try:
        unheld = _unheld(returned(function))
    except TypeError:  # the function or its annotation cannot be hashed
        unheld = None
    if unheld is not None:
        raise NotJson(
            f"step {name!r} would return {unheld}, which JSON cannot represent: let its function return dict, "
            "list, str, int, float, bool, None, a pydantic model, a dataclass, "
            "or one of the types in `roundgate docs handlers`"
        )


_HELD: Final = (dict, list, tuple, str, int, float, bool, type(None))


@lru_cache(maxsize=512)
def _unheld(hint: Any) -> str | None:
    """Return the name of an annotated return class of which JSON can represent no value, otherwise
    `None`."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
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
    return hint.__name__ if not any(issubclass(json_type, hint) for json_type in _HELD) else None
