"""The way of a request to an MCP endpoint past what FastAPI has around everything."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI

from tests.support.asgi import client, gateway
from tests.support.functions import add


class Noting:
    """A middleware of somebody's that notes what comes by."""

    paths: list[str]

    def __init__(self, app: Any, paths: list[str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._paths.append(scope["path"])
        await self._app(scope, receive, send)


@pytest.fixture
def app() -> FastAPI:
    return gateway(add)


async def test_middleware_that_somebody_adds_gets_every_request(app: FastAPI) -> None:
    paths: list[str] = []
    app.add_middleware(Noting, paths=paths)
    async with client(app) as mcp:
        for _ in range(2):
            assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
        await mcp.http.get("/healthz")
    assert paths == ["/mcp", "/mcp", "/healthz"]


async def test_routes_that_somebody_adds_are_beside_the_endpoint(app: FastAPI) -> None:
    async def hello() -> dict[str, str]:
        return {"hello": "there"}

    app.get("/hello")(hello)
    async with client(app) as mcp:
        assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
        assert (await mcp.http.get("/hello")).json() == {"hello": "there"}
        assert (await mcp.http.get("/nothing")).status_code == 404


async def test_from_the_second_request_on_an_endpoint_is_reached_at_once(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(app) as mcp:
        assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
        monkeypatch.setattr(app, "middleware_stack", None)  # whoever went there would make another
        for path in ("/mcp", "/mcp/"):
            mcp.path = path
            assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
        assert app.middleware_stack is None
