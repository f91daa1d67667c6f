"""Keyed digests of arguments, questions and answers.

Arguments are often guessable: a customer number, a name, yes or no. A reader of plain hashes could try
all of them. So a digest is HMAC-SHA-256 of the canonical JSON (`roundgate.json.canonical`), and only
the owner of the key can check a guess (`roundgate audit digest`).
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from roundgate.json import canonical
from roundgate.tokens import Key

_BLOCK: Final = 64
"""The block size of SHA-256 in bytes. Keys have 32."""


class Digests:
    """Makes digests with one key."""

    def __init__(self, key: Key) -> None:
        # HMAC as RFC 2104 defines it, from copies of two prepared hashes: a copy of `hmac.HMAC` takes
        # twice as long, and `hmac.digest` four times
        padded = key.secret.ljust(_BLOCK, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))
        self.key_id = key.id
        """The id of the key, which reveals nothing about it."""

    def of(self, value: Any) -> str:
        """Return the digest of a JSON value, in hexadecimal."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(canonical(value))
        outer.update(inner.digest())
        return outer.hexdigest()
