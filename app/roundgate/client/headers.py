"""The headers in which a request of revision 2026-07-28 repeats its body
(streamable-http, "Request Metadata")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from roundgate.client.types import Tool

Headers = list[tuple[str, str]]

_NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


def of_request(method: str, params: Mapping[str, Any], version: str) -> Headers:
    """Revision, method, and the name of what the request is about."""
    headers = [("MCP-Protocol-Version", version), ("Mcp-Method", method)]
    if (named_by := _NAMED_BY.get(method)) is not None:
        headers.append(("Mcp-Name", header_value(str(params.get(named_by, "")))))
    return headers


def of_arguments(tool: Tool, arguments: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The `Mcp-Param-*` headers of a call: of every annotated argument that has a value."""
    headers: Headers = []
    for one in tool.param_headers:
        value: Any = arguments
        for key in one.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            headers.append((one.header, "true" if value else "false"))
        elif isinstance(value, (str, int, float)):
            headers.append((one.header, header_value(str(value))))
    return headers


def header_value(value: str) -> str:
    """A string as a header value; what needs no encoding beyond doubt is not even
    looked at by what encodes."""
    if (
        value.isascii()
        and value.isprintable()
        and value == value.strip()
        and not value.startswith("=?")
    ):
        return value
    from roundgate.client.annotations import encode_value

    return encode_value(value)
