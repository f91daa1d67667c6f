"""Calls of tools from the console: requests of 2026-07-28 to an MCP endpoint of this process, as the
operator.

A call passes the layers that every call passes: scopes, limits, approvals, audit log and log line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from fastapi import Request
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Message

from roundgate import client, json
from roundgate.backends import ServedTool
from roundgate.client.messages import of_arguments
from roundgate.client.types import Tool
from roundgate.errors import BadAnswer, ParseError
from roundgate.http.exchange import exchange_of
from roundgate.observability.tracing import Correlation
from roundgate.version import VERSION
from roundgate_console.access import replay

REVISION: Final = "2026-07-28"
CAPABILITIES: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "extensions": {"io.modelcontextprotocol/tasks": {}},
}
"""The capabilities of the console: questions in forms and on pages of services, and tasks."""


class ToolCall(BaseModel):
    """A call of a tool, or its next round."""

    arguments: dict[str, Any] = Field({}, description="The arguments of the tool.")
    input_responses: dict[str, Any] | None = Field(
        None, description="The answers to the questions of the round before."
    )
    request_state: str | None = Field(None, description="The `requestState` of the round before.")


class CallOutcome(BaseModel):
    """The outcome of a round."""

    kind: Literal["complete", "input_required", "task", "error"]
    result: dict[str, Any] | None = Field(None, description="The result, as MCP has it.")
    error: dict[str, Any] | None = Field(None, description="The JSON-RPC error.")
    call: str | None = Field(None, description="The id of the call in log lines and audit log.")
    task: str | None = Field(None, description="The task as commands name it: OWNER.ID.")


async def call_tool(
    serves: ASGIApp,
    path: str,
    name: str,
    tool: ServedTool | None,
    call: ToolCall,
    request: Request,
) -> CallOutcome:
    """Return the outcome of a round of a call. The call is cancelled if the browser disconnects.

    Args:
        serves: the MCP endpoints for the caller.
        path: the path of the endpoint.
        name: the name of the tool.
        tool: the tool; `None` if the endpoint has none of this name.
        call: the arguments, and the answers of a later round.
        request: the request of the browser.
    """
    params: dict[str, Any] = {"name": name, "arguments": call.arguments}
    if call.input_responses is not None:
        params["inputResponses"] = call.input_responses
    if call.request_state is not None:
        params["requestState"] = call.request_state
    info = {"name": "roundgate console", "version": VERSION}
    message = client.message(
        "tools/call", params, 1, client.envelope(REVISION, info, dict(CAPABILITIES))
    )
    headers = [*client.headers_of(message), *_mirrored(tool, call.arguments)]
    status, body, correlation = await _post(serves, path, headers, message, request)
    return _outcome(status, body, correlation)


def _mirrored(tool: ServedTool | None, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the headers that repeat arguments of a tool."""
    if tool is None:
        return []
    try:
        return [*of_arguments(Tool.read(dict(tool.tool.definition)), arguments)]
    except (BadAnswer, ValueError):  # the gateway does not serve such a tool's headers either
        return []


async def _post(
    serves: ASGIApp,
    path: str,
    headers: list[tuple[str, str]],
    message: dict[str, Any],
    request: Request,
) -> tuple[int, bytes, Correlation]:
    """Send a request to an endpoint; return status, body and ids of the call."""
    scope = {
        **{name: request.scope.get(name) for name in ("asgi", "scheme", "client", "server")},
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }
    status, chunks, correlation = 0, list[bytes](), Correlation()

    async def send(sent: Message) -> None:
        nonlocal status, correlation
        if sent["type"] == "http.response.start":
            status, correlation = sent["status"], exchange_of(scope).correlation
        else:
            chunks.append(sent.get("body", b""))

    await serves(scope, replay(json.encode(message), request.receive), send)
    return status, b"".join(chunks), correlation


def _outcome(status: int, body: bytes, correlation: Correlation) -> CallOutcome:
    ids = {"call": correlation.call_id, "task": correlation.task}
    try:
        response = json.decode(body)
    except ParseError:  # no body: the browser disconnected
        response = None
    match response:
        case {"result": dict(result)}:
            kind = result.get("resultType")
            kind = kind if kind in ("input_required", "task") else "complete"
            return CallOutcome(kind=kind, result=result, **ids)
        case {"error": dict(error)}:
            return CallOutcome(kind="error", error=error, **ids)
    return CallOutcome(kind="error", error={"message": f"HTTP status {status}"}, **ids)
