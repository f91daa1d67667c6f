"""The remaining time of a worker's lease, and the trust of a process in its clock (`ClockTrust`).

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

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct

from roundgate import json
from roundgate.clock import Clock, iso
from roundgate.tasks.stored import StoredTasks

MARGIN_MS = 2_000
"""The part of a lease in milliseconds that must be left for a step to begin, or a quarter of the
lease if that is more."""

SOON_PART = 1 / 6
"""The longest time between two heartbeats as a part of a lease: a renewal moves a due time within
this time."""


class Moment(Struct, frozen=True):
    """A moment by both clocks, in milliseconds."""

    wall_ms: int
    monotonic_ms: float

    @classmethod
    def now(cls, clock: Clock) -> Moment:
        """Return the current moment."""
        return cls(clock.now_ms(), clock.monotonic_ms())


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

log = logging.getLogger("roundgate.tasks")


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
