"""A server of the Python SDK 1.x or of FastMCP 3, run by `scripts/servers` in an
environment of its own: the port and the mode are its arguments."""

# mypy: ignore-errors

import asyncio
import sys

from pydantic import BaseModel

port, mode = int(sys.argv[1]), sys.argv[2]
try:
    from fastmcp import Context, FastMCP

    server = FastMCP("fastmcp 3")
    is_fastmcp = True
except ImportError:
    from mcp.server.fastmcp import Context, FastMCP

    server = FastMCP(
        "sdk 1",
        host="127.0.0.1",
        port=port,
        log_level="ERROR",
        stateless_http=mode == "stateless",
        json_response=mode == "json",
    )
    is_fastmcp = False


class Name(BaseModel):
    name: str


@server.tool()
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@server.tool()
async def steps(ctx: Context) -> str:
    """Report progress twice."""
    await ctx.report_progress(1, 2)
    await asyncio.sleep(0.1)
    await ctx.report_progress(2, 2)
    return "done"


@server.tool()
async def greet(ctx: Context) -> str:
    """Ask for a name."""
    answer = await ctx.elicit("Who are you?", Name)
    return f"Hello, {answer.data.name}" if answer.action == "accept" else answer.action


if is_fastmcp:
    server.run(
        transport="http",
        host="127.0.0.1",
        port=port,
        show_banner=False,
        log_level="error",
        stateless_http=mode == "stateless",
        json_response=mode == "json",
    )
else:
    server.run(transport="streamable-http")
