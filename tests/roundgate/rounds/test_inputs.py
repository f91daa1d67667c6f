"""What a client may send in a retry, and what becomes of it, on all three methods that may ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, prompt, resource, tool
from roundgate.settings.process import Settings
from tests.support import asgi, rounds, wire
from tests.support.asgi import NO_FALLBACK, Client, client
from tests.support.replay import Name
from tests.support.rounds import (
    CAPABILITIES,
    KEYS,
    REFUSAL,
    Conversation,
    accept,
    names_in,
    retry,
    sampled,
)

gateway = partial(asgi.gateway, fallback=NO_FALLBACK)


@tool
async def greet(ctx: Context) -> str:
    """Greets by name."""
    return f"Hello, {(await ctx.elicit('who', 'Your name?', Name)).name}"


@tool
async def plain(word: str = "") -> str:
    """Asks nothing."""
    return "plain"


@prompt
async def letter(ctx: Context, tone: str) -> str:
    """A letter to somebody."""
    return f"Write a {tone} letter to {(await ctx.elicit('who', 'To whom?', Name)).name}"


@resource("diary://today")
async def diary(ctx: Context) -> str:
    """Somebody's diary."""
    return f"diary of {(await ctx.elicit('who', 'Whose?', Name)).name}"


@resource("almanac://today")
async def almanac() -> str:
    """The same for everybody."""
    return "full moon"


@resource("ledger://{year}")
async def ledger(ctx: Context, year: int) -> str:
    """Sheds once, asks nothing."""
    await ctx.shed()
    return f"ledger of {year}"


GREET = rounds.tool("greet")
LETTER = ("prompts/get", {"name": "letter", "arguments": {"tone": "kind"}})
DIARY = ("resources/read", {"uri": "diary://today"})
ASKING = pytest.mark.parametrize(
    ("method", "params"), [GREET, LETTER, DIARY], ids=["tool", "prompt", "resource"]
)
ADA = accept(name="Ada")
SHARED = {"read": {"ttl_ms": 60_000, "scope": "public"}}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    using = Settings(state_keys=KEYS)
    return gateway(greet, plain, letter, diary, almanac, ledger, using=using, caching=SHARED)


@pytest.fixture
async def mcp(app: FastAPI) -> AsyncIterator[Client]:
    async with client(app) as made:
        yield made


async def refused(mcp: Client, method: str, params: dict[str, Any]) -> tuple[int, int, str]:
    status, error = await mcp.error(method, params, clientCapabilities=CAPABILITIES)
    assert "data" not in error
    return status, error["code"], error["message"]


@ASKING
async def test_all_three_methods_ask_and_go_on(
    mcp: Client, method: str, params: dict[str, Any]
) -> None:
    call = Conversation({"who": ADA})
    result = await call.have([mcp, mcp], method, params)
    assert call.asked == [["who"]]
    assert "Ada" in str(result)


@ASKING
async def test_a_client_that_cannot_be_asked_is_told_what_it_lacks(
    mcp: Client, method: str, params: dict[str, Any]
) -> None:
    _, error = await mcp.error(
        method, params, clientCapabilities={"sampling": {}, "elicitation": {"url": {}}}
    )
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"elicitation": {"form": {}}}}


@ASKING
@pytest.mark.parametrize("responses", ["who", 7, True, [], [ADA]], ids=repr)
async def test_responses_that_are_no_object_are_invalid(
    mcp: Client, method: str, params: dict[str, Any], responses: Any
) -> None:
    for state in ({}, {"requestState": (await rounds.ask(mcp, method, params))["requestState"]}):
        status, code, message = await refused(
            mcp, method, params | state | {"inputResponses": responses}
        )
        assert (status, code, "params.inputResponses" in message) == (400, -32602, True)


@ASKING
@pytest.mark.parametrize("responses", [None, {}, {"nobody": ADA}], ids=["null", "none", "unknown"])
async def test_without_a_response_to_it_the_question_is_asked_again(
    mcp: Client, method: str, params: dict[str, Any], responses: Any
) -> None:
    first = await rounds.ask(mcp, method, params)
    again = await rounds.ask(mcp, method, retry(params, first) | {"inputResponses": responses})
    assert again["inputRequests"] == first["inputRequests"]
    without_state = await rounds.ask(mcp, method, params | {"inputResponses": responses})
    assert without_state["inputRequests"] == first["inputRequests"]


BAD: list[Any] = [None, 12345, "Ada", [], {}, {"action": "agree"}, {"action": "accept"},
        {"action": "accept", "content": "Ada"}, {"action": "accept", "content": ["name"]},
        {"action": "accept", "content": None}, {"content": {"name": "Ada"}}, accept(name=None),
        accept(), accept(name=5), sampled("a model said")]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "params", "response"),
    [(*LETTER, None), (*DIARY, accept(name=5)), *((*GREET, response) for response in BAD)],
)
async def test_a_response_that_does_not_fit_is_asked_for_again_saying_why(
    mcp: Client, method: str, params: dict[str, Any], response: Any
) -> None:
    first = await rounds.ask(mcp, method, params)
    again = await rounds.ask(mcp, method, retry(params, first, who=response))
    ((key, request),) = again["inputRequests"].items()
    asked = first["inputRequests"]["who"]["params"]["message"]
    said = f"{asked}\n\nThe last answer could not be used: "
    assert (key, request["params"]["message"].startswith(said)) == ("who~2", True)
    body = (
        await mcp.post(
            method, retry(params, again, **{"who~2": ADA}), clientCapabilities=CAPABILITIES
        )
    ).json()
    assert "Ada" in str(wire.valid_result(method, body))


