"""Peer: a DBOS workflow of three steps on PostgreSQL, behind two FastAPI routes."""

# Not in `.venv`, where types are checked.
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from dbos import DBOS  # type: ignore[import-not-found, unused-ignore]
from fastapi import FastAPI
from pydantic import BaseModel


class Start(BaseModel):
    """The arguments of a workflow."""

    start: int


@DBOS.step()  # type: ignore[untyped-decorator, unused-ignore]
async def plus_one(value: int) -> int:
    """Add one."""
    return value + 1


@DBOS.workflow()  # type: ignore[untyped-decorator, unused-ignore]
async def count(start: int) -> int:
    """Add one three times, in three steps."""
    value = start
    for _ in range(3):
        value = await plus_one(value)
    return value


def tasks() -> FastAPI:
    """Return the application, which runs the workflows itself."""
    DBOS(
        config={
            "name": "bench",
            "system_database_url": os.environ["DBOS_URL"],
            "sys_db_pool_size": 20,
            "log_level": "WARNING",
        }
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        DBOS.launch()
        yield
        DBOS.destroy()

    app = FastAPI(lifespan=lifespan)

    @app.post("/tasks")
    async def start(arguments: Start) -> dict[str, Any]:
        handle = await DBOS.start_workflow_async(count, arguments.start)
        return {"id": handle.get_workflow_id()}

    @app.get("/tasks/{task_id}")
    async def look(task_id: str) -> dict[str, Any]:
        status = await DBOS.get_workflow_status_async(task_id)
        return {"status": status.status, "output": status.output}

    return app
