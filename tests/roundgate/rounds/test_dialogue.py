"""An HTTP service that asks: the envelope of docs/rounds.md, over real sockets."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from roundgate.backends.http.exchanges import INPUT_REQUIRED, INPUT_RESPONSES
from tests.support import rounds
from tests.support.asgi import Client
from tests.support.rounds import CAPABILITIES, Conversation, accept, retry, sampled
from tests.support.services import Service, answer, gateway_to, service

SECRET = "cart-4711"
SIZE = {
    "method": "elicitation/create",
    "params": {
        "message": "Which size?",
        "requestedSchema": {
            "type": "object",
            "properties": {"size": {"type": "string"}},
            "required": ["size"],
        },
    },
}
MOTTO = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "A motto."}}],
        "maxTokens": 9,
    },
}
BUY = rounds.tool("buy", what="shirt")
ANSWERS = {"size": accept(size="M"), "motto": sampled("Onward")}
DONE = answer(b'{"bought":"shirt"}')


def asks(
    requests: Any, state: Any = SECRET, status: str = "200 OK", content_type: str = INPUT_REQUIRED
) -> bytes:
    return answer(
        json.dumps({"inputRequests": requests, "state": state}).encode(), status, content_type
    )


OFF = {"buy": {"ask_in_words": False}}


@asynccontextmanager
async def shop(*answers: bytes, **changes: Any) -> AsyncIterator[tuple[Client, Service]]:
    arguments = {"what": {"required": True}}
    declared = {
        "name": "buy",
        "method": "POST",
        "path": "/buy",
        "interactive": True,
        "arguments": arguments,
        **changes,
    }
    async with AsyncExitStack() as stack:
        told = await stack.enter_async_context(service(*answers))
        yield await stack.enter_async_context(gateway_to(told.url, declared, override=OFF)), told


async def test_the_service_asks_twice_and_gets_its_answers_and_its_state_back() -> None:
    call = Conversation(ANSWERS)
    async with shop(asks({"size": SIZE}, {"cart": 1}), asks({"motto": MOTTO}, [2, None]), DONE) as (
        mcp,
        told,
    ):
        result = await call.have([mcp] * 3, *BUY)
        bodies = [json.loads(told.body(number)) for number in range(len(told.requests))]
    assert (result["structuredContent"], call.asked) == ({"bought": "shirt"}, [["size"], ["motto"]])
    assert bodies == [
        {"what": "shirt"},
        {
            "body": {"what": "shirt"},
            "inputResponses": {"size": ANSWERS["size"]},
            "state": {"cart": 1},
        },
        {
            "body": {"what": "shirt"},
            "inputResponses": {"motto": ANSWERS["motto"]},
            "state": [2, None],
        },
    ]
    assert told.request_lines == ["POST /buy HTTP/1.1"] * 3
    assert [told.header("content-type", n) for n in range(3)] == [
        ["application/json"],
        [INPUT_RESPONSES],
        [INPUT_RESPONSES],
    ]


async def test_the_questions_reach_the_client_as_the_service_put_them() -> None:
    async with shop(asks({"size": SIZE, "motto": MOTTO})) as (mcp, _):
        asked = await rounds.ask(mcp, *BUY)
    assert asked["inputRequests"] == {"size": SIZE, "motto": MOTTO}


async def test_no_exchange_is_repeated_in_a_later_round() -> None:
    method, params = BUY
    async with shop(asks({"size": SIZE, "motto": MOTTO}), DONE) as (mcp, told):
        first = await rounds.ask(mcp, method, params)
        second = await rounds.ask(mcp, method, retry(params, first, size=ANSWERS["size"]))
        assert (list(second["inputRequests"]), len(told.requests)) == (["motto"], 1)
        again = retry(params, second, motto=ANSWERS["motto"])
        result = await mcp.result(method, again, clientCapabilities=CAPABILITIES)
        assert (result["structuredContent"], len(told.requests)) == ({"bought": "shirt"}, 2)
        assert json.loads(told.body())["inputResponses"] == ANSWERS


async def test_the_state_of_the_service_is_not_shown_to_the_client() -> None:
    async with shop(asks({"size": SIZE}), asks({"motto": MOTTO}), DONE) as (mcp, _):
        method, params = BUY
        first = await mcp.post(method, params, clientCapabilities=CAPABILITIES)
        sent = retry(params, first.json()["result"], size=ANSWERS["size"])
        second = await mcp.post(method, sent, clientCapabilities=CAPABILITIES)
    for response in (first, second):
        payload = response.json()["result"]["requestState"].rpartition(".")[2]
        opened = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        assert SECRET not in response.text
        assert SECRET.encode() not in opened


async def test_a_refusal_goes_to_the_service_too() -> None:
    async with shop(asks({"size": SIZE}), DONE) as (mcp, told):
        await Conversation({"size": {"action": "decline"}}).have([mcp] * 2, *BUY)
        assert json.loads(told.body())["inputResponses"] == {"size": {"action": "decline"}}


async def test_a_service_may_ask_the_same_again() -> None:
    call = Conversation(ANSWERS)
    async with shop(asks({"size": SIZE}), asks({"size": SIZE}), DONE) as (mcp, told):
        await call.have([mcp] * 3, *BUY)
        assert len(told.requests) == 3
    assert [key.partition("#")[0] for keys in call.asked for key in keys] == ["size", "size"]


async def test_a_service_asks_only_for_what_the_client_can_give() -> None:
    buy = asks({"size": SIZE, "motto": MOTTO})
    async with shop(buy) as (mcp, _):
        _, error = await mcp.error(*BUY, clientCapabilities={"elicitation": {}})
    assert (error["code"], error["data"]) == (-32021, {"requiredCapabilities": {"sampling": {}}})


PASSWORD = {"type": "object", "properties": {"pin": {"type": "string", "format": "password"}}}
MALFORMED: dict[str, Any] = {
    "no questions": {},
    "a list": [SIZE],
    "null": None,
    "not an object": {"size": "?"},
    "no method": {"size": {"params": SIZE["params"]}},
    "another method": {"size": {"method": "tools/call", "params": {}}},
    "an odd key": {"si ze": SIZE},
    "params that are a list": {"size": {"method": "elicitation/create", "params": []}},
    "no params": {"size": {"method": "elicitation/create"}},
    "no message": {
        "size": {"method": "elicitation/create", "params": {"requestedSchema": {"type": "object"}}}
    },
    "an odd mode": {
        "size": {"method": "elicitation/create", "params": {"message": "?", "mode": "telepathy"}}
    },
    "a mode that is a list": {
        "size": {"method": "elicitation/create", "params": {"message": "?", "mode": []}}
    },
    "a form that asks for a secret": {
        "size": {
            "method": "elicitation/create",
            "params": {"message": "?", "requestedSchema": PASSWORD},
        }
    },
    "a url that is none": {
        "size": {"method": "elicitation/create", "params": {"message": "?", "mode": "url"}}
    },
    **{
        f"a page at {url}": {
            "size": {
                "method": "elicitation/create",
                "params": {"message": "?", "mode": "url", "url": url},
            }
        }
        for url in ("http://example.com/", "https://example.com/" + "x" * 2_100)
    },
    "sampling without messages": {
        "size": {"method": "sampling/createMessage", "params": {"maxTokens": 1}}
    },
    "sampling without a limit": {
        "size": {"method": "sampling/createMessage", "params": {"messages": []}}
    },
}


@pytest.mark.parametrize("requests", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_envelope_is_a_tool_error(requests: Any) -> None:
    async with shop(asks(requests)) as (mcp, _):
        result = await mcp.call("buy", {"what": "shirt"}, clientCapabilities=CAPABILITIES)
    assert result["isError"]
    assert result["content"][0]["text"].startswith("The service asked for input")
    assert SECRET not in str(result)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"state":1}', b"\xff"], ids=repr)
async def test_an_envelope_that_is_none_is_a_tool_error(body: bytes) -> None:
    async with shop(answer(body, content_type=INPUT_REQUIRED)) as (mcp, _):
        result = await mcp.call("buy", {"what": "shirt"}, clientCapabilities=CAPABILITIES)
    assert result["isError"]
    assert result["content"][0]["text"].startswith("The service asked for input")


@pytest.mark.parametrize("status", ["202 Accepted", "422 Unprocessable Content", "500 Oops"])
async def test_an_envelope_with_another_status_does_not_give_the_state_away(status: str) -> None:
    async with shop(asks({"size": SIZE}, status=status)) as (mcp, _):
        result = await mcp.call("buy", {"what": "shirt"}, clientCapabilities=CAPABILITIES)
    assert result["isError"]
    assert SECRET not in str(result)


async def test_the_envelope_may_have_parameters_and_any_case() -> None:
    async with shop(
        asks({"size": SIZE}, content_type=f"{INPUT_REQUIRED.upper()}; charset=utf-8")
    ) as (mcp, _):
        assert (await rounds.ask(mcp, *BUY))["inputRequests"].keys() == {"size"}


async def test_a_service_that_fails_in_a_later_round_is_a_tool_error() -> None:
    async with shop(asks({"size": SIZE}), answer(b'{"why":"sold out"}', "409 Conflict")) as (
        mcp,
        _,
    ):
        result = await Conversation(ANSWERS).have([mcp] * 2, *BUY)
    assert result["isError"]
    assert "409" in result["content"][0]["text"]


async def test_arguments_in_path_and_query_are_sent_in_every_exchange() -> None:
    arguments = {
        "what": {"in": "query", "required": True},
        "size": {"in": "header", "as": "x-size"},
    }
    call = Conversation(ANSWERS)
    async with shop(asks({"size": SIZE}), DONE, path="/buy/{shop}", arguments=arguments) as (
        mcp,
        told,
    ):
        await call.have([mcp] * 2, *rounds.tool("buy", what="shirt", shop="a b", size="M"))
        assert told.request_lines == ["POST /buy/a%20b?what=shirt HTTP/1.1"] * 2
        assert [told.header("x-size", number) for number in range(2)] == [["M"], ["M"]]
        assert json.loads(told.body()) == {
            "body": None,
            "inputResponses": {"size": ANSWERS["size"]},
            "state": SECRET,
        }


async def test_a_service_that_asks_for_ever_is_stopped() -> None:
    answers = [asks({f"size{number}": SIZE}) for number in range(30)]
    call = Conversation({f"size{number}": ANSWERS["size"] for number in range(30)})
    async with shop(*answers) as (mcp, _):
        result = await call.have([mcp] * 30, *BUY)
    assert (result["isError"], len(call.asked)) == (True, 24)
    assert "25 rounds" in result["content"][0]["text"]
