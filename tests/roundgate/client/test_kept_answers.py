"""Answers with `ttlMs` are used again while they are fresh, and not after a notification
that they are about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from roundgate.client import Limits
from tests.support.clocks import SkippingClock
from tests.support.scripted import (
    STREAM_HEAD,
    Asked,
    connected,
    error,
    event,
    result,
    text,
)

NOTICE = {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"}
TOOL = {"name": "t", "inputSchema": {"type": "object"}}


class Shelf:
    """A server with resources that may be kept for a minute, and says what changes when told to."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.refuses_headers = 0

    def __call__(self, asked: Asked) -> Any:
        fresh = {"ttlMs": 60_000, "cacheScope": "private"}
        match asked.rpc:
            case "server/discover":
                about = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                return result(asked, {**about, **fresh})
            case "tools/list":
                return result(asked, {"tools": [TOOL], **fresh})
            case "tools/call" if self.refuses_headers > 0:
                self.refuses_headers -= 1
                return error(asked, -32020, "Mcp-Param-A is missing")
            case "tools/call":
                return result(asked, text("done"))
            case "resources/read" if asked.params["uri"] == "book://asks":
                return self._asks(asked, fresh)
            case "resources/read":
                content = {"uri": asked.params["uri"], "text": "once upon a time"}
                return result(asked, {"contents": [content], **fresh})
            case "subscriptions/listen":
                return self._stream()
        return error(asked, -32601)

    def _asks(self, asked: Asked, fresh: dict[str, Any]) -> bytes:
        if "inputResponses" in asked.params:
            content = {"uri": "book://asks", "text": "for you alone"}
            return result(asked, {"contents": [content], **fresh})
        form = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
        request = {"method": "elicitation/create", "params": form}
        return result(asked, {"resultType": "input_required", "inputRequests": {"who": request}})

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        yield STREAM_HEAD
        yield event(NOTICE)
        while True:
            yield event({"jsonrpc": "2.0", **await self.changes.get()})


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


async def test_an_answer_is_asked_for_again_when_its_time_is_over(shelf: Shelf) -> None:
    clock = SkippingClock()
    async with connected(shelf, clock=clock) as (server, client):
        for _ in range(2):
            await client.read("book://a")
        assert server.methods().count("resources/read") == 1
        clock.skip(61)
        await client.read("book://a")
        assert server.methods().count("resources/read") == 2


async def test_of_more_answers_than_may_be_kept_the_one_used_last_stays(shelf: Shelf) -> None:
    async with connected(shelf, limits=Limits(max_cached=2)) as (server, client):
        for name in ("a", "b", "a", "c", "a", "b"):  # c takes the place of b
            await client.read(f"book://{name}")
        read = [one.params["uri"] for one in server.asked if one.rpc == "resources/read"]
    assert read == ["book://a", "book://b", "book://c", "book://b"]


async def test_what_was_asked_with_answers_is_not_kept(shelf: Shelf) -> None:
    async with connected(shelf) as (server, client):
        for _ in range(2):
            assert (await client.read("book://asks", answers={"who": {}})).text == "for you alone"
        assert server.methods().count("resources/read") == 4, "each has two rounds"


async def test_a_resource_that_changed_is_read_again_and_no_other(shelf: Shelf) -> None:
    params = {"uri": "book://a"}
    async with (
        connected(shelf) as (server, client),
        client.listen(uris=["book://a", "book://b"]) as changes,
    ):
        for name in ("a", "b"):
            await client.read(f"book://{name}")
        shelf.changes.put_nowait({"method": "notifications/resources/updated", "params": params})
        assert (await anext(changes)).params == params
        for name in ("a", "b"):
            await client.read(f"book://{name}")
        read = [one.params["uri"] for one in server.asked if one.rpc == "resources/read"]
    assert read == ["book://a", "book://b", "book://a"]


async def test_tools_that_were_kept_are_listed_again_when_a_call_says_that_they_changed(
    shelf: Shelf,
) -> None:
    shelf.refuses_headers = 1
    async with connected(shelf) as (server, client):
        await client.tools()
        assert (await client.call("t")).value == "done"
        assert server.methods()[-4:] == ["tools/list", "tools/call", "tools/list", "tools/call"]
