"""`approve` and `ask` of gateway.yaml: questions for tools that know of none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import tool
from roundgate.errors import ConfigError
from roundgate.settings.process import Settings
from tests.support import rounds
from tests.support.asgi import Client, client, gateway
from tests.support.rounds import CAPABILITIES, KEYS, Conversation, accept, retry
from tests.support.services import Service, answer, gateway_to, service

erased: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    erased.clear()


@tool(destructive=True)
async def erase(path: str) -> str:
    """Erases a file."""
    erased.append(path)
    return f"erased {path}"


@tool(read_only=True)
async def look(path: str) -> str:
    """Looks at a file."""
    return f"looked at {path}"


@cache
def app_that_asks(when: str) -> FastAPI:
    """Built once: no call leaves anything behind that another could meet."""
    return gateway(erase, look, using=Settings(state_keys=KEYS), backend={"approve": when})


def approving(when: str) -> AbstractAsyncContextManager[Client]:
    return client(app_that_asks(when))


ERASE = rounds.tool("erase", path="/home/ada/thesis.txt")
LOOK = rounds.tool("look", path="/home/ada/thesis.txt")


async def decided(
    mcp: Client, response: dict[str, Any], call: tuple[str, dict[str, Any]] = ERASE
) -> dict[str, Any]:
    """The result of a call that asks for approval and gets this response."""
    method, params = call
    asked = await rounds.ask(mcp, method, params)
    assert asked["inputRequests"].keys() == {"approve"}
    return await mcp.result(
        method, retry(params, asked, approve=response), clientCapabilities=CAPABILITIES
    )


@pytest.mark.parametrize(
    ("when", "asking"), [("never", []), ("destructive", ["erase"]), ("always", ["erase", "look"])]
)
async def test_who_asks_for_approval(when: str, asking: list[str]) -> None:
    async with approving(when) as mcp:
        kinds = {}
        for method, params in (ERASE, LOOK):
            body = (await mcp.post(method, params, clientCapabilities=CAPABILITIES)).json()
            kinds[params["name"]] = body["result"]["resultType"]
    assert [name for name, kind in kinds.items() if kind == "input_required"] == asking


@pytest.mark.parametrize(
    "response",
    [accept(approve=False), {"action": "decline"}, {"action": "cancel"}],
    ids=["false", "decline", "cancel"],
)
async def test_anything_else_does_nothing(response: dict[str, Any]) -> None:
    async with approving("destructive") as mcp:
        assert (await decided(mcp, response))["isError"]
    assert erased == []


@pytest.mark.parametrize(
    "response",
    [{"action": "accept"}, accept(), accept(approve="yes"), accept(approve=1), 5],
    ids=repr,
)
async def test_an_unclear_approval_is_none(response: Any) -> None:
    method, params = ERASE
    async with approving("destructive") as mcp:
        asked = await rounds.ask(mcp, method, params)
        again = await rounds.ask(mcp, method, retry(params, asked, approve=response))
    assert (list(again["inputRequests"]), erased) == (["approve~2"], [])


async def test_an_approval_is_for_the_arguments_that_were_shown() -> None:
    method, params = ERASE
    async with approving("destructive") as mcp:
        asked = await rounds.ask(mcp, method, params)
        other = retry(
            {**params, "arguments": {"path": "/etc"}}, asked, approve=accept(approve=True)
        )
        _, error = await mcp.error(method, other, clientCapabilities=CAPABILITIES)
    assert (error["code"], error["message"], erased) == (-32602, rounds.REFUSAL, [])


ORDER = {
    "name": "order",
    "method": "POST",
    "path": "/orders/{item}",
    "arguments": {
        "size": {
            "required": True,
            "schema": {"type": "string", "enum": ["S", "M"], "title": "Size"},
        },
        "count": {"required": True, "schema": {"type": "integer", "minimum": 1, "maximum": 9}},
        "code": {"required": True, "schema": {"type": "string", "pattern": "^[a-z]+$"}},
    },
    "ask_for": ["size", "count"],
}
SHIRT = rounds.tool("order", item="shirt", code="x")


@asynccontextmanager
async def shop(**changes: Any) -> AsyncIterator[tuple[Client, Service]]:
    backend = {name: changes.pop(name) for name in ("approve",) if name in changes}
    async with AsyncExitStack() as stack:
        told = await stack.enter_async_context(service(answer(b'{"ordered":true}')))
        yield (
            await stack.enter_async_context(gateway_to(told.url, {**ORDER, **changes}, **backend)),
            told,
        )


async def test_the_schema_no_longer_requires_what_the_user_is_asked_for() -> None:
    async with shop() as (mcp, _):
        (listed,) = (await mcp.result("tools/list"))["tools"]
    assert sorted(listed["inputSchema"]["required"]) == ["code", "item"]
    assert {"size", "count"} <= listed["inputSchema"]["properties"].keys()


async def test_the_form_has_the_fields_of_the_missing_arguments() -> None:
    async with shop() as (mcp, _):
        asked = await rounds.ask(mcp, *rounds.tool("order", item="shirt", code="x", size="M"))
    shown = asked["inputRequests"]["arguments"]["params"]
    assert shown["message"] == "order needs count"
    assert shown["requestedSchema"] == {
        "type": "object",
        "properties": {"count": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["count"],
    }


async def test_the_service_gets_what_the_model_and_the_user_said() -> None:
    async with shop() as (mcp, told):
        result = await Conversation({"arguments": accept(size="M", count=2)}).have(
            [mcp, mcp], *SHIRT
        )
    assert result["structuredContent"] == {"ordered": True}
    assert told.request_lines == ["POST /orders/shirt HTTP/1.1"]
    assert json.loads(told.body()) == {"size": "M", "count": 2, "code": "x"}


async def test_nobody_is_asked_for_what_is_there() -> None:
    async with shop() as (mcp, told):
        await mcp.call("order", {"item": "shirt", "code": "x", "size": "M", "count": 2})
    assert len(told.requests) == 1


@pytest.mark.parametrize(
    "filled",
    [accept(size="XL", count=2), accept(size="M", count=0), accept(size="M")],
    ids=["enum", "range", "gone"],
)
async def test_values_that_the_schema_refuses_are_asked_for_again(filled: dict[str, Any]) -> None:
    method, params = SHIRT
    async with shop() as (mcp, told):
        asked = await rounds.ask(mcp, method, params)
        again = await rounds.ask(mcp, method, retry(params, asked, arguments=filled))
    assert (list(again["inputRequests"]), told.requests) == (["arguments~2"], [])


async def test_what_a_form_cannot_show_is_checked_all_the_same() -> None:
    method, params = rounds.tool("order", item="shirt", size="M", count=1)
    async with shop(ask_for=["code"]) as (mcp, told):
        asked = await rounds.ask(mcp, method, params)
        assert "pattern" not in str(asked["inputRequests"])
        again = await rounds.ask(
            mcp, method, retry(params, asked, arguments=accept(code="NOT LOWER"))
        )
    assert (list(again["inputRequests"]), told.requests) == (["arguments~2"], [])


async def test_a_form_fills_in_what_was_asked_for_and_nothing_else() -> None:
    async with shop() as (mcp, told):
        filled = accept(size="M", count=2, code="changed", item="trousers", extra=1)
        await Conversation({"arguments": filled}).have([mcp, mcp], *SHIRT)
    assert told.request_lines == ["POST /orders/shirt HTTP/1.1"]
    assert json.loads(told.body()) == {"size": "M", "count": 2, "code": "x"}


async def test_without_a_user_the_model_is_told_what_is_missing() -> None:
    async with shop() as (mcp, told):
        result = await mcp.call(*("order", {"item": "shirt", "code": "x"}))
    assert (result["isError"], told.requests) == (True, [])
    assert result["content"][0]["text"] == "Missing arguments: size, count"


async def test_a_user_who_declines_the_form_has_ordered_nothing() -> None:
    async with shop() as (mcp, told):
        result = await Conversation({"arguments": {"action": "decline"}}).have([mcp, mcp], *SHIRT)
    assert (result["isError"], told.requests) == (True, [])


async def test_approval_comes_after_the_form_and_shows_what_was_filled_in() -> None:
    method, params = SHIRT
    async with shop(approve="always") as (mcp, told):
        form = await rounds.ask(mcp, method, params)
        confirmation = await rounds.ask(
            mcp, method, retry(params, form, arguments=accept(size="M", count=2))
        )
        shown = confirmation["inputRequests"]["approve"]["params"]["message"]
        assert [f"- {name}: " in shown for name in ("item", "code", "size", "count")] == [True] * 4
        assert told.requests == []
        yes = retry(params, confirmation, approve=accept(approve=True))
        await mcp.result(method, yes, clientCapabilities=CAPABILITIES)
    assert len(told.requests) == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ask_for": ["colour"]}, "ask_for names colour"),
        (
            {"ask_for": ["size"], "arguments": {"size": {"schema": {"type": "object"}}}},
            "field 'size'",
        ),
        (
            {
                "ask_for": ["pin"],
                "arguments": {"pin": {"schema": {"type": "string", "format": "password"}}},
            },
            "secrets",
        ),
    ],
    ids=["unknown", "not flat", "secret"],
)
async def test_a_question_that_could_never_be_asked_is_found_at_the_start(
    changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        async with shop(**changes):
            pass
