"""Calls of operations, which turn a plan and arguments into a request, and its answer into a result.

An index holds plans as JSON. The tool's schema has validated the arguments. This module ensures
that no value adds a path segment, a header line or a cookie.

Values are written in the styles of OpenAPI ("Style Values", after RFC 6570). Beyond that table:
lists and objects within objects are written in `deepObject` only, as `name[member][0]`; in other
styles a list or object inside another is JSON. An empty list or object is omitted.
"""

from __future__ import annotations

import asyncio
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, unquote_plus

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from roundgate import json
from roundgate.backends.http.bodies import (
    OCTETS,
    file_from_value,
    file_part,
    multipart,
    text_part,
    with_resources,
)
from roundgate.backends.http.exchanges import KEYED, for_caller, make_key, with_key
from roundgate.backends.http.messages import LARGE_BYTES, Answer, Outgoing, result_from_answer
from roundgate.backends.http.service import Service
from roundgate.backends.http.values import path_text, quoted, text
from roundgate.backends.openapi.config import OpenApiBackendConfig
from roundgate.errors import ToolError
from roundgate.protocol import ABSENT, Schema, ToolResult
from roundgate.replay import AnyContext, Context

Quote: TypeAlias = Callable[[str], str]
ParameterPlace: TypeAlias = Literal["path", "query", "header", "cookie", "querystring"]
Style: TypeAlias = Literal[
    "simple", "label", "matrix", "form", "spaceDelimited", "pipeDelimited", "deepObject", "cookie"
]
BodyKind: TypeAlias = Literal["json", "form", "multipart", "text", "binary"]

_RESERVED: Final = ":/?@!$'()*,"
"""The reserved characters that `allowReserved` leaves unencoded. No server treats any of them as
the start of a parameter or the end of the query."""
_DELIMITERS: Final = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}
_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")
_COOKIE_VALUE: Final = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e,]*")


class Parameter(Struct, frozen=True):
    """One parameter (OpenAPI "Parameter Object")."""

    argument: str
    """The parameter's name in the tool."""
    name: str
    """The parameter's name in the request."""
    place: ParameterPlace
    style: Style
    explode: bool = False
    reserved: bool = False
    """Whether to leave reserved characters unencoded: `_RESERVED` in a query, "/" in a path."""
    media_type: str | None = None
    """The format of the value of a parameter with `content`."""


class Member(Struct, frozen=True):
    """The encoding of one member of a form ("Encoding Object")."""

    style: Style = "form"
    explode: bool = True
    media_type: str | None = None
    """The media type of a multipart part. In a form, a media type makes objects and lists JSON."""
    is_file: bool = False


class Body(Struct, frozen=True):
    """A request body ("Request Body Object")."""

    kind: BodyKind
    media_type: str
    required: bool
    members: Mapping[str, str] | None = None
    """The members' names in the request, by argument; `None` if one argument is the whole body."""
    argument: str = "body"
    """The name of the argument that is the whole body."""
    encoding: Mapping[str, Member] = field(default_factory=dict)
    """The encoding of members, by their names in the request; the default is `Member()`."""


