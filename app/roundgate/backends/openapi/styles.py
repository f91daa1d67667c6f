"""Values written in a style (OpenAPI "Style Values", after RFC 6570): as the
specification's own table has them.

Beyond that table: lists and objects within objects are written in `deepObject` only, as
`name[member][0]`; elsewhere a list or object inside another is JSON. An empty list or object is
left out, where it would be nothing or half a pair.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from roundgate.backends.http.lists import text
from roundgate.backends.openapi.plan import Style

Quote: TypeAlias = Callable[[str], str]

_RESERVED: Final = ":/?@!$'()*,"
"""What `allowReserved` leaves: of the reserved, what can neither begin another parameter nor end
the query, whichever way a server reads it."""
_DELIMITERS: Final = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}


def query_quote(reserved: bool) -> Quote:
    """Percent-encoding for a query, with `allowReserved` or without."""
    safe = _RESERVED if reserved else ""
    return lambda value: quote(value, safe=safe)


def in_path(name: str, value: Any, style: Style, explode: bool, quoted: Quote) -> str:
    """A value as it stands in a path.

    Args:
        name: of the parameter.
        value: its argument.
        style: `simple`, `label` or `matrix`.
        explode: whether members of an array or object stand apart.
        quoted: percent-encodes a value.
    """
    if style == "matrix":
        if explode:
            return "".join(f";{one}={item}" for one, item in _named(name, value, quoted, quoted))
        return f";{quote(name, safe='')}={','.join(_flat(value, quoted))}"
    if style == "label":
        return "." + (
            ".".join(_exploded(value, quoted)) if explode else ",".join(_flat(value, quoted))
        )
    return ",".join(_exploded(value, quoted) if explode else _flat(value, quoted))


def in_header(value: Any, explode: bool) -> str:
    """A value in a header, which has one style: `simple`, and is not percent-encoded."""
    return ",".join(_exploded(value, str) if explode else _flat(value, str))


def in_query(name: str, value: Any, style: Style, explode: bool, quoted: Quote) -> list[str]:
    """A value as `name=value` pairs.

    Args:
        name: of the parameter.
        value: its argument.
        style: of a query, a form or, `form`, of cookies.
        explode: whether members of an array or object are parameters of their own.
        quoted: percent-encodes a value.
    """
    if value is None or value in ([], {}):
        return []
    if style == "deepObject":
        return list(_deep(_quoted_name(name), value, quoted))
    if explode and style == "form":
        return [f"{one}={item}" for one, item in _named(name, value, quoted, _quoted_name)]
    if explode and isinstance(value, list):  # delimited and exploded is what `form` has
        return [f"{_quoted_name(name)}={quoted(text(one))}" for one in value]
    return [f"{_quoted_name(name)}={_DELIMITERS.get(style, ',').join(_flat(value, quoted))}"]


def names_of(value: Any, style: Style, explode: bool) -> frozenset[str]:
    """The names that an object brings with it in a query, a form or cookies,
    instead of its parameter's."""
    is_flat = explode and style in ("form", "cookie") and isinstance(value, dict)
    return frozenset(value) if is_flat else frozenset()


def clashing(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Return the names that a service may confuse with one in use: many ignore case, and PHP turns
    dots and blanks into `_`."""
    folded = {_folded(one) for one in taken}
    return sorted(one for one in names if _folded(one) in folded)


def _folded(name: str) -> str:
    return re.sub(r"[\s._\-\[]", "_", unicodedata.normalize("NFKC", name).casefold().strip())


def _deep(name: str, value: Any, quoted: Quote) -> Iterator[str]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else None
    )
    if items is None:
        if value is not None:
            yield f"{name}={quoted(text(value))}"
        return
    for key, item in items:
        yield from _deep(f"{name}%5B{quote(str(key), safe='')}%5D", item, quoted)


def _quoted_name(name: str) -> str:
    return quote(name, safe="")


def _flat(value: Any, quoted: Quote) -> list[str]:
    """`R,100,G,200`, `blue,black` or `blue`, before it is joined."""
    if isinstance(value, dict):
        return [
            quoted(one)
            for name, item in value.items()
            if item is not None
            for one in (name, text(item))
        ]
    if isinstance(value, list):
        return [quoted(text(item)) for item in value if item is not None]
    return [quoted(text(value))]


def _exploded(value: Any, quoted: Quote) -> list[str]:
    """`R=100`, `G=200`; or as `_flat`."""
    if isinstance(value, dict):
        return [
            f"{quoted(name)}={quoted(text(item))}"
            for name, item in value.items()
            if item is not None
        ]
    return _flat(value, quoted)


def _named(name: str, value: Any, quoted: Quote, key_quoted: Quote) -> list[tuple[str, str]]:
    """Pairs: the members of an object, or the name with each item."""
    if isinstance(value, dict):
        return [
            (key_quoted(key), quoted(text(item)))
            for key, member in value.items()
            for item in _several(member)
        ]
    return [(_quoted_name(name), quoted(text(item))) for item in _items(value)]


def _several(member: Any) -> list[Any]:
    """What a member of an exploded object is written as: a list of plain values is repeated, as one
    that is a parameter of its own."""
    is_plain = isinstance(member, list) and not any(isinstance(one, (list, dict)) for one in member)
    return _items(member) if is_plain else [member]


def _items(value: Any) -> list[Any]:
    return [one for one in (value if isinstance(value, list) else [value]) if one is not None]
