"""The decorators record what a function is, and change nothing about it. Its definition
follows from the record."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from roundgate import Annotations, Icon, prompt, resource, tool
from roundgate.declare import read_declarations
from roundgate.errors import ConfigError
from tests.support.asgi import client, gateway


@pytest.mark.parametrize(
    "decorate", [tool, tool(), tool(name="x"), prompt, prompt(), resource("a:b")]
)
def test_a_decorated_function_is_the_same_function(decorate: Callable[..., Any]) -> None:
    def double(n: int) -> int:
        return 2 * n

    assert decorate(double) is double
    assert double(4) == 8
    assert len(read_declarations(double)) == 1


def test_a_function_can_be_several_things_the_innermost_first() -> None:
    @resource("notes://all")
    @prompt
    @tool
    def notes() -> str:
        """All notes."""

    assert [one.decorator for one in read_declarations(notes)] == ["tool", "prompt", "resource"]


class Anything:
    """Claims to have every attribute, as lazy proxies do."""

    def __getattr__(self, name: str) -> Any:
        return self


@pytest.mark.parametrize("value", [len, 5, None, "x", object(), type, tool, json, Anything()])
def test_anything_else_has_no_declarations(value: Any) -> None:
    assert list(read_declarations(value)) == []


async def listed(method: str, member: str, function: Callable[..., Any]) -> dict[str, Any]:
    async with client(gateway(function)) as gate:
        (found,) = (await gate.result(method))[member]
        return dict(found)


async def test_a_plain_tool_is_named_and_described_by_its_function() -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""

    number = {"type": "integer"}
    assert await listed("tools/list", "tools", add) == {
        "name": "add",
        "description": "Add two numbers.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": number, "b": number},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        "outputSchema": number,
    }


async def test_what_a_tool_is_told_goes_before_what_its_function_says() -> None:
    @tool(
        name="sum.of-2",
        title="Sum",
        description="Adds.",
        read_only=True,
        destructive=False,
        idempotent=True,
        open_world=False,
        icons=[Icon("https://h/i.png", "image/png", ["48x48"], "dark")],
        meta={"com.example/team": ["a"]},
        output_schema={"type": "integer", "minimum": 0},
    )
    def add() -> str:
        """Add two numbers."""

    assert await listed("tools/list", "tools", add) == {
        "name": "sum.of-2",
        "title": "Sum",
        "description": "Adds.",
        "icons": [
            {"src": "https://h/i.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "dark"}
        ],
        "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
        "outputSchema": {"type": "integer", "minimum": 0},
        "annotations": {
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
        "_meta": {"com.example/team": ["a"]},
    }


VERBATIM = (
    '{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","title":"Zé",'
    '"$defs":{"z":{"$anchor":"zed","type":"string","maxLength":3.0},"a":{"const":0.5}},'
    '"properties":{"z":{"$ref":"#zed"},"big":{"maximum":123456789012345678901234567890}},'
    '"if":{"required":["z"]},"then":{},"x-unknown":[null,true,{"b":1,"a":2}],"additionalProperties":false}'
)


@pytest.mark.parametrize(
    "verbatim", [VERBATIM, '{"type":"object"}', '{"additionalProperties":true,"type":"object"}']
)
async def test_a_schema_given_verbatim_is_served_byte_for_byte(verbatim: str) -> None:
    @tool(input_schema=json.loads(verbatim), output_schema=json.loads(verbatim))
    def work(**arguments: Any) -> dict[str, Any]:
        """Work."""

    async with client(gateway(work)) as gate:
        body = (await gate.post("tools/list")).text
    assert f'"inputSchema":{verbatim},"outputSchema":{verbatim}}}' in body


async def test_a_schema_given_verbatim_is_what_arguments_are_checked_against() -> None:
    @tool(
        input_schema={"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 7}}}
    )
    def work(**arguments: Any) -> Any:
        return arguments

    async with client(gateway(work)) as gate:
        assert (await gate.call("work", {"n": 14, "other": [1]}))["structuredContent"] == {
            "n": 14,
            "other": [1],
        }
        assert "arguments.n: 8 is not a multiple of 7" in await gate.text("work", {"n": 8})


async def test_a_prompt_lists_its_parameters_as_arguments() -> None:
    @prompt(name="review-1", title="Review", icons=[Icon("https://h/i")], meta={"k": 1})
    def review(code: str, language: str = "python") -> str:
        """Review code.

        Args:
            code: What to read.
        """

    assert await listed("prompts/list", "prompts", review) == {
        "name": "review-1",
        "title": "Review",
        "description": "Review code.",
        "icons": [{"src": "https://h/i"}],
        "arguments": [
            {"name": "code", "description": "What to read.", "required": True},
            {"name": "language", "required": False},
        ],
        "_meta": {"k": 1},
    }


async def test_a_resource_has_its_uri_and_a_template_its_template() -> None:
    annotations = Annotations(audience=["user"], priority=0.5, last_modified="2026-07-28T00:00:00Z")

    @resource(
        "notes://all",
        mime_type="text/plain",
        size=12,
        annotations=annotations,
        title="All",
        meta={"k": 1},
    )
    def everything() -> str:
        """All notes."""

    @resource("notes://{owner}", name="of", icons=[Icon("https://h/i")])
    def of(owner: str) -> str:
        """Notes of one."""

    assert await listed("resources/list", "resources", everything) == {
        "uri": "notes://all",
        "name": "everything",
        "title": "All",
        "description": "All notes.",
        "mimeType": "text/plain",
        "size": 12,
        "annotations": {
            "audience": ["user"],
            "priority": 0.5,
            "lastModified": "2026-07-28T00:00:00Z",
        },
        "_meta": {"k": 1},
    }
    assert await listed("resources/templates/list", "resourceTemplates", of) == {
        "uriTemplate": "notes://{owner}",
        "name": "of",
        "description": "Notes of one.",
        "icons": [{"src": "https://h/i"}],
    }


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"name": " "}, "name"),
        ({"description": 5}, "description"),
        ({"input_schema": []}, "input_schema"),
        ({"read_only": "yes"}, "read_only"),
        ({"icons": ["https://h/i.png"]}, "icons"),
        ({"scopes": "orders:write"}, "scopes"),
        ({"scopes": ["two words"]}, "scopes"),
        ({"task": "always"}, "task"),
    ],
)
def test_an_option_that_cannot_be_is_a_problem_at_the_line_of_its_decorator(
    options: dict[str, Any], option: str
) -> None:
    @tool(**options)
    def work() -> None:
        """Work."""

    with pytest.raises(ConfigError) as caught:
        gateway(work)
    (problem,) = caught.value.problems
    assert (problem.file, problem.path) == (__file__, f"work(): @tool({option}=…)")
    assert problem.line == work.__code__.co_firstlineno
