"""The sessions of operators: sealed cookies, so that any replica accepts them, and links that start
a session once on a gateway without authentication.

A session has the identity, scopes and claims of its operator, never the token. It ends with the
token, or after `console.session_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.tokens import BearerTokens, KeyRing

COOKIE: Final = "roundgate_console"
MAX_COOKIE_CHARS: Final = 3_800
"""The limit on the characters of a session. Browsers drop cookies above 4,096 bytes, with their name
and attributes."""
LINK_S: Final = 900
"""Seconds for which a link in the log can be opened."""
_SESSION: Final = "console session"
_LINK: Final = "console link"


@dataclass(frozen=True, slots=True)
class Operator:
    """The operator of a request."""

    principal: Principal
    csrf: str = ""
    """The token that each POST of the session must repeat; empty for a request with a bearer
    token."""
    expires_ms: int | None = None
    """When the session ends, in milliseconds since the epoch; `None` with a bearer token."""
    is_whole: bool = True
    """Whether the principal has all scopes and claims of the token; rules of a policy may need
    any."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link that starts one session."""

    id: str
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sealer of sessions and links."""

    ring: KeyRing
    clock: Clock
    lifetime_s: float

    def seal(self, principal: Principal, *, is_whole: bool = True) -> tuple[str, int]:
        """Return the cookie of a new session, and its life in seconds. `is_whole` says whether the
        principal has all scopes and claims of its token."""
        now_ms = self.clock.now_ms()
        expires_ms = now_ms + int(self.lifetime_s * 1000)
        if principal.expires_at_s is not None:
            expires_ms = min(expires_ms, int(principal.expires_at_s * 1000))
        claims = {
            "iss": principal.issuer,
            "sub": principal.subject,
            "client": principal.client_id,
            "scopes": sorted(principal.scopes),
            "claims": dict(principal.claims),
            "whole": is_whole,
            "csrf": self.clock.new_id(),
            "exp_ms": expires_ms,
        }
        return self._tokens(_SESSION).seal(claims), max(0, (expires_ms - now_ms) // 1000)

    def open(self, cookie: str) -> Operator | None:
        """Return the operator of a session, or `None` if it is invalid or has ended.

        Raises:
            Unavailable: the keys cannot be read at the moment.
        """
        match self._open(_SESSION, cookie):
            case {
                "iss": str(issuer),
                "sub": str(subject),
                "client": str(client),
                "scopes": list(scopes),
                "claims": dict(claims),
                "whole": bool(is_whole),
                "csrf": str(csrf),
                "exp_ms": int(expires_ms),
            }:
                expires_at_s = expires_ms / 1000
                granted = frozenset(scopes)
                principal = Principal(issuer, subject, client, granted, expires_at_s, claims)
                return Operator(principal, csrf, expires_ms, is_whole)
        return None

    def seal_link(self) -> str:
        """Return the token of a new link."""
        expires_ms = self.clock.now_ms() + LINK_S * 1000
        return self._tokens(_LINK).seal({"id": self.clock.new_id(), "exp_ms": expires_ms})

    def open_link(self, token: str) -> Link | None:
        """Return a link, or `None` if its token is invalid or too old.

        Raises:
            Unavailable: the keys cannot be read at the moment.
        """
        match self._open(_LINK, token):
            case {"id": str(link_id), "exp_ms": int(expires_ms)}:
                return Link(link_id, expires_ms)
        return None

    def _tokens(self, purpose: str) -> BearerTokens:
        return BearerTokens(self.ring, purpose, MAX_COOKIE_CHARS)

    def _open(self, purpose: str, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a token for a purpose that has not expired, or `None`."""
        match self._tokens(purpose).open(token):
            case {"exp_ms": int(expires_ms)} as claims if self.clock.now_ms() < expires_ms:
                return claims
        return None
