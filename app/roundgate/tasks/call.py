"""The call that became a task, as bytes that any worker can read, and the life of its row: when the
task is ended at the latest, and when it expires.

Both times move with each wait: a sleep, an external event, a question, `ctx.restart`. Pauses between
polls do not move them.

    created ─── work, polls ─────────── ended: TaskTimeout ── result can be read ── expires
    created ─── wait ─────────────────────────── work, polls ───── ended ── … ── expires
                ╰ the same write extends the row ╯

A task is ended before its row expires, so that its client sees the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from roundgate import json
from roundgate.auth import Principal
from roundgate.errors import NotServedHere
from roundgate.protocol import ClientCapabilities, Meta
from roundgate.replay import Asked, Entry, Journal, Slept, from_row
from roundgate.settings import TasksConfig
from roundgate.tasks.stored import Claimed

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


class TaskCall(Struct, frozen=True):
    """A `tools/call` with all data of its request that the handler may need later."""

    tool: str
    arguments: Mapping[str, Any]
    principal: Principal
    capabilities: Mapping[str, Any]
    """The capabilities that the client declared in the call."""
    client_info: Mapping[str, Any] | None = None
    origin: Mapping[str, str] = field(default_factory=dict)
    """The trace context of the call."""
    generation: int = 1
    """As `Journal.generation`."""
    view: str = ""
    """The view of the tool; empty for the endpoint of all tools."""
    substituted: Mapping[str, Any] = field(default_factory=dict)
    """The capabilities that the gateway substitutes for undeclared ones
    (`ClientCapabilities.substituted`)."""
    continues: str | None = None
    """The id of the task whose work this one continues. The handler and its services see that id,
    so that the keys of its steps stay the same."""

    def to_bytes(self) -> bytes:
        """Return the call as the store keeps it."""
        principal = self.principal
        facts = {
            "tool": self.tool,
            "arguments": dict(self.arguments),
            "principal": [*principal.identity, sorted(principal.scopes)],
            "capabilities": dict(self.capabilities),
            "client_info": self.client_info,
            "origin": dict(self.origin),
            "generation": self.generation,
            "view": self.view,
            "substituted": dict(self.substituted),
            "continues": self.continues,
        }
        if principal.kept_claims:  # a worker of an earlier version cannot read this member
            facts["claims"] = dict(principal.kept_claims)
        return json.encode(facts)

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskCall:
        """Return the call that `to_bytes` wrote.

        Raises:
            ParseError, ValueError, TypeError, KeyError: another program or a later version wrote
                the bytes.
        """
        facts = json.decode(data)
        issuer, subject, client_id, scopes = facts.pop("principal")
        kept = facts.pop("claims", {})
        principal = Principal(issuer, subject, client_id, frozenset(scopes), kept_claims=kept)
        return cls(principal=principal, **facts)

    def meta(self) -> Meta:
        """Return the request's `_meta` for the handler in the task, without progress token and log
        level: a task sends no notifications on the stream of a request."""
        info = None if self.client_info is None else dict(self.client_info)
        return Meta(
            ClientCapabilities(self.capabilities, self.substituted),
            info,
            log_level=None,
            progress_token=None,
        )


UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError)
"""The errors of decoding bytes from a later version or another program."""


def read_task(claimed: Claimed) -> tuple[TaskCall, Journal]:
    """Return the call and the journal of a claimed task.

    Raises:
        NotServedHere: another version wrote one of them.
    """
    try:
        task_call = TaskCall.from_bytes(claimed.call)
    except UNREADABLE as error:
        raise NotServedHere("can read its call") from error
    try:
        return task_call, make_journal(claimed, task_call)
    except UNREADABLE as error:
        raise NotServedHere("can read its journal") from error


def make_journal(claimed: Claimed, task_call: TaskCall) -> Journal:
    """Return the journal of a task, with its answers and the payloads of external events. Keys of a
    task are never reused, so old answers match no new question.

    Raises:
        ParseError, ValueError, TypeError, KeyError: this version cannot read the journal.
    """
    journal = Journal(state=json.decode(claimed.state), generation=task_call.generation)
    for entry in claimed.journal:
        journal.add(from_row(json.decode(entry)))
    answers = {key: json.decode(answer) for key, answer in claimed.answers.items()}
    journal.receive(answers)
    journal.deliver(answers, {mark.name for mark in claimed.record.events})
    return journal
