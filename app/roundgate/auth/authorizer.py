"""Callers that an authorizer in front of the gateway has verified: its claims → `Principal`.

API Gateway's JWT authorizer checks signature, issuer, audience and expiry before the function is
invoked; a Lambda authorizer whatever it likes. The claims reach us in the event, beside the
request: nothing that a client sends can be mistaken for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roundgate.auth.principal import Principal, is_name, moment_of, scopes_of
from roundgate.errors import InsufficientScope, Unauthenticated
from roundgate.settings import AuthorizerConfig


@dataclass(frozen=True, slots=True)
class AuthorizerVerifier:
    """Takes the claims at their word."""

    config: AuthorizerConfig

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        """See `Verifier`; the token itself is not looked at."""
        if claims is None:
            raise Unauthenticated(
                None, "The request came past the authorizer that has to stand in front"
            )
        config = self.config
        subject = _name(claims.get(config.subject_claim))
        client_id = _name(claims.get(config.client_claim) or claims.get("azp") or "")
        if claims.get("iss", config.issuer) != config.issuer or not subject or client_id is None:
            raise Unauthenticated(
                "invalid_token", f"The authorizer's claims need iss and {config.subject_claim}"
            )
        scopes, expires_at_s = _scopes(claims.get(config.scope_claim)), moment_of(claims.get("exp"))
        principal = Principal(config.issuer, subject, client_id, scopes, expires_at_s)
        if not principal.scopes.issuperset(config.scopes):
            raise InsufficientScope("every call", config.scopes)
        return principal


def _name(claim: Any) -> str | None:
    """A claim that names somebody: text, or a number, which is what a Lambda
    authorizer may make of one."""
    if isinstance(claim, str):
        return claim if is_name(claim) else None
    return str(claim) if isinstance(claim, int) and not isinstance(claim, bool) else None


def _scopes(granted: Any) -> frozenset[str]:
    """Scopes as authorizers hand them on: an HTTP API writes a list as text in brackets."""
    return scopes_of(granted.strip("[]").replace(",", " ") if isinstance(granted, str) else granted)
