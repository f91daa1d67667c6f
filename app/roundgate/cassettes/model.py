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


class Course:
    """How a conversation stands. `initialize` begins the era of sessions, and
    each session after it."""

    def __init__(self) -> None:
        self.is_older = False
        self.version: str | None = None
        self.session: str | None = None

    def begins(self, message: Any) -> None:
        """A request is about to be sent."""
        if isinstance(message, dict) and message.get("method") == "initialize":
            self.is_older, self.version, self.session = True, None, None

    def answered(self, message: Any, answer: Any, headers: Mapping[str, str]) -> None:
        """Its answer is there."""
        if not isinstance(message, dict) or message.get("method") != "initialize":
            return
        result = answer.get("result") if isinstance(answer, dict) else None
        if isinstance(result, dict):
            self.version = str(result.get("protocolVersion"))
            self.session = headers.get("mcp-session-id")

    def headers(self, message: Any) -> dict[str, str]:
        """Headers that go without saying."""
        if self.is_older:
            found = {"mcp-protocol-version": self.version, "mcp-session-id": self.session}
            return {name: value for name, value in found.items() if value is not None}
        version = envelope_of(message).get("protocolVersion")
        return {"mcp-protocol-version": version} if isinstance(version, str) else {}


def envelope_of(message: Any) -> Json:
    """What a request of the modern revision says of its client, the prefix
    of the names left out."""
    params = message.get("params") if isinstance(message, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict):
        return {}
    return {name: meta[META + name] for name in ENVELOPE if META + name in meta}


def without_envelope(message: Json) -> Json:
    """A request without what its client says of itself each time."""
    params = dict(message["params"])
    meta = {
        name: value
        for name, value in params.pop("_meta").items()
        if name not in {META + one for one in ENVELOPE}
    }
    params |= {"_meta": meta} if meta else {}
    return {**message, "params": params}


def with_envelope(message: Json, client: Mapping[str, Any]) -> Json:
    """The other way round."""
    params = dict(message.get("params") or {})
    envelope = {META + name: value for name, value in client.items()}
    return {**message, "params": {**params, "_meta": {**(params.get("_meta") or {}), **envelope}}}
