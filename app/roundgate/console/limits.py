"""The limits on calls, and their present use in this process."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse

from roundgate.console.frame import Console
from roundgate.settings import CallLimits

MAX_CALLERS: Final = 100
"""The limit on the callers that are shown for each limit, the latest first."""


class LimitRow(BaseModel):
    """A limit on the calls of each caller."""

    name: str = Field(description="`callers`, `tools PATTERN` or `scopes SCOPE`.")
    calls_per_minute: int | None = None
    burst: int | None = None
    concurrent: int | None = None


class LimitUse(BaseModel):
    """The present use of a limit by a caller, in this process."""

    name: str
    issuer: str
    subject: str = Field(description="The subject; without auth, the address of the client.")
    client: str
    running: int
    left: int | None = Field(
        None, description="Calls that may be made at once; unset if the store counts them."
    )


class LimitList(BaseModel):
    """The limits of gateway.yaml."""

    shared: bool = Field(description="Whether replicas count together, in the store.")
    limits: list[LimitRow]
    uses: list[LimitUse]


def make_router(console: Console) -> APIRouter:
    """Return the page and its path operation."""
    router = console.router()

    @router.get("/api/limits", summary="Limits on calls")
    async def read_limits() -> LimitList:
        """Report the limits on calls, and their present use in this process."""
        rate = console.config.rate
        rows: dict[str, CallLimits] = {
            "callers": rate,
            **{f"tools {pattern}": row for pattern, row in rate.tools.items()},
            **{f"scopes {scope}": row for scope, row in rate.scopes.items()},
        }
        return LimitList(
            shared=rate.shared,
            limits=[
                LimitRow(
                    name=name,
                    calls_per_minute=row.calls_per_minute,
                    burst=row.burst or row.calls_per_minute,
                    concurrent=row.concurrent,
                )
                for name, row in rows.items()
                if row.calls_per_minute is not None or row.concurrent is not None
            ],
            uses=[
                LimitUse(
                    name=use.row,
                    issuer=use.caller[0],
                    subject=use.caller[1],
                    client=use.caller[2],
                    running=use.running,
                    left=use.left,
                )
                for use in console.replica.rates.uses(MAX_CALLERS)
            ],
        )

    @router.get("/limits", include_in_schema=False)
    async def page(request: Request) -> HTMLResponse:
        return console.page(request, "limits.html", found=await read_limits())

    return router
