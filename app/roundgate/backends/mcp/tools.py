"""The tools of an MCP server as the gateway lists them, and their results. Pure functions.

Definitions and results are forwarded unchanged, without null members, members of `_meta` whose names
begin with `io.modelcontextprotocol/`, which belong to one hop, and `execution`, which declares tasks
of an older revision. A tool whose definition would make a client refuse the whole
list is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from roundgate.client import Tool as ListedTool
from roundgate.client.messages import META
from roundgate.client.types import Json, is_object_list, without_nulls
from roundgate.errors import BadAnswer, UnexpectedAnswer
from roundgate.protocol import ABSENT, ForwardedContent, Schema, ToolResult

MAX_NAME: Final = 128
"""The maximum length of a tool's name; the gateway's own limit includes the prefix."""
MAX_REASON: Final = 500
"""The maximum length of a reason. It may quote the server, and appears in the log and /healthz."""
_TYPES: Final[Mapping[str, tuple[type, str]]] = {
    "title": (str, "text"),
    "description": (str, "text"),
    "annotations": (dict, "an object"),
    "outputSchema": (dict, "an object"),
    "icons": (list, "a list"),
    "_meta": (dict, "an object"),
}
"""The types of the optional members that clients read."""
_OPTIONAL: Final = frozenset(
    {"_meta", "annotations", "blob", "description", "icons", "mimeType", "size", "text", "title"}
)
"""The optional members of content blocks and of the resources in them."""
_HINTS: Final = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_ANYTHING: Final = Schema.compile({"type": "object"})


class LeftOut(Struct, frozen=True):
    """A tool or other entry of a list that is not served, with the reason."""

    name: str
    reason: str


def left_out(raw: Json, member: str, error: Exception) -> LeftOut:
    """Return a record of an entry that is not served. `member` has the entry's name."""
    return LeftOut(str(raw.get(member))[:MAX_NAME], str(error)[:MAX_REASON])


def check_types(
    raw: Json, types: Mapping[str, tuple[type, str]], object_lists: Sequence[str]
) -> None:
    """Raise ValueError if a member of an entry has another type, or a list has other items than
    objects."""
    for member, (kind, words) in types.items():
        if member in raw and not isinstance(raw[member], kind):
            raise ValueError(f"its {member} is not {words}")
    for member in object_lists:
        if not is_object_list(raw.get(member, [])):
            raise ValueError(f"its {member} are not objects")


class UsableTool(Struct, frozen=True):
    """A tool of a server: its name at the server, its definition for clients, and its compiled
    schema."""

    name: str
    definition: Mapping[str, Any]
    arguments: Schema
    listed: ListedTool
    """The tool as the client library calls it."""


def usable_tools(
    definitions: Sequence[Json], *, check_arguments: bool
) -> tuple[list[UsableTool], list[LeftOut]]:
    """Return the tools that can be served, and records of the others."""
    usable: dict[str, UsableTool] = {}
    others: list[LeftOut] = []
    for raw in definitions:
        try:
            tool = _usable(raw, check_arguments=check_arguments)
            if tool.name in usable:
                raise ValueError("the server lists another tool with this name")
        except (ValueError, BadAnswer) as error:
            others.append(left_out(raw, "name", error))
        else:
            usable[tool.name] = tool
    return list(usable.values()), others


def _usable(raw: Json, *, check_arguments: bool) -> UsableTool:
    """Return the tool that a listed definition describes. Raise ValueError or BadAnswer if clients
    would refuse the definition."""
    raw = without_nulls(raw)
    name, schema = raw.get("name"), raw.get("inputSchema")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise ValueError(f"its name is not text of 1 to {MAX_NAME} characters")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ValueError('its inputSchema has no "type": "object"')
    check_types(raw, _TYPES, ["icons"])
    hints = raw.get("annotations", {})
    if wrong := [hint for hint in _HINTS if not isinstance(hints.get(hint, True), bool)]:
        raise ValueError(f"its {', '.join(wrong)} is neither true nor false")
    if "outputSchema" in raw:
        _compiled(raw["outputSchema"], "outputSchema")
    arguments = _compiled(schema, "inputSchema")
    listed = ListedTool.read(raw)
    definition = without_hop({key: value for key, value in raw.items() if key != "execution"})
    return UsableTool(name, definition, arguments if check_arguments else _ANYTHING, listed)


def _compiled(schema: Json, member: str) -> Schema:
    try:
        return Schema.compile(schema)
    except ValueError as error:
        raise ValueError(f"its {member} is {error}") from None


def _block(raw: Json) -> Json:
    """Return a content block without optional members that are null, which clients refuse."""
    resource = raw.get("resource")
    if isinstance(resource, dict) and None in resource.values():
        raw = {**raw, "resource": _block(resource)}
    if None not in raw.values():
        return raw
    return {
        name: value for name, value in raw.items() if value is not None or name not in _OPTIONAL
    }


def without_hop(value: Json) -> Json:
    """Return an object without the members of `_meta` that belong to one hop."""
    meta = value.get("_meta")
    if not isinstance(meta, dict):
        return value
    passed_meta = own_meta(meta)
    others = {key: member for key, member in value.items() if key != "_meta"}
    return {**others, "_meta": passed_meta} if passed_meta or not meta else others


def own_meta(meta: Mapping[str, Any]) -> Json:
    """Return the members of a `_meta` that a gateway forwards."""
    return {name: value for name, value in meta.items() if not name.startswith(META)}


def result_from_wire(raw: Json, server: str) -> ToolResult:
    """Return a server's result as received, without checking it against the tool's output schema.

    Raises:
        UnexpectedAnswer: the server's answer is not a tool result.
    """
    blocks = raw.get("content")
    if blocks is None and "structuredContent" in raw:
        blocks = []
    if raw.get("isError", False) is None:
        raw = {name: value for name, value in raw.items() if name != "isError"}
    is_error = raw.get("isError", False)
    if not is_object_list(blocks) or not isinstance(is_error, bool):
        raise UnexpectedAnswer(f"{server} answered with a malformed tool result")
    meta = raw.get("_meta")
    passed_meta = own_meta(meta) if isinstance(meta, dict) else {}
    own = ("content", "structuredContent", "_meta", "resultType")
    return ToolResult(
        [ForwardedContent(_block(block)) for block in blocks or ()],
        raw.get("structuredContent", ABSENT),
        is_error,
        passed_meta or None,
        {name: value for name, value in raw.items() if name not in own},
    )
