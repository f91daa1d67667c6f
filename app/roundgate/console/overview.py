"""The first page: the health of the gateway."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import HTMLResponse

from roundgate.console.frame import Console
from roundgate.http import Health


class Overview(BaseModel):
    """The state of this gateway."""

    health: Health
    software: str


def make_router(console: Console) -> APIRouter:
    """Return the page and its path operation."""
    router = console.router()

    @router.get("/api/overview", summary="Overview")
    async def read_overview() -> Overview:
        """Report the health and the versions of the gateway."""
        return Overview(health=console.health(), software=version("roundgate"))

    @router.get("", include_in_schema=False)
    async def page(request: Request) -> HTMLResponse:
        return console.page(request, "overview.html", overview=await read_overview())

    return router
