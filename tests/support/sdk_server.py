"""A server of the official Python SDK, in this process, of either era."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server import MCPServer, Server
from mcp.server.mcpserver import Context
from mcp.server.session import ServerSession
from mcp_types import (
    Completion,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    EmptyResult,
    InputRequiredResult,
    ListResourcesResult,
    ReadResourceResult,
    Resource,
    ResourceLink,
    TextResourceContents,
)
from starlette.types import ASGIApp, Receive, Scope, Send

SCHEMA: Any = {"type": "object", "properties": {"tone": {"type": "string"}}, "required": ["tone"]}


def library(name: str = "library") -> MCPServer:
    """A server with two of everything: prompts, resources, templates, and a tool that links."""
    server = MCPServer(name, version="7")

    @server.prompt(title="A review")
    def review(code: str, language: str = "python") -> str:
        """Review some code."""
        return f"Review this {language}: {code}"

    @server.prompt()
    async def toned(subject: str, ctx: Context) -> Any:
        if ctx.input_responses:
            answered: Any = ctx.input_responses["tone"]
            return f"{ctx.request_state}, {answered.content['tone']}"
        return InputRequiredResult(
            input_requests={
                "tone": ElicitRequest(
                    params=ElicitRequestFormParams(message="Which tone?", requested_schema=SCHEMA)
                )
            },
            request_state=f"about {subject}",
        )

    @server.resource("notes://today", mime_type="text/markdown")
    def today() -> str:
        """What is to be done."""
        return "# Today"

    @server.resource("notes://logo", mime_type="image/png")
    def logo() -> bytes:
        return b"\x89PNG\x00"

    @server.resource("notes://{owner}/{number}")
    def note(owner: str, number: str) -> str:
        return f"{number} of {owner} at {name}"

    @server.completion()  # type: ignore[no-untyped-call, untyped-decorator]
    async def complete(ref: Any, argument: Any, context: Any) -> Any:
        others = {} if context is None else context.arguments or {}
        return Completion(values=[f"{argument.value}-{argument.name}", *others.values()], total=7)

    @server.tool()
    async def touch(uri: str, ctx: Context) -> str:
        """Report a change of a resource."""
        await ctx.notify_resource_updated(uri)
        return "told"

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Add a prompt and a resource, and report it."""

        @server.prompt()
        def another() -> str:
            return "another"

        @server.resource("notes://another")
        def more() -> str:
            return "more"

        await ctx.notify_prompts_changed()
        await ctx.notify_resources_changed()
        return "told"

    @server.tool()
    def links() -> Any:
        """Name resources in a result."""
        contents = TextResourceContents(uri="notes://ann/2", text="two")
        return [
            ResourceLink(type="resource_link", uri="notes://ann/1", name="one"),
            EmbeddedResource(type="resource", resource=contents),
        ]

    return server


@dataclass
class Subscribed:
    """A server of 2025-11-25 with resources to subscribe to, and what it was asked."""

    sessions: dict[str, ServerSession] = field(default_factory=dict)
    """The session that has subscribed to each URI."""
    asked: list[str] = field(default_factory=list)

    def server(self) -> Server[Any]:
        """A new server."""
        return Server(
            "subscribed",
            on_list_resources=self._list,
            on_read_resource=self._read,
            on_subscribe_resource=self._subscribe,
            on_unsubscribe_resource=self._unsubscribe,
        )

    async def touch(self, uri: str, named: str | None = None) -> None:
        """Report a change of a resource, under its own or another URI."""
        await self.sessions[uri].send_resource_updated(named or uri)

    async def _list(self, ctx: Any, params: Any) -> ListResourcesResult:
        names = ("a", "b")
        return ListResourcesResult(resources=[Resource(name=n, uri=f"s://{n}") for n in names])

    async def _read(self, ctx: Any, params: Any) -> ReadResourceResult:
        return ReadResourceResult(contents=[TextResourceContents(uri=params.uri, text="x")])

    async def _subscribe(self, ctx: Any, params: Any) -> EmptyResult:
        self.asked.append(f"+{params.uri}")
        self.sessions[str(params.uri)] = ctx.session
        return EmptyResult()

    async def _unsubscribe(self, ctx: Any, params: Any) -> EmptyResult:
        self.asked.append(f"-{params.uri}")
        del self.sessions[str(params.uri)]
        return EmptyResult()


@asynccontextmanager
async def sdk_served(server: MCPServer | Server[Any], *, older: bool = False) -> AsyncIterator[str]:
    """The URL of a server, which runs in this event loop; with `older`, it knows no 2026-07-28."""
    app: ASGIApp = server.streamable_http_app()
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        _older(app) if older else app, log_level="error", timeout_graceful_shutdown=1
    )
    running = uvicorn.Server(config)
    serving = asyncio.create_task(running.serve([listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        running.should_exit = True
        await serving


def _older(app: ASGIApp) -> ASGIApp:
    """Refuse requests of 2026-07-28 as servers of 2025-11-25 do."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-protocol-version") != b"2026-07-28":
            await app(scope, receive, send)
            return
        body = b'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"no"}}'
        kind = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": kind})
        await send({"type": "http.response.body", "body": body})

    return serve
