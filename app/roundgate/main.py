"""The composition root: settings and configuration in, a FastAPI app out.

    uvicorn --factory roundgate.main:create_app

`create_app` reads the environment; `build_app` takes everything as arguments, for tests and other entry points.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.telemetry import TelemetryConfig
from starlette.middleware import Middleware

from roundgate import aws, logs, tracing
from roundgate.auth import LocalVerifier, Verifier
from roundgate.backends import Serving, Snapshot, ToolScopes, ViewConfig, ViewSource
from roundgate.clock import Clock
from roundgate.config import (
    AuthorizerConfig,
    ConfigFile,
    GatewayConfig,
    JwtAuthConfig,
    ServerConfig,
    Settings,
)
from roundgate.errors import ConfigError, Problem
from roundgate.http import (
    GRACE_S,
    HEALTH,
    OLD_TRANSPORT,
    AuthenticationMiddleware,
    BodyBudget,
    Endpoint,
    ExceptionMiddleware,
    Guard,
    HeadMiddleware,
    McpEndpoint,
    ProtectedResource,
    ShortcutApp,
    default_hosts,
    not_served,
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
    gateway = _Gateway(
        file, using, clock, build_core(file, using, clock, stores), owns_process=owns_process
    )
    resources = make_resources(file, using, gateway.core.serving)
    app = ShortcutApp(
        endpoints_of(file.config),
        title=file.config.server.name,
        version=file.config.server.version,
        lifespan=gateway.lifespan,
        middleware=_middleware(
            gateway,
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
    _add_routes(app, gateway, using, resources)
    app.state.core = gateway.core
    return app


def endpoints_of(config: GatewayConfig) -> dict[str, str]:
    """The view at each path of an MCP endpoint, the usual one first; that of everything has no name."""
    views = {view.effective_path: view.name for view in config.views}
    usual = views.pop(config.http.path, "")
    return {config.http.path: usual, **views}


def view_of(config: GatewayConfig, name: str) -> ViewConfig | None:
    """The settings of a view; `None` for the endpoint of everything."""
    return next((view for view in config.views if view.name == name), None)


def server_of(config: GatewayConfig, view: str) -> ServerConfig:
    """What a view says of itself."""
    found = view_of(config, view)
    if found is None or found.instructions is None:
        return config.server
    return config.server.model_copy(update={"instructions": found.instructions})


class _View:
    """What answers at one endpoint."""

    methods: CurrentMethods
    older: OlderClients

    def __init__(
        self,
        name: str,
        sealer: StateSealer,
        rounds: Rounds,
        once: Once,
        tasks: NamedTasks,
    ) -> None:
        self.name = name
        self.sealer = sealer
        self.rounds = rounds
        self.once = once
        self.tasks = tasks


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
        ring = make_ring(file.config, using, clock)
        self._watch = Watch(file.config.tasks.poll_interval_ms / 1000)
        self._views = {
            view: self._make_view(view, ring.of_view(view))
            for view in endpoints_of(file.config).values()
        }
        self.endpoints = {
            view: Endpoint(one.methods, one.older.endpoint) for view, one in self._views.items()
        }
        """Who answers for each view."""
        self._reloader = Reloader(
            file, core.serving, core.modules, self._swap, watches=using.reload
        )
        self._pool = self._make_pool()

    def _make_view(self, view: str, ring: KeyRing) -> _View:
        """What answers at one endpoint. What it seals opens at no other."""
        stores, serving, clock, config = (
            self.core.stores,
            self.core.serving,
            self._clock,
            self.config,
        )
        sealer = make_sealer(config, ring, clock)
        own_tasks = Tasks(stores.tasks, stores.queue, clock, config.tasks, view)
        source = ViewSource(serving, view) if view else serving
        made = _View(
            view,
            sealer,
            Rounds(sealer, clock, config.state.max_rounds, view),
            Once(stores.once, sealer, clock),
            NamedTasks(own_tasks, TaskIds(sealer.ring), source, clock, config.tasks),
        )
        made.methods = CurrentMethods(*self._serves(made, config, serving.now))
        made.older = OlderClients(
            self.core,
            ring,
            clock,
            config,
            lambda results: self._serves(made, self.config, serving.now, results),
            lambda: server_of(self.config, view),
            streams=self._using.streams,
            view=view,
        )
        return made

    def _serves(
        self,
        view: _View,
        config: GatewayConfig,
        snapshot: Snapshot,
        results: ResultFormat | None = None,
    ) -> tuple[Methods, Use]:
        server = server_of(config, view.name)
        made = Methods(
            config.model_copy(update={"server": server}),
            snapshot.catalog.of_view(view.name),
            self.core.hub,
            view.rounds,
            view.once,
            view.tasks,
            self._watch,
            self._clock,
            results or NEWEST.result_format(server_info(server)),
            sealer=view.sealer,
            rows=self.core.stores.sessions,
            streams=self._using.streams,
            view=view.name,
            texts=self.core.texts(config, self._clock, view.name),
        )
        return made, snapshot.use

    def _make_pool(self) -> Pool | None:
        """Workers, if this process is to work on tasks and there is a tool whose calls become some."""
        catalog = self.core.serving.catalog
        served = (catalog, *catalog.views.values())
        if not self._using.works or not any(makes_tasks(one) for one in served):
            return None
        return self.core.pool(
            self.config, self._clock, stop_grace_s=STOP_GRACE_S, owns_process=self._owns_process
        )

    def _swap(self, config: GatewayConfig, snapshot: Snapshot) -> None:
        """Serve something else from now on, and tell those who listen which lists have changed."""
        serves = {name: self._serves(view, config, snapshot) for name, view in self._views.items()}
        before = self.core.serving.catalog
        self.core.serving.swap(snapshot)
        self.config = config
        for name, view in self._views.items():
            view.methods.swap(*serves[name])
            view.older.swap()
        if self._pool is None and (pool := self._make_pool()) is not None:
            pool.start()
            self._pool = pool
        elif self._pool is not None:
            self._pool.renew_children()
        for name in self._views:
            was, now = before.of_view(name), snapshot.catalog.of_view(name)
            for changed in now.lists_that_differ(was):
                self.core.hub.publish_list(notifications.LIST_CHANGED[changed], name)

    def _request_stop(self) -> None:
        self.core.hub.close()
        for view in self._views.values():
            view.older.close()
        if self._pool is not None:
            self._pool.request_stop()

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Around the app's life in an event loop."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            # last to first
            stack.callback(logs.flush)  # not every server lets Python end in an orderly way
            for aclose in (
                self.core.aclose,
                self._watch.aclose,
                *(view.once.aclose for view in self._views.values()),
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
    """The keys from wherever the settings say, for all that is given out sealed.

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


