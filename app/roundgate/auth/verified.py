"""Tokens that were verified a moment ago. Checking a signature takes some 100 µs, more than most
calls.

A token is remembered by its SHA-256; the token itself is not kept. Refused tokens are never
remembered, so forged ones cannot fill the memory.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Final

from jwt import PyJWK
from msgspec import Struct

from roundgate.auth.principal import Principal
from roundgate.json import fresh

REMEMBERED_MS: Final = 60_000
"""The time for which a verified token is remembered, in milliseconds."""
MAX_TOKENS: Final = 4_096
MAX_BYTES: Final = 4_000_000
"""The limit on the lengths of the remembered tokens together, in bytes."""


class VerifiedToken(Struct, frozen=True):
    """The caller with a token whose signature, issuer, audience and dates were valid at `from_ms`."""

    principal: Principal
    kid: str
    key: PyJWK
    size: int
    from_ms: int
    until_ms: float

    def holds_at(self, now_ms: int) -> bool:
        """Return whether no date of the token can have become invalid since it was verified. If the
        clock was set back, `nbf` may be in the future again."""
        return self.from_ms <= now_ms < self.until_ms

    def caller(self) -> Principal:
        """Return the caller with its own copy of the claims, which a handler may change."""
        return replace(self.principal, claims=fresh(self.principal.claims))


@dataclass(slots=True)
class VerifiedTokens:
    """The remembered tokens of one verifier, by their digests, the oldest first."""

    max_tokens: int = MAX_TOKENS
    max_bytes: int = MAX_BYTES
    _tokens: OrderedDict[bytes, VerifiedToken] = field(default_factory=OrderedDict, repr=False)
    _bytes: int = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def get(self, digest: bytes) -> VerifiedToken | None:
        """Return the token with a digest, or `None`. The caller checks its dates and its key."""
        return self._tokens.get(digest)

    def add(self, digest: bytes, token: VerifiedToken) -> None:
        """Remember a token. Forget the oldest ones that no longer hold or exceed a limit."""
        if (earlier := self._tokens.pop(digest, None)) is not None:
            self._bytes -= earlier.size
        self._tokens[digest] = token
        self._bytes += token.size
        while self._tokens and (
            len(self._tokens) > self.max_tokens
            or self._bytes > self.max_bytes
            or not next(iter(self._tokens.values())).holds_at(token.from_ms)
        ):
            self._bytes -= self._tokens.popitem(last=False)[1].size
