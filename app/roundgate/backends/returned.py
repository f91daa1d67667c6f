"""Conversion of a Python handler's return value into a tool result, prompt messages, resource
contents or completions. Each function raises UnusableReturn for a value that cannot be converted.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from roundgate.backends.signature import WithoutTitles
from roundgate.errors import UnusableReturn
from roundgate.json import encode
from roundgate.protocol import (
    ABSENT,
    AudioContent,
    BlobResourceContents,
    Completion,
    EmbeddedResource,
    ImageContent,
    PromptMessage,
    ResourceContents,
    ResourceLink,
    Schema,
    TextContent,
    TextResourceContents,
    ToolResult,
)

_BYTES: Final = (bytes, bytearray, memoryview)
BLOCKS: Final = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)


@dataclass(frozen=True, slots=True)
class ToolReturn:
    """The conversion of one tool's return values. `schema` is its `outputSchema`, if it has one."""

    adapter: TypeAdapter[Any] | None
    schema: dict[str, Any] | None
    checker: Schema | None

    @classmethod
    def of(cls, annotation: Any, verbatim: dict[str, Any] | None) -> ToolReturn:
        """Read a return annotation; a `verbatim` output schema wins over the derived one.

        Raises:
            ValueError: the output schema is unusable.
        """
        adapter, schema = (None, None) if _is_content(annotation) else _derive(annotation)
        schema = verbatim or schema
        return cls(adapter, schema, None if schema is None else Schema.compile(schema))

    def result(self, value: Any) -> ToolResult:
        """Return the result; its value must conform to the output schema."""
        if isinstance(value, ToolResult):
            return self._explicit(value)
        if self.checker is None and (
            value is None or isinstance(value, (str, *BLOCKS)) or _is_block_list(value)
        ):
            return ToolResult(content=_blocks(value))
        structured = self._structured(value)
        return ToolResult(content=(encode(structured).decode(),), structured_content=structured)

    def _explicit(self, value: ToolResult) -> ToolResult:
        content = _blocks(value.content)
        meta = None if value.meta is None else to_json_value(value.meta)
        if value.structured_content is ABSENT:
            if self.checker is not None and not value.is_error:
                raise UnusableReturn("has no structured content, which the output schema promises")
            return ToolResult(content, ABSENT, value.is_error, meta)
        structured = self._structured(value.structured_content, check=not value.is_error)
        return ToolResult(
            content or (encode(structured).decode(),), structured, value.is_error, meta
        )

    def _structured(self, value: Any, check: bool = True) -> Any:
        structured = to_json_value(value, self.adapter)
        if check and self.checker is not None and not self.checker.is_valid(structured):
            problems = self.checker.problems(structured, "result")
            raise UnusableReturn(f"does not conform to the output schema: {'; '.join(problems)}")
        return structured


def to_json_value(value: Any, adapter: TypeAdapter[Any] | None = None) -> Any:
    """Return a Python value as JSON would hold it."""
    try:
        if adapter is not None:
            # no warnings: whether it is what the annotation says, the output schema decides
            return adapter.serializer.to_python(value, mode="json", by_alias=True, warnings=False)
        return to_jsonable_python(value, by_alias=True)
    except (PydanticSerializationError, ValueError) as error:
        raise UnusableReturn(f"has no JSON: {' '.join(str(error).split())[:500]}") from None


def prompt_messages(value: Any) -> Sequence[PromptMessage]:
    """Return messages; a string or block is the user's message."""
    messages: list[PromptMessage] = []
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, PromptMessage):
            messages.append(item)
        elif isinstance(item, (str, *BLOCKS)):
            messages.append(PromptMessage("user", item))
        else:
            raise UnusableReturn(
                f"is {type(item).__name__}, not a str, a content block or a PromptMessage"
            )
    return messages


def resource_contents(value: Any, uri: str, mime_type: str | None) -> Sequence[ResourceContents]:
    """Return explicit contents as they are, text, bytes, or anything with JSON."""
    explicit = (TextResourceContents, BlobResourceContents)
    if isinstance(value, explicit):
        return (value,)
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(item, explicit) for item in value)
    ):
        return list(value)
    if isinstance(value, str):
        return (TextResourceContents(uri, value, mime_type or "text/plain"),)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return (BlobResourceContents(uri, bytes(value), mime_type or "application/octet-stream"),)
    return (
        TextResourceContents(
            uri, encode(to_json_value(value)).decode(), mime_type or "application/json"
        ),
    )


def completion(value: Any) -> Completion:
    """Return a `Completion` of itself, of a sequence of strings, or of one string."""
    if isinstance(value, Completion):
        return value
    return Completion([value] if isinstance(value, str) else list(value))


def _blocks(value: Any) -> Sequence[Any]:
    """Return the blocks of a content: nothing, one block or text, or several."""
    if value is None:
        return ()
    blocks = (value,) if isinstance(value, (str, *BLOCKS)) else tuple(value)
    for block in blocks:
        if not isinstance(block, (str, *BLOCKS)):
            raise UnusableReturn(
                f"has {type(block).__name__} in its content, where a str or a content block has to be"
            )
        if isinstance(block, (ImageContent, AudioContent)) and not isinstance(block.data, _BYTES):
            raise UnusableReturn(
                f"has {type(block).__name__} with data that is {type(block.data).__name__}, not bytes"
            )
    return blocks


def _is_block_list(value: Any) -> bool:
    """Return whether a list is content: it has at least one block, and only blocks and strings."""
    if not isinstance(value, (list, tuple)) or not any(isinstance(item, BLOCKS) for item in value):
        return False
    return all(isinstance(item, (str, *BLOCKS)) for item in value)


_NO_SCHEMA: Final = (inspect.Parameter.empty, Any, object, None, type(None), str, ToolResult)


def _is_content(annotation: Any) -> bool:
    """Return whether an annotation promises text, blocks, or nothing in particular, rather than
    data."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation in _NO_SCHEMA or annotation in BLOCKS:
        return True
    if get_origin(annotation) in (Union, types.UnionType):
        return any(
            _is_content(option) for option in get_args(annotation) if option is not type(None)
        )
    if get_origin(annotation) in (list, tuple, Sequence):
        return any(_mentions_block(item) for item in get_args(annotation))
    return False


def _mentions_block(annotation: Any) -> bool:
    return annotation in BLOCKS or any(_mentions_block(option) for option in get_args(annotation))


def _derive(annotation: Any) -> tuple[TypeAdapter[Any] | None, dict[str, Any] | None]:
    try:
        adapter = TypeAdapter(annotation)
        return adapter, adapter.json_schema(mode="serialization", schema_generator=WithoutTitles)
    except (PydanticSchemaGenerationError, PydanticUserError):
        # a type without a schema: results are still turned into JSON, only not described
        return (
            None,
            None,
        )
