"""Steps: a function is run once and its outcome remembered; later runs of the handler get
the remembered outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from roundgate.errors import NondeterminismError, Suspend
from roundgate.json import digest, fresh
from roundgate.replay.asyncio_internals import engine_call
from roundgate.replay.branches import Branch, InStep, inside
from roundgate.replay.cuts import be_cut_again, noting_cut
from roundgate.replay.identity import identity
from roundgate.replay.journal import Began, Cut, Entry, Finished, Raised, Tried
from roundgate.replay.recording import be_admitted, compare, in_order, learn, remember
from roundgate.replay.run import Run
from roundgate.replay.step_values import conversion_of
from roundgate.replay.steps import (
    ONCE,
    WATCH,
    Options,
    Running,
    Task,
    attempt,
    check_return,
    log_failed,
    outcome_of,
)
from roundgate.replay.waiting import SHED_MARGIN_MS, wait_until, within_scopes

SLOWER: Final = 1.25
"""What a step is expected to take: the longest so far times this. Steps of seconds differ
by more than a margin."""


@engine_call
async def step(
    run: Run,
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Options = ONCE,
) -> Any:
    """What the function returned, now or in an earlier run. It is run once,
    and its outcome remembered.

    Args:
        run: the run of the handler.
        name: the step's place in its branch.
        function: called with `args` and `kwargs`, in a thread if it is a plain function.
        args: must be the same in every run.
        kwargs: the same.
        options: time limit, retries, and whether it may be run again after a crash.

    Raises:
        StepFailed: it raised, now or then. (A `ToolError` is raised again as such.)
        NotJson: what it returned cannot be remembered.
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
    """Call a function every `every_s` seconds until it returns something other than
    `None`; that is remembered.

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
        Suspend: the value does not fit the annotation; the run has ended with
            `NondeterminismError`.
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
    """The step at its place; ends the run if something else was there before."""
    key = run.come_to(branch, "step", name)
    what = identity(kind, function, args, kwargs)
    compare(run, key, what)
    return Task(key, what, function, args, kwargs)


async def _before_step(run: Run, branch: Branch, *, needs_task: bool = False) -> None:
    """At the boundary of a step: stop if there is no time for it, or no
    certainty that it may begin."""
    if run.stopped is not None:  # while it waited
        await run.refuse()
    await within_scopes(run, branch)
    becomes_task = run.call.may_become_task and (run.call.needs_row or needs_task)
    remaining_ms = run.call.deadline.remaining_ms()
    short = remaining_ms is not None and remaining_ms < run.longest_ms * SLOWER + SHED_MARGIN_MS
    if run.stop_requested or becomes_task or (short and run.steps_run > 0):
        run.want_task()
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
    """Run a step; returns what is remembered of it, or `None` if nothing is."""
    run.go_beyond()
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
            run.note_step(run.clock.monotonic_ms() - begun_ms, has_ended=entry is not None)
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
    """An idempotency key: the same in every run of the call, another for
    each place in its handler."""
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
