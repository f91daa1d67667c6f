"""A time limit that outlives its process: `async with ctx.timeout(3600): …`
around anything that waits.

The limit begins when the handler first reaches it and passes its number of seconds later, whichever
process runs the handler then. A task is woken for it. Its end is recorded:

    passed     an entry with a place in the order, written before the block ends with `TimeoutError`;
               later runs end the block at that place, whatever their clock says
    left       the block was left in time; the limit passes in no later run

A limit that has passed without a recorded end first lets the branches receive everything recorded,
and ends its block when that asks for something new.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Final

from roundgate.clock import Timer
from roundgate.replay.asyncio_internals import engine_call
from roundgate.replay.branches import Branch, inside
from roundgate.replay.journal import Slept, Told
from roundgate.replay.quiescence import wake
from roundgate.replay.recording import write
from roundgate.replay.run import Run
from roundgate.replay.waiting import begin_limit

LATE_S: Final = 1.0
"""How long a limit that was over before its block began leaves to code that does not ask
the engine for anything."""


class TimeLimit:
    """`until_ms` is the moment at which it is over, in milliseconds since the epoch."""

    def __init__(self, run: Run, name: str, seconds: float) -> None:
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
        """Set while the limit waits only for code that makes no call of ctx."""
        self._error: BaseException | None = None
        """The error that prevented recording that the limit passed."""
        self._is_ending = False
        self._is_noted = False
        """Whether it is recorded, or about to be, that the limit passed."""
        self.has_fired = False
        """Whether it has ended its block, or is about to."""
        self._is_left = False
        self._settled = asyncio.Event()
        """Set once the limit has fired, its block has been left, or its run has ended."""
        self.until_ms = 0

    @property
    def is_left(self) -> bool:
        """Whether the block has ended."""
        return self._is_left

    @property
    def is_pending(self) -> bool:
        """Whether it is about to end its block, now or later."""
        return not self.has_fired and not self.is_left

    async def wait_until_settled(self) -> None:
        """Return once the limit has fired, its block has been left, or its run has ended."""
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
            self._is_noted = True
            self._begin_passing(self._pass_again)
        elif left_s > 0:
            self._timer = self._run.clock.call_later(left_s, self.fire)
        else:
            self._hurry = asyncio.get_running_loop().create_future()
            self._begin_passing(self._pass_first)
        return self

    @engine_call
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        is_late = self._is_noted and not self.has_fired and _is_own_end(kind)
        self._is_ending = True
        try:
            if is_late:
                await self._wait_until_passed()
        finally:
            self._leave()
        if self._error is not None and (self.has_fired or is_late):
            raise self._error
        if self._task is not None and self.has_fired:
            # only our own cancellation becomes TimeoutError; an external one propagates
            is_ours = self._task.uncancel() <= self._cancelling
            is_late = is_ours and kind is not None and issubclass(kind, CancelledError)
        if is_late and self._run.stopped is None:
            raise TimeoutError(f"the limit of {self._seconds:g} s is over") from error
        if self._begun is not None and not self._is_noted and self._may_note(kind):
            left = replace(self._begun, was_left=True)
            self._run.journal.add(left)
            self._run.unwritten.append(left)

    async def _wait_until_passed(self) -> None:
        order = self._run.order_here
        if order.is_new(self._told.key) and self._passing is not None:
            await asyncio.wait([self._passing])
        elif not order.is_new(self._told.key):
            await order.turn(order.rank(self._told.key))

    def fire(self) -> None:
        """Let the limit pass now, unless its block ends before everything recorded has been
        delivered."""
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
        except BaseException as error:  # whatever it is, the block must hear of it
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
        """Wait until everything recorded has been delivered and nothing waits for its turn; record
        that the limit passes; return at the place of that entry in the order."""
        if self._hurry is not None:
            await asyncio.wait([self._hurry], timeout=LATE_S)
        order = self._run.order_here
        await order.reach(math.inf)
        if self._run.stopped is not None:
            return
        self._is_noted = True
        rank = order.new_rank()
        try:
            await write(self._run, self._told)
            await order.turn(rank)
        except BaseException:
            order.drop(rank)
            raise

    def _leave(self) -> None:
        self._is_left = True
        self._settled.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._passing is not None:
            self._passing.cancel()
        self._run.limits.discard(self)
        if self._branch is not None:
            self._branch.scopes = tuple(scope for scope in self._branch.scopes if scope is not self)

    def _may_note(self, kind: type[BaseException] | None) -> bool:
        """Return whether the handler itself left the block, rather than the end of its run or of
        the loop."""
        is_own = _is_own_end(kind) or (kind is not None and issubclass(kind, CancelledError))
        return is_own and self._run.stopped is None and not self._run.is_being_ended


def _is_own_end(kind: type[BaseException] | None) -> bool:
    return kind is None or issubclass(kind, Exception)
