"""The run of a task's handler: a heartbeat renews its lease, writes are retried, and a handler that
does not end is cancelled, then abandoned.

    stopped (lease lost, time is up, suspended but still running) ── GRACE_S ── cancelled ── GRACE_S ── abandoned

A handler that is starting external work (`Run.beginning`) first receives the response.

The handler runs in an asyncio task of its own, so the turn ends even if the handler ignores a
cancellation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from roundgate import aio
from roundgate.backends import Returned
from roundgate.clock import Clock
from roundgate.errors import CallTimeout, LeaseLost, QuotaExceeded, TaskTimeout, ToolError
from roundgate.replay import Failed, Stop, Suspended, engine, inside
from roundgate.tasks import watchdog
from roundgate.tasks.lease import ClockTrust
from roundgate.tasks.watchdog import RUNNING

if TYPE_CHECKING:
    from roundgate.tasks.turn import Carrier

log = logging.getLogger("roundgate.tasks")

T = TypeVar("T")

PAUSES_S: Final = (0.1, 0.5, 2.0, *[5.0] * 60)
"""The pauses in seconds between attempts at a failing write: five minutes in all. If the lease
cannot be renewed meanwhile, other workers find the task once the store is back."""


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work. A cancellation is raised only after the work has ended."""
    task = _apart(work)
    cancelled = await aio.to_its_end(task)
    if cancelled is None or task.cancelled():
        return task.result()
    # the work has handled its error; retrieve it, so that asyncio does not report it
    task.exception()
    raise cancelled


class Patience:
    """Repeats a write after errors, until it succeeds, the lease is lost, or time is up."""

    def __init__(self, is_over: Callable[[], bool], **fields: Any) -> None:
        """Make a retrier. `is_over` returns whether the time is over; `fields` are logged with each
        failure."""
        self._is_over = is_over
        self._fields = fields
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Make one more attempt at most, because the process is about to end."""
        self._hurry.set()

    async def attempt(self, what: str, write: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a write, and repeat the write until it succeeds or the time is over.

        Raises:
            LeaseLost, QuotaExceeded: the write raised it; these errors are never retried.
            Exception: the error of the last attempt.
        """
        for pause_s in PAUSES_S:
            try:
                return await write()
            except (LeaseLost, QuotaExceeded):
                raise
            except Exception as error:
                if self._hurry.is_set() or self._is_over():
                    raise
                self._tell(what, error)
            await self._pause(pause_s)
        return await write()

    def _tell(self, what: str, error: Exception) -> None:
        fields = {**self._fields, "error": f"{type(error).__name__}: {error}"[:500]}
        log.warning("%s failed, trying again", what, extra={"fields": fields})

    async def _pause(self, pause_s: float) -> None:
        hurry = _apart(self._hurry.wait())
        try:
            await asyncio.wait([hurry], timeout=pause_s)
        finally:
            hurry.cancel()


