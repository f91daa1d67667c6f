"""The model of a cassette and its file: the normalized HTTP exchanges of one conversation, and the
rules of normalization.

Values that differ from run to run are replaced by placeholders: `${state:1}` is the first
`requestState` of the conversation wherever it appears, `${time}` any time. A literal `${` has an
additional `$` in front.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, StrictBool, StrictInt, model_validator
from pydantic.dataclasses import dataclass

from roundgate_testing.cassettes.matching import steps

Json: TypeAlias = dict[str, Any]

VERSION: Final = 1
META: Final = "io.modelcontextprotocol/"
ENVELOPE: Final = ("protocolVersion", "clientInfo", "clientCapabilities")
"""The members of `_meta`, without the prefix `io.modelcontextprotocol/`, that a client repeats in
each request."""
MESSAGE: Final[Mapping[str, Any]] = {
    "id": {
        "type": ["string", "integer", "null"],
        "description": "The id, unless it is the request's.",
    },
    "method": {"type": "string", "description": "The method of a request or a notification."},
    **dict.fromkeys(("params", "result", "error"), True),
}
"""The members of a message that a file has beside the members of the exchange, with their
schemas."""
_LONGEST_PATTERN: Final = 200


def _check_pattern(pattern: str) -> str:
    try:
        is_usable = len(pattern) <= _LONGEST_PATTERN and not re.compile(pattern).match("")
    except re.error as error:
        raise ValueError(f"is not a valid regular expression: {error}") from None
    if not is_usable:
        raise ValueError("is too long, or matches an empty text: write a narrower pattern")
    return pattern


def _check_path(path: str) -> str:
    steps(path)
    return path


def _gathered(entry: Any) -> Any:
    """Return an entry of a file with the members of a message moved into `message`."""
    if not isinstance(entry, dict) or MESSAGE.keys().isdisjoint(entry):
        return entry
    message = {name: entry[name] for name in MESSAGE if name in entry}
    return {"message": message} | {key: entry[key] for key in entry if key not in MESSAGE}


_FORBID: Final = ConfigDict(extra="forbid")
_WITH_MESSAGE: Final = ConfigDict(
    extra="forbid", json_schema_extra=lambda schema: schema["properties"].update(MESSAGE)
)
_Paths: TypeAlias = tuple[Annotated[str, AfterValidator(_check_path)], ...]
_Text: TypeAlias = Annotated[str | None, Field(description="A body that is not JSON.")]
_Message: TypeAlias = Annotated[
    Any, Field(description="A batch, or JSON that is not a JSON-RPC message.")
]
_After: TypeAlias = Annotated[
    StrictInt | None,
    Field(description="The number of the later interaction that had begun when this arrived."),
]


@dataclass(frozen=True, slots=True, config=_FORBID)
class Rule:
    """A rule for values that differ from run to run. They become ${name:1}, numbered by first
    appearance, and are selected by names of members or headers, or by a pattern in any text."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
    members: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    pattern: Annotated[str, AfterValidator(_check_pattern)] | None = None
    numbered: Annotated[
        StrictBool, Field(description="Whether different values get different numbers.")
    ] = True


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
"""The default rules of a new cassette. In addition, ids of a server's requests become
`${request:1}`, and its origin becomes `${server}`."""


@dataclass(frozen=True, slots=True, config=_WITH_MESSAGE)
class RecordedRequest:
    """A request of the client: a POST with a message or a batch, a GET for a stream, or a DELETE of
    a session. Headers that follow from the message and the session are omitted."""

    http: Literal["POST", "GET", "DELETE"] = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    own_envelope: Annotated[
        StrictBool,
        Field(description="Whether params contain their own _meta instead of that in `client`."),
    ] = False
    message: _Message = None
    text: _Text = None

    _gather = model_validator(mode="before")(_gathered)


@dataclass(frozen=True, slots=True, config=_WITH_MESSAGE)
class CassetteEvent:
    """An event of a stream."""

    after: _After = None
    event_id: str | None = None
    retry_ms: Annotated[StrictInt, Field(ge=0)] | None = None
    message: _Message = None

    _gather = model_validator(mode="before")(_gathered)


@dataclass(frozen=True, slots=True, config=_WITH_MESSAGE)
class RecordedResponse:
    """A response: a message, a stream of events, or text."""

    status: Annotated[StrictInt, Field(ge=200, le=599)] = 200
    headers: dict[str, str] = field(default_factory=dict)
    after: _After = None
    message: _Message = None
    text: _Text = None
    events: tuple[CassetteEvent, ...] | None = None
    end: Annotated[
        Literal["server", "client", "cut"],
        Field(description="The side that ended the response, or cut."),
    ] = "server"

    _gather = model_validator(mode="before")(_gathered)

    @property
    def pieces(self) -> Sequence[CassetteEvent]:
        """The events of a stream, or the message of another response as the only event."""
        if self.events is not None:
            return self.events
        return (
            () if self.message is None else (CassetteEvent(message=self.message, after=self.after),)
        )


