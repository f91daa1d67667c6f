"""The caller to which records, tokens and answers are bound, and the port that identifies it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from roundgate.json import at_pointer, digest

MAX_NAME: Final = 1_024
"""The limit on the characters of a subject or client, which are parts of keys and rows."""
LOCAL_ISSUER: Final = "local"
"""The issuer of the single subject in a gateway without authentication."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated subject: its issuer, its client, and its scopes."""

    issuer: str
    subject: str
    client_id: str = ""
    scopes: frozenset[str] = frozenset()
    expires_at_s: float | None = field(default=None, compare=False)
    """When the caller's token expires, in seconds since the epoch; not part of the identity."""
    claims: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The claims of the caller's token; none in a task."""
    kept_claims: Mapping[str, Sequence[str]] | None = field(default=None, compare=False, repr=False)
    """In a task, the values of the claims that its row has, by their names; `None` elsewhere."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Return issuer, subject and client."""
        return self.issuer, self.subject, self.client_id

    @property
    def names(self) -> dict[str, str]:
        """Return the caller's identity as members of a log line. Without authentication, the issuer
        is omitted."""
        names = {"subject": self.subject}
        if self.issuer != LOCAL_ISSUER:
            names["issuer"] = self.issuer
        if self.client_id:
            names["client"] = self.client_id
        return names

    def claim(self, name: str) -> frozenset[str] | None:
        """Return the values of a claim, given by its name or a JSON Pointer, as texts; `None` if they
        are unknown, because the row of a task lacks them.

        A text is one value, also with spaces or commas in it; a number, true and false are values as
        JSON writes them. Nested lists and objects are no values.
        """
        if self.kept_claims is not None:
            kept = self.kept_claims.get(name)
            return None if kept is None else frozenset(kept)
        try:
            claim = at_pointer(self.claims, name) if name.startswith("/") else self.claims[name]
        except LookupError:
            return frozenset()
        values = claim if isinstance(claim, (list, tuple)) else [claim]
        return frozenset(text for value in values if (text := _text(value)) is not None)

    def keeping(self, claims: Iterable[str]) -> Principal:
        """Return the caller for the row of a task, with the values of these claims alone."""
        kept = {name: sorted(self.claim(name) or ()) for name in sorted(claims)}
        return replace(self, claims={}, kept_claims=kept)


def _text(value: Any) -> str | None:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
    return None


def task_owner(principal: Principal, view: str = "") -> str:
    """Return the owner of the rows stored for a caller: a digest of its issuer, subject and client,
    and of the called view.

    The owner begins with a letter, so a command line never mistakes `OWNER.ID` for an option.
    """
    identity = list(principal.identity)
    return "u" + digest([*identity, view] if view else identity)


def is_name(claim: Any) -> bool:
    """Return whether a claim can name a subject or a client: text of at most `MAX_NAME` characters
    that UTF-8 can encode. Keys and rows cannot store a lone surrogate (`"\\ud800"`)."""
    return isinstance(claim, str) and len(claim) <= MAX_NAME and is_unicode(claim)


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_scopes(granted: Any) -> frozenset[str]:
    """Return the scopes in a claim: a list, or text with spaces between them (RFC 9068 section
    2.2.3)."""
    named = granted.split() if isinstance(granted, str) else granted
    return (
        frozenset(scope for scope in named if isinstance(scope, str) and is_unicode(scope))
        if isinstance(named, list)
        else frozenset()
    )


def parse_moment(claim: Any) -> float | None:
    """Return a claim's date in seconds since the epoch (RFC 7519 section 2), or `None` if the claim
    is neither a number nor the text of a number."""
    try:
        moment = float(claim)
    except (TypeError, ValueError, OverflowError):
        return None
    return moment if math.isfinite(moment) else None


LOCAL: Final = Principal(issuer=LOCAL_ISSUER, subject="local")
"""The single subject of a gateway without authentication."""


class Verifier(Protocol):
    """The port that identifies callers."""

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        """Return the caller identified by an Authorization header, or by the claims of an
        authorizer in front.

        Raises:
            Unauthenticated: the request has no valid token.
        """


class LocalVerifier:
    """The verifier for `auth: none`, which returns the same local subject for every caller."""

    async def principal(
        self, authorization: bytes | None, claims: Mapping[str, Any] | None = None
    ) -> Principal:
        return LOCAL
