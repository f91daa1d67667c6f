"""Argument values as text: in a query, form, header, cookie or path.

Styles of lists in declared endpoints; an object is JSON in each of them:

    repeat     a=1&a=2          comma     a=1,2          pipe     a=1%7C2
    brackets   a[]=1&a[]=2      json      a=[1,2]        space    a=1%202

Styles of OpenAPI ("Style Values", after RFC 6570). Beyond that table: lists and objects within
objects are written in `deepObject` only, as `name[member][0]`; in other styles a list or object
inside another is JSON. An empty list or object is omitted.

Items are percent-encoded, separators are written as shown. A header is not percent-encoded, so the
gateway refuses an item of a declared list in a header that contains the separator.

Percent-encoding a "/" in a path does not make it harmless. Many servers and proxies decode the path
before they split it, some twice, and then `/public/..%2Fsecret` is `/secret` (CWE-22). The gateway
therefore refuses such a value.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from roundgate import json

Quote: TypeAlias = Callable[[str], str]
ListStyle: TypeAlias = Literal["repeat", "comma", "pipe", "space", "brackets", "json"]
OpenApiStyle: TypeAlias = Literal[
    "simple", "label", "matrix", "form", "spaceDelimited", "pipeDelimited", "deepObject", "cookie"
]
Style: TypeAlias = ListStyle | OpenApiStyle
LIST_STYLES: Final = frozenset({"repeat", "comma", "pipe", "space", "brackets", "json"})
_SEPARATORS: Final = {"pipe": "|", "pipeDelimited": "|", "space": " ", "spaceDelimited": " "}
"""The separators of items other than the comma."""
_IN_URL: Final = {",": ",", "|": "%7C", " ": "%20"}
_RESERVED: Final = ":/?@!$'()*,"
"""The reserved characters that `allowReserved` leaves unencoded. No server treats any of them as
the start of a parameter or the end of the query."""
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


def quoted_reserved(value: str) -> str:
    """Percent-encode a value in a query with `allowReserved`."""
    return quote(value, safe=_RESERVED, errors="replace")


def pairs(
    name: str,
    value: Any,
    style: Style = "repeat",
    *,
    explode: bool = True,
    write: Quote = quoted,
    sends_empty: bool = False,
) -> list[str]:
    """Return the percent-encoded `name=value` pairs of a value in a query, form or cookie.

    Args:
        name: the name in the request.
        value: the value; null, and null in a list, is omitted.
        style: a style of queries and forms; for cookies, `form`.
        explode: whether members of an array or object become separate parameters.
        write: the function that percent-encodes a value.
        sends_empty: whether to send `name=` for an empty list, instead of nothing.
    """
    if value is None:
        return []
    value = _plain(value, style)
    if not isinstance(value, (dict, list)):
        return [f"{quoted(name)}={write(text(value))}"]
    if style == "deepObject":
        return list(_deep(quoted(name), value, write))
    key = quoted(f"{name}[]" if style == "brackets" else name)
    if not value or (isinstance(value, list) and not items(value)):
        return [f"{key}="] if sends_empty else []
    if explode and isinstance(value, list):  # exploded delimited styles are written as `form`
        return [f"{key}={write(text(item))}" for item in items(value)]
    if explode and style == "form":
        return [f"{member}={item}" for member, item in _named(name, value, write, quoted)]
    return [f"{key}={_url_separator(style).join(_flat(value, write))}"]


def in_path(name: str, value: Any, style: Style, explode: bool, write: Quote) -> str:
    """Return a value as text for a path.

    Args:
        name: the parameter's name.
        value: the argument's value.
        style: `simple`, `label`, `matrix`, or the style of a declared list.
        explode: whether members of an array or object are written separately.
        write: the function that percent-encodes a value.
    """
    value = _plain(value, style)
    if style == "matrix":
        if explode:
            return "".join(f";{key}={item}" for key, item in _named(name, value, write, write))
        return f";{quoted(name)}={','.join(_flat(value, write))}"
    if style == "label":
        return "." + (
            ".".join(_exploded(value, write)) if explode else ",".join(_flat(value, write))
        )
    written = _exploded(value, write) if explode else _flat(value, write)
    return _url_separator(style).join(written)


def in_header(value: Any, style: Style, explode: bool) -> str:
    """Return a value as text for a header. Raise ValueError if an item of a declared list contains
    the separator."""
    value = _plain(value, style)
    written = (_exploded if explode else _flat)(value, str)
    separator = separator_of(style)
    if isinstance(value, list) and style in LIST_STYLES and any(separator in i for i in written):
        raise ValueError(f"an item may not have {separator!r}, which separates the items")
    return separator.join(written)


def header_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an argument in a header, which says that only ASCII can be sent."""
    description = f"{schema.get('description') or ''}\nOnly visible ASCII characters and blanks."
    return {**schema, "description": description.strip()}


