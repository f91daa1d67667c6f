"""Content blocks, resource contents, prompt messages and tool results (schema.ts: `ContentBlock`
and its parts), and the hints of tools (`ToolAnnotations`).

Handlers make and return these values. `to_wire` returns their JSON; binary data is bytes in a
value, and base64 in JSON.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, structs
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

Role: TypeAlias = Literal["user", "assistant"]
Wire: TypeAlias = dict[str, Any]


class Value(Struct, frozen=True):
    """The base of values that tools make and steps return. Annotations may name a subclass: pydantic
    reads and writes its fields like those of a dataclass."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members, written = {}, {}
        for field in structs.fields(cls):
            schema = handler.generate_schema(field.type)
            written[field.name] = core_schema.typed_dict_field(schema)
            if not field.required:
                schema = core_schema.with_default_schema(schema, default=field.default)
            members[field.name] = core_schema.model_field(schema)
        read = core_schema.no_info_after_validator_function(
            lambda found: cls(**found[0]), core_schema.model_fields_schema(members)
        )

        def to_members(value: Any) -> Any:
            return structs.asdict(value) if isinstance(value, cls) else value

        return core_schema.json_or_python_schema(
            json_schema=read,
            python_schema=core_schema.no_info_before_validator_function(to_members, read),
            serialization=core_schema.plain_serializer_function_ser_schema(
                structs.asdict, return_schema=core_schema.typed_dict_schema(written)
            ),
        )


def base64_text(data: bytes | str) -> str:
    """Return bytes as base64. A string is base64 already."""
    return data if isinstance(data, str) else base64.b64encode(data).decode()


def without_none(**members: Any) -> Wire:
    """Return a JSON object of the members that are not `None`: optional members are absent on the
    wire, never null."""
    return {name: value for name, value in members.items() if value is not None}


def _copied(meta: Mapping[str, Any] | None) -> Wire | None:
    return None if meta is None else dict(meta)  # the JSON writer accepts only dict


class Annotations(Value, frozen=True, kw_only=True):
    """The audience, priority (0 to 1) and last change (ISO 8601) of a block."""

    audience: Sequence[Role] | None = None
    priority: float | None = None
    last_modified: str | None = None

    def to_wire(self) -> Wire:
        audience = None if self.audience is None else list(self.audience)
        return without_none(
            audience=audience, priority=self.priority, lastModified=self.last_modified
        )


class Icon(Value, frozen=True):
    """An image for a user interface, with an https: or data: URI, a MIME type, sizes such as
    "48x48", and a light or dark theme."""

    src: str
    mime_type: str | None = None
    sizes: Sequence[str] | None = None
    theme: Literal["light", "dark"] | None = None

    def to_wire(self) -> Wire:
        sizes = None if self.sizes is None else list(self.sizes)
        return without_none(src=self.src, mimeType=self.mime_type, sizes=sizes, theme=self.theme)


class _Annotated(Value, frozen=True, kw_only=True):
    annotations: Annotations | None = None
    meta: Mapping[str, Any] | None = None

    def _extras(self) -> Wire:
        if self.annotations is None and self.meta is None:
            return {}
        return without_none(
            annotations=self.annotations and self.annotations.to_wire(),
            _meta=_copied(self.meta),
        )


class TextContent(_Annotated, frozen=True):
    """A block of text: `{"type": "text", "text": …}`"""

    text: str

    def to_wire(self) -> Wire:
        return {"type": "text", "text": self.text, **self._extras()}


class ImageContent(_Annotated, frozen=True):
    """An image: `{"type": "image", "data": base64, "mimeType": "image/png"}`"""

    data: bytes | str
    mime_type: str

    def to_wire(self) -> Wire:
        return {
            "type": "image",
            "data": base64_text(self.data),
            "mimeType": self.mime_type,
            **self._extras(),
        }


class AudioContent(_Annotated, frozen=True):
    """A recording: `{"type": "audio", "data": base64, "mimeType": "audio/wav"}`"""

    data: bytes | str
    mime_type: str

    def to_wire(self) -> Wire:
        return {
            "type": "audio",
            "data": base64_text(self.data),
            "mimeType": self.mime_type,
            **self._extras(),
        }


class TextResourceContents(Value, frozen=True):
    """The text of a resource."""

    uri: str
    text: str
    mime_type: str | None = None
    meta: Mapping[str, Any] | None = None
    forwarded: Mapping[str, Any] | None = None
    """The members of contents of another server, in its order; the fields replace their values."""

    def to_wire(self) -> Wire:
        known = without_none(
            uri=self.uri, mimeType=self.mime_type, text=self.text, _meta=_copied(self.meta)
        )
        return {**(self.forwarded or {}), **known}


class BlobResourceContents(Value, frozen=True):
    """The bytes of a resource, or their base64."""

    uri: str
    blob: bytes | str
    mime_type: str | None = None
    meta: Mapping[str, Any] | None = None
    forwarded: Mapping[str, Any] | None = None
    """The members of contents of another server, in its order; the fields replace their values."""

    def to_wire(self) -> Wire:
        blob = base64_text(self.blob)
        known = without_none(
            uri=self.uri, mimeType=self.mime_type, blob=blob, _meta=_copied(self.meta)
        )
        return {**(self.forwarded or {}), **known}


