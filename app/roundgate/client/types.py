"""The values that a client returns. Reading malformed JSON raises `BadAnswer` with the reason.

A value that is read from an object keeps the object as `raw`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from roundgate.errors import BadAnswer
from roundgate.json import encode

if TYPE_CHECKING:
    from roundgate.protocol.v2026_07_28 import ParamHeader

Json = dict[str, Any]
T = TypeVar("T")

TASKS: Final = "io.modelcontextprotocol/tasks"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
_LONGEST_TASK_ID: Final = 4096
_TASK_STATUSES: Final = frozenset({"working", "input_required", "completed", "failed", "cancelled"})
_TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
_TYPE_NAMES: Final = {
    str: "text",
    int: "an integer",
    float: "a number",
    dict: "an object",
    list: "a list",
    bool: "true or false",
    type(None): "missing",
}


def member(raw: Mapping[str, Any], name: str, kind: type[T], what: str) -> T:
    """Return a required member. Raise `BadAnswer` if it is missing or has another type."""
    value = raw.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        actual = _TYPE_NAMES.get(type(value), "a number")
        raise BadAnswer(
            f"The server sent {what} whose {name!r} is {actual}, not {_TYPE_NAMES[kind]}"
        )
    return value


def optional(raw: Mapping[str, Any], name: str, kind: type[T], what: str) -> T | None:
    """Return a member that may be missing or null. Raise `BadAnswer` if it has another type."""
    return None if raw.get(name) is None else member(raw, name, kind, what)


def objects(raw: Mapping[str, Any], name: str, what: str) -> list[Json]:
    """Return a required list of objects. Raise `BadAnswer` if the member is anything else."""
    items: list[Any] = member(raw, name, list, what)
    if not is_object_list(items):
        raise BadAnswer(
            f"The server sent {what} whose {name!r} contains values that are not objects"
        )
    return items


def is_object_list(value: object) -> bool:
    """Return whether a value is a list of objects."""
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


_ANY_VALUE: Final = frozenset({"_meta", "default", "const", "enum", "examples"})
"""Members of definitions and schemas whose parts may be null."""
_DEEPEST: Final = 200
_MAY_BE_NULL: Final = frozenset({"default", "const"})


def without_nulls(definition: Any, levels: int = _DEEPEST) -> Any:
    """Return a definition without null members down to a number of levels. Servers write null for
    optional members, which may only be missing."""
    match definition:
        case dict() if levels:
            return {
                key: item if key in _ANY_VALUE else without_nulls(item, levels - 1)
                for key, item in definition.items()
                if item is not None or key in _MAY_BE_NULL
            }
        case list() if levels:
            return [without_nulls(item, levels - 1) for item in definition]
    return definition


def is_modern(version: str) -> bool:
    """Return whether a revision has no sessions. Revisions are dates, so they compare as text."""
    return version >= "2026-07-28"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server's description of itself, and the negotiated revision."""

    name: str
    version: str
    protocol_version: str
    capabilities: Json
    instructions: str | None
    supported_versions: tuple[str, ...]
    raw: Json = field(repr=False)

    @property
    def is_modern(self) -> bool:
        """Return whether the negotiated revision has no sessions (2026-07-28 and later)."""
        return is_modern(self.protocol_version)

    @property
    def has_tasks(self) -> bool:
        """Return whether the server supports the extension for tasks (`TASKS`)."""
        extensions = self.capabilities.get("extensions")
        tasks = extensions.get(TASKS) if isinstance(extensions, dict) else None
        return isinstance(tasks, dict)

    @classmethod
    def read(cls, raw: Json, protocol_version: str, versions: Sequence[str]) -> ServerInfo:
        meta = raw.get("_meta")
        info = (meta.get(SERVER_INFO) if isinstance(meta, dict) else None) or raw.get("serverInfo")
        info = info if isinstance(info, dict) else {}
        name, version = (str(info.get(key) or "unknown")[:256] for key in ("name", "version"))
        return cls(
            name,
            version,
            protocol_version,
            without_nulls(optional(raw, "capabilities", dict, "a description of itself") or {}),
            optional(raw, "instructions", str, "a description of itself"),
            tuple(versions),
            raw,
        )


@dataclass(frozen=True, slots=True)
class Tool:
    """A listed tool. `param_headers` describes the arguments that are repeated in headers."""

    name: str
    title: str | None
    description: str | None
    input_schema: Json
    output_schema: Json | None
    annotations: Json
    param_headers: Sequence[ParamHeader]
    raw: Json = field(repr=False)

    @property
    def may_be_repeated(self) -> bool:
        """Return whether the server declares the tool read-only or idempotent."""
        hints = ("readOnlyHint", "idempotentHint")
        return any(self.annotations.get(hint) is True for hint in hints)

    @classmethod
    def read(cls, raw: Json) -> Tool:
        """Read an item of `tools/list`.

        Raises:
            BadAnswer: the name or the input schema is missing, or a member has another type.
            ValueError: an `x-mcp-header` annotation is invalid, so the tool must not be used.
        """
        raw = without_nulls(raw)
        schema: Json = member(raw, "inputSchema", dict, "a tool")
        return cls(
            member(raw, "name", str, "a tool"),
            optional(raw, "title", str, "a tool"),
            optional(raw, "description", str, "a tool"),
            schema,
            optional(raw, "outputSchema", dict, "a tool"),
            optional(raw, "annotations", dict, "a tool") or {},
            _mirrored_arguments(schema),
            raw,
        )


