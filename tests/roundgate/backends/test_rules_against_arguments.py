"""Rules against arguments: for each kind of back end and each way in which a value may change on its way, a call is
refused, or what reaches the service is what the rule reads."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate.backends.openapi.compiling import compile_to_file
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

Pays = Callable[[], list[Any]]
"""Returns what has reached the service."""


@asynccontextmanager
async def paying(
    kind: str, way: Way, policy: str, folder: Path, patch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Client, Pays]]:
    """A gateway with the tool `pay` of a kind, and what reaches the service behind it."""
    schema = {"type": "object", "properties": {"order": way.schema}}
    backend: dict[str, Any] = {"prefix": "", "name": "shop", "override": {"pay": way.override}}
    if kind == "mcp":
        got: list[Any] = []

        def pay(asked: Any) -> Any:
            got.append(asked.message["params"]["arguments"])
            return result(asked, text("paid"))

        server = Upstream(pay, [tool("pay", inputSchema=schema)])
        async with scripted(server) as upstream:
            backend |= {"kind": "mcp", "url": upstream.url}
            async with gateway_of(backend, policy=POLICIES[policy]) as mcp:
                yield mcp, lambda: got
        return
    async with service(answer(b'"paid"')) as told:
        if kind == "http":
            pay_tool = {"name": "pay", "path": "/pay", "description": "Pay.", "method": "POST"}
            declared = {**pay_tool, "arguments": {"order": {"schema": way.schema}}}
            backend |= {"kind": "http", "base_url": told.url, "tools": [declared]}
        elif kind == "lambda":
            use(patch, told.url)
            backend |= entry({"name": "pay", "input_schema": schema}, **backend)
        else:
            media = {"application/json": {"schema": schema}}
            body = {"post": {"operationId": "pay", "requestBody": {"content": media}}}
            document = openapi.document({"/pay": body}, servers=[{"url": told.url}])
            (folder / "api.json").write_text(json.dumps(document))
            backend |= {"kind": "openapi", "document": "api.json", "base_url": told.url}
            file = config_of({"backends": [backend], "policy": POLICIES[policy]}, folder)
            compile_to_file(file.backends[0], file.origin.at("backends", 0))  # type: ignore[arg-type]
        file = config_of({"backends": [backend], "policy": POLICIES[policy]}, folder)
        async with openapi.gateway_of(file) as mcp:
            yield mcp, lambda: [json.loads(told.body(at)) for at in range(len(told.requests))]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WAYS)
async def test_what_reaches_the_service_is_what_the_rule_reads(
    kind: str, name: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = WAYS[name]
    reaches = way.reaches
    if policy == "deny large sums" and name in NOT_LARGE:
        reaches = way.sent
    async with paying(kind, way, policy, tmp_path, monkeypatch) as (mcp, got):
        said = await mcp.text("pay", way.sent)
        if reaches is None:
            assert REFUSED in said or "Invalid arguments" in said, got()
            assert got() == []
        else:
            assert got() == [reaches], said


def table() -> str:
    """The table of this module: what becomes of each way under a rule for small sums, for each kind."""
    lines = [f"| way | sent | {' | '.join(KINDS)} |", "|---" * (len(KINDS) + 2) + "|"]
    for name, way in WAYS.items():
        outcome = "refused" if way.reaches is None else f"runs: `{json.dumps(way.reaches)}`"
        lines.append(
            f"| {name} | `{json.dumps(way.sent)}` | {' | '.join([outcome] * len(KINDS))} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
