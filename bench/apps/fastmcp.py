"""Peer: FastMCP over streamable HTTP, stateless, JSON answers.

Every documented option that makes it faster is set: no session, no event stream, no Host check, no
rewriting of schemas.
"""

# Not in `.venv`, where types are checked.
from fastmcp import FastMCP  # type: ignore[import-not-found, unused-ignore]
from fastmcp.tools import FunctionTool, Tool  # type: ignore[import-not-found, unused-ignore]
from starlette.applications import Starlette

from bench.catalogue import CatalogueTool
from bench.catalogue import hundred_tools as catalogue


async def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def one_tool() -> Starlette:
    return _application([Tool.from_function(add)])


def hundred_tools() -> Starlette:
    return _application([_declared(tool) for tool in catalogue()])


def _declared(tool: CatalogueTool) -> FunctionTool:
    async def handler() -> str:
        return tool.name

    declared = Tool.from_function(
        handler, name=tool.name, description=tool.description, output_schema=None
    )
    declared.parameters = tool.input_schema
    return declared


def _application(tools: list[FunctionTool]) -> Starlette:
    server = FastMCP("bench", version="1.0", tools=tools, dereference_schemas=False)
    app: Starlette = server.http_app(
        json_response=True, stateless_http=True, host_origin_protection=False
    )
    return app
