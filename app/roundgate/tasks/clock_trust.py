"""The decision whether a process may end, resend or take over tasks by its clock.

Rows store in wall-clock time when a lease ends, a question times out, a task expires. A process
whose clock is a day ahead would end the tasks of all callers. The signs of a wrong clock:

    the others    each sweep leaves its time in the store, with what it has heard of other clocks, and
                  reads what the sweep before it left, whichever process that was. A process that has as
                  many against it as with it does nothing by its clock; one that is outvoted takes no work
    itself        its wall clock moved otherwise than its monotonic one

    set forward   nothing is resent or taken over until living leases were renewed; nothing expires for `HOLD_MS`
    set back      the same pause; then tasks that the clock before had put off are looked at (`take_set_back`)

A process that starts alone with a wrong clock cannot detect it. Fences, not this module, keep tasks
consistent. A wrong clock only ends tasks early or delays them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roundgate import json
from roundgate.clock import Clock, iso
from roundgate.storage import TaskStore
from roundgate.tasks.lease import Moment

DISAGREE_MS: Final = 300_000
"""How far two clocks may differ beyond `tasks.clock_skew_s`, in milliseconds."""
HEARD_MS: Final = 60_000
"""How long a report of another process's clock counts, in milliseconds."""
HOLD_MS: Final = 3_600_000
"""How long nothing expires after the clock was set forward, in milliseconds, which leaves time to
correct it. After that the clock is trusted, because most machines whose clock jumps forward were
suspended."""
RELAYED: Final = 8
"""The most other clocks that a process reports beside its own."""
LONGEST_LEASE_MS: Final = 900_000
"""The upper limit of `tasks.lease_s`, in milliseconds: a lease that ends later was given by a clock
that was ahead."""

log = logging.getLogger("roundgate.tasks")


@dataclass(frozen=True, slots=True)
class _Heard:
    """The clock of another process."""

    ahead_ms: int
    at_ms: float
    """When the clock was reported, in milliseconds on the monotonic clock."""
    directly: bool = True
    """Whether the process reported its own clock. Only such reports are passed on, so those of a
    process that has ended are forgotten."""


class ClockTrust:
    """One process's judgement of its own clock."""

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
        """Whether the first report found is much older than this clock: the others may be gone, or
        this clock is ahead. The next look decides."""
        self._others: dict[str, _Heard] = {}
        self._acts_from_ms = self._expires_from_ms = self._last.monotonic_ms
        self._set_back_ms = 0
        self.trouble: str | None = None
        """Why this process does not act by its clock, if other clocks disagree."""
        self.is_outvoted = False
        """Whether more other clocks agree with each other than with this one, so this clock is
        wrong. Times that it writes (of a sleep, a retry) would delay the others."""

    async def look(self, store: TaskStore) -> None:
        """Leave this process's time in the store, and compare the time that another process left.

        Raises:
            Unavailable
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
        """Return whether this process may end what seems to have expired."""
        return self.acts and self._last.monotonic_ms >= self._expires_from_ms

    def take_set_back(self) -> int:
        """Return how far in the future rows may wrongly lie, in milliseconds, and reset it; 0 if
        none do."""
        found, self._set_back_ms = self._set_back_ms, 0
        return found

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
        heard = [(name, one.ahead_ms) for name, one in self._others.items() if one.directly]
        ahead_ms = dict(heard[-RELAYED:])
        return json.encode({"by": self._me, "now_ms": self._last.wall_ms, "ahead_ms": ahead_ms})

    def _hear(self, said: Mapping[str, Any]) -> None:
        """Record the report of another process, made since this one last looked or earlier."""
        name, now = said["by"], self._last
        if name == self._me:
            return
        ahead_ms: int = said["now_ms"] - now.wall_ms
        if self._told_ms is None and ahead_ms < -self._tolerance_ms:
            self._is_unsure = True
            self._expires_from_ms = now.monotonic_ms + HEARD_MS
            return
        if self._told_ms is not None and ahead_ms < 0:
            ahead_ms = min(0, ahead_ms + round(now.monotonic_ms - self._told_ms))
        for other, further_ms in said["ahead_ms"].items():
            if other != self._me:
                heard = _Heard(ahead_ms + further_ms, now.monotonic_ms, directly=False)
                self._others[other] = heard
        self._others.pop(name, None)  # re-insert, so that the order is that of the reports
        self._others[name] = _Heard(ahead_ms, now.monotonic_ms)
        if ahead_ms > self._tolerance_ms:
            self._set_back_ms = max(self._set_back_ms, ahead_ms)

    def _agreeing(self, ahead_ms: int, others_ms: Sequence[int]) -> int:
        return sum(abs(one - ahead_ms) <= self._tolerance_ms for one in others_ms)

    def _judge(self) -> None:
        since_ms = self._last.monotonic_ms - HEARD_MS
        heard = {name: one for name, one in self._others.items() if one.at_ms >= since_ms}
        self._others = heard
        against = [one.ahead_ms for one in heard.values() if abs(one.ahead_ms) > self._tolerance_ms]
        with_me = 1 + len(heard) - len(against)
        self.is_outvoted = any(self._agreeing(one, against) > with_me for one in against)
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
            f"this process has {here}, another on the same store {elsewhere}: it ends, resends and"
            " takes over no task; set the clocks right"
        )
