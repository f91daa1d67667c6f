"""What `roundgate serve` runs: the same answers as the app of FastAPI's, and
nothing of FastAPI loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roundgate import asgi, main
from roundgate.config.settings import Settings
from tests.support import wire
from tests.support.asgi import STATE_KEY, client, config_file
from tests.support.functions import add

AUTH = {"issuer": "https://id.example", "jwks_url": "https://id.example/keys"}
USING = Settings(state_keys=STATE_KEY, public_url="https://mcp.example")


async def answers(make: Any, method: str, path: str, **sections: Any) -> tuple[Any, ...]:
    """Status, headers and body of one request at the app that `make` makes."""
    async with client(make.build_app(config_file(add, **sections), USING)) as mcp:
        response = await mcp.http.request(method, path, headers={"host": "mcp.example"})
    return response.status_code, response.headers.multi_items(), response.content


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize(
    "path",
    [
        *("/healthz", "/healthz/", "/healthz?a=b", "/sse?from=sse", "/sse/", "/", "/mcp", "//mcp"),
        *("/.well-known/oauth-protected-resource/mcp", "/.well-known/", "/docs", "/openapi.json"),
    ],
)
async def test_what_is_beside_the_endpoint_is_answered_as_with_fastapi(
    method: str, path: str
) -> None:
    for sections in ({}, {"auth": AUTH, "server": {"name": "shop", "version": "7"}}):
        plain, whole = [await answers(one, method, path, **sections) for one in (asgi, main)]
        assert plain == whole


async def test_a_call_is_answered_past_what_starlette_has_around() -> None:
    app = asgi.build_app(config_file(add), replace(USING, public_url=None))
    async with client(app) as mcp:
        for _ in range(2):
            assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
        app.middleware_stack = None
        assert await mcp.text("add", {"a": 1, "b": 2}) == "3"
        assert app.middleware_stack is None


def test_a_gateway_that_serves_and_tells_its_health_has_loaded_no_fastapi(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "from roundgate import tool\n\n@tool\ndef add(a: int, b: int) -> int:\n    return a + b\n"
    )
    (tmp_path / "gateway.yaml").write_text(
        "backends: [{kind: python, name: own, prefix: '', path: tools.py}]\n"
    )
    asked = wire.message("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
    code = f"""
import asyncio, sys
import httpx
from roundgate import asgi

async def ask():
    app = asgi.create_app()
    async with app.router.lifespan_context(app):
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
        called = await http.post("/mcp", json={asked!r}, headers={wire.headers(asked)!r})
        health = await http.get("/healthz")
        print(called.status_code, health.status_code, 'fastapi' in sys.modules)

asyncio.run(ask())
"""
    environment = {
        **os.environ,
        "GATEWAY_CONFIG": str(tmp_path / "gateway.yaml"),
        "GATEWAY_STORE": f"sqlite:///{tmp_path / 'store.db'}",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "200 200 False"
