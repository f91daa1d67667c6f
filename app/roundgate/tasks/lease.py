"""The lease of a turn: the time that it has left, the heartbeat that renews it, and the patience
that repeats a write under it until the store takes it.

    renewal sent ──────▶ store writes until = sent + lease ──────▶ answer
         └ counted from here, by two clocks; the shorter remaining time counts

A wall clock can be set forward or back; a monotonic clock stops while the machine sleeps. Using
both covers both cases.

A sweep finds tasks by their due time in an index, whose entry costs more to move than the lease. So
only one of several renewals moves the due time, shortly before it passes, and never beyond the
moment at which the lease will have lapsed:

    created, due at 30 ── claim at 0 ── renewal at 15 ── at 25: lease to 55, due at 115 ── … ── at 110: due at 200
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from roundgate import aio
from roundgate.clock import Clock, Moment
from roundgate.errors import LeaseLost, QuotaExceeded
from roundgate.replay import (
    inside,
)

log = logging.getLogger("roundgate.tasks")

MAX_MESSAGE_DELAY_MS: Final = 900_000
"""The maximum delay of a message in SQS, in milliseconds. The sweep wakes tasks that sleep
longer."""
MARGIN_MS = 2_000
"""The part of a lease in milliseconds that must be left for a step to begin, or a quarter of the
lease if that is more."""

SOON_PART = 1 / 6
"""The longest time between two heartbeats as a part of a lease: a renewal moves a due time within
this time."""


@dataclass(slots=True)
class LeaseTime:
    """The remaining time of a lease. `lease_ms` is the length of a lease, `skew_ms` the maximum
    difference of clocks, both in milliseconds."""

    clock: Clock
    lease_ms: int
    skew_ms: int
    _sent: Moment = field(init=False)

    def __post_init__(self) -> None:
        self._sent = Moment.now(self.clock)

    def claimed(self, until_ms: int) -> None:
        """Record a claim that holds until `until_ms`. Only the wall clock shows when the claim was
        made."""
        now = Moment.now(self.clock)
        sent_ms = until_ms - self.lease_ms
        self._sent = Moment(sent_ms, now.monotonic_ms - max(0, now.wall_ms - sent_ms))

    def renewed(self, sent: Moment) -> None:
        """Record that the store has a renewal that was sent at `sent` or later."""
        if sent.monotonic_ms >= self._sent.monotonic_ms:
            self._sent = sent

    @property
    def left_ms(self) -> float:
        """Return the milliseconds for which the lease certainly holds, if clocks differ by at most
        `skew_ms`."""
        now = Moment.now(self.clock)
        gone_ms = max(now.wall_ms - self._sent.wall_ms, now.monotonic_ms - self._sent.monotonic_ms)
        return self.lease_ms - gone_ms

    @property
    def lets_begin(self) -> bool:
        """Return whether enough of the lease is left to begin a step. The heartbeat normally renews
        the lease long before."""
        return self.left_ms >= min(max(MARGIN_MS, self.lease_ms / 4), self.lease_ms / 3)

    @property
    def is_half_over(self) -> bool:
        """Return whether the lease should be renewed. A quick step ends before that and costs no
        renewal."""
        return self.left_ms < self.lease_ms / 2

    def until_ms(self, sent: Moment) -> int:
        """Return the end of a lease that is claimed or renewed at a moment, in milliseconds since
        the epoch."""
        return sent.wall_ms + self.lease_ms

    def due_ms(self, sent: Moment, now_due_ms: int) -> int | None:
        """Return when a sweep has to check whether the worker died: as soon as other workers may
        claim the task, in milliseconds since the epoch. Return `None` if `now_due_ms` can stay."""
        return self.until_ms(sent) + self.skew_ms if self.is_due_soon(now_due_ms) else None

    def is_due_soon(self, due_ms: int) -> bool:
        """Return whether a sweep may find the task before the next heartbeat."""
        return due_ms < self.clock.now_ms() + self.lease_ms * SOON_PART


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

    async def __aexit__(self, *_: object) -> None:
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
