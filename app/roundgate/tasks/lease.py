"""The lease of a turn: the time that it has left, the heartbeat that renews it, and the patience
that repeats a write under it until the store takes it; and the trust of a process in the clock by
which leases end (`ClockTrust`).

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
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from msgspec import Struct

from roundgate import aio, json
from roundgate.clock import Clock, Moment, iso
from roundgate.errors import LeaseLost, QuotaExceeded
from roundgate.replay import (
    inside,
)
from roundgate.tasks.stored import StoredTasks

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


DISAGREE_MS: Final = 300_000
"""The accepted difference of two clocks beyond `tasks.clock_skew_s`, in milliseconds."""
HEARD_MS: Final = 60_000
"""The time for which a report of another process's clock counts, in milliseconds."""
HOLD_MS: Final = 3_600_000
"""The time in milliseconds for which nothing expires after the clock was set forward, so that an
operator can correct it. After that the clock is trusted, because most machines whose clock jumps
forward were suspended."""
RELAYED: Final = 8
"""The maximum number of other clocks in a process's report."""
LONGEST_LEASE_MS: Final = 900_000
"""The upper limit of `tasks.lease_s` in milliseconds. A lease that ends later comes from a clock
that was ahead."""


class _Heard(Struct, frozen=True):
    """A report of the clock of another process."""

    ahead_ms: int
    at_ms: float
    """When the report was received, in milliseconds on the monotonic clock."""
    directly: bool = True
    """Whether the process reported its own clock. Only such reports are relayed, so that the clock
    of a process that has ended is forgotten."""


