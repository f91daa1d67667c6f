"""What a cassette holds: the HTTP exchanges of one conversation, normalised, and the
rules by which they were.

Values that differ from run to run stand as placeholders: `${state:1}` is the first `requestState`
of the conversation wherever it comes up again, `${time}` any moment. A text that has `${` in it is
written with one more `$` before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Json: TypeAlias = dict[str, Any]

VERSION: Final = 1
META: Final = "io.modelcontextprotocol/"
ENVELOPE: Final = ("protocolVersion", "clientInfo", "clientCapabilities")
"""The members of `_meta` (behind `io.modelcontextprotocol/`) that are the same in each
request of one client."""
MESSAGE: Final = ("id", "method", "params", "result", "error")


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of value that is normalised: by the names of its members, of
    headers, or by its looks.

    Values of a numbered rule are told apart, `${task:1}` from `${task:2}`;
    the others are all the same.
    """

    name: str
    members: Sequence[str] = ()
    headers: Sequence[str] = ()
    pattern: str | None = None
    numbered: bool = True


RULES: Final = (
    Rule("state", members=("requestState",)),
    Rule("task", members=("taskId", "taskIds")),
    Rule("id", members=("requestId", META + "subscriptionId")),
    Rule("token", members=("progressToken",)),
    Rule("elicitation", members=("elicitationId",)),
    Rule("cursor", members=("cursor", "nextCursor")),
    Rule("session", headers=("mcp-session-id",)),
    Rule("event", headers=("last-event-id",)),
    Rule(
        "time",
        members=("createdAt", "lastUpdatedAt"),
        pattern=r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?",
        numbered=False,
    ),
    Rule("uuid", pattern=r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
)
"""The rules of a new cassette. Ids of requests that a server sends are `${request:1}`, its
origin is `${server}`."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the client sent: a message (or a batch of them), a GET for a stream,
    a DELETE of a session."""

    http: str = "POST"
    message: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    own_envelope: bool = False
    """Whether `_meta` is in the message as it was, instead of what is the same in all requests."""
    text: str | None = None
    """A body that is no JSON."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream. `after` is the number of the interaction that
    had begun when it came."""

    message: Any = None
    event_id: str | None = None
    retry_ms: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """What came back: one message, a stream of events, or text. `end` says who ended it:
    "server", "client", "cut"."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    message: Any = None
    events: Sequence[Event] | None = None
    text: str | None = None
    end: str = "server"
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Interaction:
    """A request and its response; `None` if none came."""

    request: Request
    response: Response | None

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        message = self.request.message
        if self.request.http == "GET":
            return "open a stream"
        if self.request.http == "DELETE":
            return "end the session"
        if not isinstance(message, dict):
            return "a batch" if isinstance(message, list) else "no JSON"
        if "method" not in message:
            return f"answer {message.get('id')}"
        return f"{message['method']} {named(message)}".strip()


def named(message: Mapping[str, Any]) -> str:
    """What a request is about: the tool, the prompt, the resource, the task."""
    params = message.get("params")
    found = params if isinstance(params, dict) else {}
    return str(next((found[one] for one in ("name", "uri", "taskId") if one in found), ""))


@dataclass(frozen=True, slots=True)
class Cassette:
    """A conversation. `ignore` are paths that are not compared, `redact` those whose
    values were taken out."""

    interactions: Sequence[Interaction]
    rules: Sequence[Rule] = RULES
    ignore: Sequence[str] = ()
    redact: Sequence[str] = ()
    client: Mapping[str, Any] = field(default_factory=dict)
    """What each request of the modern revision has in `_meta`."""