@dataclass(frozen=True, slots=True, config=_FORBID)
class Interaction:
    """A request and its response, if one arrived."""

    request: RecordedRequest
    response: RecordedResponse | None = None

    @property
    def title(self) -> str:
        """A title of a few words, such as `tools/call refund`."""
        message = self.request.message
        if self.request.http == "GET":
            return "open a stream"
        if self.request.http == "DELETE":
            return "end the session"
        if not isinstance(message, dict):
            return "a batch" if isinstance(message, list) else "a body that is not JSON"
        if "method" not in message:
            return f"answer {message.get('id')}"
        return f"{message['method']} {read_subject(message)}".strip()


@dataclass(frozen=True, slots=True, config=_FORBID)
class Cassette:
    """A recorded conversation with an MCP server."""

    interactions: Annotated[
        tuple[Interaction, ...],
        Field(description="The interactions in the order of their requests."),
    ]
    rules: Annotated[tuple[Rule, ...], Field(description="The rules of normalization.")] = RULES
    ignore: Annotated[_Paths, Field(description="Paths that are not compared.")] = ()
    redact: Annotated[_Paths, Field(description="Paths whose values were redacted.")] = ()
    client: Annotated[
        Json, Field(description=f"The members {', '.join(ENVELOPE)} of each request's _meta.")
    ] = field(default_factory=dict)


# -- parts of messages -----------------------------------------------------------------------------


def read_subject(message: Any) -> str:
    """Return the name of the tool or prompt, the URI, or the task id in a request, or ""."""
    params = params_of(message)
    return str(next((params[name] for name in ("name", "uri", "taskId") if name in params), ""))


def params_of(message: Any) -> Json:
    """Return the params of a message, or `{}` if it has none."""
    params = message.get("params") if isinstance(message, dict) else None
    return params if isinstance(params, dict) else {}


def result_of(message: Any) -> Json | None:
    """Return the result of a message, or `None` if it has none."""
    result = message.get("result") if isinstance(message, dict) else None
    return result if isinstance(result, dict) else None


def read_method(message: Any) -> str | None:
    """Return the method of a request or notification, or `None`."""
    method = message.get("method") if isinstance(message, dict) else None
    return method if isinstance(method, str) else None


def without(message: Mapping[str, Any], *names: str) -> Json:
    """Return a copy of an object without the members with these names."""
    return {name: value for name, value in message.items() if name not in names}


def read_envelope(message: Any) -> Json:
    """Return the envelope (`ENVELOPE`) of a request of the modern era; its names lack the
    prefix."""
    meta = params_of(message).get("_meta")
    if not isinstance(meta, dict):
        return {}
    return {name: meta[META + name] for name in ENVELOPE if META + name in meta}


def without_envelope(message: Json) -> Json:
    """Return a copy of a request without its envelope. The request must have `params._meta`."""
    params = dict(message["params"])
    meta = without(params.pop("_meta"), *(META + name for name in ENVELOPE))
    return {**message, "params": {**params, "_meta": meta} if meta else params}


def with_envelope(message: Json, client: Mapping[str, Any]) -> Json:
    """Return a copy of a request with an envelope."""
    params = params_of(message)
    envelope = {META + name: value for name, value in client.items()}
    return {**message, "params": {**params, "_meta": {**(params.get("_meta") or {}), **envelope}}}


class Course:
    """The state of a conversation: era, revision and session. A conversation belongs to the older
    era once the client sends `initialize`, which also begins each new session."""

    def __init__(self) -> None:
        self.is_older = False
        self._version: str | None = None
        self._session: str | None = None

    def begin(self, message: Any) -> None:
        """Update the state for a request that is about to be sent."""
        if read_method(message) == "initialize":
            self.is_older, self._version, self._session = True, None, None

    def end(self, message: Any, answer: Any, headers: Mapping[str, str]) -> None:
        """Update the state for the response to a request."""
        result = result_of(answer)
        if read_method(message) == "initialize" and result is not None:
            self._version = str(result.get("protocolVersion"))
            self._session = headers.get("mcp-session-id")

    def headers(self, message: Any) -> dict[str, str]:
        """Return the headers of a request that follow from the state and the request's envelope."""
        if self.is_older:
            headers = {"mcp-protocol-version": self._version, "mcp-session-id": self._session}
            return {name: value for name, value in headers.items() if value is not None}
        version = read_envelope(message).get("protocolVersion")
        return {"mcp-protocol-version": version} if isinstance(version, str) else {}