def _mirrored_arguments(schema: Json) -> Sequence[ParamHeader]:
    if b'"x-mcp-header"' not in encode(schema):  # most schemas have none
        return ()
    from roundgate.protocol.v2026_07_28 import mirrored_arguments

    return mirrored_arguments(schema)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A listed prompt. `arguments` are objects with `name`, `description` and `required`."""

    name: str
    title: str | None
    description: str | None
    arguments: list[Json]
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, raw: Json) -> Prompt:
        return cls(
            member(raw, "name", str, "a prompt"),
            optional(raw, "title", str, "a prompt"),
            optional(raw, "description", str, "a prompt"),
            objects(raw, "arguments", "a prompt") if raw.get("arguments") is not None else [],
            raw,
        )


@dataclass(frozen=True, slots=True)
class Resource:
    """A listed resource or template. `uri` is the URI or the URI template."""

    uri: str
    name: str
    title: str | None
    description: str | None
    mime_type: str | None
    is_template: bool
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, raw: Json, *, is_template: bool = False) -> Resource:
        return cls(
            member(raw, "uriTemplate" if is_template else "uri", str, "a resource"),
            member(raw, "name", str, "a resource"),
            optional(raw, "title", str, "a resource"),
            optional(raw, "description", str, "a resource"),
            optional(raw, "mimeType", str, "a resource"),
            is_template,
            raw,
        )


@dataclass(frozen=True, slots=True)
class CallResult:
    """A tool's result. `rounds` is the number of rounds: 1 if the tool asked no questions."""

    content: list[Json]
    structured: Any
    is_error: bool
    rounds: int
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, raw: Json, rounds: int) -> CallResult:
        is_error: bool | None = optional(raw, "isError", bool, "a tool's result")
        content = (
            objects(raw, "content", "a tool's result") if raw.get("content") is not None else []
        )
        if "content" not in raw and "structuredContent" not in raw:
            raise BadAnswer("The server sent a tool's result without 'content'")
        return cls(content, raw.get("structuredContent"), bool(is_error), rounds, raw)

    @property
    def text(self) -> str:
        """The text blocks, joined by line feeds."""
        return "\n".join(
            str(block.get("text", "")) for block in self.content if block.get("type") == "text"
        )

    @property
    def value(self) -> Any:
        """The structured result, or the text if there is none."""
        return self.structured if "structuredContent" in self.raw else self.text


@dataclass(frozen=True, slots=True)
class PromptResult:
    """A prompt with its arguments filled in."""

    messages: list[Json]
    description: str | None
    rounds: int
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, raw: Json, rounds: int) -> PromptResult:
        description: str | None = optional(raw, "description", str, "a prompt's result")
        return cls(objects(raw, "messages", "a prompt's result"), description, rounds, raw)


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The contents of a resource: objects with `uri`, and `text` or `blob` (base64)."""

    contents: list[Json]
    rounds: int
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, raw: Json, rounds: int) -> ReadResult:
        return cls(objects(raw, "contents", "a resource's contents"), rounds, raw)

    @property
    def text(self) -> str:
        """The texts, joined by line feeds."""
        return "\n".join(str(part["text"]) for part in self.contents if "text" in part)


@dataclass(frozen=True, slots=True)
class Completion:
    """Suggested values of an argument."""

    values: list[str]
    total: int | None
    has_more: bool
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, raw: Json) -> Completion:
        completion: Json = member(raw, "completion", dict, "a completion")
        values: list[Any] = member(completion, "values", list, "a completion")
        if not all(isinstance(value, str) for value in values):
            raise BadAnswer("The server sent a completion with values that are not text")
        total: int | None = optional(completion, "total", int, "a completion")
        return cls(values, total, completion.get("hasMore") is True, raw)


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of a task. `requests` are its open questions by key; `result` or `error` is its
    outcome. Times are in milliseconds."""

    task_id: str
    status: str
    message: str | None
    poll_interval_ms: int | None
    ttl_ms: int | None
    requests: Json
    result: Json | None
    error: Json | None
    raw: Json = field(repr=False)

    @property
    def is_over(self) -> bool:
        return self.status in _TERMINAL

    @property
    def lacks_outcome(self) -> bool:
        """Return whether the task ended and its outcome must be requested, because
        `CreateTaskResult` does not contain it."""
        return self.is_over and self.status != "cancelled" and self.result is self.error is None

    @classmethod
    def read(cls, raw: Json, task_id: str | None = None) -> TaskState:
        """Read a `CreateTaskResult`, a result of `tasks/get`, or the params of
        `notifications/tasks`. Raise `BadAnswer` if it is malformed or its id is not `task_id`."""
        own_id: str = member(raw, "taskId", str, "a task")
        if not 0 < len(own_id) <= _LONGEST_TASK_ID or task_id not in (None, own_id):
            raise BadAnswer("The server answered with a task other than the requested one")
        status: str = member(raw, "status", str, "a task")
        if status not in _TASK_STATUSES:
            raise BadAnswer(f"The server sent a task with the unknown status {status[:40]!r}")
        has_result = status == "completed" and "result" in raw
        has_error = status == "failed" and "error" in raw
        return cls(
            own_id,
            status,
            optional(raw, "statusMessage", str, "a task"),
            optional(raw, "pollIntervalMs", int, "a task"),
            optional(raw, "ttlMs", int, "a task"),
            optional(raw, "inputRequests", dict, "a task") or {},
            member(raw, "result", dict, "a completed task") if has_result else None,
            member(raw, "error", dict, "a failed task") if has_error else None,
            raw,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a request."""

    progress: float
    total: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Log:
    """A log message of the server about one request."""

    level: str
    logger: str | None
    data: Any
