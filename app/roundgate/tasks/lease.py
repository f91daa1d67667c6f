"""How long a worker can rely on its lease, whatever the clocks do.

    renewal sent ──────▶ store writes until = sent + lease ──────▶ answer
         └ counted from here, by two clocks; the one that says less is left is believed

Wall clocks are set back and forth; a monotonic clock stands still while a machine sleeps.
Each covers for the other.

What a sweep goes by is the task's due time in an index, whose entry costs more to move than the
lease. So it is moved with one renewal in several, shortly before it comes, and never beyond where
the lease will have lapsed:

    created, due at 30 ── claim at 0 ── renewal at 15 ── at 25: lease to 55, due at 115 ── … ── at 110: due at 200
"""

from __future__ import annotations

from dataclasses import dataclass, field

from roundgate.clock import Clock

MARGIN_MS = 2_000
"""What must be left of a lease for a step to begin, or a quarter of the lease if that is more."""

SOON_PART = 1 / 6
"""Part of a lease between two heartbeats, at most: what is due before the next is moved now."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by both clocks, in milliseconds."""

    wall_ms: int
    monotonic_ms: float

    @classmethod
    def now(cls, clock: Clock) -> Moment:
        """The present moment."""
        return cls(clock.now_ms(), clock.monotonic_ms())


@dataclass(slots=True)
class LeaseTime:
    """How much of a lease is left. `lease_ms` is how long one is, `skew_ms` by how
    much clocks may differ."""

    clock: Clock
    lease_ms: int
    skew_ms: int
    _sent: Moment = field(init=False)

    def __post_init__(self) -> None:
        self._sent = Moment.now(self.clock)

    def claimed(self, until_ms: int) -> None:
        """Note a claim that holds until `until_ms`. How long ago it was made
        only the wall clock knows."""
        now = Moment.now(self.clock)
        sent_ms = until_ms - self.lease_ms
        self._sent = Moment(sent_ms, now.monotonic_ms - max(0, now.wall_ms - sent_ms))

    def renewed(self, sent: Moment) -> None:
        """Note that a renewal sent at that moment has been written, or a later one."""
        if sent.monotonic_ms >= self._sent.monotonic_ms:
            self._sent = sent

    @property
    def left_ms(self) -> float:
        """For how many milliseconds it holds for certain, if clocks differ by
        no more than `skew_ms`."""
        now = Moment.now(self.clock)
        gone_ms = max(now.wall_ms - self._sent.wall_ms, now.monotonic_ms - self._sent.monotonic_ms)
        return self.lease_ms - gone_ms

    @property
    def lets_begin(self) -> bool:
        """Whether enough of it is left for a step to begin. The heartbeat normally
        renews it long before."""
        return self.left_ms >= min(max(MARGIN_MS, self.lease_ms / 4), self.lease_ms / 3)

    @property
    def is_half_over(self) -> bool:
        """Whether it is time to renew it. A quick step ends before, and costs no renewal."""
        return self.left_ms < self.lease_ms / 2

    def until_ms(self, sent: Moment) -> int:
        """The end of a lease that is claimed or renewed at a moment."""
        return sent.wall_ms + self.lease_ms

    def due_ms(self, sent: Moment, now_due_ms: int) -> int | None:
        """When a sweep has to look whether its worker died: as soon as others may claim the task.

        `None` if it is due at `now_due_ms` and that is soon enough, and not too soon.
        """
        return self.until_ms(sent) + self.skew_ms if self.is_due_soon(now_due_ms) else None

    def is_due_soon(self, due_ms: int) -> bool:
        """Whether a sweep may find the task before the next heartbeat."""
        return due_ms < self.clock.now_ms() + self.lease_ms * SOON_PART
