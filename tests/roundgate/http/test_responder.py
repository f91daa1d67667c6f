"""JSON or an event stream: chosen call by call, by what the client asked for and by
what the handler tells it."""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import pytest
from fastapi import FastAPI
from mcp_types import _v2026_07_28 as official
from pydantic import TypeAdapter

from roundgate import Context, SyncContext, prompt, tool
from tests.support import wire
from tests.support.asgi import Client, Exchange, client, gateway

REPORT = {"name": "report"}


def told(response: httpx.Response) -> list[str]:
    """The methods of the notifications on a stream, after a look at what must hold for every stream."""
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["x-accel-buffering"] == "no"
    assert "no-cache" in response.headers["cache-control"]
    *notifications, last = wire.events(response.text)
    wire.valid_result("tools/call", last)
    for one in notifications:
        TypeAdapter(official.ServerNotification).validate_python(one)
        assert "id" not in one
    return [one["method"] for one in notifications]


async def test_a_call_that_nobody_asked_to_report_is_answered_with_json(mcp: Client) -> None:
    response = await mcp.post("tools/call", REPORT)
    assert response.headers["content-type"] == "application/json"
    assert wire.valid_result("tools/call", response.json())["content"][0]["text"] == "reported"


@pytest.mark.parametrize("token", ["token", "", 0, 7, -(2**62)])
async def test_a_progress_token_opens_a_stream_with_progress_alone(
    mcp: Client, token: str | int
) -> None:
    response = await mcp.post("tools/call", REPORT, progressToken=token)
    assert told(response) == ["notifications/progress"] * 3
    first, *_ = wire.events(response.text)
    assert first["params"] == {
        "progressToken": token,
        "progress": 1,
        "total": 3,
        "message": "step 1",
    }
    assert type(first["params"]["progressToken"]) is type(token)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["debug", "info", "error"]),
        ("info", ["info", "error"]),
        ("notice", ["error"]),
        ("error", ["error"]),
    ],
)
async def test_a_log_level_opens_a_stream_with_messages_at_or_above_it(
    mcp: Client, level: str, expected: list[str]
) -> None:
    response = await mcp.post("tools/call", REPORT, logLevel=level)
    assert set(told(response)) == {"notifications/message"}
    *messages, _ = wire.events(response.text)
    assert [one["params"]["level"] for one in messages] == expected
    assert messages[-1]["params"] == {
        "level": "error",
        "data": {"said": "error"},
        "logger": "report",
    }


@pytest.mark.parametrize("level", ["critical", "alert", "emergency"])
async def test_a_level_above_everything_that_is_logged_leaves_the_answer_json(
    mcp: Client, level: str
) -> None:
    response = await mcp.post("tools/call", REPORT, logLevel=level)
    assert response.headers["content-type"] == "application/json"


async def test_token_and_level_together_give_everything_in_the_order_in_which_it_was_said(
    mcp: Client,
) -> None:
    response = await mcp.post("tools/call", REPORT, progressToken=1, logLevel="info")
    assert told(response) == ["notifications/progress"] * 3 + ["notifications/message"] * 2


async def test_a_call_with_nothing_to_report_is_json_whatever_was_asked_for(mcp: Client) -> None:
    response = await mcp.post("tools/call", {"name": "refuse"}, progressToken=1, logLevel="debug")
    assert response.headers["content-type"] == "application/json"


async def test_a_client_that_does_not_accept_events_gets_json_and_no_notifications(
    mcp: Client,
) -> None:
    response = await mcp.post(
        "tools/call",
        REPORT,
        progressToken=1,
        logLevel="debug",
        headers={"accept": "application/json"},
    )
    assert response.headers["content-type"] == "application/json"
    wire.valid_result("tools/call", response.json())


async def test_a_call_that_fails_after_it_has_reported_ends_its_stream_with_the_tool_error() -> (
    None
):
    @tool
    async def stumble(ctx: Context) -> str:
        await ctx.progress(1)
        raise RuntimeError("secret")

    async with client(gateway(stumble)) as mcp:
        response = await mcp.post("tools/call", {"name": "stumble"}, progressToken=1)
    assert told(response) == ["notifications/progress"]
    assert wire.events(response.text)[-1]["result"]["isError"]
    assert "secret" not in response.text


async def test_an_error_after_the_stream_has_opened_is_its_last_event() -> None:
    @prompt
    async def stumble(ctx: Context) -> str:
        await ctx.progress(1)
        raise RuntimeError("secret")

    async with client(gateway(stumble)) as mcp:
        response = await mcp.post("prompts/get", {"name": "stumble"}, progressToken=1)
    assert response.status_code == 200
    progress, error = wire.events(response.text)
    assert progress["method"] == "notifications/progress"
    assert (error["id"], error["error"]["code"]) == (1, -32603)


async def test_progress_that_does_not_increase_is_not_sent() -> None:
    @tool
    async def waver(ctx: Context) -> str:
        for value in (1, 1, 0.5, 2, 1.9, 2.5):
            await ctx.progress(value)
        return ""

    async with client(gateway(waver)) as mcp:
        *progress, _ = wire.events(
            (await mcp.post("tools/call", {"name": "waver"}, progressToken=1)).text
        )
    assert [one["params"]["progress"] for one in progress] == [1, 2, 2.5]


