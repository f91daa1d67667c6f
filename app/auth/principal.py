"""The caller that records, tokens and answers are bound to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated subject: the issuer that vouches for it, the client it came through, what it may do."""

    issuer: str
    subject: str
    client_id: str = ""
    scopes: frozenset[str] = frozenset()


LOCAL: Final = Principal(issuer="local", subject="local")
"""The one subject of a gateway without authentication: a fixed name, never a wildcard."""
