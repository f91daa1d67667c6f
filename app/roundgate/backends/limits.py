"""Limits on the calls of a back end or a tool (`limits` in gateway.yaml), whoever makes them.

    a call ──▶ a place and a token are free, and no call waits ──▶ the tool
         ├───▶ it waits in the queue ──▶ its turn ──▶ a place ──▶ a token ──▶ the tool
         └───▶ too many calls wait, or it has waited `wait_s` ──▶ BackendBusy

Callers take turns in the queue, and the calls of one caller keep their order, so a caller with many
calls delays another caller by one call at most. If the queue is full, a call of a caller with fewer
waiting calls replaces the newest call of the caller with the most. Tokens are those of
`storage.rates`, with one bucket for all callers.

The end of a call frees its place. A plain function cannot be cancelled, so the place of a cancelled
call is freed when its function ends.

Each round of a call counts, and each turn of a task. A call that may become a task waits for
`TASK_WAIT_S`; then it becomes one. A task waits as long, or not at all if `_MAX_TASKS` wait already,
because it holds its worker; then BackendBusy ends its turn, and the worker releases it until later.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from roundgate.aio import FUNCTIONS, RunningFunctions, after_functions
from roundgate.backends.approvals import around_calls, like
from roundgate.backends.base import Bound, CallTool, Returned, Tool
from roundgate.backends.config import BackendConfig, BackendLimits
from roundgate.clock import Clock
from roundgate.errors import BackendBusy
from roundgate.observability.metrics import Metrics
from roundgate.replay import AnyContext, Call, call_of
from roundgate.storage import SessionStore
from roundgate.storage.rates import Buckets, Caller, Quota, make_buckets

TASK_WAIT_S: Final = 1.0
"""Seconds for which a task waits in the queue and holds its worker, and a call that may become a task
waits before it becomes one."""
_MAX_TASKS: Final = 2
"""The number of tasks that wait at once for a back end or tool. More would hold all workers."""
_EVERYBODY: Final[Caller] = ("", "", "")
"""The key of the one bucket."""


WaitingCall: TypeAlias = asyncio.Future[bool]
"""A call in the queue. Its result is True when it is the first one, and False if a call of another
caller has displaced it."""


class WaitingCalls:
    """The queue of waiting calls. Callers take turns, and the calls of one caller keep their
    order."""

    def __init__(self) -> None:
        self._callers: OrderedDict[Caller, deque[WaitingCall]] = OrderedDict()
        self._first: WaitingCall | None = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def join(self, caller: Caller) -> WaitingCall:
        """Add a call."""
        turn: WaitingCall = asyncio.get_running_loop().create_future()
        self._callers.setdefault(caller, deque()).append(turn)
        self._size += 1
        if self._first is None:
            self._begin_turn()
        return turn

    def displace(self, caller: Caller) -> bool:
        """Remove the newest call of the caller with the most calls, if that leaves it as many as
        `caller` will have with one more; return whether a call was removed."""
        most = max(self._callers.values(), key=len)
        if len(most) < len(self._callers.get(caller, ())) + 2:
            return False
        turn = most.pop()  # not the first call of the queue, because its caller has another one
        self._size -= 1
        if not turn.done():
            turn.set_result(False)
        return True

    def leave(self, caller: Caller, turn: WaitingCall) -> None:
        """Remove a call, unless another one has displaced it. After the turn of a caller comes the
        next caller."""
        calls = self._callers.get(caller)
        if calls is None or turn not in calls:
            return
        calls.remove(turn)
        self._size -= 1
        if not calls:
            del self._callers[caller]
        elif turn is self._first:
            self._callers.move_to_end(caller)
        if turn is self._first:
            self._begin_turn()

    def _begin_turn(self) -> None:
        self._first = next((calls[0] for calls in self._callers.values()), None)
        if self._first is not None and not self._first.done():
            self._first.set_result(True)


class _Use:
    """The running and waiting calls of a back end or tool."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.running = 0
        self.most: float = inf
        """The limit on running calls: that of the latest call, whose limiter is the newest."""
        self.waiting = WaitingCalls()
        self.tasks = 0
        """The number of waiting calls of tasks."""
        self.freed: asyncio.Future[None] | None = None
        """Set while the first waiting call needs a place."""

    def wake(self) -> None:
        """Let the first waiting call look for a place."""
        if self.freed is not None and not self.freed.done():
            self.freed.set_result(None)

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget the calls of another event loop, which has ended."""
        if loop is not self.loop:
            self.loop, self.running, self.tasks = loop, 0, 0
            self.waiting, self.freed = WaitingCalls(), None


class CallLimiter:
    """The limits on the calls of one back end or tool in this process.

    Args:
        name: the back end or tool, in error messages and metrics.
        before: the limiter before a reload, whose calls still count; otherwise `None`.
        rows: the store of shared buckets; `None` makes this process count by itself.
    """

    def __init__(
        self,
        name: str,
        config: BackendLimits,
        before: CallLimiter | None,
        rows: SessionStore | None,
        clock: Clock,
    ) -> None:
        self.name = name
        self._config = config
        self._clock = clock
        self._most = inf if config.concurrent is None else config.concurrent
        self._use: _Use = _Use() if before is None else before._use
        self._buckets: Buckets | None = None
        if config.calls_per_minute is None:
            return
        self._quota = Quota(config.calls_per_minute, config.burst or config.calls_per_minute)
        if before is not None and before._config.shared == config.shared:
            self._buckets = before._buckets
        if self._buckets is None:
            shared = rows if config.shared else None
            self._buckets = make_buckets(f"limits {name}", self._quota, shared, clock, most=1)

    @property
    def use(self) -> tuple[int, int]:
        """The numbers of running and waiting calls."""
        return self._use.running, len(self._use.waiting)

    @asynccontextmanager
    async def place(
        self, caller: Caller, wait_s: float, *, is_task: bool = False
    ) -> AsyncIterator[None]:
        """Hold a place for the block. Wait for it at most `wait_s` seconds, and no longer than the
        configuration says.

        Raises:
            BackendBusy: too many calls wait, or no place became free in time.
        """
        self._use.follow(asyncio.get_running_loop())
        if self._use.most != self._most:  # the first call after a reload
            self._use.most = self._most
            self._use.wake()
        if self._use.waiting or not await self._enter():
            wait_s = min(wait_s, self._config.wait_s)
            await (self._wait_as_task if is_task else self._wait)(caller, wait_s)
        try:
            yield
        finally:
            after_functions(self._leave)

    async def _enter(self) -> bool:
        """Take a place and a token; return whether both were free."""
        if self._use.running >= self._use.most:
            return False
        self._use.running += 1
        try:
            is_in = not await self._take()
        except BaseException:
            self._leave()
            raise
        if not is_in:
            self._leave()
        return is_in

    async def _wait_as_task(self, caller: Caller, wait_s: float) -> None:
        use = self._use
        if use.tasks >= _MAX_TASKS:
            raise self._busy(f"{use.tasks} tasks wait for it already")
        use.tasks += 1
        try:
            await self._wait(caller, wait_s)
        finally:
            use.tasks -= 1

    async def _wait(self, caller: Caller, wait_s: float) -> None:
        waiting = self._use.waiting
        full = f"{len(waiting)} calls wait for it already"
        if len(waiting) >= self._config.waiting and not (waiting and waiting.displace(caller)):
            raise self._busy(full)
        turn = waiting.join(caller)
        # a task of its own, because the journal records a time limit that cancels the handler
        entering = asyncio.create_task(self._enter_in_turn(turn))
        timer = asyncio.get_running_loop().call_later(wait_s, entering.cancel)
        try:
            await asyncio.wait([entering])
        except asyncio.CancelledError:
            has_ended = not entering.cancel() and not entering.cancelled()
            if has_ended and entering.exception() is None and entering.result():
                self._leave()
            raise
        finally:
            timer.cancel()
            waiting.leave(caller, turn)
        if entering.cancelled():
            raise self._busy(f"this call has waited for {wait_s:.3g} s")
        if not entering.result():
            raise self._busy(full)
        Metrics().limited(self.name, "waited")

    async def _enter_in_turn(self, turn: WaitingCall) -> bool:
        """Take a place and a token when the call is the first one; return False if it has been
        displaced."""
        if not await turn:
            return False
        await self._enter_first()
        return True

    async def _enter_first(self) -> None:
        """Take a place and a token as soon as both are free."""
        while self._use.running >= self._use.most:
            self._use.freed = asyncio.get_running_loop().create_future()
            await self._use.freed
        self._use.running += 1
        try:
            while wait_ms := await self._take():
                await self._clock.sleep(wait_ms / 1000)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        self._use.running -= 1
        self._use.wake()

    async def _take(self) -> int:
        """Take a token; return 0, or the milliseconds until there may be one."""
        if self._buckets is None:
            return 0
        if self._buckets.quota != self._quota:  # the first call after a reload
            self._buckets.quota = self._quota
        return await self._buckets.take(_EVERYBODY)

    def _busy(self, reason: str) -> BackendBusy:
        Metrics().limited(self.name, "refused")
        config = self._config
        limits = [
            f"{most} calls {when}"
            for most, when in (
                (config.concurrent, "at once"),
                (config.calls_per_minute, "a minute"),
            )
            if most is not None
        ]
        return BackendBusy(
            f"{self.name} is busy: it takes {' and '.join(limits)}, and {reason}; try again later"
        )


def limited(tool: Tool, limiters: Sequence[CallLimiter]) -> Tool:
    """Return the tool with the limits of these limiters around its own call."""
    if not limiters:
        return tool

    def wrap(call: CallTool) -> CallTool:
        async def in_place(context: Any, arguments: dict[str, Any]) -> Returned:
            async with _places(limiters, context, tool):
                return await call(context, arguments)

        return like(call, in_place)

    bind = tool.bind
    if bind is None:
        return around_calls(tool, wrap)

    def bind_in_place(arguments: dict[str, Any]) -> Bound:
        bound = bind(arguments)

        async def in_place(context: Any) -> Returned:
            async with _places(limiters, context, tool):
                return await bound.call(context)

        return replace(bound, call=in_place)

    return around_calls(tool, wrap, bind=bind_in_place)


@asynccontextmanager
async def _places(
    limiters: Sequence[CallLimiter], context: AnyContext, tool: Tool
) -> AsyncIterator[None]:
    """Hold a place of each limiter for the block. A call needs none that ends the external work of a
    task, only becomes a task, or whose request was sent without the engine."""
    call = call_of(context)
    is_task = call.task_id is not None
    may_become_task = isinstance(call, Call) and call.may_become_task
    only_becomes_task = may_become_task and tool.begins_as_task
    if call.cleanup is not None or call.begun is not None or only_becomes_task:
        yield
        return
    async with AsyncExitStack() as held:
        held.callback(FUNCTIONS.set, None)
        FUNCTIONS.set(RunningFunctions())
        for limiter in limiters:
            left_ms = call.deadline.remaining_ms()
            wait_s = inf if left_ms is None else left_ms / 1000
            if is_task or may_become_task:
                wait_s = min(wait_s, TASK_WAIT_S)
            place = limiter.place(call.principal.identity, wait_s, is_task=is_task)
            await held.enter_async_context(place)
        yield


class Limiters:
    """The limiters of one back end and its tools.

    Args:
        before: the limiters of the back end of this name before a reload.
        rows: the store of shared buckets; `None` makes this process count by itself.
    """

    def __init__(
        self,
        config: BackendConfig,
        before: Limiters | None,
        rows: SessionStore | None,
        clock: Clock,
    ) -> None:
        limits: dict[str | None, BackendLimits | None] = {
            name: own.limits for name, own in config.override.items()
        }
        limits[None] = config.limits
        self._limiters: dict[str | None, CallLimiter] = {}
        """The limiter of each tool, by its name without prefix; that of the back end at `None`."""
        for tool, own_limits in limits.items():
            if own_limits is not None:
                name = config.name if tool is None else f"{config.effective_prefix}{tool}"
                earlier = None if before is None else before._limiters.get(tool)
                self._limiters[tool] = CallLimiter(name, own_limits, earlier, rows, clock)

    def around(self, tool: Tool) -> Tool:
        """Return a tool with its limits around its call: its own, then the limits of the back end."""
        places = (tool.definition["name"], None)
        return limited(tool, [self._limiters[each] for each in places if each in self._limiters])

    def uses(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of running and waiting calls, by the name of the back end or tool."""
        return {limiter.name: limiter.use for limiter in self._limiters.values()}