class ClockTrust:
    """Decides whether a process may end, resend or take over tasks by its clock.

    Rows store in wall-clock time when a lease ends, a question times out, a task expires. A process
    whose clock is a day ahead would end the tasks of all callers. A process detects a wrong clock
    by two signs, and pauses after a jump:

        the others    each sweep leaves its time in the store, with the reports that it received, and reads
                      the report of the previous sweep. If as many clocks disagree with a process as agree
                      with it, it does not act by its clock; if more disagree, it takes no tasks
        itself        its wall clock moved by more or less than its monotonic clock

        set forward   it resends and takes over nothing until valid leases were renewed, and expires nothing
                      for `HOLD_MS`
        set back      the same pause; then it checks tasks that the earlier clock had postponed (`take_set_back`)

    A process that starts alone with a wrong clock cannot detect the error. Fences keep tasks
    consistent in any case: a wrong clock only ends tasks early or delays them.
    """

    def __init__(self, clock: Clock, lease_ms: int, skew_ms: int) -> None:
        self._clock = clock
        self._me = clock.new_id()
        self._tolerance_ms = DISAGREE_MS + skew_ms
        self._pause_ms = lease_ms + skew_ms
        self._last = Moment.now(clock)
        self._told_ms: float | None = None
        """When this process last left its time in the store, in milliseconds on the monotonic
        clock."""
        self._is_unsure = False
        """Whether the first report is much older than this clock: either the other processes have
        ended, or this clock is ahead. The next report decides."""
        self._others: dict[str, _Heard] = {}
        self._acts_from_ms = self._expires_from_ms = self._last.monotonic_ms
        self._set_back_ms = 0
        self.trouble: str | None = None
        """The reason why this process does not act by its clock, if other clocks disagree."""
        self.is_outvoted = False
        """Whether more other clocks agree with each other than with this one, so this clock is
        wrong. Times that it writes (of a sleep, a retry) would delay other processes."""

    async def look(self, store: StoredTasks) -> None:
        """Write this process's time to the store, and compare it with the latest report of another
        process.

        Raises:
            Unavailable: the store cannot be reached.
        """
        self._notice_jump()
        before = await store.tell_time(self._said())
        self._notice_jump()
        self._is_unsure = False
        if before is not None:
            self._hear(json.decode(before))
        self._told_ms = self._last.monotonic_ms
        self._judge()

    @property
    def acts(self) -> bool:
        """Return whether this process may act on leases that seem to have lapsed."""
        self._notice_jump()
        is_time = self._last.monotonic_ms >= self._acts_from_ms
        return is_time and self.trouble is None and not self._is_unsure

    @property
    def expires(self) -> bool:
        """Return whether this process may end tasks that seem to have expired."""
        return self.acts and self._last.monotonic_ms >= self._expires_from_ms

    def take_set_back(self) -> int:
        """Return the milliseconds by which times in rows may wrongly lie in the future, and reset
        the value; 0 if none do."""
        set_back_ms, self._set_back_ms = self._set_back_ms, 0
        return set_back_ms

    def _notice_jump(self) -> None:
        now, before = Moment.now(self._clock), self._last
        expected_ms = before.wall_ms + round(now.monotonic_ms - before.monotonic_ms)
        jumped_ms = now.wall_ms - expected_ms
        self._last = now
        if abs(jumped_ms) <= self._tolerance_ms:
            return
        self._others.clear()
        self._acts_from_ms = self._expires_from_ms = now.monotonic_ms + self._pause_ms
        if jumped_ms > 0:
            self._expires_from_ms = now.monotonic_ms + HOLD_MS
        self._set_back_ms = max(self._set_back_ms, -jumped_ms)
        fields = {"from": iso(expected_ms), "to": iso(now.wall_ms)}
        log.error("the clock was set", extra={"fields": fields})

    def _said(self) -> bytes:
        """Return this process's report for the store."""
        heard = [(name, other.ahead_ms) for name, other in self._others.items() if other.directly]
        ahead_ms = dict(heard[-RELAYED:])
        return json.encode({"by": self._me, "now_ms": self._last.wall_ms, "ahead_ms": ahead_ms})

    def _hear(self, report: Mapping[str, Any]) -> None:
        """Record the report of another process."""
        name, now = report["by"], self._last
        if name == self._me:
            return
        ahead_ms: int = report["now_ms"] - now.wall_ms
        if self._told_ms is None and ahead_ms < -self._tolerance_ms:
            self._is_unsure = True
            self._expires_from_ms = now.monotonic_ms + HEARD_MS
            return
        if self._told_ms is not None and ahead_ms < 0:
            ahead_ms = min(0, ahead_ms + round(now.monotonic_ms - self._told_ms))
        for other, further_ms in report["ahead_ms"].items():
            if other != self._me:
                heard = _Heard(ahead_ms + further_ms, now.monotonic_ms, directly=False)
                self._others[other] = heard
        self._others.pop(name, None)  # re-insert, to order by time of report
        self._others[name] = _Heard(ahead_ms, now.monotonic_ms)
        if ahead_ms > self._tolerance_ms:
            self._set_back_ms = max(self._set_back_ms, ahead_ms)

    def _agreeing(self, ahead_ms: int, others_ms: Sequence[int]) -> int:
        return sum(abs(other_ms - ahead_ms) <= self._tolerance_ms for other_ms in others_ms)

    def _judge(self) -> None:
        since_ms = self._last.monotonic_ms - HEARD_MS
        heard = {name: report for name, report in self._others.items() if report.at_ms >= since_ms}
        self._others = heard
        against = [
            report.ahead_ms
            for report in heard.values()
            if abs(report.ahead_ms) > self._tolerance_ms
        ]
        with_me = 1 + len(heard) - len(against)
        self.is_outvoted = any(self._agreeing(report, against) > with_me for report in against)
        if not against or len(against) < with_me:
            if self.trouble is not None:
                log.info("the clock is trusted again")
            self.trouble = None
            return
        here = iso(self._last.wall_ms)
        elsewhere = iso(self._last.wall_ms + max(against, key=abs))
        if self.trouble is None:
            fields = {"here": here, "elsewhere": elsewhere}
            log.error("the clock is not trusted", extra={"fields": fields})
        self.trouble = (
            f"the clock of this process shows {here}, the clock of another process on the same store"
            f" {elsewhere}: this process ends, resends and takes over no task; correct the clocks"
        )
