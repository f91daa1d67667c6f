"""The short form of `scripts/chaos questions`: clients and servers of either era, while a gateway or a
server is killed."""

from __future__ import annotations

import json
import random
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from tests.chaos import questions
from tests.chaos.tasks import store


@pytest.mark.parametrize("seed", [1])
async def test_a_call_ends_rightly_or_says_that_it_may_have_taken_effect(
    seed: int, tmp_path: Path
) -> None:
    with (
        store("sqlite", tmp_path) as shared,
        questions.world(tmp_path, shared.environment, random.Random(seed)) as at,
    ):
        assert await questions.run("servers that ask", 1, tmp_path, at)


async def test_a_client_with_a_session_takes_an_answer_without_a_stream_and_calls_once() -> None:
    answer = {"content": [{"type": "text", "text": "may have taken effect"}], "isError": True}
    calls = 0

    def gateway(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        message = json.loads(request.content)
        if message["method"] == "initialize":
            opened = {"protocolVersion": "2025-11-25"}
            headers = {"mcp-session-id": "s"}
            return httpx.Response(200, json={"id": 0, "result": opened}, headers=headers)
        calls += 1
        return httpx.Response(200, json={"id": message["id"], "result": answer})

    async with httpx.AsyncClient(transport=httpx.MockTransport(gateway)) as http:
        call = questions.CallWithSession(
            "t1", "rounds", "form", http, cycle(["http://gateway/mcp"])
        )
        await call.until(call.begin)

    assert (calls, call.is_error, call.outcome) == (1, True, "may have taken effect")


async def test_a_stream_that_ends_without_an_id_is_lost_and_not_repeated() -> None:
    def gateway(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content)["method"] == "initialize":
            opened = {"protocolVersion": "2025-11-25"}
            headers = {"mcp-session-id": "s"}
            return httpx.Response(200, json={"id": 0, "result": opened}, headers=headers)
        return httpx.Response(200, text="", headers={"content-type": "text/event-stream"})

    async with httpx.AsyncClient(transport=httpx.MockTransport(gateway)) as http:
        call = questions.CallWithSession(
            "t1", "rounds", "form", http, cycle(["http://gateway/mcp"])
        )
        await call.until(call.begin)

    assert call.is_lost
