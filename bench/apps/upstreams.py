"""Fifty MCP servers of the official Python SDK in one process, at `/0/mcp` to `/49/mcp`, each with
forty tools: `add`, and tools of the catalogue. All are stateless and speak every revision.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Mount

from bench.apps import sdk
from bench.catalogue import SERVERS, TOOLS_OF_A_SERVER, hundred_tools


def fifty() -> Starlette:
    apps = [sdk.one_tool_and(hundred_tools()[: TOOLS_OF_A_SERVER - 1]) for _ in range(SERVERS)]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    mounts = [Mount(f"/{number}", app) for number, app in enumerate(apps)]
    return Starlette(routes=mounts, lifespan=lifespan)
