"""Sealed tokens: a ring with fixed keys, owners, and every way to damage a token."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from roundgate.auth.principal import Principal
from roundgate.tokens.sealed import Binding, Key, KeyRing, StateSealer
from tests.support.clocks import FixedClock

ANN = Principal("https://login.example.com/", "ann", "cli", frozenset({"rooms"}))
BOOKING = Binding.of("tools/call", "book", {"room": "blue", "nights": 2})
OLD, NEW, THIRD = (Key(bytes([number]) * 32) for number in (1, 2, 3))


def sealer(
    *keys: Key, clock: FixedClock | None = None, audience: str = "tests", **limits: Any
) -> StateSealer:
    """A sealer with these keys, or with one."""
    return StateSealer(KeyRing(keys or (OLD,), audience), clock or FixedClock(), **limits)


def sealed(
    by: StateSealer, payload: Any = None, owner: Principal = ANN, binding: Binding = BOOKING
) -> str:
    """A token of the first round."""
    return by.seal([[], {}] if payload is None else payload, owner, binding, round_=1, origin={})


def damaged_bytes(token: str) -> Iterator[str]:
    """The token with each of its characters replaced by each other of the 255 that a byte can be."""
    for place, char in enumerate(token):
        for other in map(chr, range(256)):
            if other != char:
                yield token[:place] + other + token[place + 1 :]


def damaged_secrets(token: str) -> Iterator[str]:
    """The token with each byte of nonce, ciphertext and tag replaced by each other, spelled as it should be."""
    head, _, text = token.rpartition(".")
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    for place in range(len(raw)):
        for flip in range(1, 256):
            changed = raw[:place] + bytes([raw[place] ^ flip]) + raw[place + 1 :]
            yield f"{head}.{base64.urlsafe_b64encode(changed).decode().rstrip('=')}"


def truncated(token: str) -> Iterator[str]:
    """Every beginning and every end of the token, and the token with each run of up to 64 characters cut out."""
    for length in range(len(token)):
        yield token[:length]
        yield token[length + 1 :]
    for place in range(1, len(token) - 1):
        for size in range(1, min(64, len(token) - place)):
            yield token[:place] + token[place + size :]


def extended(token: str) -> Iterator[str]:
    """The token with each character before, after, and inserted at every place; and twice."""
    for other in map(chr, range(256)):
        yield token + other
        yield other + token
    for place in range(1, len(token)):
        yield from (token[:place] + other + token[place:] for other in "A.=- \n")
    yield token + token
    yield f"{token}.{token}"
    yield token + "-TAMPERED"
