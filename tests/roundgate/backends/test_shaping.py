"""`override`: what the configuration changes of a tool, whatever kind its back end is of."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from roundgate import ToolResult, tool
from roundgate.errors import ConfigError
from roundgate.runtime import loading
from tests.support.asgi import client, config_file, gateway
from tests.support.openapi import document, file_of, gateway_of, operation
from tests.support.services import answer, service


@tool
def order(item: str, amount: int, note: str = "", dry: bool = False) -> dict[str, Any]:
    """Order something."""
    return {
        "item": item,
        "amount": amount,
        "note": note,
        "dry": dry,
        "parts": [{"id": 1, "price": 2}, {"id": 3}],
    }


async def called(
    override: dict[str, Any], arguments: dict[str, Any], name: str = "order"
) -> dict[str, Any]:
    app = gateway(order, backend={"override": {"order": override}})
    async with app.router.lifespan_context(app), client(app) as one:
        return await one.call(name, arguments)


async def listed(override: dict[str, Any]) -> dict[str, Any]:
    app = gateway(order, backend={"override": {"order": override}})
    async with app.router.lifespan_context(app), client(app) as one:
        [found] = (await one.result("tools/list"))["tools"]
        return dict(found)


async def test_what_people_and_models_read_is_changed() -> None:
    changed = {
        "name": "buy",
        "title": "Buy",
        "description": "Buys.",
        "read_only": False,
        "destructive": False,
    }
    found = await listed({**changed, "idempotent": True, "open_world": False})
    assert (found["name"], found["title"], found["description"]) == ("buy", "Buy", "Buys.")
    assert found["annotations"] == {
        "readOnlyHint": False,
        "destructiveHint": False,
        "idempotentHint": True,
        "openWorldHint": False,
    }
    assert (await called({"name": "buy"}, {"item": "x", "amount": 1}, "buy"))["structuredContent"][
        "item"
    ] == "x"


ARGUMENTS = {
    "item": {"name": "what", "description": "What to buy."},
    "amount": {"default": 3},
    "note": {"fixed": "by robot"},
    "dry": {"hidden": True},
}


async def test_arguments_are_renamed_defaulted_fixed_and_hidden() -> None:
    schema = (await listed({"arguments": ARGUMENTS}))["inputSchema"]
    assert list(schema["properties"]) == ["what", "amount"]
    assert schema["required"] == ["what"]
    assert (
        schema["properties"]["what"]["description"],
        schema["properties"]["amount"]["default"],
    ) == (
        "What to buy.",
        3,
    )
    result = (await called({"arguments": ARGUMENTS}, {"what": "tea"}))["structuredContent"]
    assert {name: result[name] for name in ("item", "amount", "note", "dry")} == {
        "item": "tea",
        "amount": 3,
        "note": "by robot",
        "dry": False,
    }
    assert (await called({"arguments": ARGUMENTS}, {"what": "tea", "amount": 5}))[
        "structuredContent"
    ]["amount"] == 5


@pytest.mark.parametrize("name", ["item", "note", "dry"])
async def test_a_name_that_is_gone_is_refused_even_where_anything_goes(name: str) -> None:
    assert (await called({"arguments": ARGUMENTS}, {"what": "tea", name: "mine"}))["isError"]

    @tool(
        input_schema={
            "type": "object",
            "properties": {"item": {}, "note": {}, "dry": {}, "amount": {}},
        }
    )
    def loose(**arguments: Any) -> dict[str, Any]:
        return arguments

    app = gateway(loose, backend={"override": {"loose": {"arguments": ARGUMENTS}}})
    async with app.router.lifespan_context(app), client(app) as one:
        assert f"unknown arguments {name}" in await one.text("loose", {"what": "tea", name: "mine"})
        assert (await one.call("loose", {"more": 1}))["structuredContent"] == {
            "more": 1,
            "amount": 3,
            "note": "by robot",
        }


async def test_two_arguments_may_change_names() -> None:
    swapped = {"item": {"name": "note"}, "note": {"name": "item"}}
    assert (await listed({"arguments": swapped}))["inputSchema"]["required"] == ["note", "amount"]
    result = (await called({"arguments": swapped}, {"note": "tea", "item": "fast", "amount": 1}))[
        "structuredContent"
    ]
    assert (result["item"], result["note"]) == ("tea", "fast")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (
            {"arguments": {"gone": {}}},
            "there are no arguments gone; the arguments are item, amount, note, dry",
        ),
        ({"arguments": {"amount": {"fixed": "x"}}}, "is not of type"),
        (
            {"arguments": {"item": {"hidden": True}}},
            "if hidden, give it a fixed value or a default",
        ),
        (
            {"arguments": {"item": {"name": "note"}}},
            "arguments 'note' and 'item' would both be called 'note'; set `name` of one of them",
        ),
        (
            {"arguments": {"item": {"name": "x"}, "note": {"name": "x"}}},
            "arguments 'item' and 'note' would both be called 'x'; set `name` of one of them",
        ),
        ({"result": "a["}, "is not a JMESPath expression"),
        ({"ask_for": ["gone"]}, "ask_for names gone"),
    ],
)
def test_an_override_that_does_not_fit_is_a_problem_with_its_place(
    override: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loading.load(config_file(order, backend={"override": {"order": override}}))
    [problem] = caught.value.problems
    assert (problem.path, reason in problem.message) == ("backends[0].override.order", True), (
        problem
    )


def test_an_override_of_no_tool_is_a_problem() -> None:
    with pytest.raises(ConfigError, match="is not the name of a tool"):
        loading.load(config_file(order, backend={"override": {"gone": {}}}))
    with pytest.raises(ConfigError, match="include and exclude leave out"):
        loading.load(
            config_file(order, backend={"override": {"order": {}}, "exclude": [{"name": "order"}]})
        )


@pytest.mark.parametrize(
    ("override", "result"),
    [
        ({"result": "parts[].id"}, [1, 3]),
        ({"result": "item"}, "tea"),
        ({"result": "parts[?price].{p: price}"}, [{"p": 2}]),
        ({"result": "gone"}, None),
        ({"fields": ["item", "amount"]}, {"item": "tea", "amount": 1}),
    ],
)
async def test_of_a_result_that_part_is_kept_that_the_projection_says(
    override: dict[str, Any], result: Any
) -> None:
    assert "outputSchema" not in await listed(override)
    found = await called(override, {"item": "tea", "amount": 1})
    assert found["structuredContent"] == result
    assert len(found["content"]) == 1


async def test_members_of_each_item_of_a_list_are_kept(tmp_path: Path) -> None:
    override = {"op": {"fields": ["id", "odd name"]}}
    async with service(
        answer(b'[{"id":1,"x":2,"odd name":3},{"x":1},"text"]'), answer(b"plain", content_type=None)
    ) as told:
        file = file_of(tmp_path, document(operation()), base_url=told.url, override=override)
        async with gateway_of(file) as gate:
            first, second = await gate.call("op"), await gate.call("op")
    assert first["structuredContent"] == [
        {"id": 1, "odd name": 3},
        {"id": None, "odd name": None},
        "text",
    ]
    assert second["content"][0]["text"] == "plain"


@pytest.mark.parametrize(
    "expression", ["sum(item)", "max_by(parts, &price)", "contains(item, amount)"]
)
async def test_a_projection_that_fails_on_an_answer_is_a_tool_error(expression: str) -> None:
    found = await called({"result": expression}, {"item": "tea", "amount": 1})
    assert found["isError"]
    assert "projection" in found["content"][0]["text"]


async def test_an_error_of_the_tool_is_not_projected() -> None:
    @tool
    def failing() -> ToolResult:
        return ToolResult.error("no luck")

    app = gateway(failing, backend={"override": {"failing": {"result": "a.b"}}})
    async with app.router.lifespan_context(app), client(app) as one:
        assert await one.text("failing") == "no luck"


async def test_a_call_that_takes_too_long_is_an_error_that_says_so() -> None:
    @tool
    async def slow() -> str:
        await asyncio.Event().wait()
        return "never"

    app = gateway(slow, backend={"override": {"slow": {"timeout_s": 0.05}}})
    async with app.router.lifespan_context(app), client(app) as one:
        assert "more than 0.05 s" in await one.text("slow")


async def test_approval_shows_the_call_as_it_will_be_made() -> None:
    override = {
        "name": "buy",
        "approve": "always",
        "approval": "Orders are binding.",
        "arguments": ARGUMENTS,
    }
    app = gateway(order, backend={"override": {"order": override}})
    able: dict[str, Any] = {"elicitation": {"form": {}}}
    async with app.router.lifespan_context(app), client(app) as one:
        params = {"name": "buy", "arguments": {"what": "tea"}}
        asked = (await one.post("tools/call", params, clientCapabilities=able)).json()["result"]
        [request] = asked["inputRequests"].values()
    text = request["params"]["message"]
    assert text.startswith("Run buy?\nOrders are binding.")
    assert '- note: "by robot"' in text
    assert "- amount: 3" in text


async def test_one_tool_may_be_approved_and_another_not() -> None:
    app = gateway(
        order, backend={"approve": "destructive", "override": {"order": {"destructive": False}}}
    )
    async with app.router.lifespan_context(app), client(app) as one:
        assert not (await one.call("order", {"item": "x", "amount": 1})).get("isError")
    app = gateway(order, backend={"approve": "always", "override": {"order": {"approve": "never"}}})
    async with app.router.lifespan_context(app), client(app) as one:
        assert not (await one.call("order", {"item": "x", "amount": 1})).get("isError")


async def test_the_user_is_asked_for_what_is_missing_under_the_new_names() -> None:
    override = {"ask_for": ["what"], "arguments": ARGUMENTS}
    app = gateway(order, backend={"override": {"order": override}})
    async with app.router.lifespan_context(app), client(app) as one:
        params = {"name": "order", "arguments": {}}
        able: dict[str, Any] = {"elicitation": {"form": {}}}
        asked = (await one.post("tools/call", params, clientCapabilities=able)).json()["result"]
    [request] = asked["inputRequests"].values()
    assert list(request["params"]["requestedSchema"]["properties"]) == ["what"]


def test_scopes_tasks_and_once_are_set() -> None:
    override = {"scopes": ["orders:write"], "task": "optional", "once": True}
    [served] = loading.load(
        config_file(order, backend={"override": {"order": override}})
    ).catalog.tools.values()
    assert (served.tool.scopes, served.tool.task, served.tool.once) == (
        frozenset({"orders:write"}),
        "optional",
        True,
    )
