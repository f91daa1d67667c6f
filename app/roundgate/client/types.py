"""What servers tell and clients are handed: each shape read from its JSON, and refused in
words where it is another.

Every value keeps the object it was read from as `raw`, so nothing that a server sent is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from roundgate.errors import BadAnswer
from roundgate.json import encode

if TYPE_CHECKING:
    from roundgate.protocol.v2026_07_28.requests import ParamHeader

Json = dict[str, Any]
T = TypeVar("T")

SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"


def member(raw: Mapping[str, Any], name: str, kind: type[T] | tuple[type, ...], what: str) -> T:
    """A member that must be there.

    Raises:
        BadAnswer: it is missing, or of another type.
    """
    value = raw.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise BadAnswer(
            f"The server sent {what} whose {name!r} is {_shown(value)}, not {_named(kind)}"
        )
    return value  # type: ignore[return-value]


def optional(
    raw: Mapping[str, Any], name: str, kind: type[T] | tuple[type, ...], what: str
) -> T | None:
    """A member that may be missing or null.

    Raises:
        BadAnswer: it is of another type.
    """
    return None if raw.get(name) is None else member(raw, name, kind, what)


def objects(raw: Mapping[str, Any], name: str, what: str) -> list[Json]:
    """A member that must be a list of objects.

    Raises:
        BadAnswer: it is something else.
    """
    found: list[Any] = member(raw, name, list, what)
    if not all(isinstance(one, dict) for one in found):
        raise BadAnswer(
            f"The server sent {what} whose {name!r} has something else than objects in it"
        )
    return found


_NAMES: Final = {
    str: "text",
    int: "an integer",
    dict: "an object",
    list: "a list",
    bool: "true or false",
}


def _named(kind: Any) -> str:
    return (
        " or ".join(_named(one) for one in kind)
        if isinstance(kind, tuple)
        else _NAMES.get(kind, kind.__name__)
    )


def _shown(value: Any) -> str:
    return (
        "missing" if value is None else _named(type(value)) if type(value) in _NAMES else "a number"
    )


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server at the other end, and how this client speaks with it."""

    name: str
    version: str
    protocol_version: str
    capabilities: Json
    instructions: str | None
    supported_versions: tuple[str, ...]
    raw: Json = field(repr=False)

    @property
    def is_modern(self) -> bool:
        """Whether it speaks a revision without sessions (2026-07-28 and later)."""
        return is_modern(self.protocol_version)

    @property
    def has_tasks(self) -> bool:
        extensions = self.capabilities.get("extensions")
        return isinstance(extensions, dict) and isinstance(
            extensions.get("io.modelcontextprotocol/tasks"), dict
        )

    @classmethod
    def read(cls, raw: Json, protocol_version: str, versions: Sequence[str]) -> ServerInfo:
        meta = raw.get("_meta")
        info = (meta.get(SERVER_INFO) if isinstance(meta, dict) else None) or raw.get("serverInfo")
        info = info if isinstance(info, dict) else {}
        capabilities: Json = optional(raw, "capabilities", dict, "a description of itself") or {}
        instructions: str | None = optional(raw, "instructions", str, "a description of itself")
        name, version = (str(info.get(key) or "unknown")[:256] for key in ("name", "version"))
        return cls(
            name, version, protocol_version, capabilities, instructions, tuple(versions), raw
        )


