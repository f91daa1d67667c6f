"""An answer counts for a question that this call's state says was asked, as it was
shown, and for no other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, prompt, resource, tool
from roundgate.errors import ConfigError
from roundgate.settings.process import Settings
from tests.support import asgi, rounds
from tests.support.asgi import NO_FALLBACK, built, client, config_of
from tests.support.replay import Name
from tests.support.rounds import CAPABILITIES, KEYS, accept, retry

gateway = partial(asgi.gateway, fallback=NO_FALLBACK)

ADA = accept(name="Ada")
USING = Settings(state_keys=KEYS)


@tool
async def greet(ctx: Context) -> str:
    """Greets by name."""
    return f"Hello, {(await ctx.elicit('who', 'Your name?', Name)).name}"


@tool(unasked_answers=True)
async def welcome(ctx: Context) -> str:
    """Greets whoever says their name, asked or not."""
    return f"Hello, {(await ctx.elicit('who', 'Your name?', Name)).name}"


@tool
async def two(ctx: Context) -> str:
    """Asks one thing after the other."""
    first = await ctx.elicit("first", "The first?", Name)
    second = await ctx.elicit("second", f"And after {first.name}?", Name)
    return f"{first.name}, {second.name}"


@prompt
async def letter(ctx: Context) -> str:
    """A letter to somebody."""
    return f"To {(await ctx.elicit('who', 'To whom?', Name)).name}"


@resource("diary://today")
async def diary(ctx: Context) -> str:
    """Somebody's diary."""
    return f"diary of {(await ctx.elicit('who', 'Whose?', Name)).name}"


ASKING = {
    "tool": rounds.tool("greet"),
    "prompt": ("prompts/get", {"name": "letter"}),
    "resource": ("resources/read", {"uri": "diary://today"}),
}


@pytest.mark.parametrize(("method", "params"), ASKING.values(), ids=ASKING.keys())
async def test_an_answer_without_a_state_answers_nothing(
    method: str, params: dict[str, Any]
) -> None:
    async with client(gateway(greet, letter, diary, using=USING)) as mcp:
        asked = await rounds.ask(mcp, method, params | {"inputResponses": {"who": ADA}})
        assert asked["inputRequests"].keys() == {"who"}
        result = await mcp.result(
            method, retry(params, asked, who=ADA), clientCapabilities=CAPABILITIES
        )
    assert "Ada" in str(result)


async def test_a_client_that_cannot_be_asked_cannot_answer_either() -> None:
    method, params = ASKING["tool"]
    async with client(gateway(greet, using=USING)) as mcp:
        _, error = await mcp.error(method, params | {"inputResponses": {"who": ADA}})
    assert error["code"] == -32021


async def test_an_answer_that_comes_before_its_question_is_asked_for_again() -> None:
    _, params = rounds.tool("two")
    async with client(gateway(two, using=USING)) as mcp:
        first = await rounds.ask(mcp, "tools/call", params)
        early = retry(params, first, first=ADA, second=ADA)
        second = await rounds.ask(mcp, "tools/call", early)
    assert second["inputRequests"].keys() == {"second"}


async def test_a_tool_may_take_answers_that_nobody_asked_for() -> None:
    _, params = rounds.tool("welcome")
    sent = params | {"inputResponses": {"who": ADA, "extra": 1, "more": {"action": "x"}}}
    async with client(gateway(welcome, using=USING)) as mcp:
        result = await mcp.result("tools/call", sent, clientCapabilities=CAPABILITIES)
    assert result["content"][0]["text"] == "Hello, Ada"


async def test_also_there_an_answer_that_does_not_fit_is_asked_for() -> None:
    _, params = rounds.tool("welcome")
    async with client(gateway(welcome, using=USING)) as mcp:
        asked = await rounds.ask(
            mcp, "tools/call", params | {"inputResponses": {"who": accept(name=5)}}
        )
    ((key, request),) = asked["inputRequests"].items()
    assert (key, request["method"]) == ("who~2", "elicitation/create")
    assert "could not be used" in request["params"]["message"]


def test_what_must_happen_once_needs_a_question_that_was_asked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unasked_answers and once"):
        tool(once=True, unasked_answers=True)(greet)
    module = tmp_path / "tools.py"
    module.write_text(
        "from roundgate import tool\n\n@tool(once=True, unasked_answers=True)\ndef f() -> str:\n    return ''\n"
    )
    file = config_of({"backends": [{"kind": "python", "name": "python", "path": str(module)}]})
    with pytest.raises(ConfigError, match="unasked_answers and once"):
        built(file, USING)
