"""One request of a modern revision, as a JSON value and its headers (basic/index,
"Request metadata"; streamable-http).

The client sends these, and so does whoever has a transport of their own: a load
test, a proxy, a health check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roundgate.client.headers import Headers, of_request
from roundgate.client.types import Json

META: Final = "io.modelcontextprotocol/"
"""The prefix of the protocol's own members of `_meta`."""
ACCEPT_BOTH: Final = ("Accept", "application/json, text/event-stream")
SENDS_JSON: Final = ("Content-Type", "application/json")


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
