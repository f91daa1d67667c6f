"""Every method of the revision, served: results that the official models take, lists,
pages, hints, completions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from roundgate import Completion, Context, prompt, resource, tool
from roundgate.methods.extensions import ROUTES, SkillsExtension
from roundgate.protocol.tasks import EXTENSION
from roundgate.protocol.v2026_07_28 import METHODS as OWN
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import Client, client, gateway
from tests.support.functions import EVERYTHING, add, change, echo, note, note_by, review

LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "server/discover": {},
    "tools/list": {},
    "tools/call": {"name": "add", "arguments": {"a": 1, "b": 2}},
    "resources/list": {},
    "resources/templates/list": {},
    "resources/read": {"uri": "note://one"},
    "prompts/list": {},
    "prompts/get": {"name": "review", "arguments": {"language": "rust"}},
    "completion/complete": {
        "ref": {"type": "ref/prompt", "name": "review"},
        "argument": {"name": "language", "value": "p"},
    },
}


METHODS = {**OWN, **ROUTES}
TASK_METHODS = {"tasks/get", "tasks/update", "tasks/cancel"}


def test_there_is_an_example_of_every_method() -> None:
    # test_listen.py, test_task_methods.py, test_skills.py
    elsewhere = {"subscriptions/listen", *TASK_METHODS, *SkillsExtension.routes}
    assert EXAMPLES.keys() | elsewhere == METHODS.keys()


@pytest.mark.parametrize("method", EXAMPLES)
async def test_a_method_is_answered_with_a_result_that_the_official_model_takes(
    mcp: Client, method: str
) -> None:
    result = await mcp.result(method, EXAMPLES[method])
    assert result["_meta"] == {wire.SERVER_INFO: {"name": "roundgate", "version": "0.0.0"}}


async def test_the_result_of_a_tool_has_text_and_structure(mcp: Client) -> None:
    result = await mcp.call("add", {"a": 40, "b": 2})
    assert result["content"] == [{"type": "text", "text": "42"}]
    assert result["structuredContent"] == 42
    assert "isError" not in result


async def test_a_tool_may_be_called_without_arguments(mcp: Client) -> None:
    assert (await mcp.result("tools/call", {"name": "refuse"}))["isError"]


async def test_a_prompt_has_its_description_and_messages(mcp: Client) -> None:
    result = await mcp.result(
        "prompts/get", {"name": "review", "arguments": {"language": "rust", "style": "brief"}}
    )
    text = {"type": "text", "text": "Review this rust, and be brief."}
    assert (result["description"], result["messages"]) == (
        "Asks for a review.",
        [{"role": "user", "content": text}],
    )


async def test_a_resource_is_read(mcp: Client) -> None:
    result = await mcp.result("resources/read", {"uri": "note://one"})
    assert result["contents"] == [
        {"uri": "note://one", "mimeType": "text/plain", "text": "remember the milk"}
    ]


async def test_a_template_is_read_under_the_uri_that_was_asked_for(mcp: Client) -> None:
    (contents,) = (await mcp.result("resources/read", {"uri": "note://by/ann%20b/7"}))["contents"]
    assert (contents["uri"], contents["text"]) == ("note://by/ann%20b/7", "note 7 by ann b")


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "nobody"}),
        ("tools/call", {"name": "add", "arguments": [1, 2]}),
        ("prompts/get", {"name": "nobody"}),
        ("prompts/get", {"name": "review"}),
        ("prompts/get", {"name": "review", "arguments": {"language": "rust", "tone": "x"}}),
        ("prompts/get", {"name": "review", "arguments": {"language": 1}}),
        ("resources/read", {"uri": "note://nobody"}),
        ("resources/read", {"uri": "note://by/ann/seven"}),
        ("tools/list", {"cursor": "nowhere"}),
        ("tools/list", {"cursor": 3}),
        ("prompts/list", {"cursor": "ü"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/tool", "name": "add"}, "argument": {"name": "a", "value": ""}},
        ),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/prompt", "name": "nobody"},
                "argument": {"name": "a", "value": ""},
            },
        ),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/resource", "uri": "note://nobody"},
                "argument": {"name": "a", "value": ""},
            },
        ),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "review"}, "argument": {"name": "language"}},
        ),
    ],
)
async def test_params_that_are_wrong_or_name_nothing_are_invalid(
    mcp: Client, method: str, params: dict[str, Any]
) -> None:
    status, error = await mcp.error(method, params)
    assert (status, error["code"]) == (400, -32602)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "missing arguments: language"),
        ({"language": "rust", "tone": "x"}, "unknown arguments tone"),
    ],
)
async def test_an_argument_of_a_prompt_that_is_missing_or_unknown_is_named(
    mcp: Client, arguments: dict[str, str], says: str
) -> None:
    _, error = await mcp.error("prompts/get", {"name": "review", "arguments": arguments})
    assert says in error["message"]


async def test_a_resource_that_does_not_exist_is_named_in_the_data(mcp: Client) -> None:
    _, error = await mcp.error("resources/read", {"uri": "note://nobody"})
    assert error["data"] == {"uri": "note://nobody"}


@tool(task="optional")
async def dig(ctx: Context) -> str:
    """May take its time."""
    return "dug"


FEATURES: dict[str, Callable[..., Any]] = {
    "tools": add,
    "prompts": review,
    "resources": note,
    "tasks": dig,
}


COMBINATIONS = [
    (names, "on") for size in range(len(FEATURES) + 1) for names in combinations(FEATURES, size)
] + [((), "off"), (tuple(FEATURES), "off")]


@pytest.mark.parametrize(("features", "listen"), COMBINATIONS)
async def test_the_capabilities_are_exactly_what_is_served(
    features: tuple[str, ...], listen: Any
) -> None:
    app = gateway(*(FEATURES[name] for name in features), using=Settings(listen=listen))
    async with client(app) as mcp:
        capabilities = (await mcp.result("server/discover"))["capabilities"]
        served = {method for method in METHODS if await is_served(mcp, method)}
    changes = {"listChanged": True} if listen == "on" else {}
    subscribe = {"subscribe": True} if listen == "on" else {}
    named = [name for name in ("tools", "prompts", "resources") if name in features]
    named += ["tools"] if "tasks" in features and "tools" not in features else []
    expected: dict[str, Any] = {
        name: changes | (subscribe if name == "resources" else {}) for name in named
    }
    expected |= {"completions": {}} if "prompts" in features else {}
    expected |= {"logging": {}} if features else {}
    expected |= {"extensions": {EXTENSION: {}}} if "tasks" in features else {}
    assert capabilities == expected
    assert served == {"server/discover"} | (
        {"subscriptions/listen"} if listen == "on" else set()
    ) | {method for method, route in METHODS.items() if route.feature in {*features, *named}} | (
        {"completion/complete"} if "prompts" in features else set()
    )


async def is_served(mcp: Client, method: str) -> bool:
    """Whether a method is there; a request without params of its own is enough to see it."""
    response = await mcp.post(method, {"name": "-", "uri": "-", "taskId": "-"})
    return response.status_code != 404


@pytest.mark.parametrize(
    ("functions", "completions"),
    [((add,), False), ((note,), False), ((review,), True), ((note_by,), True)],
)
async def test_completions_are_advertised_where_something_can_be_completed(
    functions: Any, completions: bool
) -> None:
    async with client(gateway(*functions)) as mcp:
        capabilities = (await mcp.result("server/discover"))["capabilities"]
        assert ("completions" in capabilities) == completions
        assert await is_served(mcp, "completion/complete") == completions


async def test_templates_alone_make_the_resource_methods_served() -> None:
    async with client(gateway(note_by)) as mcp:
        assert (await mcp.result("resources/list"))["resources"] == []
        assert len((await mcp.result("resources/templates/list"))["resourceTemplates"]) == 1


async def test_a_method_of_a_feature_that_is_not_there_is_not_found_and_the_feature_named() -> None:
    async with client(gateway(add)) as mcp:
        status, error = await mcp.error("prompts/list")
    assert (status, error["code"]) == (404, -32601)
    assert "prompts" in error["message"]


async def test_the_server_says_who_it_is_and_how_to_use_it() -> None:
    server = {
        "name": "shop",
        "version": "7",
        "title": "The shop",
        "description": "Sells",
        "website_url": "https://shop.example",
        "instructions": "Be quick.",
    }
    async with client(gateway(add, server=server)) as mcp:
        discovered = await mcp.result("server/discover")
        called = await mcp.call("add", {"a": 1, "b": 2})
    assert discovered["instructions"] == "Be quick."
    assert called["_meta"][wire.SERVER_INFO] == {
        "name": "shop",
        "version": "7",
        "title": "The shop",
        "description": "Sells",
        "websiteUrl": "https://shop.example",
    }


async def test_a_list_is_in_the_order_of_the_module_and_the_same_every_time() -> None:
    answers = []
    for _ in range(2):
        async with client(gateway(*EVERYTHING)) as mcp:
            answers.append([(await mcp.post(method)).content for method in LISTS])
    assert answers[0] == answers[1]


async def test_tools_are_listed_as_they_are_declared(mcp: Client) -> None:
    tools = (await mcp.result("tools/list"))["tools"]
    functions = ["add", "report", "refuse", "crash", "sample", "mirrored", "echo", "change"]
    assert [one["name"] for one in tools] == functions
    assert tools[0]["description"] == "Adds two numbers."
    assert tools[6]["inputSchema"] == {"type": "object"}


HINTED = ["server/discover", *LISTS, "resources/read"]


@pytest.mark.parametrize("method", HINTED)
async def test_a_cacheable_result_carries_hints(mcp: Client, method: str) -> None:
    result = await mcp.result(method, EXAMPLES[method])
    assert type(result["ttlMs"]) is int
    assert result["ttlMs"] >= 0
    assert result["cacheScope"] == ("private" if method == "resources/read" else "public")


@pytest.mark.parametrize("method", sorted(EXAMPLES.keys() - set(HINTED)))
async def test_no_other_result_carries_hints(mcp: Client, method: str) -> None:
    assert not {"ttlMs", "cacheScope"} & (await mcp.result(method, EXAMPLES[method])).keys()


async def test_the_hints_are_those_of_the_configuration() -> None:
    names = ["discover", "tools", "prompts", "resources", "resource_templates", "read"]
    caching = {name: {"ttl_ms": number, "scope": "private"} for number, name in enumerate(names)}
    methods = ["server/discover", "tools/list", "prompts/list", *list(LISTS)[2:], "resources/read"]
    async with client(gateway(*EVERYTHING, caching=caching)) as mcp:
        results = [await mcp.result(method, EXAMPLES[method]) for method in methods]
    assert [(one["ttlMs"], one["cacheScope"]) for one in results] == [
        (n, "private") for n in range(6)
    ]


def many(count: int) -> list[Any]:
    """So many tools."""

    def make(number: int) -> Any:
        async def function() -> str:
            return str(number)

        function.__name__ = f"tool{number}"
        return tool(function)

    return [make(number) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "size"), [(1, 1), (5, 1), (5, 2), (6, 2), (6, 3), (6, 6), (6, 7), (201, 200)]
)
async def test_pages_give_every_entry_once_and_in_order(count: int, size: int) -> None:
    async with client(gateway(*many(count), limits={"page_size": size})) as mcp:
        pages = [await mcp.result("tools/list")]
        while "nextCursor" in pages[-1]:
            pages.append(await mcp.result("tools/list", {"cursor": pages[-1]["nextCursor"]}))
    assert [one["name"] for page in pages for one in page["tools"]] == [
        f"tool{n}" for n in range(count)
    ]
    assert len(pages) == -(-count // size)
    assert {(page["ttlMs"], page["cacheScope"]) for page in pages} == {(300_000, "public")}


async def test_a_cursor_is_good_at_any_replica_also_one_with_more_tools_and_smaller_pages() -> None:
    async with client(gateway(*many(6), limits={"page_size": 3})) as mcp:
        cursor = (await mcp.result("tools/list"))["nextCursor"]
    async with client(gateway(add, *many(9), limits={"page_size": 2})) as mcp:
        page = await mcp.result("tools/list", {"cursor": cursor})
    assert [one["name"] for one in page["tools"]] == ["tool3", "tool4"]


@pytest.mark.parametrize(
    "cursor", ["", "%", "AAAA", "dG9vbDk", "dG9vbDE=x", "\x00", "ü", "x" * 100_000]
)
async def test_a_cursor_that_leads_nowhere_is_invalid(cursor: str) -> None:
    async with client(gateway(*many(3), limits={"page_size": 1})) as mcp:
        status, error = await mcp.error("tools/list", {"cursor": cursor})
    assert (status, error["code"]) == (400, -32602)


async def complete(
    mcp: Client, ref: dict[str, str], name: str, value: str, **params: Any
) -> dict[str, Any]:
    asked = {"ref": ref, "argument": {"name": name, "value": value}, **params}
    completion: dict[str, Any] = (await mcp.result("completion/complete", asked))["completion"]
    return completion


REVIEW = {"type": "ref/prompt", "name": "review"}
NOTE_BY = {"type": "ref/resource", "uri": "note://by/{author}/{number}"}


@pytest.mark.parametrize(
    ("typed", "values"),
    [("", ["python", "pascal", "rust"]), ("p", ["python", "pascal"]), ("x", []), ("pascal!", [])],
)
async def test_fixed_values_are_completed_by_what_they_start_with(
    mcp: Client, typed: str, values: list[str]
) -> None:
    assert await complete(mcp, REVIEW, "language", typed) == {"values": values}


async def test_a_function_completes_and_at_most_a_hundred_values_are_told(mcp: Client) -> None:
    completion = await complete(mcp, NOTE_BY, "author", "a")
    assert completion == {"values": [f"a{n}" for n in range(100)], "total": 150, "hasMore": True}


async def test_an_argument_without_completions_has_no_values(mcp: Client) -> None:
    for ref, name in ((REVIEW, "style"), (REVIEW, "nothing"), (NOTE_BY, "number")):
        assert await complete(mcp, ref, name, "") == {"values": []}


async def test_arguments_that_are_settled_may_be_told(mcp: Client) -> None:
    settled = {"arguments": {"style": "kind"}}
    assert await complete(mcp, REVIEW, "language", "r", context=settled) == {"values": ["rust"]}


async def test_a_completer_may_be_async_and_say_how_many_there_are() -> None:
    async def guess(typed: str) -> Completion:
        return Completion([typed + "!"], total=7, has_more=True)

    @prompt(complete={"word": guess})
    async def cry(word: str) -> str:
        return word

    async with client(gateway(cry)) as mcp:
        completion = await complete(mcp, {"type": "ref/prompt", "name": "cry"}, "word", "ah")
    assert completion == {"values": ["ah!"], "total": 7, "hasMore": True}


@pytest.mark.parametrize("found", [[41, 42], Completion([None])])  # type: ignore[list-item]
async def test_suggestions_that_are_no_texts_are_an_error_and_not_sent(
    found: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @prompt(complete={"number": lambda typed: found})
    async def order(number: str) -> str:
        return number

    params = {
        "ref": {"type": "ref/prompt", "name": "order"},
        "argument": {"name": "number", "value": "4"},
    }
    async with client(gateway(order)) as mcp:
        _, error = await mcp.error("completion/complete", params)
    assert error["code"] == -32603
    assert "completes an argument with" in caplog.text


async def test_a_resource_that_is_no_template_completes_nothing() -> None:
    @resource("note://two")
    async def two() -> str:
        return ""

    async with client(gateway(two, note_by)) as mcp:
        assert await complete(mcp, {"type": "ref/resource", "uri": "note://two"}, "x", "") == {
            "values": []
        }


async def test_any_replica_serves_any_request_in_any_order() -> None:
    apps = [gateway(add, echo, change), gateway(add, echo, change)]
    for number in range(6):
        async with client(apps[number % 2]) as mcp:
            assert (await mcp.call("echo", {"n": number}))["structuredContent"] == {"n": number}