def is_modern(version: str) -> bool:
    """Whether a revision is one without sessions; revisions are dates, so they compare as text."""
    return version >= "2026-07-28"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as it is listed."""

    name: str
    title: str | None
    description: str | None
    input_schema: Json
    output_schema: Json | None
    annotations: Json
    param_headers: Sequence[ParamHeader]
    """Which arguments are repeated in headers."""
    raw: Json = field(repr=False)

    @property
    def may_be_repeated(self) -> bool:
        """Whether the server says that a second call does no more than the first."""
        return (
            self.annotations.get("readOnlyHint") is True
            or self.annotations.get("idempotentHint") is True
        )

    @classmethod
    def read(cls, raw: Json) -> Tool:
        """From `tools/list`.

        Raises:
            BadAnswer: it has no name or no schema.
            ValueError: an `x-mcp-header` annotation breaks the rules, so the tool must not be used.
        """
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
    # as in most schemas: what reads the others is not even imported
    if b'"x-mcp-header"' not in encode(schema):
        return ()
    from roundgate.protocol.v2026_07_28.requests import mirrored_arguments

    return mirrored_arguments(schema)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as it is listed; `arguments` are objects with `name`, `description`, `required`."""

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
    """A resource or a template as it is listed; `uri` is the URI or the URI template."""

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
    """What a tool answered. `rounds` says how many requests it took: 1 if nothing was asked."""

    content: list[Json]
    structured: Any
    is_error: bool
    rounds: int
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, raw: Json, rounds: int) -> CallResult:
        is_error: bool | None = optional(raw, "isError", bool, "a tool's result")
        content = objects(raw, "content", "a tool's result") if "content" in raw else []
        if "content" not in raw and "structuredContent" not in raw:
            raise BadAnswer("The server sent a tool's result without 'content'")
        return cls(content, raw.get("structuredContent"), bool(is_error), rounds, raw)

    @property
    def text(self) -> str:
        """The text blocks, one under the other."""
        return "\n".join(
            str(block.get("text", "")) for block in self.content if block.get("type") == "text"
        )

    @property
    def value(self) -> Any:
        """The structured result where there is one, else the text."""
        return self.structured if "structuredContent" in self.raw else self.text


@dataclass(frozen=True, slots=True)
class PromptResult:
    """A prompt that was filled in."""

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
    """What a resource holds: objects with `uri`, and `text` or `blob` (base64)."""

    contents: list[Json]
    rounds: int
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, raw: Json, rounds: int) -> ReadResult:
        return cls(objects(raw, "contents", "a resource's contents"), rounds, raw)

    @property
    def text(self) -> str:
        return "\n".join(str(one["text"]) for one in self.contents if "text" in one)


@dataclass(frozen=True, slots=True)
class Completion:
    """What an argument may be."""

    values: list[str]
    total: int | None
    has_more: bool
    raw: Json = field(repr=False)

    @classmethod
    def read(cls, raw: Json) -> Completion:
        found: Json = member(raw, "completion", dict, "a completion")
        values: list[Any] = member(found, "values", list, "a completion")
        if not all(isinstance(one, str) for one in values):
            raise BadAnswer(
                "The server sent a completion with something else than text in its values"
            )
        total: int | None = optional(found, "total", int, "a completion")
        return cls(values, total, found.get("hasMore") is True, raw)


TASK_STATUSES: Final = frozenset({"working", "input_required", "completed", "failed", "cancelled"})
_TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class TaskState:
    """What is known of a task. `requests` are its open questions by key,
    `result` and `error` its end."""

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
    def lacks_its_end(self) -> bool:
        """Whether it has an end that was not told: `CreateTaskResult` has no place for it."""
        return self.is_over and self.status != "cancelled" and self.result is self.error is None

    @classmethod
    def read(cls, raw: Json, task_id: str | None = None) -> TaskState:
        """From `CreateTaskResult`, `tasks/get`, or the params of `notifications/tasks`.

        Raises:
            BadAnswer: it is no task, or another than `task_id`.
        """
        found: str = member(raw, "taskId", str, "a task")
        if not found or len(found) > 4096 or (task_id is not None and found != task_id):
            raise BadAnswer("The server answered with another task than the one that was asked for")
        status: str = member(raw, "status", str, "a task")
        if status not in TASK_STATUSES:
            raise BadAnswer(f"The server sent a task with the unknown status {status[:40]!r}")
        return cls(
            found,
            status,
            optional(raw, "statusMessage", str, "a task"),
            optional(raw, "pollIntervalMs", int, "a task"),
            optional(raw, "ttlMs", int, "a task"),
            optional(raw, "inputRequests", dict, "a task") or {},
            member(raw, "result", dict, "a completed task")
            if status == "completed" and "result" in raw
            else None,
            member(raw, "error", dict, "a failed task")
            if status == "failed" and "error" in raw
            else None,
            raw,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is."""

    progress: float
    total: float | None
    message: str | None


@dataclass(frozen=True, slots=True)
class Log:
    """A log message of a server, about one request."""

    level: str
    logger: str | None
    data: Any
