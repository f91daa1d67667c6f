"""The composition root: settings and configuration in, a FastAPI app out.

    uvicorn --factory roundgate.main:create_app

`create_app` reads the environment; `build_app` takes everything as arguments, for tests and other entry points.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import JSONResponse

from roundgate.auth import Verifier
from roundgate.clock import Clock
from roundgate.config import ConfigFile, Settings
from roundgate.edge import Edge, build_edge, nothing_at
from roundgate.garbage import held_back
from roundgate.http import (
    HEALTH,
    OLD_TRANSPORT,
    FastAPI,
    ProtectedResource,
    Request,
    ShortcutApp,
    TelemetryConfig,
    not_served,
)
from roundgate.replica import Replica
from roundgate.startup import Stores, read_configuration

_NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""`roundgate.tracing` makes the spans, because it knows methods and tools; FastAPI's own cost 10 µs a request."""


def create_app() -> FastAPI:
    """The app that the environment describes.

    Raises:
        ConfigError: every problem in the environment or in gateway.yaml.
    """
    with held_back():
        using, file = read_configuration(os.environ)
        app = build_app(file, using, owns_process=True)
    gc.freeze()
    return app


def build_app(
    file: ConfigFile,
    using: Settings,
    *,
    clock: Clock | None = None,
    stores: Stores | None = None,
    verifier: Verifier | None = None,
    owns_process: bool = False,
) -> FastAPI:
    """The app for a configuration. `app.state.core` is what it serves, and its stores.

    Args:
        file: the configuration.
        using: the settings of the environment.
        clock: whose time it is.
        stores: where it keeps things; those of the settings unless given.
        verifier: finds out who is calling; as the configuration says unless given.
        owns_process: it may begin processes of the same environment, and end its own.

    Raises:
        ConfigError: a back end cannot be served as configured, or names collide.
    """
    edge = build_edge(
        file, using, clock=clock, stores=stores, verifier=verifier, owns_process=owns_process
    )
    return app_of(edge)


def app_of(edge: Edge) -> FastAPI:
    """The app behind the layers of an edge."""
    server, replica = edge.replica.config.server, edge.replica
    app = ShortcutApp(
        edge.endpoints,
        title=server.name,
        version=server.version,
        lifespan=replica.lifespan,
        middleware=edge.layers,
        telemetry=_NO_TELEMETRY,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    _add_routes(app, replica, edge.using, edge.resources)
    app.state.core = replica.core
    return app


def _add_routes(
    app: FastAPI,
    replica: Replica,
    using: Settings,
    resources: Mapping[str, ProtectedResource],
) -> None:
    """Plain Starlette routes: a path operation would make FastAPI import pydantic.v1, a tenth of a cold start."""

    async def healthz(request: Request) -> JSONResponse:
        server = replica.config.server
        missing = list(replica.core.serving.catalog.missing)
        more = {"missing": missing} if missing else {}
        return JSONResponse(
            {"status": "ok", "name": server.name, "version": server.version, **more}
        )

    async def not_found(request: Request, error: Exception) -> JSONResponse:
        return nothing_at(replica.config.http.path)

    def metadata_of(resource: ProtectedResource) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def metadata(request: Request) -> JSONResponse:
            headers = {"cache-control": "max-age=300"}
            return JSONResponse(resource.metadata(), headers=headers)

        return metadata

    app.add_route(HEALTH, healthz)
    old = not_served(replica.config.http.path, streams=using.streams)
    app.add_route(OLD_TRANSPORT, old, methods=["GET", "POST"])
    for resource in resources.values():
        for path in resource.metadata_paths:
            app.add_route(path, metadata_of(resource))
    app.add_exception_handler(404, not_found)
