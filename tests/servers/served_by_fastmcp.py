"""FastMCP's server with tasks, run by `scripts/servers` in an environment of its own.
The port is its argument."""

# mypy: disable-error-code="untyped-decorator"

import asyncio
import sys
from dataclasses import dataclass

from fastmcp import Context, FastMCP
from fastmcp_tasks import TasksExtension
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

server = FastMCP("fastmcp")
server.add_extension(TasksExtension())


@dataclass
class Name:
    name: str


@server.tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@server.tool
async def steps(ctx: Context) -> str:
    """Reports progress twice."""
    await ctx.report_progress(1, 2)
    await ctx.report_progress(2, 2)
    return "done"


@server.tool
async def greet(ctx: Context) -> str:
    """Asks for a name."""
    answer = await ctx.elicit("Who are you?", Name)
    return f"Hello, {answer.data.name}" if answer.action == "accept" else answer.action


@server.tool(task=True)
async def dig(depth: int) -> str:
    """Takes a moment."""
    await asyncio.sleep(1)
    return f"{depth} m"


def asked_for_a_name(ctx: Context) -> str | InputRequiredResult:
    """The name that was answered, or the question."""
    answers = ctx.input_responses
    if answers:
        return str(answers["who"].content["name"])
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    params = ElicitRequestFormParams(message="Who are you?", requested_schema=schema)
    return InputRequiredResult(input_requests={"who": ElicitRequest(params=params)})


@server.tool
async def sign(ctx: Context) -> str | InputRequiredResult:
    """Asks in rounds."""
    name = asked_for_a_name(ctx)
    return f"signed, {name}" if isinstance(name, str) else name


@server.tool(task=True)
async def paint(ctx: Context) -> str | InputRequiredResult:
    """A task that asks."""
    name = asked_for_a_name(ctx)
    return f"painted, {name}" if isinstance(name, str) else name


server.run(
    transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False, log_level="error"
)