def _apart(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start an asyncio task outside of every handler."""
    with inside(None):
        return asyncio.create_task(work)


class Heartbeat:
    """A context manager that calls `beat` repeatedly until the block ends: `async with
    Heartbeat(every_s, beat): …`.

    The heartbeat is an asyncio task of its own. It survives its own errors, which it logs, and a
    handler that cancels every task of the event loop.
    """

    def __init__(self, every_s: float, beat: Callable[[], Awaitable[None]], **fields: Any) -> None:
        """Make a heartbeat with a period of `every_s` seconds. `fields` are logged with each
        error."""
        self._every_s = every_s
        self._beat = beat
        self._fields = fields
        self._is_over = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Heartbeat:
        self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
            # unlike `await task`, this does not confuse its end with a cancellation of this task
            await asyncio.wait([self._task])

    def _start(self) -> None:
        self._task = asyncio.create_task(self._go_on())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Start again if the task was ended from outside, perhaps before it started."""
        if self._is_over:
            return
        log.warning("a heartbeat was interrupted and continues", extra={"fields": self._fields})
        self._start()

    async def _go_on(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._every_s)
            try:
                await self._beat()
            except Exception as error:
                log.warning("a heartbeat failed", exc_info=error, extra={"fields": self._fields})


GRACE_S: Final = 2.0
"""The time in seconds for which a stopped handler may continue before it is cancelled, and then
again before it is abandoned."""
LOOK_S: Final = 5.0
"""The time in seconds between two checks of the row while no step ends; the delay until a
cancellation takes effect."""
JOB_LOOK_S: Final = 1.0
"""The same for a task with a job, which its service should end soon."""
LATE_S: Final = 0.5
"""The grace in seconds after the turn's own deadline."""
TICK_S: Final = 0.25
"""The time in seconds between two checks whether to end a handler."""

Outcome: TypeAlias = engine.Outcome[Returned]


class Running:
    """A run in progress, until it has ended or was abandoned."""

    def __init__(
        self,
        carrier: Carrier,
        tool: str,
        clock: Clock,
        trust: ClockTrust,
        *,
        lease_s: float,
    ) -> None:
        """Make a run that has not started. `lease_s` is the length of a lease in seconds."""
        self.carrier = carrier
        self.tool = tool
        self._clock = clock
        self._trust = trust
        self._every_s = min(1.0, lease_s / 6)
        self._last_look_ms = clock.monotonic_ms()
        self._told_s: float | None = None
        self._root: asyncio.Task[Outcome] | None = None

    def facts(self) -> dict[str, Any]:
        """Return the fields for the log."""
        return {"task": str(self.carrier.ref), "name": self.tool}

    def ids(self) -> dict[str, Any]:
        """Return the ids of the task as members of a record of the audit log."""
        call_id = self.carrier.claimed.record.call_id
        return {"call": call_id, "task": str(self.carrier.ref), "tool": self.tool}

    def request_stop(self) -> None:
        """Ask the run to release its task at the next step."""
        self.carrier.run.request_stop()

    @property
    def is_abandoned(self) -> bool:
        """Return whether the turn has ended while the handler still runs."""
        root = self.carrier.run.root_task
        return root is not None and not root.done()

    async def outcome(self, handler: Callable[[], Awaitable[Returned]]) -> Outcome:
        """Return the outcome of the handler, or the reason for its forced end.

        Raises:
            LeaseLost: this worker no longer holds the task.
            Exception: a fault of the gateway, for instance of the store.
        """
        if self._is_late:
            return Failed(self._timeout())
        self._root = root = asyncio.create_task(self._run(handler))
        try:
            async with Heartbeat(self._every_s, self._beat, **self.facts()):
                while not root.done() and not self._is_given_up():
                    await asyncio.wait([root], timeout=TICK_S)
        except asyncio.CancelledError:
            await self._cancel()
            raise
        return self._result(root)

    async def _run(self, handler: Callable[[], Awaitable[Returned]]) -> Outcome:
        RUNNING.set(self)
        watchdog.attend()
        return await engine.run_handler(handler, self.carrier.run)

    def _result(self, root: asyncio.Task[Outcome]) -> Outcome:
        if self.carrier.lost:
            self._leave(root)
            raise LeaseLost(self.carrier.ref.id)
        fault = self.carrier.fault
        if fault is not None:
            self._leave(root)
            if isinstance(fault, ToolError):
                return Failed(fault)
            raise fault
        if root.done() and not root.cancelled():
            return root.result()
        self._leave(root)
        return self._ended()

    def _ended(self) -> Outcome:
        """Return the outcome of a handler that produced none."""
        run = self.carrier.run
        if run.call.deadline.is_past:
            return Failed(CallTimeout("The call did not finish within the time of its worker"))
        # the run was suspended, but the handler continued
        if run.stopped is Stop.SUSPENDED:
            return Suspended(run.requests, run.journal, run.wants_task, run.wake_ms, run.awaited)
        return Failed(RuntimeError("the handler cancelled itself"))

    def _leave(self, root: asyncio.Task[Outcome]) -> None:
        root.add_done_callback(_seen)
        if self.is_abandoned:
            log.error("a handler does not end and is abandoned", extra={"fields": self.facts()})

    async def _cancel(self) -> None:
        """End the handler because the process stops, and wait at most `GRACE_S` for it."""
        assert self._root is not None, "the handler has started"
        self._root.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._root], timeout=GRACE_S)
        self._leave(self._root)

    # while it runs

    async def _beat(self) -> None:
        if self._is_late:
            self.carrier.end(self._timeout())
        try:
            await self.carrier.attend(look=self._is_time_to_look())
        except LeaseLost:
            self.carrier.lose()

    @property
    def _is_late(self) -> bool:
        return self._clock.now_ms() >= self.carrier.end_ms and self._trust.expires

    def _timeout(self) -> TaskTimeout:
        return TaskTimeout(
            f"The task exceeded the time limit of this server ({self.carrier.limit})"
        )

    def _is_time_to_look(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        every_s = JOB_LOOK_S if self.carrier.cleans_up else LOOK_S
        is_time = now_ms - self._last_look_ms >= every_s * 1000
        if is_time:
            self._last_look_ms = now_ms
        return is_time

    def _is_given_up(self) -> bool:
        """Return whether to abandon the handler, because it was stopped long ago. Cancel it after
        half of that time; at once if a job has to be cancelled."""
        run = self.carrier.run
        if not run.call.deadline.is_past and (run.stopped is None or run.is_beginning):
            return False
        now_s = asyncio.get_running_loop().time()
        self._told_s = now_s if self._told_s is None else self._told_s
        grace_s = LATE_S if run.call.deadline.is_past else GRACE_S
        is_urgent = self.carrier.lost and self.carrier.cleans_up
        if self._root is not None and (is_urgent or now_s - self._told_s >= grace_s):
            self._root.cancel()
        return now_s - self._told_s >= 2 * grace_s


def _seen(root: asyncio.Task[Any]) -> None:
    """Retrieve the exception of an abandoned handler, so that asyncio does not report it."""
    if not root.cancelled():
        root.exception()
