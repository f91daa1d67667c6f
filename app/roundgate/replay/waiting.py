"""Sleeps, time limits, and the places where a handler ends its round or turn to continue later.

A short wait holds the round or the worker. A longer wait ends the round or turn: an ordinary call
answers its client or becomes a task, and a task releases its worker.

A time limit (`async with ctx.timeout(3600): …`) begins when the handler first enters its block and
passes after its number of seconds, whichever process then runs the handler. The journal records the
end:

    passed     an entry with a place in the order, written before the block ends with `TimeoutError`;
               later runs end the block at that place, whatever their clock says
    left       the block was left in time; the limit passes in no later run

If a limit has passed without a recorded end, the branches first receive all recorded results; then
the limit ends its block.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn

from msgspec.structs import replace

from roundgate.clock import Timer, iso
from roundgate.errors import ToolError, Unrepeatable
from roundgate.replay.asyncio_internals import NEVER_ENDS, active_timeout, engine_call
from roundgate.replay.branches import Branch, Scope, inside, wake
from roundgate.replay.journal import Passed, Slept, Told, plain
from roundgate.replay.recording import (
    compare,
    record,
    recording_cut,
    repeat_cut,
    take_event,
    within_scopes,
    write,
)
from roundgate.replay.run import HOLD_FOR_TIMEOUTS_S, HOLD_MS, Run

LATE_S: Final = 1.0
"""The time in seconds for code without calls of ctx in a block whose limit had already passed at
its start."""
SHED_MARGIN_MS: Final = 250
"""The time in milliseconds that must be left for a new step, beyond its expected duration."""


@engine_call
async def shed(run: Run, name: str) -> None:
    """End this round or turn once. The client's next retry, or another worker, continues after the
    call."""
    branch = await run.enter("shed", name)
    key = run.come_to(branch, "shed", name)
    if key not in run.journal.steps:
        async with recording_cut(run, key):
            await record(run, Passed(key))
            await run.park(branch)
    await _pass(run, branch, key)


@engine_call
async def continue_as_task(run: Run) -> None:
    """End the round of an ordinary call that may become a task; otherwise do nothing."""
    branch = await run.enter("task")
    key = run.come_to(branch, "task", "task")
    if run.call.may_become_task:
        run.wants_task = True
        async with recording_cut(run, key):
            await run.park(branch)
    await _pass(run, branch, key)


async def _pass(run: Run, branch: Branch, key: str) -> None:
    """Continue after a place where a round or turn ended."""
    await repeat_cut(run, key)
    async with recording_cut(run, key):
        await take_event(run, branch, key)
    run.mark_received(key)


@engine_call
async def restart(run: Run, arguments: Mapping[str, Any]) -> NoReturn:
    """End this run, so that the handler begins again with an empty journal and these arguments."""
    branch = await run.enter("restart")
    run.restart_arguments = plain(arguments, "the arguments of ctx.restart")
    await run.park(branch)


@engine_call
async def sleep(run: Run, name: str, seconds: float = 0.0, until_ms: int | None = None) -> None:
    """Wait until `until_ms`, in milliseconds since the epoch, or for `seconds` from the first run
    that reaches this place."""
    branch = await run.enter("sleep", name)
    key = run.come_to(branch, "sleep", name)
    what = _for_seconds("sleep", seconds) if until_ms is None else f"sleep until {until_ms}"
    compare(run, key, what)
    await repeat_cut(run, key)
    if until_ms is None:
        until_ms = run.clock.now_ms() + round(seconds * 1000)
    if key not in run.journal.steps:
        check_wait(run, until_ms)
    begun = _begun(run, Slept(key, until_ms, what))
    async with recording_cut(run, key, what):
        if Told.of(key).key not in run.journal.steps:
            await wait_until(run, branch, begun.until_ms)
        await take_event(run, branch, key)


@engine_call
async def begin_limit(run: Run, name: str, seconds: float) -> tuple[Branch, Slept]:
    """Begin a time limit and return its branch and entry. The entry is written with the next
    step."""
    branch = await run.enter("timeout", name)
    key = run.come_to(branch, "timeout", name)
    what = _for_seconds("timeout", seconds)
    compare(run, key, what)
    is_new = key not in run.journal.steps
    begun = _begun(run, Slept(key, run.clock.now_ms() + round(seconds * 1000), what))
    if is_new:
        run.unwritten.append(begun)
    return branch, begun


def check_wait(run: Run, until_ms: int) -> None:
    """Check that a new wait can end within the life of the task.

    Raises:
        ToolError: the wait ends later than `tasks.max_ttl_s` allows.
    """
    last_ms = run.call.last_ms
    if last_ms is not None and until_ms > last_ms:
        raise ToolError(
            f"The call would wait until {iso(until_ms)}, but a task can wait until {iso(last_ms)} "
            "at the latest (tasks.max_ttl_s). Wait for less, or raise that setting"
        )


def _for_seconds(kind: str, seconds: float) -> str:
    """Return the identity of a sleep or time limit."""
    return f"{kind} {round(seconds * 1000)} ms"


def _begun(run: Run, new: Slept) -> Slept:
    """Return the entry of an earlier run, or add the new one to the journal. The entry of a sleep
    is written when the run is suspended; if the process dies before, the next run starts the sleep
    again."""
    entry = run.journal.steps.get(new.key)
    if isinstance(entry, Slept):
        return entry
    run.journal.add(new)
    return new


async def wait_until(run: Run, branch: Branch, until_ms: int) -> None:
    """Wait until `until_ms` (milliseconds since the epoch): in this process if that is soon,
    otherwise by ending the round or turn.

    If the moment is after the deadline, an ordinary call that may become a task becomes one. Any
    other ordinary call ends its round just before the deadline, and continues to wait in the next
    round.
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
        await run.quiescence.sleep(max(0.0, left_ms) / 1000)
        return
    if run.call.task_id is None and not run.call.may_become_task:
        await run.quiescence.sleep(here_ms / 1000)
    run.wants_task = True
    await run.quiescence.park(branch, until_ms, until_ms - run.clock.now_ms())


