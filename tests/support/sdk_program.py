"""A server on the official Python SDK, 1.x or 2.x as the interpreter has it: a group of tools that is
a job, and tools that ask on the stream of their call.

Arguments: `stdio`, or a port; the file in which effects are noted, one line each; and `older`, if a
server that speaks 2026-07-28 as well is to be asked by its older revisions only.
"""

# mypy: ignore-errors

import asyncio
import json
import sys
from pathlib import Path

from pydantic import BaseModel

try:
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as Server

try:
    from mcp.types import SamplingMessage, TextContent
except ImportError:
    from mcp_types import SamplingMessage, TextContent

WHERE, NOTES = sys.argv[1], Path(sys.argv[2])
IS_OLDER = Server.__name__ == "FastMCP"
server = Server(
    "sdk", **({"host": "127.0.0.1", "port": int(WHERE)} if IS_OLDER and WHERE != "stdio" else {})
)
builds: dict[int, dict] = {}


def note(text: str) -> None:
    with NOTES.open("a") as notes:
        notes.write(text + "\n")


class Name(BaseModel):
    name: str


# -- a job -----------------------------------------------------------------------------------------


@server.tool()
def start_build(branch: str) -> dict:
    """Start a build of a branch."""
    build = len(builds) + 17
    builds[build] = {"branch": branch, "polls": 0, "status": "running"}
    note(f"started {branch}")
    return {"build": build}


@server.tool()
def build_status(build: int) -> dict:
    """Return the status of a build."""
    known = builds[build]
    known["polls"] += 1
    if known["status"] == "running" and known["polls"] > 2 and known["branch"] != "endless":
        known["status"] = "broken" if known["branch"] == "bad" else "done"
    return {"status": known["status"], "why": "it does not compile"}


@server.tool()
def build_log(build: int, branch: str) -> str:
    """Return the log of a build."""
    return f"built {branch} as {build}"


@server.tool()
def cancel_build(build: int) -> str:
    """Cancel a build."""
    builds[build]["status"] = "stopped"
    note(f"cancelled {build}")
    return "stopped"


# -- questions -------------------------------------------------------------------------------------


@server.tool()
async def greet(ctx: Context, greeting: str = "Hello") -> str:
    """Ask for a name."""
    note("greet")
    answer = await ctx.elicit("Who are you?", Name)
    note("greeted")
    return f"{greeting}, {answer.data.name}" if answer.action == "accept" else answer.action


@server.tool()
async def twice(ctx: Context) -> str:
    """Ask two questions, one after the other."""
    first = await ctx.elicit("The first?", Name)
    await ctx.report_progress(1, 2)
    second = await ctx.elicit("The second?", Name)
    return f"{first.data.name} and {second.data.name}"


@server.tool()
async def both(ctx: Context) -> str:
    """Ask two questions at once."""
    first, second = await asyncio.gather(
        ctx.elicit("The first?", Name), ctx.elicit("The second?", Name)
    )
    return f"{first.data.name} and {second.data.name}"


@server.tool()
async def motto(ctx: Context) -> str:
    """Ask the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="A motto?"))
    sampled = await ctx.session.create_message([message], max_tokens=20)
    return f"sampled: {sampled.content.text}"


@server.tool()
async def where(ctx: Context) -> str:
    """Ask for the client's roots."""
    roots = (await ctx.session.list_roots()).roots
    return ", ".join(str(root.uri) for root in roots)


@server.tool()
async def plain(ctx: Context) -> str:
    """Ask nothing."""
    note("plain")
    await ctx.report_progress(1, 1)
    return "done"


def older(app):
    """Refuse the probe of a newer client, as servers of older revisions do."""

    async def shown(scope, receive, send):
        if dict(scope.get("headers", [])).get(b"mcp-method") != b"server/discover":
            await app(scope, receive, send)
            return
        error = {"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "No"}}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(error).encode()})

    return shown


def main() -> None:
    if WHERE == "stdio":
        server.run("stdio")
    elif IS_OLDER:
        server.run("streamable-http")
    else:
        import uvicorn

        app = server.streamable_http_app()
        shown = older(app) if "older" in sys.argv[3:] else app
        uvicorn.run(shown, port=int(WHERE), log_level="error")


main()
