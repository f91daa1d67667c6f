"""The composition root: settings and configuration in, a FastAPI app out.

    uvicorn --factory roundgate.main:create_app

`create_app` reads the environment; `build_app` takes everything as arguments, for tests and other entry points.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.middleware import Middleware
from starlette.responses import JSONResponse

from roundgate import tracing
from roundgate.auth import Verifier
from roundgate.clock import Clock
from roundgate.config import (
    ConfigFile,
    Settings,
)
from roundgate.endpoints import endpoints_of
from roundgate.garbage import held_back
from roundgate.http import (
    GRACE_S,
    HEALTH,
    OLD_TRANSPORT,
    AuthenticationMiddleware,
    BodyBudget,
    ExceptionMiddleware,
    FastAPI,
    Guard,
    HeadMiddleware,
    McpEndpoint,
    ProtectedResource,
    Request,
    ShortcutApp,
    TelemetryConfig,
    default_hosts,
    not_served,
    public_origins,
)
from roundgate.protected import make_resources, make_verifiers
from roundgate.replica import Replica
from roundgate.startup import Stores, build_core, read_configuration

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
    clock = clock or Clock()
    replica = Replica(
        file, using, clock, build_core(file, using, clock, stores), owns_process=owns_process
    )
    resources = make_resources(file, using, replica.core.serving)
    app = ShortcutApp(
        endpoints_of(file.config),
        title=file.config.server.name,
        version=file.config.server.version,
        lifespan=replica.lifespan,
        middleware=_middleware(
            replica,
            using,
            resources,
            make_verifiers(resources, file.config, clock)
            if verifier is None
            else dict.fromkeys(endpoints_of(file.config).values(), verifier),
            clock,
        ),
        telemetry=_NO_TELEMETRY,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    _add_routes(app, replica, using, resources)
    app.state.core = replica.core
    return app


def _middleware(
    replica: Replica,
    using: Settings,
    resources: Mapping[str, ProtectedResource],
    verifiers: Mapping[str, Verifier],
    clock: Clock,
) -> Sequence[Middleware]:
    """The layers around FastAPI's router, outermost first."""
    http = replica.config.http
    hosts = (
        default_hosts(using.public_url, using.on_lambda)
        if http.allowed_hosts is None
        else http.allowed_hosts
    )
    own = http.allowed_origins is None
    origins = (
        public_origins(using.public_url) if http.allowed_origins is None else http.allowed_origins
    )
    auth = replica.config.auth
    loopback_only = auth == "none" and not using.allow_anonymous
    return [
        Middleware(
            Guard, hosts=hosts, origins=origins, own_origin=own, loopback_only=loopback_only
        ),
        Middleware(
            ExceptionMiddleware,
            endpoints=endpoints_of(replica.config),
            resources=resources,
            clock=clock,
            send_s=http.send_timeout_s + GRACE_S,
        ),
        Middleware(HeadMiddleware),
        Middleware(
            AuthenticationMiddleware,
            verifiers=verifiers,
            nothing=_nothing(http.path),
            operator_scope=None if auth == "none" else auth.operator_scope,
            local_operates=loopback_only,
        ),
        Middleware(
            McpEndpoint,
            endpoints=replica.endpoints,
            tracing=tracing.set_up(),
            max_body_bytes=http.max_body_bytes,
            budget=BodyBudget(http.max_json_nodes, http.max_pending_bytes),
            keep_alive_s=http.keep_alive_s,
        ),
    ]


def _nothing(endpoint: str) -> JSONResponse:
    """The answer of an address at which there is nothing, or nothing for this caller."""
    return JSONResponse(
        {"error": f"There is nothing here; the MCP endpoint is POST {endpoint}"}, status_code=404
    )


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
        return _nothing(replica.config.http.path)

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
