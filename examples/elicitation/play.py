"""mcptest's page on elicitation, section by section, against a server that is up. Every step is checked.

python play.py http://127.0.0.1:8000/mcp
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from roundgate import suites
from roundgate.client import (
    Client,
    Question,
    build_retry_params,
    collect_responses,
    recognize_input_required,
    run_elicitation_chain,
)
from roundgate.client.elicitation import ARRAY, DEFAULT_MAX_ELICITATION_ROUNDS
from roundgate.errors import BadAnswer, TooManyRounds, Unanswered
from roundgate.suites import Run, Secrets, Snapshots

CALL = {"name": "weather", "arguments": {"loc": "SFO"}}
FIXTURE = {"city": {"city": "San Francisco"}, "unit": {"unit": "fahrenheit"}}

# The shapes of the page. They are not those of the revision: arrays instead of maps, and no resultType.
PAGE = {
    "jsonrpc": "2.0",
    "id": 1,
    "result": {
        "inputRequests": [
            {"id": "city", "kind": "string", "description": "What city?", "required": True}
        ],
        "requestState": "opaque-token-abc-123",
        "description": "Need the city before I can fetch the forecast.",
    },
}
RETRY_OF_THE_PAGE = {
    "name": "weather",
    "arguments": {"loc": "SFO"},
    "inputResponses": [{"id": "city", "value": "San Francisco"}],
    "requestState": "opaque-token-abc-123",
}


async def wire_shapes(client: Client) -> None:
    """Retry a result that asks: with the original params, the answers by their keys and the state
    unchanged."""
    result = await client.request("tools/call", CALL)
    required = recognize_input_required({"result": result})
    assert required is not None
    assert required.is_standard
    assert [one.id for one in required.input_requests] == ["city"]
    responses = collect_responses(required.input_requests, FIXTURE)
    retry = build_retry_params(CALL, required.request_state, responses)
    assert retry["arguments"] == CALL["arguments"]
    assert retry["inputResponses"]["city"] == {
        "action": "accept",
        "content": {"city": "San Francisco"},
    }
    assert retry["requestState"] == result["requestState"]


async def recognition_rule(client: Client) -> None:
    """Check that an incomplete round counts as an ordinary result, so that a fault of the server
    makes no client loop."""
    ordinary = await client.request("tools/list")
    assert recognize_input_required({"result": ordinary}) is None
    for name, value in (("inputRequests", []), ("requestState", ""), ("requestState", None)):
        assert recognize_input_required({"result": {**PAGE["result"], name: value}}) is None  # type: ignore[dict-item]
    # Where the result says that it asks, half of a round is a mistake, and said to be one.
    try:
        recognize_input_required({"result": {"resultType": "input_required"}})
    except BadAnswer as error:
        print(f"    {error}")
    else:
        raise AssertionError("it was taken")


async def library(client: Client) -> None:
    """Recognize the example of the page, and that it is not the standard's form."""
    required = recognize_input_required(PAGE)
    assert required is not None
    assert not required.is_standard
    assert required.description == PAGE["result"]["description"]  # type: ignore[index]
    assert required.input_requests[0].required
    responses = collect_responses(required.input_requests, {"city": "San Francisco"})
    assert build_retry_params(CALL, required.request_state, responses, ARRAY) == RETRY_OF_THE_PAGE
    # Unless it is asked for, that dialect is never produced.
    try:
        await run_elicitation_chain(PAGE, CALL, {"city": "San Francisco"})
    except BadAnswer as error:
        print(f"    {error}")
    else:
        raise AssertionError("it was answered")


async def whats_shipped(client: Client) -> None:
    """Answer rounds from a fixture, up to a limit, and pass ordinary results on."""

    async def next_response(params: dict[str, Any]) -> dict[str, Any]:
        return {"result": await client.request("tools/call", params)}

    first = await next_response(CALL)
    last = await run_elicitation_chain(
        first, CALL, FIXTURE, DEFAULT_MAX_ELICITATION_ROUNDS, next_response
    )
    assert "San Francisco (asked from SFO): fog, 61 °F" in last["result"]["content"][0]["text"]
    assert await run_elicitation_chain(last, CALL, {}) is last
    try:
        await run_elicitation_chain(first, CALL, FIXTURE, 1, next_response)
    except TooManyRounds as error:
        print(f"    {error}")
    else:
        raise AssertionError("the cap did not hold")
    optional = {**PAGE["result"]["inputRequests"][0], "required": False}  # type: ignore[index]
    required = recognize_input_required({"result": {**PAGE["result"], "inputRequests": [optional]}})  # type: ignore[dict-item]
    assert required is not None
    assert collect_responses(required.input_requests, {}) == []


async def planned_follow_up(client: Client) -> None:
    """Fixtures for a call, and a person who is asked only if there is one; all of it in one line."""

    def prompt(question: Question) -> Any:
        return (
            {name: input(f"{name}: ") for name in question.fields} if sys.stdin.isatty() else None
        )

    result = await client.call("weather", loc="SFO", answers=[prompt, FIXTURE])
    assert result.rounds == 3
    print(f"    {result.value}")
    try:
        await client.call("weather", loc="SFO", answers={"city": "Oslo"})
    except Unanswered as error:
        print(f"    {error}")
        # What was asked can be answered later, by whoever has the state.
        state, answer = (
            error.request_state,
            {"unit": {"action": "accept", "content": {"unit": "celsius"}}},
        )
        later = await client.call("weather", loc="SFO", request_state=state, input_responses=answer)
        assert later.value == "Oslo (asked from SFO): fog, 16 °C"
    else:
        raise AssertionError("nobody answered, and it went on")


async def yaml_surface(client: Client) -> None:
    """Of the planned list: `suite.yaml` declares answers beside each call, as `roundgate test` runs them."""
    file = suites.load(Path(__file__).with_name("suite.yaml"))
    run = Run(file, lambda: Client(client.url), Snapshots.beside(file.path), Secrets())
    for result in await run.cases(range(len(file.suite.cases))):
        print(f"    {result.verdict}: {result.name}")
        assert result.failure is None, result.failure


async def main(url: str) -> None:
    async with Client(url) as client:
        for section in (
            wire_shapes, recognition_rule, library, whats_shipped, planned_follow_up, yaml_surface,
        ):  # fmt: skip
            print(f"{section.__name__.replace('_', ' ')}: {section.__doc__}")
            await section(client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
