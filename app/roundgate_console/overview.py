"""The first page: health, troubles, versions and endpoints of the gateway, and its back ends; and the
limits on calls with their present use in this process."""

from __future__ import annotations

import platform
from collections import Counter
from typing import Final

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse

from roundgate.clock import iso
from roundgate.http import Health
from roundgate.settings import CallLimits
from roundgate.version import VERSION
from roundgate_console.frame import Console, ConsolePage

MAX_CALLERS: Final = 100
"""The limit on the callers that are shown for each limit, the latest first."""


class EndpointSummary(BaseModel):
    """An MCP endpoint."""

    path: str
    view: str = Field(description="The name of its view; empty for all tools.")
    tools: int
    prompts: int
    resources: int


class BackendSummary(BaseModel):
    """A back end."""

    name: str
    is_served: bool
    tools: int = Field(description="Its tools at the endpoint of all tools.")
    problems: list[str] = Field([], description="The reasons why it is not served.")


class Overview(BaseModel):
    """The state of this process of the gateway."""

    health: Health
    software: str = Field(description="The version of roundgate.")
    python: str
    auth: str = Field(description="The issuer of the callers' tokens; `none` without auth.")
    store: str = Field(description="The kind of the store.")
    queue: str
    started_at: str
    in_flight: int = Field(description="The requests and turns that use the back ends now.")
    call_timeout_s: float
    threads: int
    audit: str = Field(description="The destination of the audit log, or `off`.")
    endpoints: list[EndpointSummary]
    backends: list[BackendSummary]
    left_out: list[str] = Field(description="Parts of back ends that are not served.")


def make_router(console: Console) -> APIRouter:
    """Return the page and its path operation."""
    router = console.router()
    started_at = iso(console.clock.now_ms())

    @router.get("/api/overview", summary="Overview")
    async def read_overview() -> Overview:
        """Report health, versions, endpoints and back ends of this process."""
        config, catalog = console.config, console.core.serving.catalog
        using = console.using
        views = [(path, view, catalog.of_view(view)) for path, view in config.endpoints.items()]
        return Overview(
            health=console.health(),
            software=VERSION,
            python=platform.python_version(),
            auth="none" if config.auth == "none" else config.auth.issuer,
            store=using.store.partition(":")[0],
            queue="sqs" if using.sqs_url is not None else "in the store",
            started_at=started_at,
            in_flight=console.core.serving.now.users,
            call_timeout_s=config.limits.call_timeout_s,
            threads=config.limits.threads,
            audit="off" if config.audit is None else config.audit.to,
            endpoints=[
                EndpointSummary(
                    path=path,
                    view=view,
                    tools=len(part.tools),
                    prompts=len(part.prompts),
                    resources=len(part.resources) + len(part.templates),
                )
                for path, view, part in views
            ],
            backends=_backends(console),
            left_out=[f"{problem.path}: {problem.message}" for problem in catalog.left_out],
        )

    @router.get("", include_in_schema=False)
    async def page(request: Request) -> HTMLResponse:
        return console.page(request, "overview.html", overview=await read_overview())

    return router


def _backends(console: Console) -> list[BackendSummary]:
    serving = console.core.serving
    missing = serving.catalog.missing
    problems = {
        name: [f"{problem.path}: {problem.message}" for problem in error.problems]
        for name, error in missing.items()
    }
    tools = Counter(served.backend for served in serving.catalog.tools.values())
    names = dict.fromkeys([*(backend.name for backend in serving.now.backends), *missing])
    return [
        BackendSummary(
            name=name,
            is_served=name not in missing,
            tools=tools[name],
            problems=problems.get(name, []),
        )
        for name in names
    ]


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


def make_limits_router(console: Console) -> APIRouter:
    """Return the page of limits and its path operation."""
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


OVERVIEW: Final = ConsolePage("", "Overview", make_router, 0)
LIMITS: Final = ConsolePage("/limits", "Limits", make_limits_router, 4)
