"""Mistakes in requests over HTTP, one of each check: the status and code of each."""

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

    status: int
    code: int
    headers: dict[str, str | None] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    method: str | None = None


MISTAKES = {
    "no version header": Mistake(400, -32020, {"mcp-protocol-version": None}),
    "no _meta": Mistake(400, -32602, params={"_meta": None}),
    "another version in the header": Mistake(400, -32020, {"mcp-protocol-version": OLD}),
    "an old version": Mistake(
        400, -32022, {"mcp-protocol-version": OLD}, meta={"protocolVersion": OLD}
    ),
    "an unknown method": Mistake(404, -32601, {"mcp-method": "tools/caII"}, method="tools/caII"),
    "another name in the header": Mistake(400, -32020, {"mcp-name": "add"}),
    "no parameter header": Mistake(400, -32020, {"mcp-param-region": None}),
    "another value in a parameter header": Mistake(400, -32020, {"mcp-param-region": "us"}),
    "a parameter header without a parameter": Mistake(400, -32020, {"mcp-param-count": "3"}),
    "a capability is not declared": Mistake(
        400, -32021, meta={"clientCapabilities": {"roots": {}}}
    ),
}


async def ask(mcp: Client, mistake: Mistake | None = None) -> tuple[int, int]:
    """Status and code of the answer to a call that is right but for a mistake."""
    asked = wire.call("mirrored", {"region": "eu"}, clientCapabilities={"sampling": {}})
    sent: dict[str, str | None] = {**wire.headers(asked), "mcp-param-region": "eu"}
    if mistake is not None:
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


async def test_a_missing_capability_is_told_in_the_shape_of_the_capabilities(mcp: Client) -> None:
    status, error = await mcp.error("tools/call", {"name": "sample"})
    assert (status, error["code"], error["data"]) == (
        400,
        -32021,
        {"requiredCapabilities": {"sampling": {}}},
    )


async def test_header_names_are_case_insensitive(mcp: Client) -> None:
    asked = wire.message("tools/list")
    shouted = {name.upper(): value for name, value in wire.headers(asked).items()}
    assert (await mcp.http.post("/mcp", json=asked, headers=shouted)).status_code == 200
