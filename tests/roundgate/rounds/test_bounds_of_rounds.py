"""Bounds on rounds and on what may be remembered, and what a handler that goes over
them is told, and where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from roundgate import Context, prompt, resource, tool
from roundgate.settings.process import Settings
from roundgate_testing import Gateway
from tests.support import rounds
from tests.support.asgi import client, gateway
from tests.support.replay import Name
from tests.support.rounds import CAPABILITIES, KEYS, Conversation, accept, retry

USING = Settings(state_keys=KEYS)


ADA = accept(name="Ada")


@tool
async def endless(ctx: Context) -> str:
    """Always wants to know more."""
    while True:
        await ctx.elicit("who", "And who else?", Name)


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_a_call_ends_when_it_needs_more_rounds_than_it_may_have(limit: int) -> None:
    call = Conversation({"who": ADA})
    async with client(gateway(endless, using=USING, state={"max_rounds": limit})) as mcp:
        result = await call.have([mcp] * 10, *rounds.tool("endless"))
    assert (result["isError"], len(call.asked)) == (True, limit - 1)
    assert f"more than {limit} rounds" in result["content"][0]["text"]


async def test_answers_that_never_fit_are_bounded_too() -> None:
    call = Conversation({"who": accept(name=5)})
    async with client(gateway(endless, using=USING, state={"max_rounds": 4})) as mcp:
        result = await call.have([mcp] * 10, *rounds.tool("endless"))
    assert (result["isError"], call.asked) == (True, [["who"], ["who~2"], ["who~3"]])


async def test_the_last_round_that_is_allowed_may_still_finish() -> None:
    @tool
    async def twice(ctx: Context) -> str:
        """Asks twice."""
        one, two = (
            await ctx.elicit("who", "Who?", Name),
            await ctx.elicit("other", "Who else?", Name),
        )
        return f"{one.name} and {two.name}"

    async with client(gateway(twice, using=USING, state={"max_rounds": 3})) as mcp:
        result = await Conversation({"who": ADA, "other": ADA}).have(
            [mcp] * 3, *rounds.tool("twice")
        )
    assert result["content"][0]["text"] == "Ada and Ada"


@tool(task="optional")
async def collect(ctx: Context, rounds: int, size: int) -> str:
    """Asks again and again, and keeps all answers."""
    names = [
        (await ctx.elicit("who", f"Who is number {number}?", Name)).name for number in range(rounds)
    ]
    home = "rounds" if ctx.task_id is None else "a task"
    return f"{len(names)} names of {sum(map(len, names)) // size} in {home}"


@pytest.mark.parametrize(
    ("state", "rounds", "size"), [({"max_rounds": 3}, 6, 3), ({"max_bytes": 2048}, 6, 500)]
)
async def test_a_call_near_its_bound_becomes_a_task_and_loses_no_answer(
    state: dict[str, int], rounds: int, size: int
) -> None:
    async with Gateway(collect, state=state) as testing:
        answer = {"name": "N" * size}
        answers = {
            "who" if number == 1 else f"who#{number}": answer for number in range(1, rounds + 1)
        }
        result = await testing.call("collect", rounds=rounds, size=size, answers=answers)
    assert result.value == f"{rounds} names of {rounds} in a task"


def failure(caplog: pytest.LogCaptureFixture) -> tuple[str, str]:
    """What the one failure in the log says, and its reference."""
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.exc_info is not None
    return str(record.exc_info[1]), record.__dict__["fields"]["reference"]


async def call(function: Callable[..., Any], **sections: Any) -> str:
    """The text of the tool error that a first round ends in."""
    async with client(gateway(function, using=USING, **sections)) as mcp:
        result = await mcp.call(function.__name__, clientCapabilities=CAPABILITIES)
    assert result["isError"]
    text: str = result["content"][0]["text"]
    return text


async def test_a_state_that_is_too_large_names_its_largest_entry_in_the_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def hoard(ctx: Context) -> str:
        """Remembers too much."""
        await ctx.step("small", lambda: "s" * 10)
        await ctx.step("ballast", lambda: "b" * 3000)
        ctx.state["note"] = "n" * 100
        await ctx.elicit("who", "Who?", Name)
        return "never"

    text = await call(hoard, state={"max_bytes": 2048})
    said, reference = failure(caplog)
    assert "step 'ballast' (30" in said
    assert "2048" in said
    assert "bbbb" not in caplog.text
    assert reference in text
    assert "remembers too much (state.max_bytes), so it asked no further question" in text
    assert "ballast" not in text


async def test_a_large_answer_or_state_is_named_too(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def pack(ctx: Context) -> str:
        """Remembers an answer."""
        await ctx.elicit("who", "Who?", Name)
        await ctx.elicit("other", "Who else?", Name)
        return "never"

    method, params = rounds.tool("pack")
    async with client(gateway(pack, using=USING, state={"max_bytes": 2048})) as mcp:
        asked = await rounds.ask(mcp, method, params)
        sent = retry(params, asked, who=accept(name="N" * 4000))
        result = await mcp.result(method, sent, clientCapabilities=CAPABILITIES)
    said, reference = failure(caplog)
    assert result["isError"]
    assert reference in result["content"][0]["text"]
    assert "the answer to 'who'" in said
    assert "NNNN" not in caplog.text


async def test_a_prompt_or_resource_that_remembers_too_much_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hoard(ctx: Context) -> str:
        ctx.state["ballast"] = "b" * 3000
        await ctx.elicit("who", "Who?", Name)
        return "never"

    app = gateway(
        prompt(name="hoard")(resource("hoard://all")(hoard)), using=USING, state={"max_bytes": 2048}
    )
    async with client(app) as mcp:
        for method, params in (
            ("prompts/get", {"name": "hoard"}),
            ("resources/read", {"uri": "hoard://all"}),
        ):
            caplog.clear()
            status, error = await mcp.error(method, params, clientCapabilities=CAPABILITIES)
            said, reference = failure(caplog)
            assert (status, error["code"], reference in error["message"]) == (200, -32603, True)
            assert "ctx.state (30" in said


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE
DEEP: list[Any] = []
for _ in range(2_000):
    DEEP = [DEEP]
NOT_JSON = {
    "a set": {1},
    "bytes": b"x",
    "an object": object(),
    "nan": float("nan"),
    "a key": {1: 2},
    "a cycle": CYCLE,
}


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON.keys())
async def test_a_state_that_is_not_json_is_a_tool_error_and_explained_in_the_log(
    caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    @tool
    async def odd(ctx: Context) -> str:
        """Keeps what JSON cannot hold."""
        ctx.state["kept"] = value
        await ctx.elicit("who", "Who?", Name)
        return "never"

    text = await call(odd)
    said, reference = failure(caplog)
    assert "ctx.state" in said
    assert reference in text


@pytest.mark.parametrize("value", ["\ud800", 2**80, DEEP], ids=["surrogate", "huge", "deep"])
async def test_an_odd_state_comes_back_or_is_explained(
    caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    @tool
    async def odd(ctx: Context) -> str:
        """Keeps what many JSON libraries cannot hold."""
        ctx.state.setdefault("kept", value)
        await ctx.elicit("who", "Who?", Name)
        return "the same" if ctx.state["kept"] == value else "another"

    method, params = rounds.tool("odd")
    async with client(gateway(odd, using=USING)) as mcp:
        body = (await mcp.post(method, params, clientCapabilities=CAPABILITIES)).json()["result"]
        if not body.get("isError"):
            result = await mcp.result(
                method, retry(params, body, who=ADA), clientCapabilities=CAPABILITIES
            )
            assert result["content"][0]["text"] == "the same"
        else:
            assert failure(caplog)[1] in body["content"][0]["text"]


async def in_a_timeout(ctx: Context) -> Any:
    async with asyncio.timeout(5):
        return await ctx.elicit("who", "Who?", Name)


async def in_wait_for(ctx: Context) -> Any:
    return await asyncio.wait_for(ctx.elicit("who", "Who?", Name), 5)


async def in_wait(ctx: Context) -> Any:
    asking = asyncio.create_task(ctx.elicit("who", "Who?", Name))
    return await asyncio.wait([asking], timeout=5)


@pytest.mark.parametrize("asks", [in_a_timeout, in_wait_for, in_wait], ids=lambda one: one.__name__)
async def test_the_caller_learns_what_a_tool_must_not_wait_with(
    asks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    async def ask(ctx: Context) -> str:
        """Asks within a limit of asyncio."""
        return str(await asks(ctx))

    text = await call(ask)
    assert text.startswith("The tool cannot run as it is written: ")
    assert "`async with ctx.timeout(seconds):`" in text
    assert failure(caplog)[1] in text
