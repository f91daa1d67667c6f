"""What clients of the revisions with sessions do wrong, and what becomes of
them when they go away."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from roundgate import Context, tool
from roundgate.settings.process import Settings
from tests.support.asgi import client, gateway
from tests.support.rounds import Name, accept
from tests.support.sessions import Session, calling, opened, request

VERSION = "io.modelcontextprotocol/protocolVersion"


@tool
async def greet(ctx: Context) -> str:
    """Asks who it is for."""
    return f"Hello {(await ctx.elicit('who', 'Who are you?', Name)).name}"


@pytest.fixture
def app(using: Settings) -> FastAPI:
    return gateway(greet, using=using, http={"max_streams_per_caller": 3})


async def test_initialize_inside_a_session_opens_another_and_in_the_later_era_is_gone(
    app: FastAPI,
) -> None:
    session = await opened(app)
    again = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
    response = await session.send(app, request("initialize", again))
    assert response.json()["result"]["protocolVersion"] == "2025-06-18"
    assert response.headers["mcp-session-id"] != session.id
    async with client(app) as mcp:
        _, error = await mcp.error("initialize", {})
    assert error["code"] == -32601


@pytest.mark.parametrize("version", [["2025-11-25"], {"": "2025-11-25"}, 5, None])
async def test_a_version_that_is_no_string_is_refused(app: FastAPI, version: Any) -> None:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {}}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
    ) as http:
        headers = {"accept": "application/json, text/event-stream"}
        response = await http.post("/mcp", json=request("initialize", params), headers=headers)
    error = response.json()["error"]
    assert error["code"] == -32602
    assert "protocolVersion" in error["message"]


async def test_a_client_that_goes_away_before_its_body_has_come_leaves_nothing(
    app: FastAPI,
) -> None:
    session = await opened(app)
    stream = session.stream(app, calling("greet"))
    stream.hang_up()
    async with stream:
        pass
    await still_works(app, session)


async def test_clients_that_go_away_while_they_are_asked_leave_room_for_others(
    app: FastAPI,
) -> None:
    session = await opened(app)
    for _ in range(8):  # more than may wait at once
        async with session.stream(app, calling("greet")) as stream:
            question = await stream.asked()
            stream.hang_up()
    await session.answer(app, question, accept(name="late"))
    await still_works(app, session)


async def test_streams_of_changes_are_bounded_for_each_caller_and_given_back(
    app: FastAPI,
) -> None:
    session = await opened(app)
    for _ in range(2):
        streams = [session.resumed(app) for _ in range(3)]
        for stream in streams:
            await stream.__aenter__()
            while stream.status is None:
                await stream.event()
        async with session.resumed(app) as refused:
            await refused.body()
        assert refused.status == 503
        assert int(refused.headers[b"retry-after"]) > 0
        for stream in streams:
            await stream.__aexit__()


async def still_works(app: FastAPI, session: Session) -> None:
    async with session.stream(app, calling("greet")) as stream:
        await session.answer(app, await stream.asked(), accept(name="Ann"))
        (response,) = await stream.over()
    assert response["result"]["content"][0]["text"] == "Hello Ann"
