"""From a plan and arguments to a request: no I/O.

The arguments have been checked against the tool's schema. What the schema cannot say is checked
here: a path keeps its segments, a header its line, a cookie its pair.

Values are written in a style as the specification's own table has it (OpenAPI "Style Values", after
RFC 6570). Beyond that table: lists and objects within objects are written in `deepObject` only, as
`name[member][0]`; elsewhere a list or object inside another is JSON. An empty list or object is
left out, where it would be nothing or half a pair.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from roundgate import json
from roundgate.backends.http.files import OCTETS, file_of
from roundgate.backends.http.lists import text
from roundgate.backends.http.messages import Outgoing
from roundgate.backends.http.multipart import file_part, multipart, text_part
from roundgate.backends.http.paths import path_text
from roundgate.backends.openapi.plan import Body, Member, Parameter, Plan, Style
from roundgate.errors import ToolError
from roundgate.protocol import ABSENT

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


def encoded(body: Body, value: Any) -> tuple[bytes, str]:
    """The bytes of a body and their media type.

    Raises:
        ToolError: a file's base64 is none, or an object in a form has a name that another member
            has.
    """
    match body.kind:
        case "json":
            return json.encode(value), body.media_type
        case "form":
            return _form(body, value).encode(), body.media_type
        case "multipart":
            return _multipart(body, value)
        case "text":
            return value.encode(), _with_charset(body.media_type)
    file = file_of(body.argument, value)
    named = "*" not in body.media_type
    return file.data, body.media_type if named else file.media_type or OCTETS


def _with_charset(media_type: str) -> str:
    return media_type if "charset" in media_type.lower() else f"{media_type}; charset=utf-8"


def _form(body: Body, value: Mapping[str, Any]) -> str:
    quoted = query_quote(reserved=False)
    pairs: list[str] = []
    known = value.keys() | set((body.members or {}).values())
    for name, item in value.items():
        how = body.encoding.get(name, Member())
        if how.media_type is not None and isinstance(item, (dict, list)):
            item = json.encode(item).decode()
        brought = names_of(item, how.style, how.explode)
        if found := clashing(brought, known - {name}):
            raise ToolError(f"{name}: {', '.join(found)} is an argument of its own")
        pairs += in_query(name, item, how.style, how.explode, quoted)
    return "&".join(pairs)


def _multipart(body: Body, value: Mapping[str, Any]) -> tuple[bytes, str]:
    parts = [
        part
        for name, item in value.items()
        for part in _parts(name, item, body.encoding.get(name, Member()))
    ]
    return multipart(parts, body.media_type.partition(";")[0])


def _parts(name: str, value: Any, how: Member) -> Iterator[bytes]:
    for item in value if isinstance(value, list) else [value]:
        if item is None:
            continue
        if how.is_file:
            yield file_part(name, file_of(name, item), _single(how.media_type))
        elif isinstance(item, (dict, list)):
            kind = _single(how.media_type) or "application/json"
            yield text_part(name, json.encode(item), kind)
        else:
            yield text_part(name, text(item).encode(), _single(how.media_type))


def _single(media_type: str | None) -> str | None:
    """A media type, if one is named and not a choice of several."""
    first = (media_type or "").partition(",")[0].strip()
    return None if not first or "*" in first else first


_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")
_COOKIE_VALUE: Final = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e,]*")


def request(plan: Plan, arguments: Mapping[str, Any]) -> Outgoing:
    """The request of a call.

    Raises:
        ToolError: a value cannot stand where it has to go.
    """
    path_values: dict[str, str] = {}
    query: list[str] = []
    headers = {"accept": plan.accept}
    cookies: list[str] = []
    for parameter in plan.parameters:
        value = arguments.get(parameter.argument)
        if value is None:
            if parameter.place == "path":
                raise _empty(parameter)
            continue
        if parameter.media_type is not None:
            value = _written(parameter.media_type, value)
        match parameter.place:
            case "path":
                path_values[parameter.name] = _in_path(parameter, value)
            case "query":
                _check_names(plan, parameter, value)
                quoted = query_quote(parameter.reserved)
                query += in_query(parameter.name, value, parameter.style, parameter.explode, quoted)
            case "querystring":
                query.append(_whole_query(parameter, value))
            case "header":
                headers[parameter.name] = _in_header(parameter, value)
            case "cookie":
                _check_names(plan, parameter, value)
                cookies += _in_cookies(parameter, value)
    if cookies:
        headers["cookie"] = "; ".join(cookies)
    body: bytes | None = None
    if plan.body is not None:
        sent = _body(plan.body, arguments)
        if sent is not ABSENT:
            body, headers["content-type"] = encoded(plan.body, sent)
    path = _VARIABLE.sub(lambda found: path_values[found[1]], plan.path)
    return Outgoing(plan.method, path, [], headers, body, "&".join(query))


def _written(media_type: str, value: Any) -> Any:
    is_json = media_type == "application/json" or media_type.endswith("+json")
    return json.encode(value).decode() if is_json else value


def _in_path(parameter: Parameter, value: Any) -> str:
    def quoted(one: str) -> str:
        return path_text(one, allow_slash=parameter.reserved)

    try:
        written = in_path(parameter.name, value, parameter.style, parameter.explode, quoted)
    except ValueError as error:
        raise ToolError(f"arguments.{parameter.argument}: {error}") from None
    if value in ([], {}) or written in ("", ".", ".."):
        raise _empty(parameter)
    return written


def _empty(parameter: Parameter) -> ToolError:
    return ToolError(
        f"arguments.{parameter.argument}: may not be empty, because it is part of a path"
    )


def _check_names(plan: Plan, parameter: Parameter, value: Any) -> None:
    """An object that is exploded brings names of its own, of which none may be that of another
    parameter: that one may be fixed, or bounded by its schema.

    Raises:
        ToolError
    """
    others = {
        one.name
        for one in plan.parameters
        if one.place == parameter.place and one.name != parameter.name
    }
    brought = names_of(value, parameter.style, parameter.explode)
    if found := clashing(brought, others):
        shown = ", ".join(found)
        raise ToolError(f"arguments.{parameter.argument}: {shown} is an argument of its own")


def _in_header(parameter: Parameter, value: Any) -> str:
    written = in_header(value, parameter.explode)
    if not _HEADER_VALUE.fullmatch(written):
        raise ToolError(
            f"arguments.{parameter.argument}: goes into an HTTP header and may only have visible "
            "ASCII characters"
        )
    return written


def _in_cookies(parameter: Parameter, value: Any) -> list[str]:
    if parameter.style != "cookie":
        return in_query(
            parameter.name, value, "form", parameter.explode, query_quote(reserved=False)
        )
    # OpenAPI 3.2's own style: as the service reads it, not encoded
    pairs = in_query(parameter.name, value, "form", parameter.explode, str)
    if not all(_COOKIE_VALUE.fullmatch(pair) for pair in pairs):
        raise ToolError(
            f"arguments.{parameter.argument}: goes into a cookie and may not have blanks, quotes "
            "or ;"
        )
    return pairs


def _whole_query(parameter: Parameter, value: Any) -> str:
    if parameter.media_type == "application/x-www-form-urlencoded" and isinstance(value, dict):
        return encoded(Body("form", parameter.media_type, required=True), value)[0].decode()
    return query_quote(reserved=False)(text(value))


def _body(body: Body, arguments: Mapping[str, Any]) -> Any:
    """What is sent as the body, before it is written; `ABSENT` for none."""
    if body.members is None:
        return arguments.get(body.argument, ABSENT)
    members = {
        name: arguments[argument]
        for argument, name in body.members.items()
        if argument in arguments
    }
    return members if members or body.required else ABSENT
