"""Rules against arguments: for each kind of back end and each way in which a value may change on its way, a call is
refused, or what reaches the service is what the rule reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import openapi
from tests.support.asgi import Client, config_of
from tests.support.lambdas import entry, use
from tests.support.scripted import result, scripted, text
from tests.support.services import answer, service
from tests.support.upstreams import Upstream, gateway_of, tool

KINDS = ("http", "openapi", "lambda", "mcp")
REFUSED = "does not allow this call with these arguments"
SMALL = {
    "properties": {
        "order": {
            "type": "object",
            "properties": {"sum": {"type": "number", "maximum": 100}},
            "required": ["sum"],
        }
    },
    "required": ["order"],
}
LARGE = {
    "properties": {
        "order": {
            "type": "object",
            "properties": {"sum": {"type": "number", "exclusiveMinimum": 100}},
            "required": ["sum"],
        }
    },
    "required": ["order"],
}
POLICIES: dict[str, list[dict[str, Any]]] = {
    "allow small sums": [{"allow": {"arguments": SMALL}}],
    "deny large sums": [{"deny": {"arguments": LARGE}}, {"allow": {}}],
}
NOT_LARGE = {"no order", "null for a default"}
"""Ways that a rule against large sums does not concern, and a rule for small sums does not allow."""


def order(sum_: Any = None, **more: Any) -> dict[str, Any]:
    """The schema of an order."""
    member = {"type": "number"} if sum_ is None else sum_
    return {"type": "object", "properties": {"sum": member, "note": {"type": "string"}}, **more}


class Way:
    """A way in which a value may change: the schema of the order, what a caller sends, and what reaches the service
    (`None` if the call is refused)."""

    def __init__(self, schema: Any, sent: Any, reaches: Any = None, **override: Any) -> None:
        self.schema, self.sent, self.reaches, self.override = schema, sent, reaches, override


TEXT_OR_NUMBER = {"anyOf": [{"type": "number"}, {"type": "string"}]}
WAYS = {
    "as it is": Way(order(), {"order": {"sum": 5}}, {"order": {"sum": 5}}),
    "too large": Way(order(), {"order": {"sum": 1000}}),
    "alias": Way(order({"type": "number", "default": 10}), {"order": {"max_amount": 1000}}),
    "alias beside": Way(order(), {"order": {"sum": 1, "max_amount": 1000}}),
    "alias in an open object": Way(
        order(additionalProperties=True), {"order": {"sum": 1, "max_amount": 1000}}
    ),
    "alias at the top": Way(order(), {"order": {"sum": 1}, "amount": 1000}),
    "alias in an optional object": Way(
        {"anyOf": [order(), {"type": "null"}]}, {"order": {"sum": 1, "max_amount": 1000}}
    ),
    "no order": Way({"anyOf": [order(), {"type": "null"}]}, {"order": None}),
    "map": Way({"type": "object"}, {"order": {"sum": 5, "x": 1}}, {"order": {"sum": 5, "x": 1}}),
    "map, too large": Way({"type": "object"}, {"order": {"sum": 1000}}),
    "default": Way(order({"type": "number", "default": 10}), {"order": {}}, {"order": {}}),
    "default, too large": Way(order({"type": "number", "default": 1000}), {"order": {}}),
    "default of the whole": Way(order(default={"sum": 1000}), {}),
    "null for a default": Way(
        order({"type": ["number", "null"], "default": 10}), {"order": {"sum": None}}
    ),
    "number as text": Way(order(TEXT_OR_NUMBER), {"order": {"sum": "1000"}}),
    "number as spaced text": Way(order(TEXT_OR_NUMBER), {"order": {"sum": " 1_000"}}),
    "number beside text": Way(order(TEXT_OR_NUMBER), {"order": {"sum": 5}}, {"order": {"sum": 5}}),
    "number as text, without a type": Way(order({}), {"order": {"sum": "1000"}}),
    "number as text in a map": Way({"type": "object"}, {"order": {"sum": "1000"}}),
    "alternatives with different defaults": Way(
        {
            "anyOf": [
                order({"type": "number", "default": 1000}),
                order({"type": "number", "default": 10}),
            ]
        },
        {"order": {}},
    ),
    "float without a fraction": Way(order(), {"order": {"sum": 5.0}}, {"order": {"sum": 5.0}}),
    "large integer": Way(order({"type": "integer"}), {"order": {"sum": 10**40}}),
    "large float": Way(order(), {"order": {"sum": 1e300}}),
    "repair: text": Way(order(), {"order": '{"sum": 5}'}, {"order": {"sum": 5}}),
    "repair: text, too large": Way(order(), {"order": '{"sum": 1000}'}),
    "repair: number": Way(order(), {"order": {"sum": "5"}}, {"order": {"sum": 5}}),
    "repair: number, too large": Way(order(), {"order": {"sum": "1000"}}),
    "repair: null": Way(order(), {"order": {"sum": 5, "note": None}}, {"order": {"sum": 5}}),
    "repair: null, default too large": Way(
        order({"type": "number", "default": 1000}), {"order": {"sum": None}}
    ),
    "repair: name": Way(order(), {"order": {"sum": 5}, "sessionId": "s"}, {"order": {"sum": 5}}),
    "override: default": Way(
        order(), {}, {"order": {"sum": 7}}, arguments={"order": {"default": {"sum": 7}}}
    ),
    "override: default, too large": Way(
        order(), {}, arguments={"order": {"default": {"sum": 700}}}
    ),
    "override: fixed": Way(
        order(), {}, {"order": {"sum": 7}}, arguments={"order": {"fixed": {"sum": 7}}}
    ),
    "override: fixed, too large": Way(order(), {}, arguments={"order": {"fixed": {"sum": 700}}}),
    "override: fixed and sent": Way(
        order(), {"order": {"sum": 1}}, arguments={"order": {"fixed": {"sum": 700}}}
    ),
    "override: name": Way(
        order(), {"buy": {"sum": 5}}, {"order": {"sum": 5}}, arguments={"order": {"name": "buy"}}
    ),
    "override: name, too large": Way(
        order(), {"buy": {"sum": 500}}, arguments={"order": {"name": "buy"}}
    ),
    "override: both names": Way(
        order(), {"buy": {"sum": 5}, "order": {"sum": 500}}, arguments={"order": {"name": "buy"}}
    ),
}

Received = Callable[[], list[Any]]
"""Returns what has reached the service."""


@asynccontextmanager
async def paying(
    kind: str, policy: str, folder: Path, patch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Client, Received]]:
    """A gateway of a kind with a tool for each way, and what reaches the service behind it."""
    schemas = {
        name_of(way): {"type": "object", "properties": {"order": WAYS[way].schema}} for way in WAYS
    }
    override = {name_of(name): way.override for name, way in WAYS.items()}
    backend: dict[str, Any] = {"prefix": "", "name": "shop", "override": override}
    if kind == "mcp":
        got: list[Any] = []

        def pay(asked: Any) -> Any:
            got.append(asked.message["params"]["arguments"])
            return result(asked, text("paid"))

        tools = [tool(name, inputSchema=schema) for name, schema in schemas.items()]
        async with scripted(Upstream(pay, tools)) as upstream:
            backend |= {"kind": "mcp", "url": upstream.url}
            async with gateway_of(backend, policy=POLICIES[policy]) as mcp:
                yield mcp, lambda: got
        return
    async with service(answer(b'"paid"')) as told:
        if kind == "http":
            pay_tool = {"path": "/pay", "description": "Pay.", "method": "POST"}
            tools = [
                {"name": name_of(name), **pay_tool, "arguments": {"order": {"schema": way.schema}}}
                for name, way in WAYS.items()
            ]
            backend |= {"kind": "http", "base_url": told.url, "tools": tools}
        elif kind == "lambda":
            use(patch, told.url)
            tools = [{"name": name, "input_schema": schema} for name, schema in schemas.items()]
            backend |= entry(*tools, **backend)
        else:
            paths: dict[str, Any] = {}
            for name, schema in schemas.items():
                body = {"content": {"application/json": {"schema": schema}}}
                paths |= openapi.operation("post", f"/{name}", operationId=name, requestBody=body)
            document = openapi.document(paths, servers=[{"url": told.url}])
            (folder / "api.json").write_text(json.dumps(document))
            backend |= {"kind": "openapi", "document": "api.json", "base_url": told.url}
        file = config_of({"backends": [backend], "policy": POLICIES[policy]}, folder)
        async with openapi.gateway_of(file) as mcp:
            yield mcp, lambda: [json.loads(told.body(at)) for at in range(len(told.requests))]


def name_of(way: str) -> str:
    """The name of the tool whose argument changes in a way."""
    return f"pay{list(WAYS).index(way)}"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
async def test_what_reaches_the_service_is_what_the_rule_reads(
    kind: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: dict[str, Any] = {}
    async with paying(kind, policy, tmp_path, monkeypatch) as (mcp, received):
        for name, way in WAYS.items():
            before = len(received())
            said = await mcp.text(name_of(name), way.sent)
            reached[name] = received()[before:]
            if not reached[name]:
                assert REFUSED in said or "Invalid arguments" in said, (name, said)
    expected = {name: way.reaches for name, way in WAYS.items()}
    if policy == "deny large sums":
        expected |= {name: WAYS[name].sent for name in NOT_LARGE}
    assert reached == {
        name: [] if reaches is None else [reaches] for name, reaches in expected.items()
    }
