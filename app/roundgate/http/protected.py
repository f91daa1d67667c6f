"""The gateway as OAuth 2.0 protected resources (RFC 9728), and what finds
out who is calling them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roundgate.auth import LocalVerifier, Verifier
from roundgate.backends import Serving, ToolScopes, ViewConfig
from roundgate.clock import Clock
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.errors import ConfigError, Problem
from roundgate.http import ProtectedResource
from roundgate.settings import AuthorizerConfig, JwtAuthConfig, Settings


def make_resources(
    file: ConfigFile, using: Settings, serving: Serving
) -> dict[str, ProtectedResource]:
    """Each view of the gateway as a protected resource, the usual one first;
    none without authentication.

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
        message = (
            "is needed with auth: tokens and metadata are about a URL, and a request can "
            "only claim one"
        )
        raise ConfigError([Problem("environment", "GATEWAY_PUBLIC_URL", message, remedy)])
    origin, usual = using.public_url.rstrip("/"), file.config.http.path
    return {
        view: ProtectedResource(
            origin,
            path,
            _auth_of(auth, file.config.view(view)),
            ToolScopes(serving, view),
            is_usual=path == usual,
        )
        for path, view in file.config.endpoints.items()
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
    """What finds out who is calling each view. Unless `auth.audience` is set, a token
    is for one view alone."""
    auth = config.auth
    if auth == "none":
        return {view: LocalVerifier() for view in config.endpoints.values()}
    if isinstance(auth, AuthorizerConfig):
        from roundgate.auth.authorizer import AuthorizerVerifier

        return {
            view: AuthorizerVerifier(resource.config)
            for view, resource in resources.items()
            if isinstance(resource.config, AuthorizerConfig)
        }
    from roundgate.auth.jwks import KeySet
    from roundgate.auth.verifier import JwtVerifier

    keys_of_issuer = KeySet(auth.jwks_url, clock)
    return {
        view: JwtVerifier(
            resource.config, resource.config.audience or resource.resource, keys_of_issuer
        )
        for view, resource in resources.items()
        if isinstance(resource.config, JwtAuthConfig)
    }
