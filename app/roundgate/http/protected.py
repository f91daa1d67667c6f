"""The gateway as OAuth 2.0 protected resources (RFC 9728): their metadata, the challenges of RFC 6750,
and the verifiers of their callers.

WWW-Authenticate: Bearer error="invalid_token", error_description="…", scope="…",
    resource_metadata="https://mcp.example.com/.well-known/oauth-protected-resource/mcp"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from pydantic import BaseModel

from roundgate.auth import LocalVerifier, Verifier
from roundgate.backends import Serving, ToolScopes, ViewConfig
from roundgate.clock import Clock
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.errors import AuthError, InsufficientScope
from roundgate.settings import AuthorizerConfig, JwtAuthConfig, Settings

if TYPE_CHECKING:  # loaded only if tokens are verified
    from roundgate.auth.jwks import KeySet

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


class ResourceMetadata(BaseModel):
    """The metadata document of a protected resource (RFC 9728 section 2)."""

    resource: str
    authorization_servers: list[str]
    bearer_methods_supported: list[str]
    scopes_supported: list[str] | None = None


class ProtectedResource(Struct, frozen=True):
    """An MCP endpoint as an OAuth resource, at the configured public URL, never a URL from a
    request."""

    origin: str
    path: str
    config: JwtAuthConfig | AuthorizerConfig
    tool_scopes: Iterable[str] = ()
    is_usual: bool = True
    """Whether the metadata document is also served at the root."""

    @property
    def resource(self) -> str:
        """The resource identifier: the URL of the MCP endpoint."""
        return self.origin + self.path

    @property
    def metadata_paths(self) -> tuple[str, ...]:
        """The paths of the metadata document (RFC 9728 section 3.1)."""
        own = WELL_KNOWN + self.path
        return (own, WELL_KNOWN) if self.is_usual else (own,)

    def metadata(self) -> ResourceMetadata:
        """Return the metadata document."""
        offered = self.config.scopes_supported
        scopes = sorted({*self.config.scopes, *self.tool_scopes}) if offered is None else offered
        requested = list(dict.fromkeys(map(self.config.requested, scopes)))
        return ResourceMetadata(
            resource=self.resource,
            authorization_servers=[self.config.issuer],
            bearer_methods_supported=["header"],
            scopes_supported=requested or None,
        )

    def requested(self, error: AuthError) -> AuthError:
        """Return an error with the names under which clients request scopes."""
        if isinstance(error, InsufficientScope):
            return error.renamed(self.config.requested)
        return error

    def challenge(self, error: AuthError) -> bytes:
        """Return the value of WWW-Authenticate for the result of `requested`, with all scopes that a
        token needs."""
        scopes = dict.fromkeys((*map(self.config.requested, self.config.scopes), *error.scopes))
        members = {
            "error": error.error,
            "error_description": str(error) if error.error else None,
            "scope": " ".join(scopes) or None,
            "resource_metadata": self.origin + self.metadata_paths[0],
        }
        pairs = ", ".join(
            f'{name}="{_quotable(value)}"' for name, value in members.items() if value is not None
        )
        return f"Bearer {pairs}".encode()


def _quotable(value: str) -> str:
    """Return a text without the characters that RFC 6750 forbids in these values."""
    return "".join(char for char in value if " " <= char <= "~" and char not in '"\\')


def make_resources(
    file: ConfigFile, using: Settings, serving: Serving
) -> dict[str, ProtectedResource]:
    """Return the protected resource of each view, the default view first; empty without
    authentication."""
    auth = file.config.auth
    if auth == "none":
        return {}
    assert using.public_url is not None, "`runtime.checks` requires it"
    origin, usual = using.public_url.rstrip("/"), file.config.http.path
    return {
        view: ProtectedResource(
            origin,
            path,
            _view_auth(auth, file.config.view(view)),
            ToolScopes(serving, view),
            is_usual=path == usual,
        )
        for path, view in file.config.endpoints.items()
    }


def _view_auth(
    auth: JwtAuthConfig | AuthorizerConfig, view: ViewConfig | None
) -> JwtAuthConfig | AuthorizerConfig:
    """Return the authentication of a view, with its scopes."""
    if view is None or not view.scopes:
        return auth
    changed: dict[str, Any] = {"scopes": list(dict.fromkeys((*auth.scopes, *view.scopes)))}
    if auth.scopes_supported is not None:
        supported = dict.fromkeys((*auth.scopes_supported, *view.scopes))
        changed["scopes_supported"] = list(supported)
    return auth.model_copy(update=changed)


def make_keys(config: GatewayConfig, clock: Clock) -> KeySet | None:
    """Return the keys of the issuer, which all views share; `None` if no token is verified."""
    if not isinstance(config.auth, JwtAuthConfig):
        return None
    from roundgate.auth.jwks import KeySet

    return KeySet(config.auth.jwks_url, clock)


def make_verifiers(
    resources: Mapping[str, ProtectedResource], config: GatewayConfig, keys: KeySet | None
) -> dict[str, Verifier]:
    """Return the verifier of each view. Unless `auth.audience` is set, a token is valid for one
    view."""
    auth = config.auth
    if auth == "none":
        return {view: LocalVerifier() for view in config.endpoints.values()}
    if isinstance(auth, AuthorizerConfig):
        from roundgate.auth.verifier import AuthorizerVerifier

        return {
            view: AuthorizerVerifier(resource.config)
            for view, resource in resources.items()
            if isinstance(resource.config, AuthorizerConfig)
        }
    from roundgate.auth.verifier import JwtVerifier

    assert keys is not None, "`make_keys` makes them for this configuration"
    return {
        view: JwtVerifier(resource.config, resource.config.audience or resource.resource, keys)
        for view, resource in resources.items()
        if isinstance(resource.config, JwtAuthConfig)
    }