def separator_of(style: Style) -> str:
    """Return the separator of the items of a list in this style."""
    return _SEPARATORS.get(style, ",")


def items(value: Any) -> list[Any]:
    """Return the items of a list, or the value as the only item, without null."""
    return [item for item in (value if isinstance(value, list) else [value]) if item is not None]


def exploded_names(value: Any, style: Style, explode: bool) -> frozenset[str]:
    """Return the names under which an exploded object is sent, instead of its parameter's name."""
    is_flat = explode and style in ("form", "cookie") and isinstance(value, dict)
    return frozenset(value) if is_flat else frozenset()


def clashing(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Return the members of `names` that a service may confuse with a name in `taken`. Many
    services ignore case, and PHP turns dots and blanks into `_`."""
    folded = {_folded(name) for name in taken}
    return sorted(name for name in names if _folded(name) in folded)


def _folded(name: str) -> str:
    return re.sub(r"[\s._\-\[]", "_", unicodedata.normalize("NFKC", name).casefold().strip())


def _plain(value: Any, style: Style) -> Any:
    """Return an object of a declared endpoint, and a list in the style `json`, as JSON."""
    if style in LIST_STYLES and (isinstance(value, dict) or style == "json"):
        return text(value)
    return value


def _url_separator(style: Style) -> str:
    return _IN_URL[separator_of(style)]


def _deep(name: str, value: Any, write: Quote) -> Iterator[str]:
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _deep(f"{name}%5B{quoted(str(key))}%5D", item, write)
    elif value is not None:
        yield f"{name}={write(text(value))}"


def _flat(value: Any, write: Quote) -> list[str]:
    """Return the encoded items of an unexploded value: an object's names and values in turn, a
    list's items, or one text."""
    if isinstance(value, dict):
        return [
            write(part)
            for name, item in value.items()
            if item is not None
            for part in (name, text(item))
        ]
    return [write(text(item)) for item in items(value)]


def _exploded(value: Any, write: Quote) -> list[str]:
    """Return the encoded items of an exploded value: `R=100`, `G=200` for an object, otherwise as
    `_flat`."""
    if isinstance(value, dict):
        return [
            f"{write(name)}={write(text(item))}" for name, item in value.items() if item is not None
        ]
    return _flat(value, write)


def _named(name: str, value: Any, write: Quote, write_key: Quote) -> list[tuple[str, str]]:
    """Return the pairs of a name and a value: an object's members, or `name` with each item. A list
    of plain values in an object becomes several pairs, like a list parameter."""
    if not isinstance(value, dict):
        return [(quoted(name), write(text(item))) for item in items(value)]
    return [
        (write_key(key), write(text(item)))
        for key, member in value.items()
        for item in (items(member) if _is_plain(member) else [member])
    ]


def _is_plain(member: Any) -> bool:
    return isinstance(member, list) and not any(isinstance(item, (list, dict)) for item in member)


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
