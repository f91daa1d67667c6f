"""subscriptions/listen over HTTP (basic/patterns/subscriptions): what a stream says, to
whom, and how it ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from mcp_types import _v2026_07_28 as official
from pydantic import TypeAdapter

from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import Client, Exchange, client, gateway, stoppable
from tests.support.functions import EVERYTHING, add, change, note, review

ALL = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["note://one", "note://by/ann/1"],
}
SAID = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
    "resourceSubscriptions": "notifications/resources/updated",
}


@asynccontextmanager
async def listening(
    app: FastAPI, wanted: dict[str, Any], request_id: Any = 1
) -> AsyncIterator[Exchange]:
    """An open stream that has been acknowledged."""
    asked = wire.message("subscriptions/listen", {"notifications": wanted}, request_id)
    async with Exchange(app, asked) as stream:
        await acknowledged(stream)
        yield stream


async def acknowledged(stream: Exchange) -> dict[str, Any]:
    """The filter as the first message of a stream acknowledges it."""
    first = await said(stream)
    assert first["method"] == "notifications/subscriptions/acknowledged"
    notifications: dict[str, Any] = first["params"]["notifications"]
    return notifications


async def said(stream: Exchange) -> dict[str, Any]:
    """The next notification of a stream."""
    one = await stream.event()
    assert one is not None
    TypeAdapter(official.ServerNotification).validate_python(one)
    return one


def subscription_id(one: dict[str, Any]) -> Any:
    return (one.get("params") or one["result"])["_meta"][wire.SUBSCRIPTION_ID]


async def announce(app: FastAPI, uri: str = "note://one") -> None:
    async with client(app) as mcp:
        assert await mcp.text("change", {"uri": uri}) == "told"


@pytest.mark.parametrize("field", SAID)
async def test_a_stream_carries_what_was_asked_for_and_nothing_else(
    everything: FastAPI, field: str
) -> None:
    async with listening(everything, {field: ALL[field]}) as stream:
        await announce(everything)
        one = await said(stream)
        await announce(everything)
        other = await said(stream)
    assert one["method"] == other["method"] == SAID[field]


async def test_the_acknowledgement_repeats_the_filter_that_is_honoured(everything: FastAPI) -> None:
    asked = wire.message(
        "subscriptions/listen",
        {"notifications": {**ALL, "promptsListChanged": False, "taskIds": []}},
    )
    async with Exchange(everything, asked) as stream:
        assert await acknowledged(stream) == {
            name: value for name, value in ALL.items() if name != "promptsListChanged"
        }
    assert stream.headers[b"content-type"] == b"text/event-stream"
    assert stream.headers[b"x-accel-buffering"] == b"no"


async def test_what_the_server_does_not_have_is_not_acknowledged() -> None:
    asked = wire.message("subscriptions/listen", {"notifications": ALL})
    async with Exchange(gateway(add, review), asked) as stream:
        assert await acknowledged(stream) == {"toolsListChanged": True, "promptsListChanged": True}


async def test_an_empty_filter_is_acknowledged_and_hears_nothing(everything: FastAPI) -> None:
    async with listening(everything, {}) as stream:
        await announce(everything)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.event(), 0.05)


async def test_a_resource_subscription_hears_of_its_uris_alone(everything: FastAPI) -> None:
    async with listening(
        everything, {"resourceSubscriptions": ["note://one", "note://two"]}
    ) as stream:
        for uri in ("note://three", "note://two", "note://one/more", "note://one"):
            await announce(everything, uri)
        assert [(await said(stream))["params"]["uri"] for _ in range(2)] == [
            "note://two",
            "note://one",
        ]


@pytest.mark.parametrize("request_id", [0, "1", ""])
async def test_every_message_has_the_id_of_the_request_and_its_json_type(request_id: Any) -> None:
    asked = wire.message("subscriptions/listen", {"notifications": ALL}, request_id)
    async with stoppable(gateway(*EVERYTHING)) as app, Exchange(app, asked) as stream:
        messages = [await said(stream)]
        await announce(app)
        messages += [await said(stream) for _ in range(4)]
        signal.raise_signal(signal.SIGTERM)
        rest = await stream.rest()
    closing = rest[-1]
    wire.valid_result("subscriptions/listen", closing)
    assert closing["id"] == request_id
    for one in [*messages, *rest]:
        assert subscription_id(one) == request_id
        assert type(subscription_id(one)) is type(request_id)


async def test_changes_that_a_reader_has_not_seen_yet_are_told_once(everything: FastAPI) -> None:
    async with listening(everything, ALL) as stream:
        stream.reading.clear()
        stream.sends.clear()
        await announce(everything)
        await asyncio.wait_for(stream.sends.wait(), 60)
        for _ in range(100):
            await announce(everything)
        stream.reading.set()
        methods = [(await said(stream))["method"] for _ in range(4)]
        # the first was on its way already when it changed again, so it has to be told again
        repeated = (await said(stream))["method"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.event(), 0.05)
    assert set(methods) == set(SAID.values())
    assert repeated == methods[0]


async def test_every_stream_that_wants_it_hears_of_a_change(everything: FastAPI) -> None:
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(
                listening(everything, {"toolsListChanged": True}, number)
            )
            for number in range(20)
        ]
        await announce(everything)
        heard = [await said(stream) for stream in streams]
    assert [subscription_id(one) for one in heard] == list(range(20))


async def test_streams_of_the_same_id_are_kept_apart(everything: FastAPI) -> None:
    async with listening(everything, {"toolsListChanged": True}) as one:
        async with listening(everything, {"promptsListChanged": True}):
            pass
        await announce(everything)
        assert (await said(one))["method"] == SAID["toolsListChanged"]


async def test_progress_and_log_messages_of_calls_stay_off_the_stream(
    everything: FastAPI, mcp: Client
) -> None:
    asked = wire.message(
        "subscriptions/listen", {"notifications": ALL}, progressToken=1, logLevel="debug"
    )
    async with Exchange(everything, asked) as stream:
        await acknowledged(stream)
        await mcp.post("tools/call", {"name": "report"}, progressToken=1, logLevel="debug")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.event(), 0.05)


async def test_an_idle_stream_is_kept_alive_with_comments() -> None:
    app = gateway(change, http={"keep_alive_s": 0.03})
    async with listening(app, {"toolsListChanged": True}) as stream:
        assert [await stream.event() for _ in range(3)] == [None, None, None]
        await announce(app)
        assert SAID["toolsListChanged"] in [
            one["method"] for _ in range(3) if (one := await stream.event())
        ]


async def test_a_client_that_hangs_up_makes_room_for_another() -> None:
    app = gateway(add, http={"max_streams": 1})
    for _ in range(3):
        async with listening(app, {"toolsListChanged": True}):
            pass


async def test_too_many_streams_are_refused_for_now() -> None:
    app = gateway(add, http={"max_streams": 2})
    async with listening(app, {}), listening(app, {}), client(app) as mcp:
        response = await mcp.post("subscriptions/listen", {"notifications": {}})
        await mcp.call("add", {"a": 1, "b": 2})
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert "http.max_streams" in wire.valid_error(response)["message"]
    assert response.json()["id"] == 1


async def test_a_client_that_does_not_accept_events_is_refused_and_takes_up_no_room() -> None:
    app = gateway(add, http={"max_streams": 1})
    async with client(app) as mcp:
        for _ in range(3):
            response = await mcp.post(
                "subscriptions/listen",
                {"notifications": {}},
                headers={"accept": "application/json"},
            )
            assert (response.status_code, response.json()["id"]) == (406, 1)
            assert "text/event-stream" in wire.valid_error(response)["message"]


@pytest.mark.parametrize(
    "params", [{}, {"notifications": None}, {"notifications": {"toolsListChanged": "yes"}}]
)
async def test_a_filter_of_the_wrong_shape_is_refused(mcp: Client, params: dict[str, Any]) -> None:
    status, error = await mcp.error("subscriptions/listen", params)
    assert (status, error["code"]) == (400, -32602)


@pytest.mark.parametrize(
    "using", [Settings(listen="off"), Settings(on_lambda=True, allow_anonymous=True)]
)
async def test_where_nothing_can_stream_listen_is_neither_advertised_nor_served(
    using: Settings,
) -> None:
    async with client(gateway(*EVERYTHING, using=using)) as mcp:
        capabilities = (await mcp.result("server/discover"))["capabilities"]
        status, error = await mcp.error("subscriptions/listen", {"notifications": ALL})
    assert (status, error["code"]) == (404, -32601)
    assert "listChanged" not in str(capabilities)
    assert "subscribe" not in str(capabilities)


async def test_listen_can_be_forced_on_where_it_would_be_off() -> None:
    app = gateway(add, note, using=Settings(listen="on", on_lambda=True, allow_anonymous=True))
    async with client(app) as mcp:
        assert (await mcp.result("server/discover"))["capabilities"]["resources"]["subscribe"]
    async with listening(app, ALL):
        pass
