"""The composition root: settings and configuration in, a FastAPI app out.

    uvicorn --factory roundgate.main:create_app

`create_app` reads the environment; `build_app` takes everything as arguments, for tests and other entry points.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.telemetry import TelemetryConfig
from starlette.middleware import Middleware

from roundgate import aws, tracing
from roundgate.auth import LocalVerifier, Verifier
from roundgate.backends import Serving, Snapshot, ToolScopes
from roundgate.clock import Clock
from roundgate.config import AuthorizerConfig, ConfigFile, GatewayConfig, Settings
from roundgate.errors import ConfigError, Problem
from roundgate.http import (
    GRACE_S,
    HEALTH,
    AuthenticationMiddleware,
    BodyBudget,
    ExceptionMiddleware,
    Guard,
    HeadMiddleware,
    McpEndpoint,
    ProtectedResource,
    default_hosts,
    on_stop_signal,
    public_origins,
    telling_of_stalls,
)
from roundgate.methods import (
    CurrentMethods,
    Methods,
    Once,
    Rounds,
    Use,
    makes_tasks,
    server_info,
)
from roundgate.older_clients import OlderClients
from roundgate.protocol import NEWEST, ResultFormat, notifications
from roundgate.reload import Reloader
from roundgate.startup import Core, Stores, build_core, read_configuration
from roundgate.tasks import NamedTasks, Pool, Tasks, Watch
from roundgate.tokens import Key, KeyRing, StateSealer, TaskIds, keys

STOP_GRACE_S: Final = 10.0
"""For how long steps of tasks may go on when the server is told to stop: as long as requests may."""
_NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""`roundgate.tracing` makes the spans, because it knows methods and tools; FastAPI's own cost 10 µs a request."""


def create_app() -> FastAPI:
    """The app that the environment describes.

    Raises:
        ConfigError: every problem in the environment or in gateway.yaml.
    """
    using, file = read_configuration(os.environ)
    return build_app(file, using, owns_process=True)


