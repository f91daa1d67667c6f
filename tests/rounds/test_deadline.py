"""A call that takes longer than a call may: it sheds, and a client that only
retries gets to its end."""

from __future__ import annotations

import re
import time

from mcp import Client as OfficialClient

from roundgate import Context, tool
from tests.rounds.conftest import Effects, Start
from tests.rounds.served.tools import crawl
from tests.support import rounds
from tests.support.asgi import client, gateway
from tests.support.rounds import retry


async def test_steps_that_take_three_times_the_deadline_complete_for_a_client_that_only_retries(
    start: Start, effects: Effects
) -> None:
    (server,) = start(limits="{call_timeout_s: 1}")
    began = time.monotonic()
    async with OfficialClient(f"{server.url}/mcp") as official:  # which gives up after ten rounds
        result = await official.call_tool("crawl", {"steps": 60, "step_s": 0.05})
    took_s = time.monotonic() - began
    server.stop()  # the last lines are written together, a moment later
    assert result.structured_content == 60
    assert effects() == [f"step {number}" for number in range(60)]
    calls = [line for line in server.lines() if line.get("method") == "tools/call"]
    assert [line["outcome"] for line in calls] == ["input_required"] * (len(calls) - 1) + ["ok"]
    assert 4 <= len(calls) <= 10
    assert max(line["ms"] for line in calls) < 1000
    assert took_s > 3


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


async def test_a_client_that_can_be_asked_nothing_can_still_retry(effects: Effects) -> None:
    method, params = rounds.tool("crawl", steps=2, step_s=0.4)
    async with client(gateway(crawl, limits={"call_timeout_s": 1})) as mcp:
        body = (await mcp.post(method, params)).json()["result"]
        assert body["resultType"] == "input_required"
        assert (await mcp.result(method, retry(params, body)))["structuredContent"] == 2
    assert effects() == [f"step {number}" for number in range(2)]


async def test_a_single_step_that_is_too_long_is_a_timeout(effects: Effects) -> None:
    async with client(gateway(crawl, limits={"call_timeout_s": 0.2})) as mcp:
        result = await mcp.call("crawl", {"steps": 1, "step_s": 5})
    assert result["isError"]
    assert re.search(
        r"did not finish within 0\.[12]\d* s", result["content"][0]["text"]
    )  # less what it took to begin
