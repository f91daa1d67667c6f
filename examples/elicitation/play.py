"""The sections of mcptest's page on elicitation, run against a running server. Every step is
checked.

python play.py http://127.0.0.1:8000/mcp
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

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
from roundgate_testing import suites
from roundgate_testing.suites import Secrets, Snapshots, SuiteRun

CALL = {"name": "weather", "arguments": {"loc": "SFO"}}
FIXTURE = {"city": {"city": "San Francisco"}, "unit": {"unit": "fahrenheit"}}

# The page's own shapes, which differ from the revision: arrays instead of maps, and no resultType.
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
    """Retry a result that asks for input: with the original params, the answers by key, and the
    state unchanged."""
    result = await client.request("tools/call", CALL)
    required = recognize_input_required({"result": result})
    assert required is not None
    assert required.is_standard
    assert [request.id for request in required.input_requests] == ["city"]
    responses = collect_responses(required.input_requests, FIXTURE)
    retry = build_retry_params(CALL, required.request_state, responses)
    assert retry["arguments"] == CALL["arguments"]
    assert retry["inputResponses"]["city"] == {
        "action": "accept",
        "content": {"city": "San Francisco"},
    }
    assert retry["requestState"] == result["requestState"]


async def recognition_rule(client: Client) -> None:
    """Check that an incomplete round counts as an ordinary result, so a fault of the server cannot
    make a client loop."""
    ordinary = await client.request("tools/list")
    assert recognize_input_required({"result": ordinary}) is None
    for name, value in (("inputRequests", []), ("requestState", ""), ("requestState", None)):
        assert recognize_input_required({"result": {**PAGE["result"], name: value}}) is None  # type: ignore[dict-item]
    # A result that declares itself as asking for input must be complete.
    try:
        recognize_input_required({"result": {"resultType": "input_required"}})
    except BadAnswer as error:
        print(f"    {error}")
    else:
        raise AssertionError("an incomplete round was accepted")


async def library(client: Client) -> None:
    """Recognize the page's example, which is not in the standard's form."""
    required = recognize_input_required(PAGE)
    assert required is not None
    assert not required.is_standard
    assert required.description == PAGE["result"]["description"]  # type: ignore[index]
    assert required.input_requests[0].required
    responses = collect_responses(required.input_requests, {"city": "San Francisco"})
    assert build_retry_params(CALL, required.request_state, responses, ARRAY) == RETRY_OF_THE_PAGE
    # That dialect is only produced on request.
    try:
        await run_elicitation_chain(PAGE, CALL, {"city": "San Francisco"})
    except BadAnswer as error:
        print(f"    {error}")
    else:
        raise AssertionError("a round of the array dialect was answered")


async def whats_shipped(client: Client) -> None:
    """Answer rounds from a fixture, up to a limit, and return ordinary results unchanged."""

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
        raise AssertionError("the limit on rounds had no effect")
    optional = {**PAGE["result"]["inputRequests"][0], "required": False}  # type: ignore[index]
    required = recognize_input_required({"result": {**PAGE["result"], "inputRequests": [optional]}})  # type: ignore[dict-item]
    assert required is not None
    assert collect_responses(required.input_requests, {}) == []


async def planned_follow_up(client: Client) -> None:
    """Answer a call from a person, if there is a terminal, and then from fixtures."""

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
        # The questions can be answered later by any process that has the state.
        state, answer = (
            error.request_state,
            {"unit": {"action": "accept", "content": {"unit": "celsius"}}},
        )
        later = await client.call("weather", loc="SFO", request_state=state, input_responses=answer)
        assert later.value == "Oslo (asked from SFO): fog, 16 °C"
    else:
        raise AssertionError("the call continued without an answer")


async def yaml_surface(client: Client) -> None:
    """Run `suite.yaml`, which declares answers for each call, as `roundgate test` does."""
    file = suites.load(Path(__file__).with_name("suite.yaml"))
    run = SuiteRun(file, lambda: Client(client.url), Snapshots.beside(file.path), Secrets())
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
