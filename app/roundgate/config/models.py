"""The root model of gateway.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from roundgate.backends import BackendConfig, SearchConfig, ViewConfig, registry
from roundgate.settings import (
    AuthorizerConfig,
    CachingConfig,
    CallersConfig,
    FallbackConfig,
    HttpConfig,
    JwtAuthConfig,
    LimitsConfig,
    Model,
    PackageConfig,
    ServerConfig,
    SessionsConfig,
    StateConfig,
    TasksConfig,
)
from roundgate.settings.environment import own_name

_HEALTH: Final = "/healthz"
_WELL_KNOWN: Final = "/.well-known/"


def _kind_of_auth(given: Any) -> str:
    """Which is meant; the tag is in brackets as those of credentials are
    (`backends.http.config`)."""
    if not isinstance(given, Mapping | CallersConfig):
        return "<none>"
    is_authorizer = isinstance(given, AuthorizerConfig) or (
        isinstance(given, Mapping) and "authorizer" in given
    )
    return "<authorizer>" if is_authorizer else "<jwt>"


class GatewayConfig(Model):
    """The whole file."""

    server: ServerConfig = Field(
        ServerConfig.model_construct(), description="Who the gateway says it is."
    )
    http: HttpConfig = Field(HttpConfig.model_construct(), description="The HTTP edge.")
    limits: LimitsConfig = Field(LimitsConfig.model_construct(), description="Bounds on work.")
    auth: Annotated[
        Annotated[Literal["none"], Tag("<none>")]
        | Annotated[JwtAuthConfig, Tag("<jwt>")]
        | Annotated[AuthorizerConfig, Tag("<authorizer>")],
        Discriminator(_kind_of_auth),
    ] = Field(
        "none",
        description='Who may call: "none" (one local subject, for loopback addresses), bearer JWTs, or callers that an'
        " authorizer in front has verified.",
    )
    state: StateConfig = Field(
        StateConfig.model_construct(), description="What a call remembers between its rounds."
    )
    sessions: SessionsConfig = Field(
        SessionsConfig.model_construct(),
        description="Clients that speak a revision before 2026-07-28.",
    )
    fallback: FallbackConfig = Field(
        FallbackConfig.model_construct(),
        description="Clients that cannot be asked, or know no tasks.",
    )
    tasks: TasksConfig = Field(
        TasksConfig.model_construct(), description="Calls that outlive their request."
    )
    caching: CachingConfig = Field(CachingConfig.model_construct(), description="Caching hints.")
    backends: list[Annotated[BackendConfig, registry.ByKind()]] = Field(
        description="What is behind the gateway, in the order of the lists.", min_length=1
    )
    search: SearchConfig | None = Field(
        None, description="Search in place of the list of all tools."
    )
    views: list[ViewConfig] = Field(
        [], description="Endpoints of their own for a part of what is behind the gateway."
    )
    env: dict[Annotated[str, AfterValidator(own_name)], str] = Field(
        {},
        description="Variables for tools and ${NAME}, unless the environment has them: texts, ${secret:NAME} or"
        " ${ssm:NAME}. Parameters of the stack on AWS Lambda.",
    )
    package: PackageConfig = Field(
        PackageConfig.model_construct(), description="What `roundgate package` puts into functions."
    )

    @property
    def endpoints(self) -> dict[str, str]:
        """The name of the view at each path of an MCP endpoint, the path of `http` first; the
        endpoint of all tools has an empty name."""
        views = {view.effective_path: view.name for view in self.views}
        usual = views.pop(self.http.path, "")
        return {self.http.path: usual, **views}

    def view(self, name: str) -> ViewConfig | None:
        """Return the settings of a view, or `None` for the endpoint of all tools."""
        return next((view for view in self.views if view.name == name), None)

    def server_of(self, view: str) -> ServerConfig:
        """Return what a view says of itself to clients."""
        found = self.view(view)
        if found is None or found.instructions is None:
            return self.server
        return self.server.model_copy(update={"instructions": found.instructions})

    @model_validator(mode="after")
    def _views_differ(self) -> GatewayConfig:
        paths = [view.effective_path for view in self.views]
        for what, given in (("name", [view.name for view in self.views]), ("path", paths)):
            if twice := sorted({one for one in given if given.count(one) > 1}):
                raise ValueError(f"two views have the {what} {twice[0]!r}")
        for path in paths:
            if path == _HEALTH or f"{path}/".startswith(_WELL_KNOWN):
                raise ValueError(f"the path {path!r} of a view is the gateway's own")
        operators = None if self.auth == "none" else self.auth.operator_scope
        if operators is not None and any(operators in view.scopes for view in self.views):
            raise ValueError("auth.operator_scope must be none of a view's scopes")
        return self
