"""The gateway as an ASGI app of Starlette's: what `roundgate serve` runs, and AWS Lambda
beside its MCP endpoints.

`roundgate.main` makes an app of FastAPI's of the same parts, for who adds routes to it. To load
FastAPI was a fifth of a start and 4.5 MiB (docs/decisions/0048), and none of these routes needs it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from roundgate.config import ConfigFile, Settings
from roundgate.edge import Edge, build_edge, nothing_at
from roundgate.garbage import kept
from roundgate.http import HEALTH, OLD_TRANSPORT, ProtectedResource, ShortcutApp, not_served
from roundgate.replica import Replica
from roundgate.startup import read_configuration


def create_app() -> ShortcutApp:
    """The app that the environment describes, for one of several processes of `roundgate serve`.

    Raises:
        ConfigError: every problem in the environment or in gateway.yaml.
    """
    with kept():
        using, file = read_configuration(os.environ)
        return build_app(file, using, owns_process=True)


def build_app(file: ConfigFile, using: Settings, *, owns_process: bool = False) -> ShortcutApp:
    """The app for a configuration; arguments and errors are those of `roundgate.main.build_app`."""
    return app_of(build_edge(file, using, owns_process=owns_process))


def app_of(edge: Edge) -> ShortcutApp:
    """The app behind the layers of an edge."""
    return ShortcutApp(
        edge.endpoints,
        edge.layers,
        lifespan=edge.replica.lifespan,
        routes=routes_of(edge),
        exception_handlers={HTTPException: _refusal, **handlers_of(edge)},
    )


def routes_of(edge: Edge) -> list[Route]:
    """What is served beside the MCP endpoints."""
    replica = edge.replica
    old = not_served(replica.config.http.path, streams=edge.using.streams)
    return [
        Route(HEALTH, _health(replica)),
        Route(OLD_TRANSPORT, old, methods=["GET", "POST"]),
        *(
            Route(path, _metadata(resource))
            for resource in edge.resources.values()
            for path in resource.metadata_paths
        ),
    ]


def handlers_of(edge: Edge) -> Mapping[Any, Any]:
    """What answers by status, where no route does."""

    async def not_found(request: Request, error: Exception) -> JSONResponse:
        return nothing_at(edge.replica.config.http.path)

    return {404: not_found}


async def _refusal(request: Request, error: Any) -> JSONResponse:
    """A method that a route does not have, as FastAPI says it."""
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


def _health(replica: Replica) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def healthz(request: Request) -> JSONResponse:
        server = replica.config.server
        troubles = replica.troubles()
        more = {
            "store": replica.core.stores.id(),
            "missing": list(replica.core.serving.catalog.missing),
            "troubles": troubles,
        }
        return JSONResponse(
            {
                "status": "degraded" if troubles else "ok",
                "name": server.name,
                "version": server.version,
                **{name: value for name, value in more.items() if value},
            }
        )

    return healthz


def _metadata(resource: ProtectedResource) -> Callable[[Request], Awaitable[JSONResponse]]:
    async def metadata(request: Request) -> JSONResponse:
        headers = {"cache-control": "max-age=300"}
        return JSONResponse(resource.metadata(), headers=headers)

    return metadata
