"""Peer: the official Python SDK's MCPServer over streamable HTTP, stateless, JSON answers.

Every documented option that makes it faster is set: no session, no event stream, no Host check, no
subscriptions.
"""

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette

from bench.catalogue import CatalogueTool
from bench.catalogue import hundred_tools as catalogue


async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def one_tool() -> Starlette:
    return _application([Tool.from_function(add)])


def one_tool_and(tools: list[CatalogueTool]) -> Starlette:
    return _application([Tool.from_function(add), *map(_declared, tools)])


def hundred_tools() -> Starlette:
    return _application([_declared(tool) for tool in catalogue()])


def _declared(tool: CatalogueTool) -> Tool:
    async def handler() -> str:
        return tool.name

    declared = Tool.from_function(
        handler, tool.name, description=tool.description, structured_output=False
    )
    declared.parameters = tool.input_schema
    return declared


def _application(tools: list[Tool]) -> Starlette:
    server = MCPServer("bench", version="1.0", tools=tools, log_level="ERROR", subscriptions=False)
    return server.streamable_http_app(
        json_response=True,
        stateless_http=True,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
