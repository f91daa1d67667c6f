"""The call that became a task, as bytes that any worker can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from roundgate import json
from roundgate.auth import Principal
from roundgate.errors import NotServedHere
from roundgate.protocol import ClientCapabilities, Meta
from roundgate.replay import Journal, from_row
from roundgate.tasks.stored import Claimed


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
            "principal": [
                principal.issuer,
                principal.subject,
                principal.client_id,
                sorted(principal.scopes),
            ],
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
