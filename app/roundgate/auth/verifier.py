"""Authentication of callers: a bearer token → `Principal`.

Tokens are JWTs as in RFC 9068, signed with a key of the issuer. The configuration, not the token,
selects the allowed algorithms; issuer, audience and expiry are checked. Errors have OAuth's codes
(RFC 6750 section 3.1) and never repeat the token.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import jwt
from jwt.exceptions import ExpiredSignatureError, PyJWTError
from msgspec import Struct, field

from roundgate.auth.jwks import KeySet, KeysUnavailable
from roundgate.auth.principal import Principal, is_name, parse_moment, parse_scopes
from roundgate.auth.verified import REMEMBERED_MS, VerifiedToken, VerifiedTokens
from roundgate.errors import InsufficientScope, Unauthenticated, Unavailable
from roundgate.settings import AuthorizerConfig, JwtAuthConfig

_TYPES: Final = ("at+jwt", "application/at+jwt", "jwt", None)
"""The accepted `typ` values: RFC 9068 section 4, and the values of earlier servers. Logout tokens,
DPoP proofs and explicitly typed ID tokens, which an issuer may sign with the same keys, are
refused."""


MAX_TOKEN_BYTES: Final = 32_768
"""The limit on an Authorization header, in bytes. A longer one is refused before it is decoded."""


class JwtVerifier(Struct, frozen=True):
    """The verifier of one issuer's bearer JWTs. A verified token is remembered, so that the caller's
    next call costs no signature check. Dates, key and scopes are checked in each call."""

    config: JwtAuthConfig
    audience: str
    keys: KeySet
    verified: VerifiedTokens = field(default_factory=VerifiedTokens)

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        token = _bearer(authorization)
        digest = sha256(token.encode()).digest()
        verified = await self._remembered(digest) or await self._verify(token, digest)
        if not verified.principal.scopes.issuperset(self.config.scopes):
            raise InsufficientScope("every call", self.config.scopes, verified.principal)
        return verified.caller()

    async def _remembered(self, digest: bytes) -> VerifiedToken | None:
        """Return a remembered token, unless the issuer has withdrawn or replaced its key, or one of
        its dates may not hold now."""
        verified = self.verified.get(digest)
        if verified is None or await self._key(verified.kid) is not verified.key:
            return None
        return verified if verified.holds_at(self.keys.clock.now_ms()) else None

    async def _verify(self, token: str, digest: bytes) -> VerifiedToken:
        try:
            header = jwt.get_unverified_header(token)
            _check_type(header)
            kid: Any = header.get("kid")
            key = await self._key(kid) if isinstance(kid, str) else None
        except (PyJWTError, RecursionError) as error:
            raise _invalid(
                "The token is not a JWT", kind="malformed", reason=type(error).__name__
            ) from None
        if key is None:
            raise _invalid(
                "The token is signed with a key that its issuer does not have",
                kind="unknown key",
                reason=f"kid is {kid!r}",
            )
        from_ms = self.keys.clock.now_ms()
        principal = principal_from_claims(self._claims(token, key))
        until_ms = min(from_ms + REMEMBERED_MS, 1000 * int(principal.expires_at_s or 0))
        verified = VerifiedToken(principal, kid, key, len(token), from_ms, until_ms)
        self.verified.add(digest, verified)
        return verified

    async def _key(self, kid: str) -> jwt.PyJWK | None:
        """Return the key with an id, or `None` if the issuer has none. Raise Unavailable if its keys
        cannot be read."""
        try:
            return await self.keys.key(kid)
        except KeysUnavailable:
            raise Unavailable("The issuer's keys cannot be read; try again soon") from None

    def _claims(self, token: str, key: jwt.PyJWK) -> Mapping[str, Any]:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=self.config.algorithms,
                leeway=self.config.leeway_s,
                options={"require": ["exp", "iss", "sub"], "verify_aud": False},
            )
        except ExpiredSignatureError:
            raise _invalid("The token has expired", kind="expired", reason="exp is past") from None
        except (
            PyJWTError,
            TypeError,
            ValueError,
            OverflowError,
        ) as error:  # some versions of PyJWT do not wrap the errors of malformed dates
            raise _invalid(
                "The token is not valid", reason=f"{type(error).__name__}: {error}"
            ) from None
        self._check_origin_and_audience(claims)
        return claims

    def _check_origin_and_audience(self, claims: Mapping[str, Any]) -> None:
        """Raise Unauthenticated unless the token is from the issuer, and for this audience, or without
        an audience and of one of `auth.clients`."""
        if claims["iss"] != self.config.issuer:
            raise _invalid(
                f"The token is from another issuer; get one from {self.config.issuer}",
                kind="issuer",
                reason=f"iss is {claims['iss']!r}",
            )
        if "aud" not in claims:
            client_id = client_of(claims)
            if client_id not in self.config.clients:
                raise _invalid(
                    f"The token names no audience; request one for {self.audience}",
                    kind="audience",
                    reason=f"no aud, and client {client_id!r} is not in auth.clients",
                )
            return
        audience = claims["aud"]
        audiences = [audience] if isinstance(audience, str) else audience
        if not isinstance(audiences, list) or self.audience not in audiences:
            raise _invalid(
                f"The token is for another audience; request one for {self.audience}",
                kind="audience",
                reason=f"aud is {audience!r}",
            )


def _check_type(header: Mapping[str, Any]) -> None:
    """Raise Unauthenticated unless the token is an access token without `crit`. The gateway
    supports no critical extensions (RFC 7515 section 4.1.11)."""
    kind = header.get("typ")
    if (kind.lower() if isinstance(kind, str) else kind) not in _TYPES or "crit" in header:
        reason = "has crit" if "crit" in header else f"typ is {kind!r}"
        message = "The token is not an access token (typ at+jwt or JWT)"
        raise _invalid(message, kind="malformed", reason=reason)


def _bearer(authorization: bytes | None) -> str:
    if authorization is not None and len(authorization) > MAX_TOKEN_BYTES:
        raise _invalid(f"The Authorization header is longer than {MAX_TOKEN_BYTES} bytes")
    scheme, _, token = (authorization or b"").decode("latin-1").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        # RFC 6750 section 3.1: no error code if the request has no token or another scheme
        raise Unauthenticated(
            None, "A bearer token is needed; send the header Authorization: Bearer TOKEN"
        )
    return token.strip()


def _invalid(message: str, *, kind: str = "invalid", reason: str = "") -> Unauthenticated:
    return Unauthenticated("invalid_token", message, kind=kind, reason=reason)


def client_of(claims: Mapping[str, Any]) -> Any:
    """Return the client that the claims name, or an empty string."""
    return claims.get("client_id") or claims.get("azp") or ""


def principal_from_claims(claims: Mapping[str, Any]) -> Principal:
    """Return the caller that the claims of a valid token identify. Raise Unauthenticated if the
    subject or the client is not a name."""
    client_id = client_of(claims)
    scopes = parse_scopes(claims.get("scope") or claims.get("scp"))
    issuer, subject = claims["iss"], claims["sub"]
    if not subject or not all(map(is_name, (issuer, subject, client_id))):
        raise _invalid(
            "The token's sub and client_id must be strings, and sub must not be empty",
            reason="no usable sub or client_id",
        )
    return Principal(issuer, subject, client_id, scopes, parse_moment(claims["exp"]), claims)


class AuthorizerVerifier(Struct, frozen=True):
    """The verifier of callers already authenticated by an authorizer in front of the gateway.

    API Gateway's JWT authorizer checks signature, issuer, audience and expiry before the function
    is invoked. The claims arrive in the event, beside the request, so no client can send them.
    """

    config: AuthorizerConfig

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        """Return the caller that the claims identify, without reading the token.

        Raises:
            Unauthenticated: there are no claims, or the claims have another issuer, no subject, or
                an invalid client.
            InsufficientScope: the token lacks scopes that every call needs.
        """
        if claims is None:
            raise Unauthenticated(
                None, "The request did not pass the authorizer; call the gateway through its API"
            )
        principal = principal_from_authorizer(self.config, claims)
        if not principal.scopes.issuperset(self.config.scopes):
            raise InsufficientScope("every call", self.config.scopes, principal)
        return principal


def principal_from_authorizer(config: AuthorizerConfig, claims: Mapping[str, Any]) -> Principal:
    """Return the caller that the claims of an authorizer identify. Raise Unauthenticated if they have
    another issuer, no subject, or an invalid client."""
    subject = _name(claims.get(config.subject_claim))
    client_id = _name(claims.get(config.client_claim) or claims.get("azp") or "")
    issuer = claims.get("iss", config.issuer)
    if issuer != config.issuer or not subject or client_id is None:
        reason = f"iss is {issuer!r}" if issuer != config.issuer else "no usable subject or client"
        raise _invalid(
            f"The authorizer's claims must have iss and {config.subject_claim}",
            reason=reason,
        )
    scopes, expires_at_s = (
        _scopes(claims.get(config.scope_claim)),
        parse_moment(claims.get("exp")),
    )
    listed = {name: _parse_list(claim) for name, claim in claims.items()}
    return Principal(config.issuer, subject, client_id, scopes, expires_at_s, listed)


def _name(claim: Any) -> str | None:
    """Return a claim that names a subject or a client, or `None`. Lambda authorizers may send
    numbers."""
    if isinstance(claim, str):
        return claim if is_name(claim) else None
    return str(claim) if isinstance(claim, int) and not isinstance(claim, bool) else None


def _scopes(granted: Any) -> frozenset[str]:
    """Return the scopes in an authorizer's claim. An HTTP API writes a list as text in brackets."""
    return parse_scopes(
        granted.strip("[]").replace(",", " ") if isinstance(granted, str) else granted
    )


def _parse_list(claim: Any) -> Any:
    """Return the items of a list that an HTTP API writes as text in brackets, with spaces between
    items; any other claim unchanged."""
    is_list = isinstance(claim, str) and claim.startswith("[") and claim.endswith("]")
    return claim[1:-1].replace(",", " ").split() if is_list else claim
