"""Floor: a bare Starlette route, JSON in and JSON out."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from bench.catalogue import hundred_tools as catalogue


def one_tool() -> Starlette:
    return _application(_call_add)


def hundred_tools() -> Starlette:
    tools = [tool.as_json() for tool in catalogue()]

    async def list_tools(request: Request) -> Response:
        message = await request.json()
        result = {"resultType": "complete", "tools": tools}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})

    return _application(list_tools)


async def _call_add(request: Request) -> Response:
    message = await request.json()
    arguments = message["params"]["arguments"]
    total = arguments["a"] + arguments["b"]
    content = [{"type": "text", "text": str(total)}]
    result = {"resultType": "complete", "content": content, "structuredContent": {"result": total}}
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})


def _application(endpoint: Callable[[Request], Awaitable[Response]]) -> Starlette:
    return Starlette(routes=[Route("/mcp", endpoint, methods=["POST"])])
