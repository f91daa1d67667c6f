"""Waiting: sleeps, time limits, and the places where a handler ends its
round or turn, to go on later.

A short wait holds the round or the worker. A longer one ends it: an ordinary call answers its
client or becomes a task, a task frees its worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from roundgate.errors import Suspend
from roundgate.replay.asyncio_internals import engine_call
from roundgate.replay.branches import Branch, Scope
from roundgate.replay.cuts import be_cut_if_before, noting_cut
from roundgate.replay.journal import Cut, Passed, Slept, Told, plain
from roundgate.replay.recording import compare, learn, remember, tell
from roundgate.replay.run import HOLD_MS, Run

SHED_MARGIN_MS: Final = 250
"""What has to be left of the time, beyond what a step is expected to take,
for another to be begun."""


@engine_call
async def shed(run: Run, name: str) -> None:
    """End this round or turn once; the client's next retry, or another
    worker, goes on from here."""
    branch = await run.enter("shed", name)
    key = run.come_to(branch, "shed", name)
    if key not in run.journal.steps:
        async with noting_cut(run, key):
            await remember(run, Passed(key))
            await run.park(branch)
    await _pass(run, branch, key)


@engine_call
async def continue_as_task(run: Run) -> None:
    """End the ordinary call here, if it may go on as a task; nothing happens if it may
    not, or already is one."""
    branch = await run.enter("task")
    key = run.come_to(branch, "task", "task")
    if run.call.may_become_task:
        run.want_task()
        async with noting_cut(run, key):
            await run.park(branch)
    await _pass(run, branch, key)


async def _pass(run: Run, branch: Branch, key: str) -> None:
    """Go on after a place where a round or turn ended."""
    await be_cut_if_before(run, branch, key)
    async with noting_cut(run, key):
        await learn(run, branch, key)
    run.has_learned(key)


@engine_call
async def restart(run: Run, arguments: Mapping[str, Any]) -> NoReturn:
    """End this run, and begin another with a fresh journal and these arguments."""
    branch = await run.enter("restart")
    run.begin_anew(plain(arguments, "the arguments of ctx.restart"))
    await run.park(branch)


@engine_call
async def sleep(run: Run, name: str, seconds: float) -> None:
    """Wait `seconds` once; a later run waits for what is left of them. A task
    holds no worker meanwhile."""
    branch = await run.enter("sleep", name)
    key = run.come_to(branch, "sleep", name)
    until_ms = _time_of(run, key, "sleep", seconds)
    await be_cut_if_before(run, branch, key)
    async with noting_cut(run, key, _time_identity("sleep", seconds)):
        await _sleep(run, branch, key, until_ms)


@engine_call
async def sleep_until(run: Run, name: str, until_ms: int) -> None:
    """Wait for a moment, in milliseconds since the epoch."""
    branch = await run.enter("sleep", name)
    key = run.come_to(branch, "sleep", name)
    what = f"sleep until {until_ms}"
    compare(run, key, what)
    await be_cut_if_before(run, branch, key)
    run.journal.add(Slept(key, until_ms, what))
    async with noting_cut(run, key, what):
        await _sleep(run, branch, key, until_ms)


async def _sleep(run: Run, branch: Branch, key: str, until_ms: int) -> None:
    if Told.of(key).key not in run.journal.steps:
        await wait_until(run, branch, until_ms)
    await learn(run, branch, key)


@engine_call
async def begin_limit(run: Run, name: str, seconds: float) -> tuple[Branch, Slept]:
    """Begin a time limit; return its branch and entry. The entry is written with the next step, so
    the limit outlives the process."""
    branch = await run.enter("timeout", name)
    key = run.come_to(branch, "timeout", name)
    is_new = key not in run.journal.steps
    compare(run, key, _time_identity("timeout", seconds))
    begun = _begun(run, key, "timeout", seconds)
    if is_new:
        run.unwritten.append(begun)
    return branch, begun


def _time_of(run: Run, key: str, kind: str, seconds: float) -> int:
    """When a sleep or time limit is over, in milliseconds since the epoch. A new one is written
    with whatever the run writes next; if that is nothing, no later run depends on it."""
    compare(run, key, _time_identity(kind, seconds))
    if isinstance(run.journal.steps.get(key), Cut):
        return run.clock.now_ms()
    return _begun(run, key, kind, seconds).until_ms


def _begun(run: Run, key: str, kind: str, seconds: float) -> Slept:
    known = run.journal.steps.get(key)
    if not isinstance(known, Slept):
        until_ms = run.clock.now_ms() + round(seconds * 1000)
        known = Slept(key, until_ms, _time_identity(kind, seconds))
        run.journal.add(known)
    return known


def _time_identity(kind: str, seconds: float) -> str:
    return f"{kind} {round(seconds * 1000)} ms"


async def wait_until(run: Run, branch: Branch, until_ms: int) -> None:
    """Wait until `until_ms` (milliseconds since the epoch): here if that is soon, else by
    ending the round or turn.

    An ordinary call that may become a task does so if the moment is beyond its deadline. One that
    may not ends its round just before the deadline, and goes on waiting in the next one.
    """
    if until_ms <= run.clock.now_ms() and all(
        until_ms <= scope.until_ms for scope in branch.limits
    ):
        return
    await within_scopes(run, branch)
    limits_ms = [scope.until_ms for scope in branch.limits if branch.is_thread]
    await _wait(run, branch, min([until_ms, *limits_ms]))
    if any(limit_ms < until_ms for limit_ms in limits_ms):
        await within_scopes(run, branch)


async def _wait(run: Run, branch: Branch, until_ms: int) -> None:
    left_ms = until_ms - run.clock.now_ms()
    remaining_ms = run.call.deadline.remaining_ms()
    here_ms = math.inf if remaining_ms is None else max(0.0, remaining_ms - SHED_MARGIN_MS)
    if run.call.task_id is not None:
        here_ms = min(here_ms, HOLD_MS)
    if run.call.needs_row and run.call.may_become_task:
        here_ms = 0.0
    if left_ms <= here_ms:
        await _wait_here(run, left_ms)
        return
    if run.call.task_id is None and not run.call.may_become_task:
        await _wait_here(run, here_ms)
    run.want_task()
    await run.quiescence.park(branch, until_ms, until_ms - run.clock.now_ms())


async def _wait_here(run: Run, for_ms: float) -> None:
    await run.quiescence.sleep(max(0.0, for_ms) / 1000)


async def within_scopes(run: Run, branch: Branch) -> None:
    """Return once no durable time limit around the branch is about to end its block.

    A limit that has passed usually cancels the branch here, by itself or by way of the task that
    entered its block. If that task goes on in the block (it catches the cancellation, or waits for
    this branch in a `finally`), the branch goes on too, as inside `asyncio.timeout`.

    Raises:
        Suspend: the run has ended meanwhile.
        TimeoutError: a limit is over, and the branch is a thread, which cannot be cancelled.
    """
    while over := fire_scopes(run, branch):
        if branch.is_thread:
            raise TimeoutError("the time limit around it is over")
        if run.stopped is not None:
            raise Suspend
        with run.quiescence.moving():
            await over[0].wait_until_settled()
        if over[0].is_pending:
            raise Suspend
    if any(scope.has_fired for scope in branch.limits):
        # after everything that follows from the end of the limit
        await tell(run, branch, run.order_here.new_rank())


def fire_scopes(run: Run, branch: Branch) -> list[Scope]:
    """Let the limits that are over pass; return those that have not ended their blocks yet."""
    now_ms = run.clock.now_ms()
    over = [s for s in branch.limits if s.until_ms <= now_ms and not s.has_fired]
    for scope in over:
        scope.fire()
    return over
