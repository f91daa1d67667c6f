"""From a plan and arguments to a request: no I/O.

The arguments have been checked against the tool's schema. What the schema cannot say is checked
here: a path keeps its segments, a header its line, a cookie its pair.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from roundgate import json
from roundgate.backends.http.lists import text
from roundgate.backends.http.messages import Outgoing
from roundgate.backends.http.paths import path_text
from roundgate.backends.openapi import bodies, styles
from roundgate.backends.openapi.plan import Body, Parameter, Plan
from roundgate.errors import ToolError
from roundgate.protocol import ABSENT

_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")
_HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?)?")
_COOKIE_VALUE: Final = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e,]*")


def request(plan: Plan, arguments: Mapping[str, Any]) -> Outgoing:
    """The request of a call.

    Raises:
        ToolError: a value cannot stand where it has to go.
    """
    in_path: dict[str, str] = {}
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
                in_path[parameter.name] = _in_path(parameter, value)
            case "query":
                _check_names(plan, parameter, value)
                quoted = styles.query_quote(parameter.reserved)
                query += styles.in_query(
                    parameter.name, value, parameter.style, parameter.explode, quoted
                )
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
            body, headers["content-type"] = bodies.encoded(plan.body, sent)
    path = _VARIABLE.sub(lambda found: in_path[found[1]], plan.path)
    return Outgoing(plan.method, path, [], headers, body, "&".join(query))


def _written(media_type: str, value: Any) -> Any:
    is_json = media_type == "application/json" or media_type.endswith("+json")
    return json.encode(value).decode() if is_json else value


def _in_path(parameter: Parameter, value: Any) -> str:
    def quoted(one: str) -> str:
        return path_text(one, allow_slash=parameter.reserved)

    try:
        written = styles.in_path(parameter.name, value, parameter.style, parameter.explode, quoted)
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
    brought = styles.names_of(value, parameter.style, parameter.explode)
    if found := styles.clashing(brought, others):
        shown = ", ".join(found)
        raise ToolError(f"arguments.{parameter.argument}: {shown} is an argument of its own")


def _in_header(parameter: Parameter, value: Any) -> str:
    written = styles.in_header(value, parameter.explode)
    if not _HEADER_VALUE.fullmatch(written):
        raise ToolError(
            f"arguments.{parameter.argument}: goes into an HTTP header and may only have visible "
            "ASCII characters"
        )
    return written


def _in_cookies(parameter: Parameter, value: Any) -> list[str]:
    if parameter.style != "cookie":
        return styles.in_query(
            parameter.name, value, "form", parameter.explode, styles.query_quote(reserved=False)
        )
    # OpenAPI 3.2's own style: as the service reads it, not encoded
    pairs = styles.in_query(parameter.name, value, "form", parameter.explode, str)
    if not all(_COOKIE_VALUE.fullmatch(pair) for pair in pairs):
        raise ToolError(
            f"arguments.{parameter.argument}: goes into a cookie and may not have blanks, quotes "
            "or ;"
        )
    return pairs


def _whole_query(parameter: Parameter, value: Any) -> str:
    if parameter.media_type == "application/x-www-form-urlencoded" and isinstance(value, dict):
        return bodies.encoded(Body("form", parameter.media_type, required=True), value)[0].decode()
    return styles.query_quote(reserved=False)(text(value))


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