def make_resources(
    file: ConfigFile, using: Settings, serving: Serving
) -> dict[str, ProtectedResource]:
    """Each view of the gateway as a protected resource, the usual one first; none without authentication.

    Raises:
        ConfigError: nobody said at what URL clients reach it.
    """
    auth = file.config.auth
    if auth == "none":
        return {}
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
    origin, usual = using.public_url.rstrip("/"), file.config.http.path
    return {
        view: ProtectedResource(
            origin,
            path,
            _auth_of(auth, view_of(file.config, view)),
            ToolScopes(serving, view),
            is_usual=path == usual,
        )
        for path, view in endpoints_of(file.config).items()
    }


def _auth_of(
    auth: JwtAuthConfig | AuthorizerConfig, view: ViewConfig | None
) -> JwtAuthConfig | AuthorizerConfig:
    """What callers of a view need."""
    if view is None or not view.scopes:
        return auth
    changed: dict[str, Any] = {"scopes": list(dict.fromkeys((*auth.scopes, *view.scopes)))}
    if auth.scopes_supported is not None:
        supported = dict.fromkeys((*auth.scopes_supported, *view.scopes))
        changed["scopes_supported"] = list(supported)
    return auth.model_copy(update=changed)


def make_verifiers(
    resources: Mapping[str, ProtectedResource], config: GatewayConfig, clock: Clock
) -> dict[str, Verifier]:
    """What finds out who is calling each view. Unless `auth.audience` is set, a token is for one view alone."""
    auth = config.auth
    if auth == "none":
        return {view: LocalVerifier() for view in endpoints_of(config).values()}
    if isinstance(auth, AuthorizerConfig):
        from roundgate.auth import AuthorizerVerifier

        return {
            view: AuthorizerVerifier(resource.config)
            for view, resource in resources.items()
            if isinstance(resource.config, AuthorizerConfig)
        }
    from roundgate.auth import JwtVerifier, KeySet

    keys_of_issuer = KeySet(auth.jwks_url, clock)
    return {
        view: JwtVerifier(
            resource.config, resource.config.audience or resource.resource, keys_of_issuer
        )
        for view, resource in resources.items()
        if isinstance(resource.config, JwtAuthConfig)
    }


def _middleware(
    gateway: _Gateway,
    using: Settings,
    resources: Mapping[str, ProtectedResource],
    verifiers: Mapping[str, Verifier],
    clock: Clock,
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
    auth = gateway.config.auth
    loopback_only = auth == "none" and not using.allow_anonymous
    return [
        Middleware(
            Guard, hosts=hosts, origins=origins, own_origin=own, loopback_only=loopback_only
        ),
        Middleware(
            ExceptionMiddleware,
            endpoints=endpoints_of(gateway.config),
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
            endpoints=gateway.endpoints,
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
    gateway: _Gateway,
    using: Settings,
    resources: Mapping[str, ProtectedResource],
) -> None:
    """Plain Starlette routes: a path operation would make FastAPI import pydantic.v1, a tenth of a cold start."""

    async def healthz(request: Request) -> JSONResponse:
        server = gateway.config.server
        missing = list(gateway.core.serving.catalog.missing)
        more = {"missing": missing} if missing else {}
        return JSONResponse(
            {"status": "ok", "name": server.name, "version": server.version, **more}
        )

    async def not_found(request: Request, error: Exception) -> JSONResponse:
        return _nothing(gateway.config.http.path)

    def metadata_of(resource: ProtectedResource) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def metadata(request: Request) -> JSONResponse:
            headers = {"cache-control": "max-age=300"}
            return JSONResponse(resource.metadata(), headers=headers)

        return metadata

    app.add_route(HEALTH, healthz)
    old = not_served(gateway.config.http.path, streams=using.streams)
    app.add_route(OLD_TRANSPORT, old, methods=["GET", "POST"])
    for resource in resources.values():
        for path in resource.metadata_paths:
            app.add_route(path, metadata_of(resource))
    app.add_exception_handler(404, not_found)
