"""Six incidents, each with what an operator sees of it: the log, metrics, spans, `/healthz` and the
console of real processes. The cause can be read in at least two of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundgate.client import Client
from roundgate.errors import ClientError
from tests.support.asgi import STATE_KEY
from tests.support.issuer import PUBLIC_URL, token
from tests.support.otlp import Collector, collecting, instrumented, wait_for
from tests.support.postgresql import Server as PostgreSQL
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server
from tests.support.proxy import Proxy, Way
from tests.support.rounds import accept
from tests.support.server import Server, wait_until_it_answers
from tests.support.services import answer, service

OTHER_KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
TOOLS = '''
import os

from pydantic import BaseModel
from roundgate import Context, tool


class Go(BaseModel):
    go: bool


@tool
async def hello() -> str:
    """Needs nothing."""
    return "hello"


@tool
async def ask(ctx: Context) -> str:
    """Asks."""
    await ctx.elicit("go", "Go on?", Go)
    return "done"


@tool(task="required")
async def poison(ctx: Context) -> str:
    """Ends the process that runs it."""
    await ctx.continue_as_task()
    await ctx.step("explode", _explode)
    return "never"


async def _explode() -> None:
    os._exit(9)
'''
CONFIG = """
http: {metrics: true}
console: {}
tasks: {poll_interval_ms: 100, max_deaths: 1, lease_s: 1, clock_skew_s: 0, requeue_after_s: 1}
backends:
  - {kind: python, name: own, prefix: "", path: tools.py}
"""
SERVICE = """  - kind: http
    name: shop
    base_url: "%s"
    timeout_s: 1
    tools: [{name: order, path: /order, description: An order.}]
