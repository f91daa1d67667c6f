"""Being told to stop: open streams end as they should, handlers of others are left in place."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.responses import StreamingResponse

from roundgate.http.replica import SIGNALS, on_stop_signal
from tests.support import wire
from tests.support.asgi import Exchange, client, gateway, stoppable
from tests.support.functions import add

LISTEN = {"notifications": {"toolsListChanged": True}}


@pytest.fixture
def received() -> Iterator[list[int]]:
    """The signals that the handlers of the server itself have received."""
    numbers: list[int] = []
    before = {
        number: signal.signal(number, lambda got, frame: numbers.append(got)) for number in SIGNALS
    }
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_action_runs_in_the_loop_and_the_handler_of_the_server_too(
    received: list[int], number: signal.Signals
) -> None:
    done = asyncio.Event()
    with on_stop_signal(asyncio.get_running_loop(), done.set):
        signal.raise_signal(number)
        await asyncio.wait_for(done.wait(), 60)
    assert received == [number]


async def test_after_the_block_the_handlers_are_those_of_before(received: list[int]) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    done = asyncio.Event()
    with on_stop_signal(asyncio.get_running_loop(), done.set):
        assert [signal.getsignal(number) for number in SIGNALS] != before
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0)
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert not done.is_set()


async def test_a_signal_that_the_server_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    done = asyncio.Event()
    with on_stop_signal(asyncio.get_running_loop(), done.set):
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(done.wait(), 60)
    signal.signal(signal.SIGTERM, before)


def test_in_a_thread_that_may_not_handle_signals_nothing_is_done() -> None:
    loop, seen = asyncio.new_event_loop(), []

    def enter() -> None:
        with on_stop_signal(loop, lambda: None):
            seen.append([signal.getsignal(number) for number in SIGNALS])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    loop.close()
    assert seen == [[signal.getsignal(number) for number in SIGNALS]]


async def test_open_streams_end_with_their_result_when_the_server_is_told_to_stop() -> None:
    async with (
        stoppable(gateway(add)) as app,
        Exchange(app, wire.message("subscriptions/listen", LISTEN, "s")) as one,
    ):
        await one.event()
        signal.raise_signal(signal.SIGTERM)
        (closing,) = await one.rest()
    assert closing["id"] == "s"
    assert wire.valid_result("subscriptions/listen", closing)["_meta"][wire.SUBSCRIPTION_ID] == "s"


async def test_a_server_that_was_told_to_stop_opens_no_stream_but_answers_calls() -> None:
    async with stoppable(gateway(add)) as app, client(app) as mcp:
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        status, error = await mcp.error("subscriptions/listen", LISTEN)
        assert (status, error["code"]) == (503, -32600)
        assert "shutting down" in error["message"]
        assert await mcp.text("add", {"a": 1, "b": 2}) == "3"


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_request_to_any_path_that_outlasts_the_grace_has_no_bare_500(
    has_begun: bool,
) -> None:
    app, reached = gateway(add), asyncio.Event()

    @app.get("/slow")
    async def slow() -> StreamingResponse:
        async def parts() -> AsyncIterator[str]:
            yield "first"
            reached.set()
            await asyncio.Event().wait()

        if not has_begun:
            reached.set()
            await asyncio.Event().wait()
        return StreamingResponse(parts())

    async with stoppable(app), client(app) as mcp:
        request = asyncio.ensure_future(mcp.http.get("/slow"))
        await reached.wait()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0)
        request.cancel()  # as uvicorn does
        if has_begun:
            with pytest.raises(asyncio.CancelledError):
                await request
            return
        response = await request
        assert response.status_code == 503
        assert "The server is being restarted" in response.text
        assert response.headers["retry-after"]