async def test_a_message_with_line_ends_stays_one_event() -> None:
    text = "one\ntwo\r\nthree\rfour\u2028five\u0085six\n\ndata: seven"

    @tool
    async def speak(ctx: Context) -> str:
        await ctx.log("info", text)
        return text

    async with client(gateway(speak)) as mcp:
        response = await mcp.post("tools/call", {"name": "speak"}, logLevel="info")
    message, result = wire.events(response.text)
    assert message["params"]["data"] == text
    assert result["result"]["content"][0]["text"] == text


async def test_events_arrive_while_the_call_is_still_running() -> None:
    goes_on = asyncio.Event()

    @tool
    async def pause(ctx: Context) -> str:
        await ctx.progress(1)
        await goes_on.wait()
        return "done"

    asked = wire.call("pause", progressToken="t")
    async with Exchange(gateway(pause), asked) as exchange:
        first = await exchange.event()
        assert first is not None
        assert first["method"] == "notifications/progress"
        assert not exchange.running.done()
        goes_on.set()
        (last,) = await exchange.rest()
    assert last["result"]["content"][0]["text"] == "done"


async def test_a_sync_function_reports_from_its_thread() -> None:
    @tool
    def work(ctx: SyncContext) -> str:
        for step in (1, 2):
            ctx.progress(step)
        ctx.log("warning", "late")
        return "done"

    async with client(gateway(work)) as mcp:
        response = await mcp.post("tools/call", {"name": "work"}, progressToken=1, logLevel="debug")
    assert told(response) == ["notifications/progress"] * 2 + ["notifications/message"]


async def test_many_tasks_of_one_call_report_without_mixing_their_events() -> None:
    @tool
    async def fan_out(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(ctx.log("info", "x" * number))
        return "done"

    async with client(gateway(fan_out)) as mcp:
        response = await mcp.post("tools/call", {"name": "fan_out"}, logLevel="info")
    assert told(response) == ["notifications/message"] * 50


@pytest.mark.parametrize("waits", [True, False], ids=["handler waits", "handler returns first"])
async def test_events_for_a_slow_client_begin_its_stream_once_and_precede_the_answer(
    waits: bool,
) -> None:
    @tool
    async def fan_out(ctx: Context) -> str:
        telling.extend(asyncio.create_task(ctx.log("info", number)) for number in range(3))
        if waits:
            await asyncio.gather(*telling)
        await asyncio.sleep(0)
        return "done"

    telling: list[asyncio.Task[None]] = []
    asked = wire.call("fan_out", logLevel="info")
    async with Exchange(gateway(fan_out), asked) as exchange:
        exchange.reading.clear()
        await asyncio.sleep(0.02)
        exchange.reading.set()
        *said, last = await exchange.rest()
    assert [one["params"]["data"] for one in said] == [0, 1, 2]
    assert last["id"] == 1


async def test_what_is_said_after_the_answer_is_dropped() -> None:
    said_late = asyncio.Event()

    @tool
    async def linger(ctx: Context) -> str:
        async def speak_late() -> None:
            await asyncio.sleep(0.02)
            await ctx.progress(2)
            said_late.set()

        await ctx.progress(1)
        background.add(asyncio.create_task(speak_late()))
        return "done"

    background: set[asyncio.Task[None]] = set()
    asked = wire.call("linger", progressToken="t")
    async with Exchange(gateway(linger), asked) as exchange:
        first, last = await exchange.rest()
        await asyncio.wait_for(said_late.wait(), 60)
        assert await exchange.rest() == [first, last]
    assert (first["params"]["progress"], last["id"]) == (1, 1)


@pytest.fixture
def timed_out() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def eager(timed_out: asyncio.Event) -> FastAPI:
    """A gateway whose one tool reports at once, waits, and has 0.1 seconds for a call."""

    @tool
    async def eager(ctx: Context) -> str:
        try:
            await ctx.progress(1)
            await asyncio.sleep(600)
        finally:
            timed_out.set()
        return "never"

    return gateway(eager, limits={"call_timeout_s": 0.1})


async def test_a_client_that_does_not_read_gets_a_whole_answer_after_a_timeout(
    eager: FastAPI, timed_out: asyncio.Event
) -> None:
    async with Exchange(eager, wire.call("eager", progressToken=1)) as exchange:
        exchange.reading.clear()
        await asyncio.wait_for(timed_out.wait(), 60)
        exchange.reading.set()
        result = json.loads(await exchange.body())["result"]
    assert (exchange.status, exchange.headers[b"content-type"]) == (200, b"application/json")
    assert result["isError"]
    assert re.search(r"within 0\.(1|0\d) s", result["content"][0]["text"])


async def test_a_slow_client_holds_up_the_call_that_reports_to_it_and_no_other(
    eager: FastAPI,
) -> None:
    async with Exchange(eager, wire.call("eager", progressToken=1)) as exchange:
        exchange.reading.clear()
        async with client(eager) as mcp, asyncio.timeout(60):
            await mcp.result("tools/list")
        exchange.reading.set()