@ASKING
async def test_responses_that_nobody_asked_for_are_ignored(
    mcp: Client, method: str, params: dict[str, Any]
) -> None:
    first = await rounds.ask(mcp, method, params)
    sent = retry(params, first, who=ADA, other=12, more={"action": "x"})
    result = await mcp.result(method, sent, clientCapabilities=CAPABILITIES)
    assert "Ada" in str(result)


@ASKING
async def test_a_state_that_is_null_is_none(
    mcp: Client, method: str, params: dict[str, Any]
) -> None:
    assert (await rounds.ask(mcp, method, params | {"requestState": None}))[
        "inputRequests"
    ].keys() == {"who"}


FORGED = [7, "", "x", "v1", "v1..", "v1.AAAAAAAA.AAAA", {}, [], True, "x" * 200_000]


@pytest.mark.parametrize("state", FORGED, ids=lambda state: repr(state)[:20])
@pytest.mark.parametrize(
    ("method", "params"),
    [GREET, LETTER, DIARY, rounds.tool("plain"), ("resources/read", {"uri": "almanac://today"})],
    ids=["tool", "prompt", "resource", "plain tool", "plain resource"],
)
async def test_a_state_that_is_not_ours_is_refused_with_one_sentence(
    mcp: Client, method: str, params: dict[str, Any], state: Any
) -> None:
    sent = params | {"requestState": state, "inputResponses": {"who": ADA}}
    assert await refused(mcp, method, sent) == (400, -32602, REFUSAL)


async def test_a_state_is_for_one_method_name_and_arguments_alone(mcp: Client) -> None:
    state = {"requestState": (await rounds.ask(mcp, *LETTER))["requestState"]}
    for method, params in [
        GREET,
        DIARY,
        rounds.tool("plain"),
        ("prompts/get", {"name": "letter", "arguments": {"tone": "cold"}}),
    ]:
        assert await refused(mcp, method, params | state) == (400, -32602, REFUSAL)


async def test_a_client_that_never_comes_back_leaves_nothing_behind(tmp_path: Path) -> None:
    using = Settings(state_keys=KEYS, store=f"sqlite:///{tmp_path / 'gateway.sqlite3'}")
    async with client(gateway(greet, letter, diary, using=using)) as mcp:
        for method, params in [GREET, LETTER, DIARY] * 20:
            await rounds.ask(mcp, method, params)
    assert names_in(tmp_path) == []


async def hint(mcp: Client, params: dict[str, Any]) -> tuple[int, str]:
    result = await mcp.result("resources/read", params, clientCapabilities=CAPABILITIES)
    return result["ttlMs"], result["cacheScope"]


async def test_a_read_that_asked_nobody_is_cached_as_configured(mcp: Client) -> None:
    assert await hint(mcp, {"uri": "almanac://today"}) == (60_000, "public")


@pytest.mark.parametrize("responses", [{"who": ADA}, {}], ids=["answers", "empty"])
async def test_a_read_that_came_with_responses_is_not_to_be_cached(
    mcp: Client, responses: dict[str, Any]
) -> None:
    assert await hint(mcp, {"uri": "almanac://today", "inputResponses": responses}) == (
        0,
        "private",
    )


async def test_a_read_that_came_with_state_is_not_to_be_cached(mcp: Client) -> None:
    params = {"uri": "ledger://2026"}
    shed = await rounds.ask(mcp, "resources/read", params)
    assert await hint(mcp, retry(params, shed)) == (0, "private")
    diary = await rounds.ask(mcp, *DIARY)
    assert await hint(mcp, retry(DIARY[1], diary, who=ADA)) == (0, "private")


@ASKING
async def test_a_round_that_asks_carries_no_caching_hint(
    mcp: Client, method: str, params: dict[str, Any]
) -> None:
    assert not {"ttlMs", "cacheScope"} & (await rounds.ask(mcp, method, params)).keys()


async def test_declining_ends_a_tool_call_politely_and_the_others_with_an_error(
    mcp: Client,
) -> None:
    no = {"action": "decline"}
    first = await rounds.ask(mcp, *GREET)
    result = await mcp.result(
        GREET[0], retry(GREET[1], first, who=no), clientCapabilities=CAPABILITIES
    )
    assert result["isError"]
    assert "declined" in result["content"][0]["text"]
    for method, params in (LETTER, DIARY):
        asked = await rounds.ask(mcp, method, params)
        status, code, message = await refused(mcp, method, retry(params, asked, who=no))
        assert (status, code, "declined" in message) == (400, -32602, True)
