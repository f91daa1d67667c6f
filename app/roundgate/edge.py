"""What every request meets first: the layers in front of the MCP endpoints, made of
settings and configuration.

`roundgate.asgi` and `roundgate.main` make apps of it, `roundgate.lambda_http`
answers most events without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate import tracing
from roundgate.auth import Verifier
from roundgate.clock import Clock
from roundgate.config import ConfigFile, Settings
from roundgate.endpoints import endpoints_of
from roundgate.http import (
    GRACE_S,
    AuthenticationMiddleware,
    BodyBudget,
    ExceptionMiddleware,
    Guard,
    HeadMiddleware,
    McpEndpoint,
    ProtectedResource,
    default_hosts,
    public_origins,
)
from roundgate.protected import make_resources, make_verifiers
from roundgate.replica import Replica
from roundgate.startup import Stores, build_core
from roundgate.values import dataclass


@dataclass(frozen=True, slots=True)
class Edge:
    """What is served, and the layers around it."""

    replica: Replica
    using: Settings
    resources: Mapping[str, ProtectedResource]
    layers: Sequence[Middleware]
    """Outermost first."""

    @property
    def endpoints(self) -> Sequence[str]:
        """The paths of the MCP endpoints."""
        return list(endpoints_of(self.replica.config))

    def around(self, app: ASGIApp) -> ASGIApp:
        """An app behind the layers."""
        for cls, args, kwargs in reversed(self.layers):
            app = cls(app, *args, **kwargs)
        return app


def build_edge(
    file: ConfigFile,
    using: Settings,
    *,
    clock: Clock | None = None,
    stores: Stores | None = None,
    verifier: Verifier | None = None,
    owns_process: bool = False,
) -> Edge:
    """The edge for a configuration. See `roundgate.main.build_app`.

    Raises:
        ConfigError: a back end cannot be served as configured, or names collide.
    """
    clock = clock or Clock()
    core = build_core(file, using, clock, stores)
    replica = Replica(file, using, clock, core, owns_process=owns_process)
    resources = make_resources(file, using, replica.core.serving)
    verifiers = (
        make_verifiers(resources, file.config, clock)
        if verifier is None
        else dict.fromkeys(endpoints_of(file.config).values(), verifier)
    )
    layers = _layers(replica, using, resources, verifiers, clock)
    return Edge(replica, using, resources, layers)


class Entrance:
    """An ASGI app: what is for an MCP endpoint goes through the layers alone, and everything else
    to an app that is made with the first such request."""

    def __init__(self, edge: Edge, make_app: Callable[[], ASGIApp]) -> None:
        self._paths = frozenset(
            spelled for path in edge.endpoints for spelled in (path, path + "/")
        )
        self._layers = edge.around(self._elsewhere)
        self._make_app = make_app
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and scope["path"] in self._paths
        await (self._layers if is_ours else self._elsewhere)(scope, receive, send)

    async def _elsewhere(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = self._app or self._make_app()
        await self._app(scope, receive, send)


def _layers(
    replica: Replica,
    using: Settings,
    resources: Mapping[str, ProtectedResource],
    verifiers: Mapping[str, Verifier],
    clock: Clock,
) -> Sequence[Middleware]:
    """The layers, outermost first."""
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
            nothing=nothing_at(http.path),
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


def nothing_at(endpoint: str) -> JSONResponse:
    """The answer of an address at which there is nothing, or nothing for this caller."""
    return JSONResponse(
        {"error": f"There is nothing here; the MCP endpoint is POST {endpoint}"}, status_code=404
    )
