"""Plans of requests: the place and format of each argument of a declared endpoint, or of an
operation of OpenAPI.

The tool's schema has validated the arguments. This module ensures that no value adds a path
segment, a header line or a cookie. It does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from roundgate import json
from roundgate.backends.http.bodies import Body
from roundgate.backends.http.messages import Outgoing
from roundgate.backends.http.values import (
    Style,
    clashing,
    exploded_names,
    in_header,
    in_path,
    pairs,
    path_text,
    quoted,
    quoted_reserved,
    text,
)
from roundgate.errors import ToolError
from roundgate.protocol import ABSENT

Place: TypeAlias = Literal["path", "query", "header", "cookie", "querystring"]
_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_COOKIE_VALUE: Final = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e,]*")


class Parameter(Struct, frozen=True):
    """One argument outside the body (OpenAPI "Parameter Object")."""

    argument: str
    """The parameter's name in the tool."""
    name: str
    """The parameter's name in the request."""
    place: Place
    style: Style
    explode: bool = False
    reserved: bool = False
    """Whether to leave reserved characters unencoded: those of `allowReserved` in a query, "/" in a
    path."""
    media_type: str | None = None
    """The format of the value of a parameter with `content`."""
    sends_empty: bool = False
    """Whether a query has `name=` for an empty list, instead of nothing."""

    @property
    def is_json(self) -> bool:
        """Return whether the parameter's content is JSON."""
        media_type = self.media_type
        return media_type is not None and (
            media_type == "application/json" or media_type.endswith("+json")
        )


class RequestPlan(Struct, frozen=True):
    """The plan of a tool's requests, without the values."""

    method: str
    path: str
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    headers: Mapping[str, str] = {}
    """Fixed headers."""
    query: str = ""
    """The fixed query, percent-encoded."""
    is_repeatable: bool = False
    """Whether sending a request twice changes no more than sending it once."""
    wants: tuple[str, ...] = ()
    """The lower-case names of the answer's headers that become part of the result."""
    max_bytes: int | None = None
    """The limit for the answer in bytes; `None` means the back end's limit."""

    @property
    def may_have_files(self) -> bool:
        """Return whether a request may have a file."""
        return self.body is not None and (self.body.kind == "binary" or bool(self.body.files))

    def request(self, arguments: Mapping[str, Any]) -> Outgoing:
        """Build the request of a call.

        Raises:
            ToolError: a value is not allowed in its part of the request, or is not a file.
        """
        path_values: dict[str, str] = {}
        query = [self.query] if self.query else []
        headers = dict(self.headers)
        cookies: list[str] = []
        for parameter in self.parameters:
            value = arguments.get(parameter.argument)
            if value is None:  # only a body can express null
                if parameter.place == "path":
                    raise _empty(parameter)
                continue
            if parameter.is_json:
                value = json.encode(value).decode()
            match parameter.place:
                case "path":
                    path_values[parameter.name] = _path_value(parameter, value)
                case "query":
                    self._check_names(parameter, value)
                    query += pairs(
                        parameter.name,
                        value,
                        parameter.style,
                        explode=parameter.explode,
                        write=quoted_reserved if parameter.reserved else quoted,
                        sends_empty=parameter.sends_empty,
                    )
                case "header":
                    headers[parameter.name] = _header_value(parameter, value)
                case "cookie":
                    self._check_names(parameter, value)
                    cookies += _cookie_pairs(parameter, value)
                case "querystring":
                    query.append(_whole_query(parameter, value))
        if cookies:
            headers["cookie"] = "; ".join(cookies)
        body: bytes | None = None
        if self.body is not None and (content := self.body.content(arguments)) is not ABSENT:
            body, content_type = self.body.encoded(content)
            if "content-type" not in map(str.lower, headers):
                headers["content-type"] = content_type
        path = self.path
        if path_values:
            path = _VARIABLE.sub(lambda match: path_values[match[1]], path)
        return Outgoing(
            self.method,
            path,
            "&".join(query),
            headers,
            body,
            is_repeatable=self.is_repeatable,
            wants=self.wants,
            max_bytes=self.max_bytes,
            route=self.path,
        )

    def _check_names(self, parameter: Parameter, value: Any) -> None:
        """Raise ToolError if a member of an exploded object has the name of another parameter,
        which may be fixed or restricted by its schema."""
        if not (names := exploded_names(value, parameter.style, parameter.explode)):
            return
        others = {
            other.name
            for other in self.parameters
            if other.place == parameter.place and other.name != parameter.name
        }
        if clashes := clashing(names, others):
            shown = ", ".join(clashes)
            raise ToolError(
                f"arguments.{parameter.argument}: move {shown} to the argument of that name"
            )


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


def _header_value(parameter: Parameter, value: Any) -> str:
    try:
        written = in_header(value, parameter.style, parameter.explode)
    except ValueError as error:
        raise ToolError(f"arguments.{parameter.argument}: {error}") from None
    is_allowed = _HEADER_VALUE.fullmatch(written) or (parameter.style == "simple" and not written)
    if not is_allowed:
        raise ToolError(
            f"arguments.{parameter.argument}: is sent in an HTTP header and may contain only visible "
            "ASCII characters"
        )
    return written


def _cookie_pairs(parameter: Parameter, value: Any) -> list[str]:
    name, explode = parameter.name, parameter.explode
    if parameter.style != "cookie":
        return pairs(name, value, "form", explode=explode)
    # the style `cookie` of OpenAPI 3.2 does not encode
    written = pairs(name, value, "form", explode=explode, write=str)
    if not all(_COOKIE_VALUE.fullmatch(pair) for pair in written):
        raise ToolError(
            f"arguments.{parameter.argument}: is sent in a cookie and may not contain blanks, quotes "
            "or ;"
        )
    return written


def _whole_query(parameter: Parameter, value: Any) -> str:
    if parameter.media_type == "application/x-www-form-urlencoded" and isinstance(value, dict):
        return Body("form", parameter.media_type, required=True).encoded(value)[0].decode()
    return quoted(text(value))
