"""Small arguments that would keep a validator busy for ever, sent to a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.asgi import Client
from tests.support.server import Server, configured, running

TOOLS = '''
from dataclasses import dataclass
from typing import Any

from roundgate import tool

REFERENCE = {"$ref": "#/$defs/filter"}
HAS_LEFT = {"type": "object", "properties": {"left": REFERENCE}, "required": ["left"]}


@tool(
    input_schema={
        "type": "object",
        "properties": {"where": REFERENCE},
        "$defs": {
            "filter": {
                "type": ["object", "integer"],
                "properties": {"left": REFERENCE},
                "dependentSchemas": {"left": HAS_LEFT, "right": HAS_LEFT},
            }
        },
    }
)
async def find(where: Any) -> str:
    """Find rows."""
    return "found"

@dataclass
class And:
    left: "Filter"
    right: "Filter"


@dataclass
class Or:
    left: "Filter"
    right: "Filter"


Filter = And | Or | int


@tool
async def count(where: Filter) -> int:
    """Count rows."""
    return 1
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(configured(tmp_path_factory.mktemp("costly"), TOOLS)) as started:
        yield started


@pytest.mark.parametrize("tool", ["find", "count"])
async def test_a_small_nested_argument_leaves_the_process_to_others(
    server: Server, tool: str
) -> None:
    where: Any = "wrong"
    for _ in range(40):
        where = {"left": where, "right": 1}
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        result, health = await asyncio.gather(
            Client(http).call(tool, {"where": where}), http.get("/healthz")
        )
    assert result["isError"] is True
    assert health.status_code == 200
