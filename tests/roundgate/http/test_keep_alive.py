"""Silent calls: comments keep the connection of a client that accepts a stream, in every revision."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, ToolError, resource, tool
from roundgate.http.exchange import Hosting
from roundgate.protocol.v2025 import VERSIONS
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import Exchange, built, config_file, gateway
from tests.support.sessions import Stream, calling, opened, telling
from tests.support.wire import call

may_end = asyncio.Event()


@pytest.fixture(autouse=True)
def _of_this_loop() -> None:
    global may_end
    may_end = asyncio.Event()


@tool
async def work() -> str:
    """Works in silence."""
    await may_end.wait()
    return "done"


@tool
async def tell(ctx: Context) -> str:
    """Reports progress early, and then works in silence."""
    await ctx.progress(1)
    await may_end.wait()
    return "done"


@tool
async def fail() -> str:
    """Fails after silent work."""
    await may_end.wait()
    raise ToolError("no luck")


@resource("note://broken")
async def broken() -> str:
    """Cannot be read after silent work."""
    await may_end.wait()
    raise RuntimeError("broken")


HTTP: dict[str, Any] = {"keep_alive_s": 0.05}


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return gateway(work, tell, fail, broken, http=HTTP)


async def comments(exchange: Exchange, count: int) -> None:
    for _ in range(count):
        assert await exchange.event() is None


async def test_a_silent_call_keeps_its_connection(app: FastAPI) -> None:
    async with Exchange(app, call("work")) as exchange:
        await comments(exchange, 3)
        may_end.set()
        (message,) = await exchange.rest()
    assert exchange.status == 200
    assert exchange.headers[b"content-type"] == b"text/event-stream"
    assert wire.valid_result("tools/call", message)["content"][0]["text"] == "done"


async def test_so_does_a_call_that_was_not_silent_from_the_beginning(app: FastAPI) -> None:
    async with Exchange(app, call("tell", progressToken=1)) as exchange:
        progress = await exchange.event()
        assert progress is not None
        assert progress["method"] == "notifications/progress"
        await comments(exchange, 3)
        may_end.set()
        (message,) = await exchange.rest()
    assert message["result"]["content"][0]["text"] == "done"


async def test_a_failure_is_the_last_event_and_the_log_says_it(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roundgate.request")
    async with Exchange(app, call("fail")) as exchange:
        await comments(exchange, 1)
        may_end.set()
        (message,) = await exchange.rest()
    assert message["result"]["isError"] is True
    (line,) = [vars(record)["fields"] for record in caplog.records]
    assert (line["status"], line["outcome"]) == (200, "tool_error")


async def test_an_error_travels_in_the_stream_and_the_log_has_its_code(
    app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roundgate.request")
    asked = wire.message("resources/read", {"uri": "note://broken"})
    async with Exchange(app, asked) as exchange:
        await comments(exchange, 1)
        may_end.set()
        (message,) = await exchange.rest()
    assert exchange.status == 200
    code = message["error"]["code"]
    lines = [vars(record)["fields"] for record in caplog.records if record.msg == "request"]
    assert [(line["status"], line["outcome"], line["code"]) for line in lines] == [
        (200, "error", code)
    ]


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/plain"])
async def test_a_client_that_accepts_json_alone_gets_one_object(app: FastAPI, accept: str) -> None:
    asked = call("work")
    async with Exchange(app, asked, {**wire.headers(asked), "accept": accept}) as exchange:
        await asyncio.sleep(0.2)
        assert not exchange.sends.is_set()
        may_end.set()
        assert b'"done"' in await exchange.body()
    assert exchange.headers[b"content-type"] == b"application/json"


async def test_where_the_response_is_buffered_nothing_changes(app: FastAPI) -> None:
    exchange = Exchange(app, call("work"))
    Hosting(is_buffered=True).put(exchange.scope)
    async with exchange:
        await asyncio.sleep(0.2)
        assert not exchange.sends.is_set()
        may_end.set()
        await exchange.body()
    assert exchange.headers[b"content-type"] == b"application/json"


async def test_a_client_that_hangs_up_between_two_comments_cancels_its_call(app: FastAPI) -> None:
    async with Exchange(app, call("work")) as exchange:
        await comments(exchange, 2)
        exchange.hang_up()
        await asyncio.wait_for(asyncio.shield(exchange.running), 60)
    assert not may_end.is_set()


async def test_a_client_that_does_not_read_its_comments_ends_its_call() -> None:
    app = gateway(work, http={**HTTP, "send_timeout_s": 0.01})
    async with Exchange(app, call("work")) as exchange:
        exchange.reading.clear()
        await asyncio.wait_for(asyncio.shield(exchange.running), 60)
        exchange.reading.set()


@pytest.mark.parametrize("version", VERSIONS)
async def test_clients_with_sessions_keep_their_connections_too(version: str) -> None:
    app = gateway(work, tell, http=HTTP)
    session = await opened(app, version)
    async with session.stream(app, calling("work")) as stream:
        await comments(stream, 3)
        may_end.set()
        (message,) = await stream.over()
    assert message["result"]["content"][0]["text"] == "done"
    may_end.clear()
    async with session.stream(app, telling("tell")) as stream:
        assert (await stream.message())["method"] == "notifications/progress"
        await comments(stream, 3)
        may_end.set()
        (message,) = await stream.over()
    assert message["result"]["content"][0]["text"] == "done"
    may_end.clear()
    async with session.stream(app, calling("work"), accept="application/json") as stream:
        await asyncio.sleep(0.2)
        assert not stream.sends.is_set()
        may_end.set()
        assert b'"done"' in await stream.body()


async def test_progress_after_comments_still_makes_a_call_that_can_be_resumed(
    tmp_path: Path,
) -> None:
    reports = asyncio.Event()

    @tool
    async def late(ctx: Context) -> str:
        """Is silent before it reports progress."""
        await reports.wait()
        await ctx.progress(1)
        await may_end.wait()
        return "done"

    using = Settings(store=f"sqlite:///{tmp_path}/store.sqlite3")
    app = built(config_file(late, http=HTTP), using)
    session = await opened(app, VERSIONS[0])
    async with session.stream(app, telling("late")) as stream:
        await comments(stream, 2)
        reports.set()
        while (first := await stream.next()).id is None:
            assert first.message is None  # one more comment
        assert first.message is None
        assert (await stream.message())["method"] == "notifications/progress"
        may_end.set()
        (message,) = await stream.over()
    assert message["result"]["content"][0]["text"] == "done"
    async with session.resumed(app, first.id) as again:
        assert (await again.message())["result"]["content"][0]["text"] == "done"
        assert isinstance(again, Stream)
