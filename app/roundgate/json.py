"""JSON: reading, writing, and digests of values. Only this module uses orjson.

Reading is strict: no duplicate keys, no NaN or Infinity, no number that overflows to infinity, at
most 200 levels deep (the parser's own bound). Writing makes one line, because a reader of events
splits on line ends.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import jiter
import orjson

from roundgate.errors import ParseError

# A double overflows at 1.8e308. Only three kinds of number can exceed it: one with a three-digit
# exponent, one of 210 digits followed by e99, or a longer one. Mapping every digit to 0 and searching
# for the beginnings of these shapes is 50 times faster than a regular expression.
_SHAPE: Final = bytes.maketrans(b"123456789E+", b"000000000e0")
_LONG_EXPONENT: Final = b"0e000"
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""An encoded surrogate, which valid UTF-8 never contains."""
_LONG_NUMBER: Final = b"0" * 40
LARGE: Final = 131_072
"""The size above which a text is large, in bytes: its steps give other work a turn of the event loop
between them. Threads would not help, because parsers and validators hold the interpreter's lock."""
_FEW: Final = 256
"""A text with fewer than one value in this number of bytes consists of long strings."""
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_MAYBE_WHOLE: Final = re.compile(rb"\.0|\de\+?\d")
"""What orjson writes for every float that is a whole number, such as `1.0` or `1e16`; also in texts."""


def decode(body: bytes) -> Any:
    """Decode strict JSON.

    Raises:
        ParseError: the JSON is invalid; the message has line and column if known.
    """
    try:
        value = jiter.from_json(
            body, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True
        )
    except ValueError as error:
        raise ParseError(f"Parse error: {str(error)[:200]}") from None
    # visiting a few values is faster than searching long strings
    is_beyond = _has_infinity(value, len(body) // _FEW) if len(body) > LARGE else None
    if is_beyond or (is_beyond is None and _may_have_infinity(body) and _has_infinity(value)):
        raise ParseError("Parse error: a number is too large for a double")
    return value


def decode_own(data: bytes) -> Any:
    """Decode JSON that `encode` wrote, three times as fast as `decode`.

    Raises:
        ValueError: the data is not complete JSON.
    """
    return orjson.loads(data)


def encode(value: Any) -> bytes:
    """Encode a value as one line of JSON. Integers beyond 64 bits are written in full; lone
    surrogates become `?`.

    Raises:
        TypeError, ValueError: the value is not JSON.
    """
    try:
        data = orjson.dumps(value)
        # orjson rejects a lone surrogate in a string value, but writes it in a member's name
        return _SURROGATE.sub(b"?", data) if b"\xed" in data else data
    except TypeError:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
            "utf-8", "replace"
        )


def bounded_number(value: Any) -> float | None:
    """Return a number of 64 bits, or `None` for any other value. Arithmetic with larger whole
    numbers, which JSON allows, fails."""
    return value if isinstance(value, float) else bounded_integer(value)


def bounded_integer(value: Any) -> int | None:
    """Return a whole number of 64 bits, or `None` for any other value."""
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def approximate_size(value: Any) -> int:
    """Return about the number of bytes that `encode` writes for a value."""
    size, stack = 0, [value]
    while stack:
        match stack.pop():
            case str() as text:
                size += len(text)
            case dict() as members:
                size += 8 * len(members)
                stack.extend(members.values())
            case list() as items:
                size += 4 * len(items)
                stack.extend(items)
    return size


def fresh(value: Any) -> Any:
    """Return a copy of a JSON value that shares no dict or list with it. Objects of other types are
    not copied."""
    if isinstance(value, dict):
        if _SCALARS.issuperset(map(type, value.values())):
            return dict(value)
        return {key: fresh(item) for key, item in value.items()}
    if isinstance(value, list):
        if _SCALARS.issuperset(map(type, value)):
            return list(value)
        return [fresh(item) for item in value]
    return value


def digest(value: Any) -> str:
    """Return a digest of 128 bits of a JSON value, independent of the order of its members and the
    spelling of its numbers."""
    hashed = hashlib.sha256(canonical(value)).digest()
    return base64.urlsafe_b64encode(hashed[:16]).decode().rstrip("=")


def canonical(value: Any) -> bytes:
    """Return bytes that are equal for equal JSON values, independent of the order of members and the
    spelling of numbers, to compute a digest."""
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        if not _MAYBE_WHOLE.search(data):
            return data
        return orjson.dumps(_normal(value), option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits
        return repr(_sorted(_normal(value))).encode("utf-8", "surrogatepass")


def _normal(value: Any) -> Any:
    """Return the value with 1.0 as 1: JSON does not distinguish them, and clients send either."""
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
        case dict():  # a tuple, so that {} and [] differ
            return tuple(sorted((key, _sorted(item)) for key, item in value.items()))
        case list():
            return [_sorted(item) for item in value]
    return value


def _may_have_infinity(body: bytes) -> bool:
    shape = body.translate(_SHAPE)
    return _LONG_EXPONENT in shape or _LONG_NUMBER in shape


def _has_infinity(value: Any, most: float = math.inf) -> bool | None:
    """Return whether a value contains an infinite number; `None` if it has more than `most` parts."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, float) and math.isinf(part):
            return True
        parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        most -= len(parts)
        if most < 0:
            return None
        stack.extend(parts)
    return False


def walk(value: Any) -> Iterator[tuple[int, Any]]:
    """Yield each value in a value, with its depth; a container before its parts."""
    stack = [(0, value)]
    while stack:
        depth, node = stack.pop()
        yield depth, node
        if isinstance(node, Mapping):
            stack.extend((depth + 1, child) for child in node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend((depth + 1, child) for child in node)


def at_pointer(value: Any, pointer: str) -> Any:
    """Return the part of a JSON value at a JSON Pointer (RFC 6901).

    Raises:
        LookupError: the value has no such part.
    """
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping):
            value = value[key]
        elif isinstance(value, (list, tuple)) and key.isdecimal():
            value = value[int(key)]
        else:
            raise LookupError(pointer)
    return value


def at_reference(document: Any, reference: str) -> Any:
    """Return the part of a document to which a `$ref` in it refers, such as `#/$defs/Name`.

    Raises:
        LookupError: no such part exists, or the reference is an anchor or names another document.
    """
    document_name, _, fragment = reference.partition("#")
    pointer = unquote(fragment)
    if document_name or not (pointer.startswith("/") or reference == "#"):
        raise LookupError(reference)
    return at_pointer(document, pointer)
