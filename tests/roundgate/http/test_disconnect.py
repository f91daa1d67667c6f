"""A client that hangs up: its call is cancelled, nothing more is sent, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from roundgate import Context, SyncContext, tool
from roundgate.http.exchange import DisconnectWatch, Responder
from tests.support import wire
from tests.support.asgi import Exchange, client, gateway
from tests.support.functions import add

CALL = wire.call("add", {"a": 1, "b": 2})


class Waiter:
    """A gateway with a tool that waits, and what became of it."""

    def __init__(self) -> None:
        self.started, self.goes_on = asyncio.Event(), asyncio.Event()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        @tool
        async def wait(ctx: Context) -> str:
            await ctx.progress(1)
            self.started.set()
            try:
                await self.goes_on.wait()
            except asyncio.CancelledError:
                self.ended.set_result("cancelled")
                raise
            return "waited"

        self.app = gateway(wait)


@pytest.mark.parametrize("meta", [{}, {"progressToken": 1}], ids=["json", "events"])
async def test_a_client_that_hangs_up_cancels_its_call(
    meta: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    waiter = Waiter()
    async with Exchange(waiter.app, wire.call("wait", **meta)) as exchange:
        await waiter.started.wait()
        exchange.hang_up()
        assert await asyncio.wait_for(waiter.ended, 60) == "cancelled"
        assert b'"id"' not in await exchange.body(), "no response is sent to a client that is gone"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_one_client_that_hangs_up_does_not_disturb_another() -> None:
    waiter = Waiter()
    asked = wire.call("wait")
    async with Exchange(waiter.app, asked) as staying:
        async with Exchange(waiter.app, asked) as leaving:
            await waiter.started.wait()
            leaving.hang_up()
            assert await asyncio.wait_for(waiter.ended, 60) == "cancelled"
        waiter.goes_on.set()
        assert json.loads(await staying.body())["result"]["content"][0]["text"] == "waited"


async def test_a_handler_that_will_not_be_cancelled_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def stubborn() -> str:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return "anyway"

    async with Exchange(gateway(stubborn), wire.call("stubborn")) as exchange:
        exchange.hang_up()
    assert not exchange.running.cancelled()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_handler_that_fails_while_it_is_cancelled_harms_nobody() -> None:
    @tool
    async def clumsy() -> str:
        try:
            await asyncio.sleep(600)
        finally:
            raise RuntimeError("in the clean-up")

    async with Exchange(gateway(clumsy), wire.call("clumsy")) as exchange:
        exchange.hang_up()
    assert exchange.running.exception() is None


async def test_a_thread_is_left_to_itself_when_its_client_hangs_up() -> None:
    began, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    @tool
    def work(ctx: SyncContext) -> str:
        began.set()
        goes_on.wait(60)
        try:
            ctx.progress(1)
        finally:
            ended.set()
        return "unheard"

    asked = wire.call("work", progressToken=1)
    async with Exchange(gateway(work), asked) as exchange:
        assert await asyncio.to_thread(began.wait, 60)
        exchange.hang_up()
        await asyncio.wait_for(asyncio.shield(exchange.running), 60)
        goes_on.set()
        assert await asyncio.to_thread(ended.wait, 60)


async def gone() -> dict[str, str]:
    return {"type": "http.disconnect"}


async def nowhere(message: Any) -> None:
    """Nobody is there."""


async def test_after_a_disconnect_its_own_cancellation_is_taken_back() -> None:
    with DisconnectWatch(gone, Responder(nowhere)) as watch:
        await asyncio.sleep(600)
    task = asyncio.current_task()
    assert watch.disconnected
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_cancellation_from_outside_beside_a_disconnect_still_counts() -> None:
    async def watched() -> None:
        with DisconnectWatch(gone, Responder(nowhere)):
            try:
                await asyncio.sleep(600)
            finally:
                task.cancel()  # as a server does that shuts down at this moment

    task = asyncio.create_task(watched())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_send_that_fails_because_nobody_is_there_is_not_tried_for_ever() -> None:
    tried = []

    async def send(message: Any) -> None:
        tried.append(message["type"])
        raise ConnectionResetError

    exchange = Exchange(gateway(add), CALL)
    await gateway(add)(exchange.scope, exchange.receive, send)
    assert tried == ["http.response.start"]


async def test_a_cancellation_from_outside_is_passed_on_and_logged_as_such(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "roundgate.request")
    waiter = Waiter()
    exchange = Exchange(waiter.app, wire.call("wait"))
    async with exchange:
        await waiter.started.wait()
        exchange.running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exchange.running
        exchange.running = asyncio.create_task(asyncio.sleep(0))  # for the end of the block
    (line,) = [record for record in caplog.records if record.name == "roundgate.request"]
    assert line.__dict__["fields"]["outcome"] == "cancelled"


@pytest.mark.parametrize("after", [0, 0.03])
async def test_a_client_that_hangs_up_before_its_body_is_whole_is_forgotten(
    after: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roundgate.request")
    body = json.dumps(CALL).encode()
    async with Exchange(gateway(add), body[:40], wire.headers(CALL)) as exchange:
        await asyncio.sleep(after)
        exchange.hang_up()
    (line,) = caplog.records
    assert line.__dict__["fields"].items() >= {"outcome": "cancelled", "bytes": 0}.items()
    assert "status" not in line.__dict__["fields"]
    assert exchange.status is None


async def test_a_body_that_comes_slowly_is_read_whole() -> None:
    body = json.dumps(CALL).encode()
    parts = [body[start : start + 60] for start in range(0, len(body), 60)]
    async with Exchange(gateway(add), parts[0], wire.headers(CALL)) as exchange:
        await asyncio.sleep(0.03)  # longer than the moment after which disconnects are watched
        for part in parts[1:]:
            exchange.feed(part)
            await asyncio.sleep(0.002)
        exchange.feed(b"", more=False)
        answer = json.loads(await exchange.body())
    assert answer["result"]["structuredContent"] == 3


async def test_a_call_that_is_over_is_not_watched_any_more() -> None:
    before = len(asyncio.all_tasks())
    async with client(gateway(add)) as mcp:
        for _ in range(20):
            await mcp.call("add", {"a": 1, "b": 2})
        async with asyncio.timeout(60):
            while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - of calls that took long
                await asyncio.sleep(0.01)
