"""Argument values as text: in a query, form, header or path.

    repeat     a=1&a=2          comma     a=1,2          pipe     a=1%7C2
    brackets   a[]=1&a[]=2      json      a=[1,2]        space    a=1%202

Items are percent-encoded, separators are written as shown. A header is not percent-encoded, so the
gateway refuses an item in a header that contains the separator.

Percent-encoding a "/" in a path does not make it harmless. Many servers and proxies decode the path
before they split it, some twice, and then `/public/..%2Fsecret` is `/secret` (CWE-22). The gateway
therefore refuses such a value.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from roundgate import json

ListStyle: TypeAlias = Literal["repeat", "comma", "pipe", "space", "brackets", "json"]
SEPARATORS: Final[Mapping[str, str]] = MappingProxyType({"comma": ",", "pipe": "|", "space": " "})
_IN_URL: Final[Mapping[str, str]] = MappingProxyType({"comma": ",", "pipe": "%7C", "space": "%20"})
_LONG: Final = 1e21
"""The number from which JavaScript also writes an exponent."""
_MAX_DECODINGS: Final = 4
_OVERLONG: Final = (b"\xc0", b"\xc1", b"\xe0\x80", b"\xe0\x81", b"\xf0\x80")
"""First bytes of overlong UTF-8 for ASCII characters, which lenient decoders accept."""
_UNIT: Final = re.compile(r"%[uU]([0-9a-fA-F]{4})")
"""The escape of a character in IIS and old scripts (`%uXXXX`)."""


def text(value: Any) -> str:
    """Return a string as it is, and any other value as JSON. A float without a fraction is written
    as an integer, which it is in JSON Schema."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _LONG:
        value = int(value)
    return json.encode(value).decode()


def quoted(value: str) -> str:
    """Percent-encode everything but the unreserved characters of RFC 3986."""
    return quote(value, safe="", errors="replace")


def pairs(
    name: str, value: Any, style: ListStyle = "repeat", *, sends_empty: bool = False
) -> list[str]:
    """Return the percent-encoded `name=value` pairs of a value in a query or form.

    Args:
        name: the name in the request.
        value: the value; null, and null in a list, is omitted.
        style: how to write a list.
        sends_empty: whether to send `name=` for an empty list, instead of nothing.
    """
    if value is None:
        return []
    if not isinstance(value, list) or style == "json":
        return [f"{quoted(name)}={quoted(text(value))}"]
    items = [quoted(text(element)) for element in value if element is not None]
    key = quoted(f"{name}[]" if style == "brackets" else name)
    if not items:
        return [f"{key}="] if sends_empty else []
    if style in _IN_URL:
        return [f"{key}={_IN_URL[style].join(items)}"]
    return [f"{key}={item}" for item in items]


def in_path(value: Any, style: ListStyle, write: Callable[[str], str]) -> str:
    """Return a value for a path, with each item encoded by `write`.

    Raises:
        ValueError: the list is empty, or `write` raised it.
    """
    items = _items(value, style)
    if items is None:
        return write(text(value))
    if not items:
        raise ValueError("may not be empty, because it is part of a path")
    return _IN_URL[style].join(map(write, items))


def header_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an argument in a header, which says that only ASCII can be sent."""
    description = f"{schema.get('description') or ''}\nOnly visible ASCII characters and blanks."
    return {**schema, "description": description.strip()}


def in_header(value: Any, style: ListStyle) -> str:
    """Return a value as text for a header. Raise ValueError if a list's item contains the
    separator."""
    items = _items(value, style)
    if items is None:
        return text(value)
    separator = SEPARATORS[style]
    if any(separator in item for item in items):
        raise ValueError(f"an item may not have {separator!r}, which separates the items")
    return separator.join(items)


def _items(value: Any, style: ListStyle) -> list[str] | None:
    if not isinstance(value, list) or style not in SEPARATORS:
        return None
    return [text(item) for item in value if item is not None]


def path_text(value: str, *, allow_slash: bool = False) -> str:
    """Return a value percent-encoded for a path. `allow_slash` permits several segments.

    Raises:
        ValueError: a server might read the value as another path.
    """
    for reading in _readings(value):
        _check_segments(reading, allow_slash)
    return quote(value, safe="/" if allow_slash else "")


def _readings(value: str) -> list[str]:
    """Return the forms that a server may decode the value to: decoded repeatedly, and with wide
    characters normalized. Raise ValueError for too many encodings and overlong UTF-8."""
    readings = [value]
    for _ in range(_MAX_DECODINGS):
        raw = unquote_to_bytes(_UNIT.sub(lambda match: chr(int(match[1], 16)), readings[-1]))
        if any(start in raw for start in _OVERLONG):
            raise ValueError("may not have overlong UTF-8")
        decoded = raw.decode("utf-8", "replace")
        if decoded == readings[-1]:
            return [*readings, *(unicodedata.normalize("NFKC", reading) for reading in readings)]
        readings.append(decoded)
    raise ValueError("may not be percent-encoded several times over")


def _check_segments(path: str, allow_slash: bool) -> None:
    if "\\" in path or "\x00" in path:
        raise ValueError('may not have "\\" or NUL, in any encoding')
    if "/" in path and not allow_slash:
        raise ValueError('may not have "/", in any encoding')
    for segment in path.split("/"):
        # some servers, such as Tomcat, ignore the text after ";"; Windows ignores trailing blanks
        if segment.partition(";")[0].strip() in ("", ".", ".."):
            raise ValueError('may not be or have an empty segment, "." or "..", in any encoding')
