"""The life of a task's row: when the task is ended at the latest, and when it expires.

Both times move with each wait: a sleep, an external event, a question, `ctx.restart`. Pauses between
polls do not move them.

    created ─── work, polls ─────────── ended: TaskTimeout ── result can be read ── expires
    created ─── wait ─────────────────────────── work, polls ───── ended ── … ── expires
                ╰ the same write extends the row ╯

A task is ended before its row expires, so that its client sees the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from roundgate.replay import Asked, Entry, Slept
from roundgate.settings import TasksConfig

SHARE: Final = 0.9
"""The part of its life after which a task is ended unless `tasks.task_timeout_s` is set."""

LEAST: Final = 0.01
"""The least part of its life by which a wait extends it."""


class Life(Struct, frozen=True):
    """The lengths of a task's life in milliseconds."""

    timeout_ms: int
    """The time for work and polls."""
    keep_ms: int
    """The time for which a task is kept after its creation or a wait, at least `timeout_ms`."""
    max_ms: int
    """The longest time from the creation of a task to its expiry."""

    @classmethod
    def from_config(cls, config: TasksConfig) -> Life:
        """Return the lengths that a configuration sets."""
        timeout_s = config.task_timeout_s or config.ttl_s * SHARE
        keep_s = max(config.ttl_s, timeout_s / SHARE)
        return cls(
            int(timeout_s * 1000), int(keep_s * 1000), int(max(keep_s, config.max_ttl_s) * 1000)
        )

    def expires_ms(self, created_ms: int, from_ms: int) -> int:
        """Return the expiry of a task that waits until `from_ms`, or was created then."""
        return min(from_ms + self.keep_ms, created_ms + self.max_ms)

    def extended_ms(self, created_ms: int, expires_ms: int, from_ms: int) -> int:
        """Return the expiry of a task after a wait until `from_ms`. It does not move by less than a
        hundredth of the task's life, so that `ttlMs` of a task with short waits stays the same."""
        later_ms = self.expires_ms(created_ms, from_ms)
        return later_ms if later_ms - expires_ms >= self.keep_ms * LEAST else expires_ms

    def end_ms(self, created_ms: int, expires_ms: int) -> int:
        """Return when a task is ended that still works or polls."""
        return max(created_ms + self.timeout_ms, expires_ms - self.keep_ms + self.timeout_ms)

    def limit(self, created_ms: int, expires_ms: int) -> str:
        """Return the setting that `end_ms` follows from."""
        is_extended = expires_ms > created_ms + self.keep_ms
        is_longest = expires_ms >= created_ms + self.max_ms
        return f"tasks.{'max_ttl_s' if is_extended and is_longest else 'task_timeout_s'}"

    def last_ms(self, created_ms: int) -> int:
        """Return the time until which a task can wait, however often it is extended."""
        return self.end_ms(created_ms, created_ms + self.max_ms)


def waits_until_ms(entries: Iterable[Entry]) -> int:
    """Return the latest end of the waits in a journal; 0 without any."""
    return max((_until_ms(entry) for entry in entries), default=0)


def _until_ms(entry: Entry) -> int:
    match entry:
        case Slept(until_ms=until_ms, was_left=None) | Asked(until_ms=int(until_ms)):
            return until_ms
    return 0
