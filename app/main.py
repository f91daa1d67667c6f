"""The composition root: settings and configuration in, a FastAPI app out.

    uvicorn --factory app.main:create_app

`create_app` reads the environment; `build_app` takes everything as arguments, for tests and other entry points.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from anyio import CapacityLimiter
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.middleware import Middleware

from app import config, logs, settings
from app.backends import catalog
from app.backends.base import Backend
from app.clock import Clock
from app.config import ConfigFile, GatewayConfig, HttpBackendConfig, PythonBackendConfig
from app.dispatch.dispatcher import Dispatcher
from app.dispatch.subscriptions import Hub
from app.http.endpoint import McpEndpoint
from app.http.guard import Guard, default_hosts, default_origins
from app.http.shutdown import on_stop_signal
from app.settings import Settings


def create_app() -> FastAPI:
    """The app that the environment describes.

    Raises:
        ConfigError: every problem in the environment or in gateway.yaml.
    """
    from_env = settings.from_environment(os.environ)
    logs.configure(from_env.log_level)
    return build_app(config.load(from_env.config), from_env)


def build_app(file: ConfigFile, using: Settings, *, clock: Clock | None = None) -> FastAPI:
    """The app for a configuration.

    Raises:
        ConfigError: a back end cannot be served as configured, or names collide.
    """
    clock = clock or Clock()
    backends = make_backends(file)
    hub = Hub(file.config.http.max_streams)
    served = catalog.build(backends, file.config.limits.page_size)
    dispatcher = Dispatcher(file.config, served, hub, clock, using.streams)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for backend in backends:
                stack.push_async_callback(backend.aclose)
            stack.enter_context(on_stop_signal(asyncio.get_running_loop(), hub.close))
            yield

    app = FastAPI(
        title=file.config.server.name,
        version=file.config.server.version,
        lifespan=lifespan,
        middleware=_onion(file.config, using, dispatcher, clock),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    _add_routes(app, file.config)
    return app


def make_backends(file: ConfigFile) -> list[Backend]:
    """The back ends of a configuration, not yet loaded."""
    limiter = CapacityLimiter(file.config.limits.threads)
    made: list[Backend] = []
    for index, entry in enumerate(file.config.backends):
        origin = file.origin.at("backends", index)
        match entry:
            case PythonBackendConfig():
                from app.backends.python import PythonBackend

                made.append(PythonBackend(entry, origin, limiter))
            case HttpBackendConfig():
                from app.backends.http import HttpBackend

                made.append(HttpBackend(entry, origin))
    return made


def _onion(config: GatewayConfig, using: Settings, dispatcher: Dispatcher, clock: Clock) -> Sequence[Middleware]:
    """The layers around FastAPI's router, outermost first."""
    http = config.http
    hosts = default_hosts(using.public_url, using.on_lambda) if http.allowed_hosts is None else http.allowed_hosts
    origins = default_origins(using.public_url) if http.allowed_origins is None else http.allowed_origins
    return [
        Middleware(Guard, hosts=hosts, origins=origins),
        Middleware(
            McpEndpoint,
            path=http.path,
            dispatcher=dispatcher,
            clock=clock,
            max_body_bytes=http.max_body_bytes,
            keep_alive_s=http.keep_alive_s,
        ),
    ]


def _add_routes(app: FastAPI, config: GatewayConfig) -> None:
    """Plain Starlette routes: a path operation would make FastAPI import pydantic.v1, a tenth of a cold start."""

    async def healthz(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "name": config.server.name, "version": config.server.version})

    async def not_found(request: Request, error: Exception) -> JSONResponse:
        hint = f"There is nothing here; the MCP endpoint is POST {config.http.path}"
        return JSONResponse({"error": hint}, status_code=404)

    app.add_route("/healthz", healthz)
    app.add_exception_handler(404, not_found)