ResourceContents: TypeAlias = TextResourceContents | BlobResourceContents


class ForwardedRead(Value, frozen=True):
    """The result of resources/read of another server."""

    contents: Sequence[ResourceContents]
    others: Mapping[str, Any]
    """Further members of the result."""
    ttl_ms: int | None = None
    """Milliseconds for which the server lets clients cache the contents; `None` if it does not
    say."""
    is_private: bool = False
    """Whether the server reserves the contents for the caller."""


class EmbeddedResource(_Annotated, frozen=True):
    """A resource's contents inside a result: `{"type": "resource", "resource": …}`"""

    resource: ResourceContents

    def to_wire(self) -> Wire:
        return {"type": "resource", "resource": self.resource.to_wire(), **self._extras()}


class ResourceLink(_Annotated, frozen=True):
    """A link to a resource that the client may read: `{"type": "resource_link", "uri": …, "name":
    …}`"""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: Sequence[Icon] = ()

    def to_wire(self) -> Wire:
        described = without_none(
            title=self.title, description=self.description, mimeType=self.mime_type, size=self.size
        )
        icons = {"icons": [icon.to_wire() for icon in self.icons]} if self.icons else {}
        return {
            "type": "resource_link",
            "uri": self.uri,
            "name": self.name,
            **described,
            **icons,
            **self._extras(),
        }


class ForwardedContent(Value, frozen=True):
    """A block of another server, in its form on the wire."""

    wire: Mapping[str, Any]

    @property
    def text(self) -> str | None:
        """The text of a text block; `None` for other blocks."""
        text = self.wire.get("text")
        return text if self.wire.get("type") == "text" and isinstance(text, str) else None

    def to_wire(self) -> Wire:
        return dict(self.wire)


ContentBlock: TypeAlias = (
    TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource | ForwardedContent
)


class PromptMessage(Value, frozen=True):
    """One message of a prompt; a string is a text block."""

    role: Role
    content: ContentBlock | str

    def to_wire(self) -> Wire:
        content = TextContent(self.content) if isinstance(self.content, str) else self.content
        return {"role": self.role, "content": content.to_wire()}


class ForwardedPrompt(Value, frozen=True):
    """The result of prompts/get of another server, in its form on the wire."""

    wire: Mapping[str, Any]


class _Absent:
    """The type of `ABSENT`, which is not `None` because `None` is a legal structured result."""


ABSENT = _Absent()


class ToolResult(Value, frozen=True):
    """The result of tools/call: blocks for a model to read, a JSON value for a program, and whether
    the tool failed."""

    content: Sequence[ContentBlock | str] = ()
    structured_content: Any = ABSENT
    is_error: bool = False
    meta: Mapping[str, Any] | None = None
    others: Mapping[str, Any] | None = None
    """Further members of a result that is forwarded from another server."""

    @classmethod
    def error(cls, text: str) -> ToolResult:
        """Return a failure with a text that tells a model how to proceed."""
        return cls(content=(TextContent(text),), is_error=True)

    def to_wire(self) -> Wire:
        blocks = [
            {"type": "text", "text": block} if isinstance(block, str) else block.to_wire()
            for block in self.content
        ]
        wire: Wire = {"content": blocks}
        if self.others is not None:
            wire = {**self.others, **wire}
        if self.structured_content is not ABSENT:
            wire["structuredContent"] = self.structured_content
        if self.is_error:
            wire["isError"] = True
        if self.meta is not None:
            wire["_meta"] = dict(self.meta)
        return wire


class Completion(Value, frozen=True):
    """Suggestions for an argument, best first; at most 100 are sent
    (server/utilities/completion)."""

    values: Sequence[str]
    total: int | None = None
    has_more: bool | None = None

    MAX_VALUES = 100  # not annotated, so no field

    def to_wire(self) -> Wire:
        cut = len(self.values) > self.MAX_VALUES
        total = len(self.values) if self.total is None and cut else self.total
        more = True if cut else self.has_more
        return {
            "values": list(self.values[: self.MAX_VALUES]),
            **without_none(total=total, hasMore=more),
        }


HINTS: Final[Mapping[str, tuple[str, bool]]] = {
    "read_only": ("readOnlyHint", False),
    "destructive": ("destructiveHint", True),
    "idempotent": ("idempotentHint", False),
    "open_world": ("openWorldHint", True),
}
"""The wire name and the protocol's default of each hint."""


def has_hint(definition: Mapping[str, Any], hint: str) -> bool:
    """Return whether a hint is true for a tool, as declared or by the protocol's default."""
    name, usual = HINTS[hint]
    hints = definition.get("annotations") or {}
    if hint == "destructive" and hints.get("readOnlyHint") is True:
        return False  # "meaningful only when readOnlyHint == false"
    return bool(hints.get(name, usual))
