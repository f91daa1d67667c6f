"""The caller that records, tokens and answers are bound to, and the port that identifies it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from roundgate.json import digest

MAX_NAME: Final = 1_024
"""The most characters of a subject or client, which are part of keys and rows."""
LOCAL_ISSUER: Final = "local"
"""The issuer of the only subject in a gateway without authentication."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated subject: the issuer that vouches for it, its client, and its scopes."""

    issuer: str
    subject: str
    client_id: str = ""
    scopes: frozenset[str] = frozenset()
    expires_at_s: float | None = field(default=None, compare=False)
    """When its token expires, in seconds since the epoch; not part of its identity."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Return issuer, subject and client."""
        return self.issuer, self.subject, self.client_id

    @property
    def names(self) -> dict[str, str]:
        """Return the caller's identity as members of a log line. There is no issuer without
        authentication."""
        names = {"subject": self.subject}
        if self.issuer != LOCAL_ISSUER:
            names["issuer"] = self.issuer
        if self.client_id:
            names["client"] = self.client_id
        return names


def task_owner(principal: Principal, view: str = "") -> str:
    """Return the owner of what is stored for a caller: a digest of its issuer, subject and client,
    and of the view called.

    The owner begins with a letter, so a command line never mistakes `OWNER.ID` for an option.
    """
    identity = list(principal.identity)
    return "u" + digest([*identity, view] if view else identity)


def is_name(claim: Any) -> bool:
    """Return whether a claim can name a subject or a client: text of at most `MAX_NAME` characters
    that UTF-8 can encode. A lone surrogate (`"\\ud800"`) fits in no key or row."""
    return isinstance(claim, str) and len(claim) <= MAX_NAME and _is_unicode(claim)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_scopes(granted: Any) -> frozenset[str]:
    """Return scopes from a claim: a list, or text separated by blanks (RFC 9068 section 2.2.3)."""
    named = granted.split() if isinstance(granted, str) else granted
    return (
        frozenset(scope for scope in named if isinstance(scope, str) and _is_unicode(scope))
        if isinstance(named, list)
        else frozenset()
    )


def parse_moment(claim: Any) -> float | None:
    """Return a date of a claim in seconds since the epoch (RFC 7519 section 2), a number or its
    text; `None` if it is neither."""
    try:
        moment = float(claim)
    except (TypeError, ValueError, OverflowError):
        return None
    return moment if math.isfinite(moment) else None


LOCAL: Final = Principal(issuer=LOCAL_ISSUER, subject="local")
"""The one subject of a gateway without authentication: a fixed name, never a wildcard."""


class Verifier(Protocol):
    """The port that identifies callers."""

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        """Return the caller that an Authorization header identifies, or the claims of an
        authorizer in front.

        Raises:
            Unauthenticated: there is no valid token.
        """


class LocalVerifier:
    """The verifier of `auth: none`: every caller is the one local subject."""

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        return LOCAL
