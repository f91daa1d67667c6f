"""Mistakes in requests over HTTP: the status and code of each."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import wire
from tests.support.asgi import Client

META = wire.PREFIX
OLD = "2025-11-25"


@dataclass
class Mistake:
    """What is wrong with a call of `mirrored`, and what must be answered."""

    check: float
    status: int
    code: int
    headers: dict[str, str | None] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    method: str | None = None


MISTAKES = {
    "no version header": Mistake(1, 400, -32020, headers={"mcp-protocol-version": None}),
    "no method header": Mistake(1, 400, -32020, headers={"mcp-method": None}),
    "another method in the header": Mistake(1, 400, -32020, headers={"mcp-method": "tools/list"}),
    "method header in capitals": Mistake(1, 400, -32020, headers={"mcp-method": "TOOLS/CALL"}),
    "no _meta": Mistake(2, 400, -32602, params={"_meta": None}),
    "no version in _meta": Mistake(2, 400, -32602, meta={"protocolVersion": None}),
    "no capabilities in _meta": Mistake(2.1, 400, -32602, meta={"clientCapabilities": None}),
    "another version in the header": Mistake(3, 400, -32020, headers={"mcp-protocol-version": OLD}),
    "an old version": Mistake(
        4, 400, -32022, {"mcp-protocol-version": OLD}, meta={"protocolVersion": OLD}
    ),
    "an unknown method": Mistake(
        5, 404, -32601, headers={"mcp-method": "tools/caII"}, method="tools/caII"
    ),
    "no name header": Mistake(6, 400, -32020, headers={"mcp-name": None}),
    "another name in the header": Mistake(6, 400, -32020, headers={"mcp-name": "add"}),
    "a name header that is no base64": Mistake(
        6, 400, -32020, headers={"mcp-name": "=?base64?bWl?="}
    ),
    "no parameter header": Mistake(7, 400, -32020, headers={"mcp-param-region": None}),
    "another value in a parameter header": Mistake(
        7, 400, -32020, headers={"mcp-param-region": "us"}
    ),
    "a parameter header without a parameter": Mistake(
        7, 400, -32020, headers={"mcp-param-count": "3"}
    ),
    "a capability is not declared": Mistake(
        8, 400, -32021, meta={"clientCapabilities": {"roots": {}}}
    ),
}


async def ask(mcp: Client, *mistakes: Mistake) -> tuple[int, int]:
    """Status and code of the answer to a call that is right but for these mistakes; the first one wins its place."""
    asked = wire.message(
        "tools/call",
        {"name": "mirrored", "arguments": {"region": "eu"}},
        clientCapabilities={"sampling": {}},
    )
    sent: dict[str, str | None] = {**wire.headers(asked), "mcp-param-region": "eu"}
    for mistake in reversed(mistakes):
        sent |= mistake.headers
        asked["method"] = mistake.method or asked["method"]
        asked["params"] |= mistake.params
        if asked["params"]["_meta"] is not None:
            asked["params"]["_meta"] |= {META + name: value for name, value in mistake.meta.items()}
    asked["params"] = without_none(asked["params"])
    response = await mcp.http.post("/mcp", content=json.dumps(asked), headers=without_none(sent))
    if response.status_code == 200:
        wire.valid_result("tools/call", response.json())
        return 200, 0
    assert response.json()["id"] == asked["id"]
    return response.status_code, wire.valid_error(response)["code"]


def without_none(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: without_none(member) for key, member in value.items() if member is not None}


async def test_the_call_without_a_mistake_succeeds(mcp: Client) -> None:
    assert await ask(mcp) == (200, 0)


@pytest.mark.parametrize("name", MISTAKES)
async def test_a_mistake_is_answered_with_its_code(mcp: Client, name: str) -> None:
    mistake = MISTAKES[name]
    assert await ask(mcp, mistake) == (mistake.status, mistake.code)


async def test_an_unsupported_version_is_told_what_is_supported(mcp: Client) -> None:
    response = await mcp.post(
        "tools/list", headers={"mcp-protocol-version": OLD}, protocolVersion=OLD
    )
    discovered = await mcp.result("server/discover")
    data = wire.valid_error(response)["data"]
    assert data == {"supported": discovered["supportedVersions"], "requested": OLD}


async def test_a_missing_capability_is_told_in_the_shape_of_the_capabilities(mcp: Client) -> None:
    status, error = await mcp.error("tools/call", {"name": "sample"})
    assert (status, error["code"], error["data"]) == (
        400,
        -32021,
        {"requiredCapabilities": {"sampling": {}}},
    )


@pytest.mark.parametrize(
    ("method", "successor"),
    [
        ("ping", "server/discover"),
        ("logging/setLevel", "logLevel"),
        ("resources/subscribe", "subscriptions/listen"),
        ("resources/unsubscribe", "subscriptions/listen"),
        ("tasks/result", "tasks/get"),
        ("tasks/list", "tasks/get"),
        ("unknown/method", "unknown/method"),
    ],
)
async def test_a_removed_method_is_not_found_and_its_successor_named(
    mcp: Client, method: str, successor: str
) -> None:
    status, error = await mcp.error(method)
    assert (status, error["code"]) == (404, -32601)
    assert successor in error["message"]


async def test_initialize_with_this_revisions_metadata_gets_the_supported_versions(
    mcp: Client,
) -> None:
    status, error = await mcp.error("initialize", {"protocolVersion": OLD})
    assert (status, error["code"]) == (404, -32601)
    assert error["data"] == {"supported": [wire.VERSION]}
    assert wire.VERSION in error["message"]


async def test_header_names_are_case_insensitive(mcp: Client) -> None:
    asked = wire.message("tools/list")
    shouted = {name.upper(): value for name, value in wire.headers(asked).items()}
    assert (await mcp.http.post("/mcp", json=asked, headers=shouted)).status_code == 200


@pytest.mark.parametrize("level", ["loud", 3, ""])
async def test_a_log_level_that_does_not_exist_is_refused(mcp: Client, level: object) -> None:
    status, error = await mcp.error("tools/list", logLevel=level)
    assert (status, error["code"]) == (400, -32602)
