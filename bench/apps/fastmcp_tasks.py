"""Peer: a task of FastMCP on Redis. A task has no steps, so a repeated task starts from the
beginning."""

# Not in `.venv`, where types are checked.
import os

from fastmcp import FastMCP  # type: ignore[import-not-found, unused-ignore]
from fastmcp.tools import Tool  # type: ignore[import-not-found, unused-ignore]
from fastmcp.utilities.tasks import TaskConfig  # type: ignore[import-not-found, unused-ignore]
from fastmcp_tasks import TasksExtension  # type: ignore[import-not-found, unused-ignore]
from starlette.applications import Starlette


async def count(start: int) -> int:
    """Add one three times."""
    value = start
    for _ in range(3):
        value += 1
    return value


def tasks() -> Starlette:
    """Return the application. A worker runs in the same process."""
    server = FastMCP("bench", version="1.0", dereference_schemas=False)
    server.add_extension(TasksExtension(url=os.environ["REDIS_URL"], concurrency=32))
    server.add_tool(Tool.from_function(count, task=TaskConfig(mode="required")))
    app: Starlette = server.http_app(
        json_response=True, stateless_http=True, host_origin_protection=False
    )
    return app
