"""A call that takes longer than a call may: it sheds, and a client that only
retries gets to its end."""

from __future__ import annotations

import re
from typing import Any

import httpx2
from fastapi import FastAPI
from mcp import Client as OfficialClient
from mcp.client.streamable_http import streamable_http_client

from roundgate import Context, tool
from tests.roundgate.rounds.served.tools import crawl
from tests.support import rounds
from tests.support.asgi import built, client, config_file, gateway
from tests.support.clocks import FixedClock
from tests.support.log_lines import log_lines
from tests.support.rounds import retry


class Work:
    """Steps that take their time on a clock that stands still otherwise."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self.done: list[int] = []

    def step(self, number: int, step_s: float) -> int:
        self.clock.skip(step_s)
        self.done.append(number)
        return 1

    def gateway(self, limit_s: float) -> FastAPI:
        return built(
            config_file(self.crawl(), limits={"call_timeout_s": limit_s}), clock=self.clock
        )

    def crawl(self) -> Any:
        @tool(name="crawl")
        async def crawl(ctx: Context, steps: int, step_s: float) -> int:
            """Short steps that take long together."""
            return sum([await ctx.step("crawl", self.step, n, step_s) for n in range(steps)])

        return crawl


async def test_steps_of_three_deadlines_complete_for_a_client_that_only_retries() -> None:
    work = Work()
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(work.gateway(10))) as http:
        transport = streamable_http_client("http://127.0.0.1/mcp", http_client=http)
        with log_lines() as lines:
            async with OfficialClient(transport) as official:  # which gives up after ten rounds
                result = await official.call_tool("crawl", {"steps": 60, "step_s": 0.5})
    assert result.structured_content == 60
    assert work.done == [*range(60)]
    calls = [line for line in lines.of("request") if line.get("method") == "tools/call"]
    assert [line["outcome"] for line in calls] == ["input_required"] * (len(calls) - 1) + ["ok"]
    assert 4 <= len(calls) <= 10
    assert max(line["ms"] for line in calls) < 10_000


async def test_a_round_that_sheds_has_state_and_no_questions() -> None:
    ran: list[int] = []

    @tool
    async def polite(ctx: Context) -> str:
        """Gives its turn back in the middle."""
        await ctx.step("one", ran.append, 1)
        await ctx.shed()
        await ctx.step("two", ran.append, 2)
        return "done"

    method, params = rounds.tool("polite")
    async with client(gateway(polite)) as mcp:
        shed = await rounds.ask(mcp, method, params, roots={})
        assert "inputRequests" not in shed
        assert (await mcp.result(method, retry(params, shed)))["content"][0]["text"] == "done"
    assert ran == [1, 2]


async def test_a_client_that_can_be_asked_nothing_can_still_retry() -> None:
    work = Work()
    method, params = rounds.tool("crawl", steps=2, step_s=5)
    async with client(work.gateway(10)) as mcp:
        body = (await mcp.post(method, params)).json()["result"]
        assert body["resultType"] == "input_required"
        assert (await mcp.result(method, retry(params, body)))["structuredContent"] == 2
    assert work.done == [0, 1]


async def test_a_single_step_that_is_too_long_is_a_timeout() -> None:
    async with client(gateway(crawl, limits={"call_timeout_s": 0.2})) as mcp:
        result = await mcp.call("crawl", {"steps": 1, "step_s": 600})
    assert result["isError"]
    assert re.search(
        r"did not finish within 0\.\d+ s|No time was left", result["content"][0]["text"]
    )  # less what it took to begin