def build_app(
    file: ConfigFile,
    using: Settings,
    *,
    clock: Clock | None = None,
    stores: Stores | None = None,
    owns_process: bool = False,
) -> FastAPI:
    """The app for a configuration. With `owns_process` it may begin processes of the same environment, and end its own.

    Raises:
        ConfigError: a back end cannot be served as configured, or names collide.
    """
    clock = clock or Clock()
    gateway = _Gateway(
        file, using, clock, build_core(file, using, clock, stores), owns_process=owns_process
    )
    resource = make_resource(file, using, gateway.core.serving)
    app = FastAPI(
        title=file.config.server.name,
        version=file.config.server.version,
        lifespan=gateway.lifespan,
        middleware=_middleware(gateway, using, resource, clock),
        telemetry=_NO_TELEMETRY,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    _add_routes(app, gateway, resource)
    return app


class _Gateway:
    """What the app is made around: what is served, who answers, who works on tasks, and what swaps all that."""

    def __init__(
        self, file: ConfigFile, using: Settings, clock: Clock, core: Core, *, owns_process: bool
    ) -> None:
        self.core = core
        self.config = file.config
        self._using = using
        self._clock = clock
        self._owns_process = owns_process
        stores, tasks = core.stores, file.config.tasks
        ring = make_ring(file.config, using, clock)
        sealer = make_sealer(file.config, ring, clock)
        self._rounds = Rounds(sealer, clock, file.config.state.max_rounds)
        self._once = Once(stores.once, sealer, clock)
        self._watch = Watch(tasks.poll_interval_ms / 1000)
        own_tasks = Tasks(stores.tasks, stores.queue, clock, tasks)
        self._tasks = NamedTasks(own_tasks, TaskIds(sealer.ring), core.serving, clock, tasks)
        self.methods = CurrentMethods(*self._serves(file.config, core.serving.now))
        self.older = OlderClients(
            core,
            ring,
            clock,
            file.config,
            self._serves_older,
            lambda: self.config.server,
            streams=using.streams,
        )
        self._reloader = Reloader(
            file, core.serving, core.modules, self._swap, watches=using.reload
        )
        self._pool = self._make_pool()

    def _serves_older(self, results: ResultFormat) -> tuple[Methods, Use]:
        return self._serves(self.config, self.core.serving.now, results)

    def _serves(
        self, config: GatewayConfig, snapshot: Snapshot, results: ResultFormat | None = None
    ) -> tuple[Methods, Use]:
        made = Methods(
            config,
            snapshot.catalog,
            self.core.hub,
            self._rounds,
            self._once,
            self._tasks,
            self._watch,
            self._clock,
            results or NEWEST.result_format(server_info(config.server)),
            streams=self._using.streams,
        )
        return made, snapshot.use

    def _make_pool(self) -> Pool | None:
        """Workers, if this process is to work on tasks and there is a tool whose calls become some."""
        if not self._using.works or not makes_tasks(self.core.serving.catalog):
            return None
        return self.core.pool(
            self.config, self._clock, stop_grace_s=STOP_GRACE_S, owns_process=self._owns_process
        )

    def _swap(self, config: GatewayConfig, snapshot: Snapshot) -> None:
        """Serve something else from now on, and tell those who listen which lists have changed."""
        serves = self._serves(config, snapshot)
        before = self.core.serving.catalog
        self.core.serving.swap(snapshot)
        self.config = config
        self.methods.swap(*serves)
        self.older.swap()
        if self._pool is None and (pool := self._make_pool()) is not None:
            pool.start()
            self._pool = pool
        elif self._pool is not None:
            self._pool.renew_children()
        for name in snapshot.catalog.lists_that_differ(before):
            self.core.hub.publish(notifications.LIST_CHANGED[name])

    def _request_stop(self) -> None:
        self.core.hub.close()
        self.older.close()
        if self._pool is not None:
            self._pool.request_stop()

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Around the app's life in an event loop."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            # last to first
            for aclose in (
                self.core.aclose,
                self._watch.aclose,
                self._once.aclose,
            ):
                stack.push_async_callback(aclose)
            stack.push_async_callback(self._stop_pool)
            if self._pool is not None:
                self._pool.start()
            stack.enter_context(on_stop_signal(loop, self._request_stop))
            stack.enter_context(telling_of_stalls(loop))
            await stack.enter_async_context(self._reloader.running())
            yield

    async def _stop_pool(self) -> None:
        if self._pool is not None:
            await self._pool.stop()


def make_ring(config: GatewayConfig, using: Settings, clock: Clock) -> KeyRing:
    """The keys from wherever the settings say, for all that leaves the house sealed.

    Raises:
        ConfigError: there are no keys, or unusable ones.
    """
    return KeyRing(_state_keys(using, clock), config.state.audience)


def make_sealer(config: GatewayConfig, ring: KeyRing, clock: Clock) -> StateSealer:
    """What seals `requestState`."""
    return StateSealer(ring, clock, config.state.lifetime_s, config.state.max_bytes)


def _state_keys(using: Settings, clock: Clock) -> Sequence[Key]:
    if using.state_keys is not None:
        return keys.parse(using.state_keys, "GATEWAY_STATE_KEYS")
    secret, encrypted = using.state_keys_secret, using.state_keys_kms
    if secret is not None:
        return _kept_at_aws(lambda: keys.from_secrets_manager(secret, aws.client), using, clock)
    if encrypted is not None:
        return _kept_at_aws(lambda: keys.from_kms(encrypted, aws.client), using, clock)
    if using.on_lambda:
        remedy = "make one with `roundgate keys new` and set GATEWAY_STATE_KEYS, …_SECRET or …_KMS for every replica"
        message = "replicas need a shared key: a round that one has sealed must open in any other"
        raise ConfigError([Problem("environment", "GATEWAY_STATE_KEYS", message, remedy)])
    return keys.from_file(using.sqlite_path.with_suffix(".key"))


def _kept_at_aws(load: Callable[[], Sequence[Key]], using: Settings, clock: Clock) -> Sequence[Key]:
    """A function is made long before it is asked, and may be frozen into a snapshot: it reads keys when it needs them,
    and again now and then, so that a rotation reaches it. A server reads them when it starts."""
    return keys.Refreshed(load, clock) if using.on_lambda else load()


def make_resource(file: ConfigFile, using: Settings, serving: Serving) -> ProtectedResource | None:
    """The gateway as a protected resource; `None` without authentication.

    Raises:
        ConfigError: nobody said at what URL clients reach it.
    """
    auth = file.config.auth
    if auth == "none":
        return None
    if isinstance(auth, AuthorizerConfig) and not using.on_lambda:
        message = "there is no authorizer in front of this process"
        raise ConfigError(
            [
                file.origin.at("auth").problem(
                    message, "use bearer JWTs here: auth: {issuer: …, jwks_url: …}"
                )
            ]
        )
    if using.public_url is None:
        remedy = "set it to the URL that clients use, such as https://mcp.example.com"
        message = "is needed with auth: tokens and metadata are about a URL, and a request can only claim one"
        raise ConfigError([Problem("environment", "GATEWAY_PUBLIC_URL", message, remedy)])
    return ProtectedResource(
        using.public_url.rstrip("/"), file.config.http.path, auth, ToolScopes(serving)
    )


def make_verifier(resource: ProtectedResource | None, clock: Clock) -> Verifier:
    """What finds out who is calling."""
    if resource is None:
        return LocalVerifier()
    if isinstance(resource.config, AuthorizerConfig):
        from roundgate.auth import AuthorizerVerifier

        return AuthorizerVerifier(resource.config)
    from roundgate.auth import JwtVerifier, KeySet

    audience = resource.config.audience or resource.resource
    return JwtVerifier(resource.config, audience, KeySet(resource.config.jwks_url, clock))


def _middleware(
    gateway: _Gateway, using: Settings, resource: ProtectedResource | None, clock: Clock
) -> Sequence[Middleware]:
    """The layers around FastAPI's router, outermost first."""
    http = gateway.config.http
    hosts = (
        default_hosts(using.public_url, using.on_lambda)
        if http.allowed_hosts is None
        else http.allowed_hosts
    )
    own = http.allowed_origins is None
    origins = (
        public_origins(using.public_url) if http.allowed_origins is None else http.allowed_origins
    )
    loopback_only = resource is None and not using.allow_anonymous
    return [
        Middleware(
            Guard, hosts=hosts, origins=origins, own_origin=own, loopback_only=loopback_only
        ),
        Middleware(
            ExceptionMiddleware,
            endpoint=http.path,
            resource=resource,
            clock=clock,
            send_s=http.send_timeout_s + GRACE_S,
        ),
        Middleware(HeadMiddleware),
        Middleware(
            AuthenticationMiddleware,
            verifier=make_verifier(resource, clock),
            nothing=_nothing(http.path),
            operator_scope=None if resource is None else resource.config.operator_scope,
            local_operates=loopback_only,
        ),
        Middleware(
            McpEndpoint,
            methods=gateway.methods,
            older=gateway.older.endpoint,
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


def _add_routes(app: FastAPI, gateway: _Gateway, resource: ProtectedResource | None) -> None:
    """Plain Starlette routes: a path operation would make FastAPI import pydantic.v1, a tenth of a cold start."""

    async def healthz(request: Request) -> JSONResponse:
        server = gateway.config.server
        return JSONResponse({"status": "ok", "name": server.name, "version": server.version})

    async def not_found(request: Request, error: Exception) -> JSONResponse:
        return _nothing(gateway.config.http.path)

    async def metadata(request: Request) -> JSONResponse:
        return JSONResponse(
            resource.metadata() if resource else {}, headers={"cache-control": "max-age=300"}
        )

    app.add_route(HEALTH, healthz)
    for path in resource.metadata_paths if resource else ():
        app.add_route(path, metadata)
    app.add_exception_handler(404, not_found)
