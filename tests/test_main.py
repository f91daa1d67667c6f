"""The composition root: what is served where, and that nothing is built before it is asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from roundgate.auth import LocalVerifier
from roundgate.errors import ConfigError
from roundgate.main import build_app, create_app
from roundgate.settings.process import Settings
from roundgate.tokens.keys import parse
from tests.support import root_logger, wire
from tests.support.asgi import STATE_KEY, Client, built, client, config_file, gateway
from tests.support.functions import EVERYTHING, add
from tests.support.scripted import serving
from tests.support.telemetry import recorded


async def test_health_is_told_without_any_header() -> None:
    async with client(gateway(add, server={"name": "shop", "version": "7"})) as mcp:
        response = await mcp.http.get("/healthz")
    assert (response.status_code, response.json()) == (
        200,
        {"status": "ok", "name": "shop", "version": "7", "keys": [parse(STATE_KEY, "")[0].id]},
    )


@pytest.mark.parametrize(
    "path", ["/", "/mc", "/mcp/x", "/mcpx", "//mcp", "/docs", "/openapi.json", "/MCP"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_anywhere_else_is_nothing_and_the_endpoint_named(method: str, path: str) -> None:
    async with client(gateway(add, http={"path": "/mcp"})) as mcp:
        response = await mcp.http.request(method, f"http://127.0.0.1{path}", json={})
    assert response.status_code == 404
    assert "POST /mcp" in response.json()["error"]


async def test_the_endpoint_may_be_elsewhere() -> None:
    asked = wire.message("tools/list")
    async with client(gateway(add, http={"path": "/api/v1/tools"})) as mcp:
        found = await mcp.http.post("/api/v1/tools", json=asked, headers=wire.headers(asked))
        missed = await mcp.http.post("/mcp", json=asked, headers=wire.headers(asked))
    assert (found.status_code, missed.status_code) == (200, 404)
    assert "POST /api/v1/tools" in missed.json()["error"]


@pytest.mark.parametrize("path", ["/mcp/", "/mcp?x=/y"])
async def test_a_slash_at_the_end_and_a_query_do_no_harm(path: str) -> None:
    asked = wire.message("tools/list")
    async with client(gateway(add)) as mcp:
        assert (
            await mcp.http.post(path, json=asked, headers=wire.headers(asked))
        ).status_code == 200


@pytest.mark.parametrize("root_path", ["/gateway", "/a/b", "/mcp"])
async def test_a_prefix_that_a_proxy_adds_is_taken_off(root_path: str) -> None:
    asked = wire.message("tools/list")
    async with client(gateway(add), root_path) as mcp:
        served = await mcp.http.post(f"{root_path}/mcp", json=asked, headers=wire.headers(asked))
        health = await mcp.http.get(f"{root_path}/healthz")
        missed = await mcp.http.post(
            f"{root_path}/{root_path}/mcp", json=asked, headers=wire.headers(asked)
        )
    assert (served.status_code, health.status_code, missed.status_code) == (200, 200, 404)


async def test_a_gateway_can_be_mounted_in_another_app() -> None:
    from fastapi import FastAPI

    outer = FastAPI()
    outer.mount("/tools", gateway(add))
    asked = wire.message("tools/list")
    async with client(outer) as mcp:
        response = await mcp.http.post("/tools/mcp", json=asked, headers=wire.headers(asked))
    assert response.status_code == 200


def write(directory: Path, tools: str, **sections: Any) -> Path:
    (directory / "tools.py").write_text(tools)
    config = directory / "gateway.json"
    config.write_text(
        json.dumps({"backends": [{"kind": "python", "name": "t", "path": "tools.py"}], **sections})
    )
    return config


async def test_create_app_serves_what_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = "from roundgate import tool\n@tool\nasync def hello() -> str:\n    return 'hello'\n"
    monkeypatch.setenv("GATEWAY_CONFIG", str(write(tmp_path, tools)))
    monkeypatch.setenv("GATEWAY_LISTEN", "off")
    with root_logger.lent():
        app = create_app()
    async with client(app) as mcp:
        assert await mcp.text("t__hello") == "hello"
        assert (await mcp.error("subscriptions/listen"))[0] == 404


def test_create_app_tells_what_is_wrong_with_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GATEWAY_LISTEN", "perhaps")
    with pytest.raises(ConfigError, match="GATEWAY_LISTEN"):
        create_app()


def test_build_app_tells_what_is_wrong_with_the_configuration() -> None:
    twice = config_file(add)
    second = twice.backends[0].model_copy(update={"name": "again"})
    with pytest.raises(ConfigError, match="tool 'add' is offered by 'python' too"):
        build_app(replace(twice, backends=[*twice.backends, second]), Settings())


async def test_the_back_ends_are_closed_when_the_app_ends() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        await reader.read()
        closed.set()

    get = {"name": "get", "description": "Gets.", "path": "/"}
    async with serving(serve) as url:
        app = gateway(backends=[{"kind": "http", "name": "s", "base_url": url, "tools": [get]}])
        async with app.router.lifespan_context(app), client(app) as mcp:
            assert await mcp.text("s__get") == "hi"
            assert not closed.is_set()
        await asyncio.wait_for(closed.wait(), 60)


async def test_two_apps_in_one_process_share_nothing() -> None:
    one, other = gateway(add), gateway(*EVERYTHING)
    async with client(one) as first, client(other) as second:
        assert await tools(first) == ["add"]
        assert len(await tools(second)) > 1
        assert await tools(first) == ["add"]


async def tools(mcp: Client) -> list[str]:
    return [one["name"] for one in (await mcp.result("tools/list"))["tools"]]


class Recorder:
    """Middleware of an application: records the paths of requests."""

    def __init__(self, app: Any, paths: list[str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._paths.append(scope["path"])
        await self._app(scope, receive, send)


async def test_middleware_that_an_application_adds_gets_every_request() -> None:
    app, paths = gateway(add), list[str]()
    app.add_middleware(Recorder, paths=paths)
    async with client(app) as mcp:
        assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
        await mcp.http.get("/healthz")
    assert paths == ["/mcp", "/healthz"]


def front(app: Any) -> httpx.AsyncClient:
    """Return a client of the endpoint to which `roundgate serve` gives requests."""
    transport = httpx.ASGITransport(app=app.state.endpoints["/mcp"], client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


async def test_the_endpoint_in_front_of_fastapi_answers_as_the_app_does() -> None:
    app, asked = (
        gateway(add),
        wire.message("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}),
    )
    elsewhere = {**wire.headers(asked), "host": "attacker.example"}
    async with client(app) as mcp, front(app) as direct:
        for headers in (wire.headers(asked), elsewhere, {}):
            usual = await mcp.http.post("http://127.0.0.1/mcp", json=asked, headers=headers)
            answer = await direct.post("/mcp", json=asked, headers=headers)
            assert (answer.status_code, answer.content) == (usual.status_code, usual.content)


def test_a_process_with_an_sdk_serves_all_requests_through_fastapi() -> None:
    with recorded():
        assert gateway(add).state.endpoints == {}


async def test_routes_that_an_application_adds_are_served_to_operators() -> None:
    async def hello() -> dict[str, str]:
        return {"hello": "there"}

    app = gateway(add)
    app.get("/hello")(hello)
    async with client(app) as mcp:
        assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
        assert (await mcp.http.get("/hello")).json() == {"hello": "there"}
        assert (await mcp.http.get("/nothing")).status_code == 404


async def test_the_api_document_lists_health_and_metadata_where_it_is_switched_on() -> None:
    auth = {"issuer": "https://id.example", "jwks_url": "https://id.example/keys"}
    using = Settings(state_keys=STATE_KEY, public_url="http://127.0.0.1")
    file = config_file(add, http={"docs": True}, auth=auth)
    app = built(file, using, verifier=LocalVerifier())
    described = app.openapi()
    assert set(described["paths"]) == {
        "/healthz",
        "/readyz",
        "/events/{token}",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
    }
    async with client(gateway(add, http={"docs": True})) as mcp:
        document = (await mcp.http.get("/openapi.json")).json()
        page = await mcp.http.get("/docs")
    assert list(document["paths"]) == ["/healthz", "/readyz", "/events/{token}"]
    assert (page.status_code, "swagger" in page.text) == (200, True)


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/.well-known/oauth-protected-resource/mcp"]
)
async def test_probes_and_oauth_clients_may_ask_with_head(path: str) -> None:
    auth = {"issuer": "https://id.example", "jwks_url": "https://id.example/keys"}
    using = Settings(state_keys=STATE_KEY, public_url="http://127.0.0.1")
    async with client(built(config_file(add, auth=auth), using, verifier=LocalVerifier())) as mcp:
        head, whole = await mcp.http.head(path), await mcp.http.get(path)
    assert (head.status_code, whole.status_code) == (200, 200)
    assert head.headers["content-length"] == whole.headers["content-length"]