def refuse_timeout(run: Run, branch: Branch) -> None:
    """Raise Unrepeatable if a timer of asyncio around a question or an event would never end it,
    because no process waits for the timer. A task keeps its worker for `HOLD_FOR_TIMEOUTS_S`."""
    longest_s = 0.0 if run.call.task_id is None else HOLD_FOR_TIMEOUTS_S
    lengths_s = run.owner.timeouts.around(branch.path)
    is_in_root = run.root_coroutine is not None and run.root_task is asyncio.current_task()
    if any(longest_s < length_s < math.inf for length_s in lengths_s) or (
        not is_in_root and active_timeout(run.root_coroutine)
    ):
        raise Unrepeatable(NEVER_ENDS)
    run.owner.asks_in_root = is_in_root  # its timers can be seen once it waits


class TimeLimit(Scope):
    """A durable time limit around a block. The limit passes at `until_ms` (milliseconds since the
    epoch)."""

    def __init__(self, run: Run, name: str, seconds: float) -> None:
        super().__init__()
        self._run = run
        self._name = name
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._branch: Branch | None = None
        self._begun: Slept | None = None
        self._timer: Timer | None = None
        self._passing: asyncio.Task[None] | None = None
        self._hurry: asyncio.Future[None] | None = None
        """Set while the limit waits only for code without calls of ctx."""
        self._error: BaseException | None = None
        """The error that prevented recording that the limit passed."""
        self._is_ending = False
        self._is_recorded = False
        """Whether the passing of the limit is recorded or about to be."""
        self._settled = asyncio.Event()

    @property
    def is_pending(self) -> bool:
        return not self.has_fired and not self.is_left

    async def wait_until_settled(self) -> None:
        await self._settled.wait()

    async def __aenter__(self) -> TimeLimit:
        self._branch, self._begun = await begin_limit(self._run, self._name, self._seconds)
        self.until_ms = self._begun.until_ms
        if self._begun.was_left:
            return self
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        self._branch.scopes += (self,)
        self._run.limits.add(self)
        left_s = (self.until_ms - self._run.clock.now_ms()) / 1000
        if self._told.key in self._run.journal.steps:
            self._is_recorded = True
            self._begin_passing(self._pass_again)
        elif left_s > 0:
            self._timer = self._run.clock.call_later(left_s, self.fire)
        else:
            self._hurry = asyncio.get_running_loop().create_future()
            self._begin_passing(self._pass_first)
        return self

    @engine_call
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        is_late = self._is_recorded and not self.has_fired and _is_own_end(kind)
        self._is_ending = True
        try:
            if is_late:
                await self._wait_until_passed()
        finally:
            self._leave()
        if self._error is not None and (self.has_fired or is_late):
            raise self._error
        pending: CancelledError | None = None
        if self._task is not None and self.has_fired:
            if _is_own_end(kind):
                pending = await _pending_cancellation()
            is_cancelled = pending is not None or _is_cancellation(kind)
            # only the limit's own cancellation becomes TimeoutError; an external one propagates
            is_ours = self._task.uncancel() <= self._cancelling
            is_late = is_ours and is_cancelled
        if is_late and self._run.stopped is None:
            raise TimeoutError(f"the time limit of {self._seconds:g} s is over") from error
        if pending is not None:
            raise pending
        if self._begun is not None and not self._is_recorded and self._may_record_leaving(kind):
            entry = replace(self._begun, was_left=True)
            self._run.journal.add(entry)
            self._run.unwritten.append(entry)

    async def _wait_until_passed(self) -> None:
        order = self._run.order_here
        if order.is_new(self._told.key) and self._passing is not None:
            await asyncio.wait([self._passing])
        elif not order.is_new(self._told.key):
            await order.turn(order.rank(self._told.key))

    def fire(self) -> None:
        """Let the limit pass, unless its block ends before all recorded results are delivered."""
        if self._hurry is not None:
            wake(self._hurry)
        elif self.is_pending and self._passing is None and self._run.stopped is None:
            self._begin_passing(self._pass_first)

    @property
    def _told(self) -> Told:
        """Return the entry that records that the limit passed."""
        return Told.of("" if self._begun is None else self._begun.key)

    def _begin_passing(self, passing: Callable[[], Awaitable[None]]) -> None:
        with inside(None):
            self._passing = asyncio.ensure_future(self._end_block(passing))

    async def _end_block(self, passing: Callable[[], Awaitable[None]]) -> None:
        """End the block once the limit has passed, or the attempt to record it has failed."""
        try:
            with self._run.quiescence.moving():
                await passing()
        except CancelledError:
            self._settled.set()
            return  # the block was left
        except BaseException as error:  # any error must reach the block
            self._error = error
        is_over = self._run.stopped is not None and self._error is None
        if self._task is not None and not self._is_ending and not is_over:
            self.has_fired = True
            self._task.cancel()
        self._settled.set()

    async def _pass_again(self) -> None:
        """Return at the place in the order at which the limit passed in an earlier run."""
        order = self._run.order_here
        rank = order.rank(self._told.key)
        try:
            await order.reach(rank)
        except CancelledError:
            order.drop(rank)
            raise

    async def _pass_first(self) -> None:
        """Wait until all recorded results have been delivered and no branch waits for its turn.
        Then record that the limit passes, and return at the place of that entry in the order."""
        if self._hurry is not None:
            await asyncio.wait([self._hurry], timeout=LATE_S)
        order = self._run.order_here
        if self._hurry is not None or not order.is_idle:
            await order.reach(math.inf)
        if self._run.stopped is not None:
            return
        self._is_recorded = True
        rank = order.new_rank()
        try:
            await write(self._run, self._told)
            await order.turn(rank)
        except BaseException:
            order.drop(rank)
            raise

    def _leave(self) -> None:
        self.is_left = True
        self._settled.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._passing is not None:
            self._passing.cancel()
        self._run.limits.discard(self)
        if self._branch is not None:
            self._branch.scopes = tuple(scope for scope in self._branch.scopes if scope is not self)

    def _may_record_leaving(self, kind: type[BaseException] | None) -> bool:
        """Return whether the handler itself left the block, rather than the end of its run or of
        the loop."""
        is_own = _is_own_end(kind) or _is_cancellation(kind)
        return is_own and self._run.stopped is None and not self._run.is_being_ended


async def _pending_cancellation() -> CancelledError | None:
    """Take and return the cancellation that the current task would get at its next wait.

    A branch that was cancelled while it received a value is cancelled again for its next wait. Its
    block may end before.
    """
    try:
        await asyncio.sleep(0)
    except CancelledError as error:
        return error
    return None


def _is_own_end(kind: type[BaseException] | None) -> bool:
    return kind is None or issubclass(kind, Exception)


def _is_cancellation(kind: type[BaseException] | None) -> bool:
    return kind is not None and issubclass(kind, CancelledError)
