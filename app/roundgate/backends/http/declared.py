"""From a tool in gateway.yaml to an endpoint: where each argument goes, what the
configuration has taken."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from roundgate.backends.http.arguments import FRAMING, PATH_VARIABLE, Argument, Location, Taken
from roundgate.backends.http.config import (
    HttpArgument,
    HttpBackendConfig,
    HttpToolConfig,
    ServiceConfig,
)
from roundgate.backends.http.endpoint import Endpoint
from roundgate.backends.http.files import FILE
from roundgate.backends.http.template import Template
from roundgate.backends.http.writing import BodyPlan
from roundgate.errors import Problem
from roundgate.protocol import ABSENT
from roundgate.settings import Origin


def endpoint_of(tool: HttpToolConfig, taken: Taken | None = None) -> Endpoint:
    """The endpoint that a tool declares.

    Raises:
        ValueError: see `Endpoint`.
    """
    variables = PATH_VARIABLE.findall(tool.path)
    template = Template(tool.body) if isinstance(tool.body, dict) else None
    placed = frozenset() if template is None else template.names
    given = [
        _argument(name, argument, variables, tool, placed)
        for name, argument in tool.arguments.items()
    ]
    known = {
        argument.wire_name for argument in given if argument.location == "path"
    } | tool.arguments.keys()
    implied = [name for name in dict.fromkeys(variables) if name not in known]
    headers = {name: value.get_secret_value() for name, value in tool.headers.items()}
    _check_fixed("header", headers, known | set(implied))
    _check_fixed("query", tool.query, known | set(implied))
    return Endpoint(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        method=tool.method,
        path=tool.path,
        arguments=(
            *(_argument(name, HttpArgument(), variables, tool, placed) for name in implied),
            *given,
        ),
        headers=headers,
        query=tool.query,
        body=BodyPlan(
            "json" if isinstance(tool.body, dict) else tool.body,
            tool.content_type,
            template,
            tool.fixed,
        ),
        pointer=tool.result,
        output_schema=tool.output_schema,
        read_only=tool.read_only,
        destructive=tool.destructive,
        idempotent=tool.idempotent,
        taken=taken or Taken(),
        result_headers=tool.result_headers,
        max_bytes=tool.max_response_bytes,
    )


def remarks(
    config: HttpBackendConfig, origin: Origin, fetched: Mapping[str, bytes]
) -> list[Problem]:
    """Return a remark for each path variable that no argument describes although the tool describes
    others: often a misspelt name. Nothing is fetched."""
    found: list[Problem] = []
    for number, tool in enumerate(config.tools):
        described = tool.arguments.keys() | {
            one.wire_name for one in tool.arguments.values() if one.wire_name is not None
        }
        for name in dict.fromkeys(PATH_VARIABLE.findall(tool.path)):
            if tool.arguments and name not in described:
                near = get_close_matches(name, tool.arguments, 1, cutoff=0.5)
                meant = f"is {near[0]!r} meant? " if near else ""
                found.append(
                    origin.at("tools", number, "path").problem(
                        f"no argument fills {{{name}}}: the tool has one more, a text {name!r} without a description",
                        f"{meant}give the argument that name, or describe {name!r} in `arguments`",
                    )
                )
    return found


def _check_fixed(place: str, fixed: Mapping[str, Any], arguments: Collection[str]) -> None:
    """Raises ValueError: a fixed value has the name of an argument in braces, which
    stands for nothing there."""
    for name, value in fixed.items():
        named = set(PATH_VARIABLE.findall(value)) if isinstance(value, str) else set()
        if found := sorted(named & set(arguments)):
            raise ValueError(
                f"{place} {name!r} is fixed, and {{{found[0]}}} would be sent as it stands; remove it, and give the"
                f" argument `in: {place}` and `as: {name}`"
            )


def taken_by(service: ServiceConfig, tool: HttpToolConfig) -> Taken:
    """What the credential, fixed headers and fixed query parameters have."""
    credential = service.credential
    fixed = {name.lower() for name in (*service.headers, *tool.headers)}
    if credential is None:
        return Taken(FRAMING | fixed, frozenset(tool.query))
    return Taken(
        FRAMING | credential.headers() | fixed, credential.queries() | frozenset(tool.query)
    )


def _argument(
    name: str,
    argument: HttpArgument,
    variables: list[str],
    tool: HttpToolConfig,
    in_template: frozenset[str],
) -> Argument:
    wire_name = argument.wire_name or name
    location = argument.location or _usual_location(name, wire_name, variables, tool, in_template)
    if location in ("path", "header") and argument.list_ in ("repeat", "brackets"):
        raise ValueError(f"argument {name!r}: a list in a {location} is comma, pipe, space or json")
    return Argument(
        name=name,
        location=location,
        wire_name=wire_name,
        schema=_schema(argument),
        required=argument.required,
        allow_slash=argument.allow_slash,
        description=argument.description,
        default=argument.default if "default" in argument.model_fields_set else ABSENT,
        style=argument.list_ or ("json" if location in ("path", "header") else "repeat"),
        sends_empty=argument.send_empty,
        is_file=argument.file,
        content_type=argument.content_type
        or (tool.content_type if location == "whole_body" else None),
    )


def _schema(argument: HttpArgument) -> dict[str, Any]:
    if not argument.file:
        return argument.schema_
    if argument.schema_.get("type") == "array":
        return {**argument.schema_, "items": dict(FILE)}
    return dict(FILE)


def _usual_location(
    name: str,
    wire_name: str,
    variables: list[str],
    tool: HttpToolConfig,
    in_template: frozenset[str],
) -> Location:
    if wire_name in variables:
        return "path"
    if name in in_template:
        return "template"
    return "query" if tool.method in ("GET", "HEAD", "DELETE") else "body"
