"""The sessions of operators: sealed cookies, so that any replica accepts them, and links that start
a session once on a gateway without authentication.

A session has the identity, scopes and claims of its operator, never the token. It ends with the
token, after `console.session_s`, or when the sessions of its operator are revoked. The store has one
row for each operator whose sessions were revoked lately:

    sign in (row: none) ── session "" ──────── valid ──── row r1: void
                                revoke: row r1 ── sign in: session "r1" ── valid
    the row is forgotten when each session that it ended would have expired by itself
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from starlette.requests import HTTPConnection

from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.json import digest
from roundgate.settings import MAX_SESSION_S
from roundgate.storage import SessionStore
from roundgate.storage.ports import CLOCKS_AHEAD_MS
from roundgate.tokens import BearerTokens, KeyRing

COOKIE: Final = "roundgate_console"
"""The beginning of the name of a session's cookie."""
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
    revocation: str = ""
    """The id of the operator's last revocation when the session began; empty if there was none."""
    is_whole: bool = True
    """Whether the principal has all scopes and claims of the token; rules of a policy may need
    any."""


def cookie_name(public_url: str | None, request: HTTPConnection) -> str:
    """Return the name of the session's cookie. It differs for each gateway on a host, because
    browsers send cookies to all ports. With https, its prefix lets browsers accept it from this
    host alone."""
    if public_url is None:
        port = request.headers.get("host", "").rpartition(":")[2]
        return f"{COOKIE}_{port if port.isdecimal() else 80}"
    name = f"{COOKIE}_{sha256(public_url.encode()).hexdigest()[:8]}"
    return f"__Host-{name}" if public_url.startswith("https:") else name


def _key(issuer: str, subject: str) -> str:
    """Return the key of an operator's row in the store."""
    return f"console/{digest([issuer, subject])}"


@dataclass(frozen=True, slots=True)
class OperatorSessions:
    """The sealer of sessions and links."""

    ring: KeyRing
    clock: Clock
    lifetime_s: float
    store: SessionStore

    async def is_revoked(self, operator: Operator) -> bool:
        """Return whether the sessions of an operator were revoked after this one began.

        Raises:
            Unavailable: the store cannot be reached.
        """
        principal = operator.principal
        revocation = await self.last_revocation(principal.issuer, principal.subject)
        return revocation not in ("", operator.revocation)

    async def last_revocation(self, issuer: str, subject: str) -> str:
        """Return the id of the last revocation of an operator's sessions; empty if no session from
        before can still be open.

        Raises:
            Unavailable: the store cannot be reached.
        """
        row = await self.store.read(_key(issuer, subject))
        return "" if row is None else row.value.decode()

    async def revoke(self, issuer: str, subject: str) -> None:
        """End all sessions of an operator, at every replica.

        Raises:
            Unavailable: the store cannot be reached.
        """
        forget_ms = self.clock.now_ms() + MAX_SESSION_S * 1000 + CLOCKS_AHEAD_MS
        await self.store.put(_key(issuer, subject), self.clock.new_id().encode(), forget_ms)

    def seal(
        self, principal: Principal, revocation: str = "", *, is_whole: bool = True
    ) -> tuple[str, int]:
        """Return the cookie of a new session, and its life in seconds. `revocation` is the last one of
        the operator; `is_whole` says whether the principal has all scopes and claims of its token.
        """
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
            "revocation": revocation,
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
                "revocation": str(revocation),
                "csrf": str(csrf),
                "exp_ms": int(expires_ms),
            }:
                expires_at_s = expires_ms / 1000
                granted = frozenset(scopes)
                principal = Principal(issuer, subject, client, granted, expires_at_s, claims)
                return Operator(principal, csrf, expires_ms, revocation, is_whole)
        return None

    def seal_link(self) -> str:
        """Return the token of a new link."""
        expires_ms = self.clock.now_ms() + LINK_S * 1000
        return self._tokens(_LINK).seal({"id": self.clock.new_id(), "exp_ms": expires_ms})

    def open_link(self, token: str) -> tuple[str, int] | None:
        """Return the id of a link, and the time in milliseconds when it expires; `None` if its token is
        invalid or too old.

        Raises:
            Unavailable: the keys cannot be read at the moment.
        """
        match self._open(_LINK, token):
            case {"id": str(link_id), "exp_ms": int(expires_ms)}:
                return link_id, expires_ms
        return None

    def _tokens(self, purpose: str) -> BearerTokens:
        return BearerTokens(self.ring, purpose, MAX_COOKIE_CHARS)

    def _open(self, purpose: str, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a token for a purpose that has not expired, or `None`."""
        match self._tokens(purpose).open(token):
            case {"exp_ms": int(expires_ms)} as claims if self.clock.now_ms() < expires_ms:
                return claims
        return None