"""


class Seen:
    """What an operator sees of some processes."""

    def __init__(self, folder: Path, collector: Collector) -> None:
        self.folder = folder
        self.collector = collector
        self.servers: list[Server] = []
        self.browsers: dict[str, httpx.Client] = {}
        """A browser of the console for each gateway, signed in if there is no authentication."""
        self.environment = {
            "GATEWAY_STATE_KEYS": STATE_KEY,
            "GATEWAY_STORE": f"sqlite:///{folder / 'store.sqlite3'}",
            **collector.environment,
        }
        (folder / "tools.py").write_text(TOOLS)
        (folder / "gateway.yaml").write_text(CONFIG)

    def add(self, yaml: str) -> None:
        """Add lines to the configuration."""
        with (self.folder / "gateway.yaml").open("a") as file:
            file.write(yaml)

    @contextmanager
    def running(self, command: str = "serve", **environment: str) -> Iterator[Server]:
        """Run a gateway or a worker."""
        with instrumented(self.folder, self.environment | environment, command) as server:
            self.servers.append(server)
            with httpx.Client(base_url=server.url, timeout=60) as browser:
                if command == "serve":
                    wait_until_it_answers(server)
                    self.browsers[server.url] = browser
                    messages = [str(line["msg"]) for line in server.lines()]
                    for link in (one for one in messages if one.startswith("open the console")):
                        assert browser.get(link.rpartition(" ")[2]).status_code == 303
                yield server

    def texts(self, browser: httpx.Client) -> Mapping[str, str]:
        """What each source says now."""
        calls = re.findall(r"/console(/calls/[\w-]+)", browser.get("/console/calls").text)
        pages = ("", "/tasks", *dict.fromkeys(calls))
        return {
            "log": "".join(server.log.read_text() for server in self.servers),
            "metrics": f"{browser.get('/metrics').text} {self.collector.metrics()}",
            "spans": "".join(map(str, self.collector.spans())),
            "health": browser.get("/healthz").text + browser.get("/readyz").text,
            "console": "".join(browser.get(f"/console{page}").text for page in pages),
        }

    def show(self, gateway: Server, **causes: str) -> None:
        """Wait until the cause can be read in each of these sources."""
        assert len(causes) >= 2

        def missing() -> list[str]:
            texts = self.texts(self.browsers[gateway.url])
            return [name for name, cause in causes.items() if not re.search(cause, texts[name])]

        wait_for(lambda: not missing(), missing)


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Seen]:
    with collecting() as collector:
        yield Seen(tmp_path, collector)


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[Client]:
    async with Client(f"{server.url}/mcp") as client:
        yield client


async def test_a_slow_back_end(seen: Seen) -> None:
    async with service(answer(b"{}")) as shop:
        with Proxy(shop.url) as network:
            network.turn(Way.SILENT)
            seen.add(SERVICE % network.url)
            with seen.running() as gateway:
                async with client_of(gateway) as client:
                    assert (await client.call("shop__order")).is_error
                seen.show(
                    gateway,
                    log='"name":"shop__order".*"reason":"there was no answer within 1 s"',
                    metrics='tools_calls_total{backend="shop",.*outcome="unavailable"} 1',
                    spans='name: "GET /order"(.*\n)*?.*error.type(.*\n)*?.*"timeout"',
                    console="there was no answer within 1 s",
                )


async def test_a_failing_back_end(seen: Seen) -> None:
    async with service(answer(status="503 Service Unavailable")) as shop:
        seen.add(SERVICE % shop.url)
        with seen.running() as gateway:
            async with client_of(gateway) as client:
                assert (await client.call("shop__order")).is_error
            seen.show(
                gateway,
                log='"name":"shop__order".*"reason":"upstream 503"',
                metrics='tools_calls_total{backend="shop",.*outcome="unavailable"} 1',
                spans='http.response.status_code"\\n.*\\n.*503',
                console="upstream 503",
            )


async def test_a_store_that_is_down(seen: Seen, postgresql: PostgreSQL) -> None:
    with seen.running(GATEWAY_STORE=postgresql.url) as gateway:
        async with client_of(gateway) as client:
            postgresql.stop()
            try:
                assert not (await client.call("hello")).is_error, "it needs no store"
                with pytest.raises(ClientError):
                    await client.call("poison")
                seen.show(
                    gateway,
                    log='"msg":"request".*"error":"The database cannot be used just now"',
                    metrics='store_duration_seconds_count{.*error_type="Unavailable"',
                    health="the database cannot be used",
                )
            finally:
                postgresql.start()


async def test_a_task_that_ends_its_workers(seen: Seen) -> None:
    with ExitStack() as stack, seen.running(GATEWAY_WORKER="off") as gateway:
        async with client_of(gateway) as client:
            await client.start("poison")

            def has_ended() -> bool:
                workers = seen.servers[1:]
                if not workers or workers[-1].process.poll() is not None:  # a supervisor's restart
                    stack.enter_context(seen.running("worker"))
                return "given up" in "".join(one.log.read_text() for one in workers)

            await asyncio.to_thread(wait_for, has_ended)
        seen.show(
            gateway,
            log='"msg":"task".*"outcome":"given up"',
            console="workers died or stalled",
        )


def test_keys_that_differ(seen: Seen) -> None:
    with seen.running() as one, seen.running(GATEWAY_STATE_KEYS=OTHER_KEY) as other:
        asked = post(one, "ask")["result"]
        answered = {
            "requestState": asked["requestState"],
            "inputResponses": {"go": accept(go=True)},
        }
        assert post(other, "ask", **answered)["error"]["code"] == -32602
        seen.show(
            other,
            log='"msg":"requestState refused".*key',
            spans="-32602",
        )


def test_an_identity_provider_that_is_away(seen: Seen) -> None:
    seen.add(
        "auth: {issuer: https://login.example.com/, jwks_url: 'http://127.0.0.1:9/jwks', operator_scope: operate}\n"
    )
    with seen.running(GATEWAY_PUBLIC_URL=PUBLIC_URL) as gateway:
        headers = {"host": "mcp.example.com", "authorization": f"Bearer {token()}"}
        refused = httpx.post(f"{gateway.url}/mcp", headers=headers, json={}, timeout=60)
        assert refused.status_code == 503
        seen.show(
            gateway,
            log='"JWKS could not be read","url":"http://127.0.0.1:9/jwks"',
            metrics="roundgate.auth.refused",
            health="keys never read",
        )


def post(server: Server, tool: str, **more: Any) -> dict[str, Any]:
    """Call a tool once, as an official client would send it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }
    params = {"name": tool, "arguments": {}, "_meta": meta, **more}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer: dict[str, Any] = httpx.post(
        f"{server.url}/mcp", json=message, headers=headers, timeout=60
    ).json()
    return answer
