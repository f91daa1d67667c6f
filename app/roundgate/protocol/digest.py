"""Digests of JSON values: what stands for a call's arguments, or for a question as it was shown."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import orjson


def digest(value: Any) -> str:
    """128 bits that stand for a JSON value: the same whatever the order of members and the spelling of numbers."""
    try:
        canonical = orjson.dumps(_normal(value), option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits
        canonical = repr(_sorted(_normal(value))).encode("utf-8", "surrogatepass")
    return base64.urlsafe_b64encode(hashlib.sha256(canonical).digest()[:16]).decode().rstrip("=")


def _normal(value: Any) -> Any:
    """1.0 and 1 are the same number to JSON, and some clients write the one for the other."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _normal(item) for key, item in value.items()}
        case list():
            return [_normal(item) for item in value]
    return value


def _sorted(value: Any) -> Any:
    match value:
        case dict():  # a tuple, so that {} and [] are told apart
            return tuple(sorted((key, _sorted(item)) for key, item in value.items()))
        case list():
            return [_sorted(item) for item in value]
    return value
