"""The composition root: settings and configuration in, a FastAPI app out.

    uvicorn --factory roundgate.main:create_app

`create_app` reads the environment; `build_app` takes everything as arguments, for tests and other
entry points. What `roundgate serve` runs is the same without FastAPI (`roundgate.asgi`).
"""

from __future__ import annotations

import os

from roundgate.asgi import handlers_of, routes_of
from roundgate.auth import Verifier
from roundgate.clock import Clock
from roundgate.config import ConfigFile, Settings
from roundgate.edge import Edge, build_edge
from roundgate.garbage import kept
from roundgate.http import FastAPI, ShortcutApp, TelemetryConfig
from roundgate.startup import Stores, read_configuration

_NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""`roundgate.tracing` makes the spans, because it knows methods and tools; FastAPI's
own cost 10 µs a request."""


def create_app() -> FastAPI:
    """The app that the environment describes.

    Raises:
        ConfigError: every problem in the environment or in gateway.yaml.
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


class _App(ShortcutApp, FastAPI):
    """FastAPI's, with the shortcut."""


def app_of(edge: Edge) -> FastAPI:
    """The app behind the layers of an edge. Its routes are Starlette's: a path operation would make
    FastAPI import pydantic.v1, a tenth of a cold start."""
    server, replica = edge.replica.config.server, edge.replica
    app = _App(
        edge.endpoints,
        edge.layers,
        title=server.name,
        version=server.version,
        lifespan=replica.lifespan,
        routes=routes_of(edge),
        exception_handlers=handlers_of(edge),
        telemetry=_NO_TELEMETRY,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.core = replica.core
    return app
