"""Keyed digests of arguments, questions and answers.

Arguments are often guessable: a customer number, a name, yes or no. Whoever reads a plain hash could
try them all. So a digest is HMAC-SHA-256 of the canonical JSON (`roundgate.json.canonical`), and only
the owner of the key can check a guess (`roundgate audit digest`).
"""

from __future__ import annotations

import base64
import hmac
from typing import Any

from roundgate.json import canonical
from roundgate.tokens import Key


class Digests:
    """Makes digests with one key."""

    def __init__(self, key: Key) -> None:
        self._secret = key.secret
        self.key_id = key.id
        """The id of the key, which reveals nothing about it."""

    def of(self, value: Any) -> str:
        """Return the digest of a JSON value: 256 bits as 43 URL-safe characters."""
        digest = hmac.digest(self._secret, canonical(value), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
