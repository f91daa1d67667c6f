"""Runs where `tests.support.fastmcp_client` says: FastMCP's client drives tasks to
their ends, and tells how."""

import asyncio
import sys
from typing import Any

import fastmcp_tasks
from fastmcp import Client


async def elicit(message: str, response_type: Any, params: Any, context: Any) -> dict[str, str]:
    return {"name": "Ada"}


async def main(url: str) -> None:
    async with Client(url, elicitation_handler=elicit) as mcp:
        print("called", (await mcp.call_tool("greet", {})).content[0].text)
        task = await fastmcp_tasks.call_tool_task(mcp, "greet", {})
        print("waits", (await task.wait(state="input_required")).status)
        print("task", (await task.result()).content[0].text)
        task = await fastmcp_tasks.call_tool_task(mcp, "dig", {"seconds": 60})
        await task.cancel()
        print("cancelled", (await task.wait()).status)


asyncio.run(main(sys.argv[1]))
