"""MCP servers for tests of `kind: mcp`, and gateways in front of them."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI

from roundgate.client import Limits
from roundgate.client.stdio import Program, StdioLink
from tests.support.asgi import Client, built, client, config_of, stoppable
from tests.support.scripted import (
    Asked,
    Script,
    Scripted,
    error,
    http,
    result,
    says,
    scripted,
    text,
)

PROGRAM = Path(__file__).with_name("stdio_program.py")


def tool(name: str, **members: Any) -> dict[str, Any]:
    """An entry of a list of tools."""
    return {"name": name, "inputSchema": {"type": "object"}, **members}


@dataclass
class Upstream:
    """A script of a server of either era. `call` answers tools/call; `tools` may change."""

    call: Callable[[Asked], Any] = lambda asked: result(asked, text("done"))
    tools: list[dict[str, Any]] = field(default_factory=lambda: [tool("t")])
    ttl_ms: int = 0
    hints: dict[str, Any] = field(default_factory=dict)
    """Further members of the list of tools."""
    session: str | None = None
    """The id of the session of an older server; `None` for a server of 2026-07-28."""
    is_down: bool = False

    def __call__(self, asked: Asked) -> Any:
        if self.is_down:
            return None
        if self.session is not None:
            return self._older(asked)
        if "mcp-method" not in asked.headers:
            return self._refused(asked)
        match asked.rpc:
            case "server/discover":
                about = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                info = {"io.modelcontextprotocol/serverInfo": {"name": "up", "version": "3"}}
                return result(asked, {**about, "_meta": info})
            case "tools/list":
                return result(asked, {"tools": self.tools, "ttlMs": self.ttl_ms, **self.hints})
        return self.call(asked)

    def _refused(self, asked: Asked) -> Any:
        """The answer of a server of 2026-07-28 to a request of an older revision."""
        if not asked.body or "id" not in asked.message:
            return http(405)
        return error(asked, -32022, "Unsupported protocol version")

    def _older(self, asked: Asked) -> Any:
        if asked.rpc == "server/discover":
            return error(asked, -32000, "Bad Request: Server not initialized")
        if asked.rpc == "initialize":
            about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            done = {**about, "serverInfo": {"name": "old", "version": "1"}}
            return says(
                {"jsonrpc": "2.0", "id": asked.message["id"], "result": done},
                Mcp_Session_Id=self.session,
            )
        if asked.rpc == "GET":
            return http(405)
        if asked.headers.get("mcp-session-id") != self.session:
            return error(asked, -32001, "Session not found", status=404)
        if asked.rpc in ("notifications/initialized", "(answer)"):
            return http(202)
        if asked.rpc == "DELETE":
            return http(200)
        if asked.rpc == "tools/list":
            listed = {"tools": self.tools, "ttlMs": self.ttl_ms}
            return says({"jsonrpc": "2.0", "id": asked.message["id"], "result": listed})
        return self.call(asked)


def process(*arguments: str, **settings: Any) -> dict[str, Any]:
    """An entry of `backends` for `stdio_program.py`."""
    command = [sys.executable, str(PROGRAM), *arguments]
    return {"kind": "mcp", "name": "up", "command": command, **settings}


def entry(server: Scripted | str, name: str = "up", **settings: Any) -> dict[str, Any]:
    """An entry of `backends` for a server, or for its URL."""
    url = server if isinstance(server, str) else server.url
    return {"kind": "mcp", "name": name, "url": url, **settings}


@asynccontextmanager
async def fronted(
    script: Script, sections: Mapping[str, Any] = MappingProxyType({}), **settings: Any
) -> AsyncIterator[tuple[Scripted, Client]]:
    """A scripted server, the back end `up`, and a client of the gateway in front of it."""
    async with scripted(script) as server, gateway_of(entry(server, **settings), **sections) as mcp:
        yield server, mcp


@asynccontextmanager
async def linked(
    *arguments: str, limits: Limits | None = None, **more: Any
) -> AsyncIterator[StdioLink]:
    """A link to a process of Python that speaks an older revision."""
    program = Program([sys.executable, *arguments], {})
    link = StdioLink(program, info={}, capabilities={}, limits=limits or Limits(), **more)
    link.version = "2025-11-25"
    try:
        yield link
    finally:
        await link.end_session()


@asynccontextmanager
async def gateway_of(*backends: dict[str, Any], **sections: Any) -> AsyncIterator[Client]:
    """A client of a gateway with these back ends, which has started."""
    async with app_of(*backends, **sections) as app, client(app) as mcp:
        yield mcp


@asynccontextmanager
async def app_of(*backends: dict[str, Any], **sections: Any) -> AsyncIterator[FastAPI]:
    """A gateway with these back ends, which has started. It is built in a thread, because a server
    of the test runs in this one."""
    file = config_of({"backends": list(backends), **sections})
    app = await asyncio.to_thread(built, file)
    async with stoppable(app):
        yield app


async def names(mcp: Client) -> list[str]:
    """The names of the tools that are listed."""
    return [one["name"] for one in (await mcp.result("tools/list"))["tools"]]


async def health(mcp: Client) -> dict[str, Any]:
    """The state of the only server, as /healthz shows it."""
    (one,) = (await mcp.http.get("/healthz")).json()["upstreams"]
    state: dict[str, Any] = one
    return state


async def state(mcp: Client, member: str) -> Any:
    """A member of the state of the only server; `None` if it is absent."""
    return (await health(mcp)).get(member)


async def until(expected: Any, ask: Callable[[], Any]) -> None:
    """Wait until `ask` returns what is expected, or an awaitable of it."""
    async with asyncio.timeout(60):
        while True:
            found = ask()
            if (await found if inspect.isawaitable(found) else found) == expected:
                return
            await asyncio.sleep(0.02)
