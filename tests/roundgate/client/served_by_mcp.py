"""A server that no one here wrote, the official Python SDK's. Its argument is its port."""

import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
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


@server.tool()
async def sign(ctx: Context) -> str | InputRequiredResult:
    """Asks in a round, as servers of 2026-07-28 do."""
    answer = (ctx.input_responses or {}).get("who")
    if isinstance(answer, ElicitResult) and answer.content:
        return f"signed, {answer.content['name']}"
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    params = ElicitRequestFormParams(message="Who are you?", requested_schema=schema)
    return InputRequiredResult(input_requests={"who": ElicitRequest(params=params)})


uvicorn.run(server.streamable_http_app(), port=int(sys.argv[1]), log_level="error")
