"""Digests are the same for what JSON calls the same value, and need the key."""

from __future__ import annotations

import hmac
import json
from typing import Any

from hypothesis import given

from roundgate.audit.digests import Digests
from roundgate.json import canonical
from roundgate.tokens import Key
from tests.support.audit import DIGESTS
from tests.support.json_values import values


def respelled(value: Any) -> Any:
    """The value with its members in another order, and its whole numbers as floats."""
    match value:
        case dict():
            return {key: respelled(item) for key, item in reversed(value.items())}
        case list():
            return [respelled(item) for item in value]
        case int() if not isinstance(value, bool) and abs(value) < 2**53:
            return float(value)
    return value


@given(values())
def test_a_digest_does_not_depend_on_order_and_spelling(value: Any) -> None:
    assert DIGESTS.of(value) == DIGESTS.of(respelled(value))
    assert DIGESTS.of(value) == DIGESTS.of(json.loads(json.dumps(value)))


def test_different_values_have_different_digests() -> None:
    numbers = [1, 1.5, 10**30, 1e30, -1, 1e16, 1e-7]
    others = ["1", "1.0", "1e30", True, None, [], {}, [1], {"1": 1}]
    assert len({DIGESTS.of(value) for value in [*numbers, *others]}) == 16


def test_a_digest_needs_the_key() -> None:
    other = Digests(Key(b"another key of thirty-two bytes."))
    assert other.key_id != DIGESTS.key_id
    assert other.of({"approve": True}) != DIGESTS.of({"approve": True})


@given(values())
def test_a_digest_is_hmac_sha_256_of_canonical_json(value: Any) -> None:
    key = b"thirty-two bytes, known to a few"
    assert DIGESTS.of(value) == hmac.digest(key, canonical(value), "sha256").hex()
