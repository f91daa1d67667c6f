"""The composition root: builds a FastAPI app from settings and a configuration.

    uvicorn --factory roundgate.main:create_app

`roundgate serve`, other ASGI servers and AWS Lambda (`roundgate_aws.http`) run the same app:

    request ─▶ Guard ─▶ RequestMiddleware ─▶ MCP endpoints
                                          └▶ ConsoleAccess ─▶ FastAPI's router

The MCP endpoints take and return raw bytes, so they are in front of the router
(docs/decisions/0002). An application that extends the app uses FastAPI: its middleware runs before
the layers above, its routes and dependencies after them. `roundgate serve` calls the endpoints with
these layers alone (docs/decisions/0098).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from roundgate.auth import Verifier
from roundgate.backends.base import ServerState
from roundgate.clock import Clock
from roundgate.config import ConfigFile
from roundgate.http import (
    EVENTS,
    GRACE_S,
    PROBES,
    BodyBudget,
    Guard,
    Health,
    McpEndpoint,
    Operations,
    ProtectedResource,
    Rate,
    RequestMiddleware,
    Upstream,
    default_hosts,
    make_metrics_router,
    make_router,
    not_found_handler,
    nothing_at,
    public_origins,
)
from roundgate.http.protected import make_keys, make_resources, make_verifiers
from roundgate.http.replica import Replica
from roundgate.observability import tracing
from roundgate.runtime import checks
from roundgate.runtime.startup import Loaded, Stores, build_core, read_configuration
from roundgate.settings import Settings
from roundgate.starting import kept
from roundgate.tasks.external import Deliveries

MAX_LEFT_OUT: Final = 20
"""The limit on the tools of a server that /healthz lists as left out."""
_NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""Turns FastAPI's telemetry off: `roundgate.observability.tracing` makes the spans, because it
knows methods and tools, and FastAPI only paths."""


def create_app() -> FastAPI:
    """Return the app that the environment describes.

    Raises:
        ConfigError: lists every problem in the environment or in gateway.yaml.
    """
    with kept():
        using, file = read_configuration(os.environ)
        return build_app(file, using, owns_process=True)


def build_app(
    file: ConfigFile,
    using: Settings,
    *,
    clock: Clock | None = None,
    stores: Stores | None = None,
    verifier: Verifier | None = None,
    loaded: Loaded | None = None,
    owns_process: bool = False,
) -> FastAPI:
    """Return the app for a configuration. `app.state.core` holds its catalog and stores,
    `app.state.console` the console if it is on, `app.state.verifiers` the verifier of each view,
    `app.state.operations` what the path operations use, `app.state.endpoints` the app at each path
    of an MCP endpoint without FastAPI's own layers; it is empty if there is an OpenTelemetry SDK,
    whose instrumentation is such a layer.

    Args:
        file: the configuration.
        using: the settings of the environment.
        clock: the clock of the gateway; the system's by default.
        stores: the stores; by default those that `using` names.
        verifier: authenticates callers of all endpoints; the configured verifiers by default.
        loaded: the loaded configuration, which is then not checked; loaded here by default.
        owns_process: whether the app may start child processes and end its own process.

    Raises:
        ConfigError: the settings contradict each other, names collide, or no back end can be
            served; with `limits.strict`, also if any back end cannot be served.
    """
    clock = clock or Clock()
    if loaded is None:
        checks.require(checks.problems(file, using, has_verifier=verifier is not None))
    if file.config.http.metrics:
        from roundgate.observability import exposition  # loaded only if there are metrics

        exposition.set_up(file.config.server.name)
    core = build_core(file, using, clock, stores, loaded=loaded)
    keys = make_keys(file.config, clock) if verifier is None else None
    replica = Replica(file, using, clock, core, keys, owns_process=owns_process)
    resources = make_resources(file, using, core.serving)
    verifiers = (
        make_verifiers(resources, file.config, keys)
        if verifier is None
        else dict.fromkeys(file.config.endpoints.values(), verifier)
    )
    server, http = file.config.server, file.config.http
    budget = BodyBudget(http.max_json_nodes, http.max_pending_bytes)
    layers, serves_as = _layers(replica, using, resources, verifiers, clock, budget)
    layered = _wrapped(nothing_at(http.path), layers)
    endpoints = {} if tracing.has_sdk() else dict.fromkeys(file.config.endpoints, layered)
    console = None
    if file.config.console is not None:
        from roundgate.extensions import load_extension

        console = load_extension("console")(
            *(file, using, clock, replica, next(iter(verifiers.values()))),
            health=lambda: _read_health(replica),
            serves_as=serves_as,
        )
        layers.append(console.layer)
    app = FastAPI(
        title=server.name,
        version=server.version,
        lifespan=replica.lifespan,
        middleware=layers,
        exception_handlers={404: not_found_handler(http.path)},
        telemetry=_NO_TELEMETRY,
        openapi_url="/openapi.json" if http.docs else None,
        redoc_url=None,
    )
    _add_routes(app, replica, using, resources, clock, budget)
    if console is not None:
        app.include_router(console.router)
        app.state.console = console.console
    app.state.core = core
    app.state.endpoints = endpoints
    app.state.verifiers = verifiers
    return app


