"""What a request repeats in headers is the body's, encoded wherever HTTP would not carry it."""

from __future__ import annotations

import pytest

from roundgate.client.messages import of_arguments, of_request
from roundgate.client.types import Tool

NESTED = {"type": "object", "properties": {"z": {"type": "integer", "x-mcp-header": "Z"}}}
TOOL = Tool.read(
    {
        "name": "t",
        "inputSchema": {
            "type": "object",
            "properties": {
                "s": {"type": "string", "x-mcp-header": "S"},
                "b": {"type": "boolean", "x-mcp-header": "B"},
                "o": NESTED,
            },
        },
    }
)


def test_a_request_is_named_by_what_it_is_about() -> None:
    assert of_request("resources/read", {"uri": "a://ü"}, "2026-07-28") == [
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "resources/read"),
        ("Mcp-Name", "=?base64?YTovL8O8?="),
    ]
    assert len(of_request("tools/list", {}, "2026-07-28")) == 2


def test_every_annotated_argument_that_has_a_value_is_repeated() -> None:
    headers = dict(of_arguments(TOOL, {"s": "", "b": False, "o": {"z": 5}, "other": 1}))
    assert headers == {"Mcp-Param-S": "", "Mcp-Param-B": "false", "Mcp-Param-Z": "5"}
    assert of_arguments(TOOL, {"s": None, "o": 5}) == []


def test_a_tool_whose_annotations_break_the_rules_is_none() -> None:
    with pytest.raises(ValueError, match="HTTP token"):
        Tool.read(
            {
                "name": "t",
                "inputSchema": {"properties": {"a": {"type": "string", "x-mcp-header": "a b"}}},
            }
        )
