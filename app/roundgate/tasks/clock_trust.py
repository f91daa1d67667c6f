"""The trust of a process in its clock (`ClockTrust`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from roundgate import json
from roundgate.clock import Clock, Moment, iso
from roundgate.tasks.stored import StoredTasks

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