class Plan(Struct, frozen=True):
    """The plan of an operation's requests, without the values."""

    method: str
    path: str
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    accept: str = "*/*"
    query: str = ""
    """The fixed query of the path."""

    def kept(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        kept: dict[str, Any] = to_builtins(self)
        return kept

    @classmethod
    def revived(cls, kept: Mapping[str, Any]) -> Plan:
        """Restore a plan from the result of `kept`."""
        body = kept["body"]
        if body is not None:
            encoding = {name: Member(**member) for name, member in body["encoding"].items()}
            body = Body(**{**body, "encoding": encoding})
        parameters = tuple(Parameter(**parameter) for parameter in kept["parameters"])
        return cls(kept["method"], kept["path"], parameters, body, kept["accept"], kept["query"])


class Calling(Struct, frozen=True):
    """A function that calls one operation."""

    config: OpenApiBackendConfig
    name: str
    plan: Plan
    service: Service
    output: Schema | None
    taken: frozenset[str]
    """Query parameters and cookies that credentials use."""

    async def with_files(self, context: Context, arguments: dict[str, Any]) -> ToolResult:
        """Call an operation that may take files, which may be named by the URIs of resources."""
        return await self(context, await _read_resources(self.plan, arguments, context))

    async def __call__(self, context: AnyContext, arguments: dict[str, Any]) -> ToolResult:
        outgoing = for_caller(request(self.plan, arguments), self.config, context.principal)
        _check_taken(outgoing, self.taken)
        await context.continue_as_task()
        answer = await self._send(outgoing, context)
        about = {"upstream": self.config.name, "method": outgoing.method, "status": answer.status}
        await context.log("debug", about)
        if len(answer.body) > LARGE_BYTES:
            return await asyncio.to_thread(self._result, answer)
        return self._result(answer)

    async def _send(self, outgoing: Outgoing, context: AnyContext) -> Answer:
        config, method = self.config, outgoing.method
        key = await make_key(context, method, config.idempotency_key if method in KEYED else None)
        override = config.override.get(self.name)
        hint = None if override is None else override.idempotent
        is_repeatable = method not in KEYED if hint is None else hint
        keyed = with_key(replace(outgoing, is_repeatable=is_repeatable), key)
        return await self.service.send(keyed, config.timeout_s, context.deadline)

    def _result(self, answer: Answer) -> ToolResult:
        return result_from_answer(self.name, answer, "", self.output, lenient=True)


async def _read_resources(
    plan: Plan, arguments: dict[str, Any], context: Context
) -> dict[str, Any]:
    """Return the arguments with each file's resource URI replaced by the resource's contents.

    Raises:
        ToolError: a resource does not exist.
    """
    body = plan.body
    if body is None or body.kind not in ("multipart", "binary"):
        return arguments
    files = {name for name, member in body.encoding.items() if member.is_file}
    if body.members is not None:
        named = {file for file, name in body.members.items() if name in files} & arguments.keys()
        return arguments | {
            file: await with_resources(file, arguments[file], context) for file in named
        }
    if body.argument not in arguments:
        return arguments
    whole = arguments[body.argument]
    if body.kind == "binary":
        return {**arguments, body.argument: await with_resources(body.argument, whole, context)}
    read = {file: await with_resources(file, whole[file], context) for file in files & whole.keys()}
    return {**arguments, body.argument: {**whole, **read}}


def _check_taken(outgoing: Outgoing, taken: frozenset[str]) -> None:
    """Raise ToolError if a member of an exploded object has the name of a credential."""
    if not taken:
        return
    pairs = [*outgoing.query.split("&"), *outgoing.headers.get("cookie", "").split("; ")]
    if clashes := clashing({unquote_plus(pair.partition("=")[0]) for pair in pairs}, taken):
        raise ToolError(f"{', '.join(clashes)}: is reserved for the gateway; leave it out")


def request(plan: Plan, arguments: Mapping[str, Any]) -> Outgoing:
    """Build the request of a call.

    Raises:
        ToolError: a value is not allowed in its part of the request.
    """
    path_values: dict[str, str] = {}
    query = [plan.query] if plan.query else []
    headers = {"accept": plan.accept}
    cookies: list[str] = []
    for parameter in plan.parameters:
        value = arguments.get(parameter.argument)
        if value is None:
            if parameter.place == "path":
                raise _empty(parameter)
            continue
        media_type = parameter.media_type or ""
        if media_type == "application/json" or media_type.endswith("+json"):
            value = json.encode(value).decode()
        match parameter.place:
            case "path":
                path_values[parameter.name] = _path_value(parameter, value)
            case "query":
                _check_names(plan, parameter, value)
                write = _query_quote(reserved=parameter.reserved)
                query += in_query(parameter.name, value, parameter.style, parameter.explode, write)
            case "querystring":
                query.append(_whole_query(parameter, value))
            case "header":
                headers[parameter.name] = _header_value(parameter, value)
            case "cookie":
                _check_names(plan, parameter, value)
                cookies += _cookie_pairs(parameter, value)
    if cookies:
        headers["cookie"] = "; ".join(cookies)
    body: bytes | None = None
    if plan.body is not None:
        content = _body_value(plan.body, arguments)
        if content is not ABSENT:
            body, headers["content-type"] = encoded(plan.body, content)
    path = _VARIABLE.sub(lambda match: path_values[match[1]], plan.path)
    return Outgoing(plan.method, path, "&".join(query), headers, body, route=plan.path)


def _path_value(parameter: Parameter, value: Any) -> str:
    def write(item: str) -> str:
        return path_text(item, allow_slash=parameter.reserved)

    try:
        written = in_path(parameter.name, value, parameter.style, parameter.explode, write)
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
    """Raise ToolError if a member of an exploded object has the name of another parameter, which
    may be fixed or restricted by its schema."""
    others = {
        other.name
        for other in plan.parameters
        if other.place == parameter.place and other.name != parameter.name
    }
    if clashes := clashing(_exploded_names(value, parameter.style, parameter.explode), others):
        shown = ", ".join(clashes)
        raise ToolError(
            f"arguments.{parameter.argument}: move {shown} to the argument of that name"
        )


def _header_value(parameter: Parameter, value: Any) -> str:
    written = ",".join((_exploded if parameter.explode else _flat)(value, str))
    if not _HEADER_VALUE.fullmatch(written):
        raise ToolError(
            f"arguments.{parameter.argument}: is sent in an HTTP header and may contain only visible "
            "ASCII characters"
        )
    return written


def _cookie_pairs(parameter: Parameter, value: Any) -> list[str]:
    name, explode = parameter.name, parameter.explode
    if parameter.style != "cookie":
        return in_query(name, value, "form", explode, _query_quote())
    pairs = in_query(
        name, value, "form", explode, str
    )  # the style `cookie` of OpenAPI 3.2 does not encode
    if not all(_COOKIE_VALUE.fullmatch(pair) for pair in pairs):
        raise ToolError(
            f"arguments.{parameter.argument}: is sent in a cookie and may not contain blanks, quotes "
            "or ;"
        )
    return pairs


def _whole_query(parameter: Parameter, value: Any) -> str:
    if parameter.media_type == "application/x-www-form-urlencoded" and isinstance(value, dict):
        return encoded(Body("form", parameter.media_type, required=True), value)[0].decode()
    return _query_quote()(text(value))


def _body_value(body: Body, arguments: Mapping[str, Any]) -> Any:
    """Return the value of the body, or `ABSENT` if there is no body."""
    if body.members is None:
        return arguments.get(body.argument, ABSENT)
    members = {
        name: arguments[argument]
        for argument, name in body.members.items()
        if argument in arguments
    }
    return members if members or body.required else ABSENT


def encoded(body: Body, value: Any) -> tuple[bytes, str]:
    """Return the bytes of a body and their media type.

    Raises:
        ToolError: a file's base64 is invalid, or a member of an object in a form has the name of
            another member.
    """
    media_type = body.media_type
    match body.kind:
        case "json":
            return json.encode(value), media_type
        case "form":
            return _form(body, value).encode(), media_type
        case "multipart":
            parts = [
                part
                for name, item in value.items()
                for part in _parts(name, item, body.encoding.get(name, Member()))
            ]
            return multipart(parts, media_type.partition(";")[0])
        case "text":
            is_complete = "charset" in media_type.lower()
            return value.encode(), media_type if is_complete else f"{media_type}; charset=utf-8"
    file = file_from_value(body.argument, value)
    return file.data, file.media_type or OCTETS if "*" in media_type else media_type


def _form(body: Body, value: Mapping[str, Any]) -> str:
    pairs: list[str] = []
    names = value.keys() | set((body.members or {}).values())
    for name, item in value.items():
        member = body.encoding.get(name, Member())
        if member.media_type is not None and isinstance(item, (dict, list)):
            item = json.encode(item).decode()
        exploded_names = _exploded_names(item, member.style, member.explode)
        if clashes := clashing(exploded_names, names - {name}):
            raise ToolError(f"{name}: move {', '.join(clashes)} to the argument of that name")
        pairs += in_query(name, item, member.style, member.explode, _query_quote())
    return "&".join(pairs)


def _parts(name: str, value: Any, member: Member) -> Iterator[bytes]:
    media_type = (member.media_type or "").partition(",")[0].strip()
    single = None if "*" in media_type else media_type or None
    for item in _items(value):
        if member.is_file:
            yield file_part(name, file_from_value(name, item), single)
        elif isinstance(item, (dict, list)):
            yield text_part(name, json.encode(item), single or "application/json")
        else:
            yield text_part(name, text(item).encode(), single)


def _query_quote(*, reserved: bool = False) -> Quote:
    """Return the function that percent-encodes a value in a query, with or without `allowReserved`."""
    safe = _RESERVED if reserved else ""
    return lambda value: quote(value, safe=safe)


def in_path(name: str, value: Any, style: Style, explode: bool, write: Quote) -> str:
    """Return a value as text for a path.

    Args:
        name: the parameter's name.
        value: the argument's value.
        style: `simple`, `label` or `matrix`.
        explode: whether members of an array or object are written separately.
        write: the function that percent-encodes a value.
    """
    if style == "matrix":
        if explode:
            return "".join(f";{key}={item}" for key, item in _named(name, value, write, write))
        return f";{quoted(name)}={','.join(_flat(value, write))}"
    if style == "label":
        return "." + (
            ".".join(_exploded(value, write)) if explode else ",".join(_flat(value, write))
        )
    return ",".join(_exploded(value, write) if explode else _flat(value, write))


def in_query(name: str, value: Any, style: Style, explode: bool, write: Quote) -> list[str]:
    """Return a value as `name=value` pairs.

    Args:
        name: the parameter's name.
        value: the argument's value.
        style: a style of queries and forms; for cookies, `form`.
        explode: whether members of an array or object become separate parameters.
        write: the function that percent-encodes a value.
    """
    if value is None or value in ([], {}):
        return []
    if style == "deepObject":
        return list(_deep(quoted(name), value, write))
    if explode and style == "form":
        return [f"{element}={item}" for element, item in _named(name, value, write, quoted)]
    if explode and isinstance(value, list):  # exploded delimited styles are written as `form`
        return [f"{quoted(name)}={write(text(element))}" for element in value]
    return [f"{quoted(name)}={_DELIMITERS.get(style, ',').join(_flat(value, write))}"]


def _exploded_names(value: Any, style: Style, explode: bool) -> frozenset[str]:
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
    if isinstance(value, list):
        return [write(text(item)) for item in value if item is not None]
    return [write(text(value))]


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
        return [(quoted(name), write(text(item))) for item in _items(value)]
    return [
        (write_key(key), write(text(item)))
        for key, member in value.items()
        for item in (_items(member) if _is_plain(member) else [member])
    ]


def _is_plain(member: Any) -> bool:
    return isinstance(member, list) and not any(isinstance(item, (list, dict)) for item in member)


def _items(value: Any) -> list[Any]:
    return [item for item in (value if isinstance(value, list) else [value]) if item is not None]
