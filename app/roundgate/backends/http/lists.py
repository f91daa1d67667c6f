"""Lists where HTTP has one place for a text: in a query, a form, a header, a path.

    repeat     a=1&a=2          comma     a=1,2          pipe     a=1%7C2
    brackets   a[]=1&a[]=2      json      a=[1,2]        space    a=1%202

A separator stands as it is, and what the items have of it is percent-encoded; in a header, where
nothing is, an item that has it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

from roundgate import json

ListStyle: TypeAlias = Literal["repeat", "comma", "pipe", "space", "brackets", "json"]
Quote: TypeAlias = Callable[[str], str]
SEPARATORS: Final[Mapping[str, str]] = MappingProxyType({"comma": ",", "pipe": "|", "space": " "})
_IN_URL: Final[Mapping[str, str]] = MappingProxyType({"comma": ",", "pipe": "%7C", "space": "%20"})
_LONG: Final = 1e21
"""From here on JavaScript, whose numbers services know, writes an exponent, too."""


def text(value: Any) -> str:
    """A value as text: what is none is JSON, and a number such as 7.0 the integer that
    JSON Schema takes it for."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _LONG:
        value = int(value)
    return json.encode(value).decode()


def pairs(name: str, value: Any, style: ListStyle, *, sends_empty: bool) -> list[str]:
    """A value in a query or a form, as `name=value`, percent-encoded.

    Args:
        name: in the request.
        value: null, and null in a list, cannot be said there, and is left out.
        style: of a list.
        sends_empty: whether an empty list is the name without a value, instead of nothing.
    """
    if value is None:
        return []
    if not isinstance(value, list) or style == "json":
        return [_pair(name, text(value))]
    items = [text(one) for one in value if one is not None]
    called = f"{name}[]" if style == "brackets" else name
    if not items:
        return [f"{quoted(called)}="] if sends_empty else []
    if style in _IN_URL:
        return [f"{quoted(name)}={_IN_URL[style].join(map(quoted, items))}"]
    return [_pair(called, one) for one in items]


def in_path(value: Any, style: ListStyle, written: Quote) -> str:
    """A value in a path, each item `written` there.

    Raises:
        ValueError: the list is empty; or as `written` does.
    """
    items = _items(value, style)
    if items is None:
        return written(text(value))
    if not items:
        raise ValueError("may not be empty, because it is part of a path")
    return _IN_URL[style].join(map(written, items))


def in_header(value: Any, style: ListStyle) -> str:
    """A value in a header.

    Raises:
        ValueError: an item has what stands between two.
    """
    items = _items(value, style)
    if items is None:
        return text(value)
    separator = SEPARATORS[style]
    if any(separator in one for one in items):
        raise ValueError(f"an item may not have {separator!r}, which stands between two")
    return separator.join(items)


def _items(value: Any, style: ListStyle) -> list[str] | None:
    if not isinstance(value, list) or style not in SEPARATORS:
        return None
    return [text(one) for one in value if one is not None]


def quoted(value: str) -> str:
    """Percent-encoded, but for what RFC 3986 calls unreserved."""
    return quote(value, safe="", errors="replace")


def _pair(name: str, value: str) -> str:
    return f"{quoted(name)}={quoted(value)}"