def _add_routes(
    app: FastAPI,
    replica: Replica,
    using: Settings,
    resources: Mapping[str, ProtectedResource],
    clock: Clock,
    budget: BodyBudget,
) -> None:
    """Add the path operations for probes, clients and services."""
    core, http, tasks = replica.core, replica.config.http, replica.config.tasks
    app.state.operations = Operations(
        health=lambda: _read_health(replica),
        readiness=replica.readiness.status,
        deliveries=Deliveries(core.stores.tasks, clock, tasks),
        event_tokens=core.event_tokens,
        rate=Rate(http.max_events_per_s, clock),
        budget=budget,
        max_event_bytes=tasks.max_event_bytes,
    )
    app.include_router(PROBES)
    app.include_router(make_router(resources.values(), http.path, streams=using.streams))
    app.include_router(EVENTS)
    if http.metrics:
        from roundgate.observability import exposition  # loaded only if there are metrics

        app.include_router(make_metrics_router(exposition.render))


def _wrapped(app: ASGIApp, layers: Sequence[Middleware]) -> ASGIApp:
    """Return an app inside of layers, the outermost of which is first."""
    for layer, arguments, options in reversed(layers):
        app = layer(app, *arguments, **options)
    return app


def _read_health(replica: Replica) -> Health:
    """Return the gateway's current health; a reload may have changed the configuration."""
    server, troubles = replica.config.server, replica.troubles()
    return Health(
        status="degraded" if troubles else "ok",
        name=server.name,
        version=server.version,
        store=replica.core.stores.facts.id(),
        keys=replica.ring.ids(),
        missing=list(replica.core.serving.catalog.missing) or None,
        upstreams=[_read_upstream(state) for state in replica.core.serving.now.servers()] or None,
        troubles=troubles or None,
    )


def _read_upstream(state: ServerState) -> Upstream:
    left_out = dict(islice(state.left_out.items(), MAX_LEFT_OUT))
    return Upstream(
        name=state.name,
        status="up" if state.is_up else "down",
        revision=state.revision,
        software=state.software,
        tools=state.tools,
        prompts=state.prompts,
        resources=state.resources,
        left_out=left_out or None,
        changed=list(islice(state.differing, MAX_LEFT_OUT)) or None,
        skipped=state.skipped or None,
    )


def _layers(
    replica: Replica,
    using: Settings,
    resources: Mapping[str, ProtectedResource],
    verifiers: Mapping[str, Verifier],
    clock: Clock,
    budget: BodyBudget,
) -> tuple[list[Middleware], Callable[[Verifier], ASGIApp]]:
    """Return the middleware in front of the router, outermost first, and a function that returns the
    MCP endpoints with another verifier."""
    http, auth = replica.config.http, replica.config.auth
    console = replica.config.console
    hosts = http.allowed_hosts
    if hosts is None:
        hosts = default_hosts(using.public_url, using.on_lambda)
    origins = http.allowed_origins
    if origins is None:
        origins = public_origins(using.public_url)
    loopback_only = auth == "none" and not using.allow_anonymous
    adapter = []
    if using.on_lambda:
        from roundgate.http.web_adapter import WebAdapterMiddleware

        adapter.append(Middleware(WebAdapterMiddleware, clock=clock))
    nothing = nothing_at(http.path)
    endpoint = McpEndpoint(
        endpoints=replica.endpoints,
        tracing=tracing.set_up(),
        max_body_bytes=http.max_body_bytes,
        budget=budget,
        keep_alive_s=http.keep_alive_s,
    )
    requests = partial(
        RequestMiddleware,
        endpoint=endpoint,
        endpoints=replica.config.endpoints,
        resources=resources,
        nothing=nothing,
        operator_scope=None if auth == "none" else auth.operator_scope,
        console=None if console is None else console.path,
        local_operates=loopback_only,
        clock=clock,
        send_s=http.send_timeout_s + GRACE_S,
    )
    guard = Middleware(
        Guard,
        hosts=hosts,
        origins=origins,
        own_origin=http.allowed_origins is None,
        loopback_only=loopback_only,
    )
    return (
        [*adapter, guard, Middleware(requests, verifiers=verifiers)],
        lambda verifier: requests(nothing, verifiers=dict.fromkeys(verifiers, verifier)),
    )
