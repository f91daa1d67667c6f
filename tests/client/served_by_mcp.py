"""A server that no one here wrote, the official Python SDK's. Prints its port and serves until its input ends."""

import asyncio
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel


class Name(BaseModel):
    name: str


server = MCPServer("official", version="1.0", log_level="ERROR")


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@server.tool()
async def steps(ctx: Context) -> str:
    """Reports progress twice."""
    await ctx.report_progress(1, 2)
    await ctx.report_progress(2, 2)
    return "done"


@server.tool()
async def greet(ctx: Context) -> str:
    """Asks for a name, which servers can only do on a stream of an older revision."""
    answer = await ctx.elicit("Who are you?", Name)
    return f"Hello, {answer.data.name}" if answer.action == "accept" else answer.action


async def main() -> None:
    config = uvicorn.Config(
        server.streamable_http_app(), host="127.0.0.1", port=0, log_level="error"
    )
    serving = uvicorn.Server(config)
    task = asyncio.create_task(serving.serve())
    while not serving.started:  # noqa: ASYNC110 — uvicorn has no event for it
        await asyncio.sleep(0.02)
    print(serving.servers[0].sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    serving.should_exit = True
    await task


asyncio.run(main())
