"""One request of revision 2026-07-28 as a JSON value, and the headers that repeat its body
(basic/index, "Request metadata"; streamable-http, "Request Metadata").

The client sends these, and so does whoever has a transport of their own: a load test, a proxy, a
health check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from roundgate.client.types import Json, Tool
from roundgate.protocol.v2026_07_28.requests import encode_value

Headers = list[tuple[str, str]]

META: Final = "io.modelcontextprotocol/"
"""The prefix of the protocol's own members of `_meta`."""
ACCEPT_BOTH: Final = ("Accept", "application/json, text/event-stream")
SENDS_JSON: Final = ("Content-Type", "application/json")
_NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


def envelope(version: str, info: Json, capabilities: Json) -> Json:
    """What `_meta` of each request has:
    `{"io.modelcontextprotocol/protocolVersion": "2026-07-28", …}`.

    Args:
        version: the revision that the request is written in.
        info: `clientInfo`: name and version of the client.
        capabilities: `clientCapabilities`; `{}` supports nothing optional.
    """
    return {
        META + "protocolVersion": version,
        META + "clientInfo": info,
        META + "clientCapabilities": capabilities,
    }


def message(method: str, params: Mapping[str, Any], request_id: int | str, meta: Json) -> Json:
    """A request as a JSON value; `meta` is its `_meta`, in place of any that `params` has."""
    return {
        "jsonrpc": "2.0",
        "id": request_id,
        "method": method,
        "params": {**params, "_meta": meta},
    }


def headers_of(message: Json) -> Headers:
    """What a request needs beside the headers of HTTP itself, without `Mcp-Param-*`: for
    those see `of_arguments`."""
    params = message["params"]
    version: str = params["_meta"][META + "protocolVersion"]
    return [ACCEPT_BOTH, SENDS_JSON, *of_request(message["method"], params, version)]


def of_request(method: str, params: Mapping[str, Any], version: str) -> Headers:
    """Revision, method, and the name of what the request is about."""
    headers = [("MCP-Protocol-Version", version), ("Mcp-Method", method)]
    if (named_by := _NAMED_BY.get(method)) is not None:
        headers.append(("Mcp-Name", encode_value(str(params.get(named_by, "")))))
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
            headers.append((one.header, encode_value(str(value))))
    return headers
