"""The tools of a server as the gateway lists them, and its results: as they came, or left out by
name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.backends.base import Tool
from roundgate.backends.catalog import serve
from roundgate.backends.mcp.tools import result_from_wire, usable_tools
from roundgate.errors import UnexpectedAnswer
from tests.support.long import examples
from tests.support.upstreams import tool


def left_out(definition: dict[str, Any]) -> str:
    usable, (one,) = usable_tools([definition], check_arguments=True)
    assert not usable
    return one.reason


def test_a_definition_passes_as_it_came_but_for_what_belongs_to_one_hop() -> None:
    whole = tool(
        "all",
        title="All",
        description="…",
        outputSchema={"type": "object"},
        annotations={"readOnlyHint": True, "priority": 3},
        icons=[{"src": "data:,"}],
        unknown={"a": [1.0]},
    )
    hop = {"io.modelcontextprotocol/related": 1, "com.example/mine": 2}
    sent = {**whole, "_meta": hop, "execution": {"taskSupport": "required"}}
    (one,), rest = usable_tools([sent], check_arguments=True)
    assert rest == []
    assert one.definition == {**whole, "_meta": {"com.example/mine": 2}}


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ({"inputSchema": {"type": "object"}}, "name"),
        (tool(""), "name"),
        (tool("x" * 200), "name"),
        ({"name": "t"}, "inputSchema"),
        (tool("t", inputSchema=True), "inputSchema"),
        (tool("t", inputSchema={"type": "array"}), "inputSchema"),
        (tool("t", inputSchema={"type": "object", "properties": 7}), "inputSchema"),
        (tool("t", inputSchema={"type": "object", "$ref": "https://x.example/s"}), "inputSchema"),
        (tool("t", outputSchema=[]), "outputSchema"),
        (tool("t", outputSchema={"type": "nothing"}), "outputSchema"),
        (tool("t", description=1), "description"),
        (tool("t", title=["T"]), "title"),
        (tool("t", annotations="safe"), "annotations"),
        (tool("t", annotations={"readOnlyHint": "yes"}), "readOnlyHint"),
        (tool("t", icons="x.png"), "icons"),
        (tool("t", icons=["x.png"]), "icons"),
        (tool("t", _meta=[]), "_meta"),
    ],
)
def test_a_definition_that_a_client_would_refuse_is_left_out(
    definition: dict[str, Any], reason: str
) -> None:
    assert reason in left_out(definition)


def test_a_schema_of_any_depth_is_left_out_rather_than_followed() -> None:
    deep: Any = {"type": "object"}
    for _ in range(500):
        deep = {"type": "object", "properties": {"a": deep}}
    assert "deep" in left_out(tool("t", inputSchema=deep))


def test_the_reason_is_short_whatever_the_server_lists() -> None:
    marked = {"type": "string", "x-mcp-header": "not a header"}
    schema = {"type": "object", "properties": {"p" * 100_000: marked}}
    assert 0 < len(left_out(tool("t", inputSchema=schema))) <= 500


def test_a_second_tool_of_the_same_name_is_left_out() -> None:
    usable, (second,) = usable_tools([tool("a"), tool("a"), tool("b")], check_arguments=True)
    assert [one.name for one in usable] == ["a", "b"]
    assert "another tool with this name" in second.reason


def test_a_result_passes_as_it_came_but_for_what_belongs_to_one_hop() -> None:
    block = {"type": "text", "text": "x", "annotations": {"a": 1}, "_meta": {"b": 2}, "new": None}
    kept = {
        "content": [block, {"type": "hologram", "data": 1}],
        "structuredContent": [1, {"a": None}],
        "isError": False,
        "extra": {"deep": [1.5]},
    }
    hop = {"io.modelcontextprotocol/serverInfo": {"name": "up"}, "mine": 1}
    result = result_from_wire({**kept, "resultType": "complete", "_meta": hop}, "up")
    assert result.to_wire() == {**kept, "_meta": {"mine": 1}}


def test_a_result_may_be_structured_alone() -> None:
    assert result_from_wire({"structuredContent": None}, "up").to_wire() == {
        "content": [],
        "structuredContent": None,
    }


@pytest.mark.parametrize(
    "raw",
    [{}, {"content": "x"}, {"content": ["x"]}, {"content": [], "isError": "no"}, {"content": None}],
)
def test_what_is_no_result_is_a_fault_of_the_server(raw: dict[str, Any]) -> None:
    with pytest.raises(UnexpectedAnswer, match="up answered"):
        result_from_wire(raw, "up")


WORDS = st.sampled_from(
    [
        *(
            "type",
            "object",
            "string",
            "array",
            "properties",
            "items",
            "required",
            "$ref",
            "#",
            "$defs",
        ),
        *("x-mcp-header", "X-A", "anyOf", "enum", "pattern", "(", "name", "inputSchema", "_meta"),
        *(
            "annotations",
            "readOnlyHint",
            "icons",
            "outputSchema",
            "description",
            "title",
            "#/$defs/a",
        ),
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)
SCHEMAS = st.dictionaries(WORDS, VALUES, max_size=5).map(
    lambda members: {**members, "type": "object"}
)
DEFINITIONS = st.dictionaries(WORDS, VALUES, max_size=4) | st.builds(
    lambda members, schema: {**members, "name": "t", "inputSchema": schema},
    st.dictionaries(WORDS, VALUES, max_size=3),
    SCHEMAS,
)


async def _nothing(context: Any, arguments: dict[str, Any]) -> Any:
    raise AssertionError("nothing is called")


@examples(100)
@given(st.lists(DEFINITIONS, max_size=4))
def test_any_list_is_served_or_left_out_by_name(definitions: list[dict[str, Any]]) -> None:
    usable, rest = usable_tools(definitions, check_arguments=True)
    assert len(usable) + len(rest) == len(definitions)
    for one in usable:
        problems: list[Any] = []
        compiled = (one.definition["inputSchema"], one.arguments)
        made = Tool(one.definition, _nothing, compiled=compiled)
        assert serve(one.name, made, "up", problems) is not None or problems
        one.arguments.is_valid({"properties": [1]})


@given(
    st.dictionaries(
        st.sampled_from(["content", "structuredContent", "isError", "_meta", "x"]), VALUES
    )
)
def test_any_result_passes_or_is_refused(raw: dict[str, Any]) -> None:
    try:
        wire = result_from_wire(raw, "up").to_wire()
    except UnexpectedAnswer:
        return
    passed = {
        name: value
        for name, value in raw.items()
        if name != "_meta" and (name, value) not in (("isError", None), ("content", None))
    }
    assert {name: wire[name] for name in passed} == passed
