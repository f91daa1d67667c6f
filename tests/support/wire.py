"""Requests as a correct client of revision 2026-07-28 writes them, and answers as the
official models read them."""

from __future__ import annotations

import json
from typing import Any

import httpx
from mcp_types import _v2026_07_28 as official
from pydantic import BaseModel

from roundgate import client
from roundgate.json import decode
from roundgate.protocol import Notification, Request, jsonrpc
from roundgate.protocol.v2026_07_28 import encode_value

VERSION = "2026-07-28"
PREFIX = "io.modelcontextprotocol/"
SERVER_INFO = PREFIX + "serverInfo"
SUBSCRIPTION_ID = PREFIX + "subscriptionId"

RESULTS: dict[str, type[BaseModel]] = {
    "server/discover": official.DiscoverResult,
    "tools/list": official.ListToolsResult,
    "tools/call": official.CallToolResult,
    "resources/list": official.ListResourcesResult,
    "resources/templates/list": official.ListResourceTemplatesResult,
    "resources/read": official.ReadResourceResult,
    "prompts/list": official.ListPromptsResult,
    "prompts/get": official.GetPromptResult,
    "completion/complete": official.CompleteResult,
    "subscriptions/listen": official.SubscriptionsListenResult,
}
ALLOWED_CODES = {-32700, -32600, -32601, -32602, -32603, -32020, -32021, -32022}


def envelope(**meta: Any) -> dict[str, Any]:
    """`_meta` of a request: `logLevel` and other names of the revision get their prefix, unless they have one."""
    whole = {name for name in meta if name == "progressToken" or "/" in name}
    prefixed = {name if name in whole else PREFIX + name: value for name, value in meta.items()}
    return client.envelope(VERSION, {"name": "tests", "version": "1"}, {}) | prefixed


def message(
    method: str, params: dict[str, Any] | None = None, request_id: Any = 1, **meta: Any
) -> dict[str, Any]:
    """A request of the revision as a JSON value."""
    return client.message(method, params or {}, request_id, envelope(**meta))


def call(name: str, arguments: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """A call of a tool as a JSON value."""
    return message("tools/call", {"name": name, "arguments": arguments or {}}, **meta)


def raw(asked: dict[str, Any], **changed: str) -> bytes:
    """A request as bytes; names of headers have `_` for `-`, and an empty value drops one."""
    body = json.dumps(asked).encode()
    plain = {"host": "127.0.0.1", "content-length": str(len(body)), **headers(asked)}
    plain |= {name.replace("_", "-"): value for name, value in changed.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in plain.items() if value)
    return f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body


def headers(of: dict[str, Any]) -> dict[str, str]:
    """The headers that go with a request."""
    usual = {**of, "params": {**of["params"], "_meta": envelope()}}
    return {name.lower(): value for name, value in client.headers_of(usual)}


def encoded(value: str) -> str:
    """A value as a header may carry it: plain if it can be, else base64 in the sentinel."""
    return encode_value(value)


def forged(text: str) -> str:
    """The text with another letter in its middle, where no letter is padding of base64."""
    middle = len(text) // 2
    return text[:middle] + ("B" if text[middle] == "A" else "A") + text[middle + 1 :]


def events(body: str) -> list[dict[str, Any]]:
    """The messages of an event stream, comments left out."""
    data = [line.removeprefix("data: ") for line in body.split("\r\n") if line.startswith("data: ")]
    return [json.loads(line) for line in data]


def valid_result(method: str, response: dict[str, Any]) -> dict[str, Any]:
    """The result of a response, once the official model has taken it and the rules it cannot say have been checked."""
    assert response.keys() == {"jsonrpc", "id", "result"}, response
    result: dict[str, Any] = response["result"]
    RESULTS[method].model_validate(result)
    assert result["resultType"] == "complete"
    assert {"name", "version"} <= result["_meta"][SERVER_INFO].keys()
    return result


def valid_error(response: httpx.Response) -> dict[str, Any]:
    """The error of a response that is one well-formed JSON-RPC error, and nothing else."""
    assert response.headers["content-type"] == "application/json"
    value: dict[str, Any] = response.json()
    official.JSONRPCErrorResponse.model_validate(value)
    assert value.get("id", "") is not None, "an unknown id is left out, never null"
    error: dict[str, Any] = value["error"]
    assert error["code"] in ALLOWED_CODES
    assert error["message"]
    return error


def parse(body: bytes) -> Request | Notification:
    """The message of a body."""
    return jsonrpc.message_from_json(decode(body))
