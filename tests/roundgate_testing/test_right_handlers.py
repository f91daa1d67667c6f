"""`crash="everywhere"` accuses no handler that keeps to the rule: those of the examples, and random ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, tool
from roundgate.client import Question
from roundgate_testing import Gateway
from tests.support.documents import ROOT
from tests.support.programs import World, answer, perform, program

EXAMPLES = ROOT / "examples"
CALLS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("travel", "book_trip", {"city": "Oslo"}, {"confirm": {"book": True}}),
    ("travel", "book_trip", {"city": "Oslo"}, {"confirm": {"book": False}}),
    ("elicitation", "weather", {"loc": "here"}, {"city": {"city": "Oslo"}, "unit": {}}),
    ("cassette", "refund", {"order": 7}, {"confirm": {"go": True}}),
    ("quickstart", "calculate", {"expression": "1/3 + 1"}, {}),
    ("quickstart", "calculate", {"expression": "1/0"}, {}),
    ("quickstart", "diff", {"before": "a", "after": "b"}, {}),
    ("quickstart", "find_primes", {"limit": 1000}, {}),
]


@pytest.mark.parametrize(("example", "name", "arguments", "answers"), CALLS)
async def test_examples_keep_to_the_rule(
    example: str,
    name: str,
    arguments: dict[str, Any],
    answers: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRAVEL_OFFICE", str(tmp_path))
    async with Gateway(EXAMPLES / example / "gateway.yaml") as gateway:
        result = await gateway.call(name, arguments, answers=answers, crash="everywhere")
        assert result.is_error == (arguments.get("expression") == "1/0")


def given(question: Question) -> Any:
    response = answer({"params": question.params})
    return response["content"] if response["action"] == "accept" else "decline"


def _seeds() -> list[int]:
    """Programs of many operations, without what depends on real time: limits of it, and branches
    that others give up, such as those beside a branch that fails."""
    open_ended = {"cut sleep", "cut", "first", "race", "orphan", "completed", "fails"}
    programs = {seed: repr(program(seed)) for seed in range(1_000)}
    return [
        seed
        for seed, one in programs.items()
        if len(one) > 200 and not any(f"'{what}'" in one for what in open_ended)
    ][:6]


@pytest.mark.parametrize("seed", _seeds())
async def test_random_handlers_that_keep_to_the_rule_are_not_accused(seed: int) -> None:
    body, world = program(seed), World()

    @tool(task="optional")
    async def handler(ctx: Context) -> dict[str, Any]:
        return {"value": await perform(ctx, body, world)}

    async with Gateway(handler) as gateway:
        await gateway.call("handler", answers=given, crash="everywhere", reset=world.effects.clear)


async def test_nor_is_one_of_the_low_level_form() -> None:
    ask = {"type": "object", "properties": {"number": {"type": "integer"}}}

    @tool
    async def adds(ctx: Context) -> str:
        response = ctx.input_response("number")
        if response is not None:
            ctx.state["sum"] = ctx.state.get("sum", 0) + response["content"]["number"]
            ctx.state["count"] = ctx.state.get("count", 0) + 1
        if ctx.state.get("count", 0) < 3:
            params = {"message": "Which number?", "requestedSchema": ask}
            await ctx.request_input({"number": {"method": "elicitation/create", "params": params}})
        return f"the sum is {ctx.state['sum']}"

    async with Gateway(adds) as gateway:
        result = await gateway.call("adds", answers={"number": {"number": 2}}, crash="everywhere")
        assert result.value == "the sum is 6"


async def test_nor_is_one_that_restarts_sheds_and_becomes_a_task() -> None:
    @tool(task="optional")
    async def pages(ctx: Context, page: int = 1) -> str:
        await ctx.step("page", lambda number: number, page)
        await ctx.shed()
        await ctx.continue_as_task()
        await ctx.sleep(60)
        if page < 3:
            await ctx.restart(page=page + 1)
        return f"{page} pages"

    async with Gateway(pages) as gateway:
        assert (await gateway.call("pages", crash="everywhere")).value == "3 pages"
