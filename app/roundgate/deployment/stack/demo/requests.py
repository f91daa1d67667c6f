"""Requests of a client of revision 2026-07-28 (basic/index, streamable-http)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

VERSION: Final = "2026-07-28"
PREFIX: Final = "io.modelcontextprotocol/"
NAMED_BY: Final = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId"}
"""The member of params that the header `Mcp-Name` repeats."""


def message(
    method: str, params: Mapping[str, Any], capabilities: Mapping[str, Any]
) -> dict[str, Any]:
    """A request as a JSON value."""
    meta = {
        PREFIX + "protocolVersion": VERSION,
        PREFIX + "clientInfo": {"name": "demo", "version": "1"},
        PREFIX + "clientCapabilities": dict(capabilities),
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}


def headers(of: Mapping[str, Any]) -> dict[str, str]:
    """The headers that go with a request, whose names and ids are plain ASCII here."""
    method: str = of["method"]
    return {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
        **({"mcp-name": of["params"][NAMED_BY[method]]} if method in NAMED_BY else {}),
    }
