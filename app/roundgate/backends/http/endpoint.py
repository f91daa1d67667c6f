"""HTTP endpoints as tools: definitions, requests for calls, and results from answers.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, cast

from msgspec import Struct

from roundgate.backends.base import method_hints
from roundgate.backends.http.bodies import FILE, MEDIA_TYPES, Body, BodyKind, BodyTemplate, Member
from roundgate.backends.http.config import HttpArgument, HttpToolConfig
from roundgate.backends.http.credential_config import FRAMING, Taken, header_key
from roundgate.backends.http.messages import (
    Outgoing,
    ServiceAnswer,
    result_from_answer,
    with_doubt,
    with_headers,
)
from roundgate.backends.http.plan import Parameter, Place, RequestPlan
from roundgate.backends.http.values import ListStyle, header_schema, pairs
from roundgate.errors import BackendError
from roundgate.protocol import Schema, ToolResult, without_none

PATH_VARIABLE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
Location: TypeAlias = Literal["path", "query", "header", "body", "whole_body", "template"]
"""`body` means a member of the body, `whole_body` the body itself, and `template` the places where
the body's template names the argument."""


class Argument(Struct, frozen=True):
    """An argument and its place in the request."""

    name: str
    wire_name: str
    """The argument's name in the request."""
    location: Location
    config: HttpArgument

    @property
    def has_default(self) -> bool:
        return "default" in self.config.model_fields_set

    @property
    def is_certain(self) -> bool:
        """Return whether every request has a value for the argument."""
        return self.config.required or self.location == "path" or self.has_default

    @property
    def style(self) -> ListStyle:
        """The format of a list."""
        return self.config.list_ or ("json" if self.location in ("path", "header") else "repeat")

    @property
    def explodes(self) -> bool:
        """Return whether each item of a list has a name of its own."""
        return self.style in ("repeat", "brackets")

    def schema(self) -> dict[str, Any]:
        """Return the argument's schema in the tool's definition."""
        schema = self.config.schema_
        if self.config.file:
            is_list = schema.get("type") == "array"
            schema = {**schema, "items": dict(FILE)} if is_list else dict(FILE)
        schema = {**schema, **without_none(description=self.config.description)}
        if self.has_default:
            schema["default"] = self.config.default
        return header_schema(schema) if self.location == "header" else schema


class ToolEndpoint:
    """An endpoint of a service as a tool."""

    def __init__(self, config: HttpToolConfig, taken: Taken | None = None) -> None:
        """Read the declaration of a tool.

        Raises:
            ValueError: path, arguments, body and `taken` contradict each other, a default does not
                match its schema, or a schema is unusable.
        """
        self.config = config
        template = BodyTemplate(config.body) if isinstance(config.body, dict) else None
        self.arguments = _arguments(config, frozenset() if template is None else template.names)
        _check_path(config.path, self.arguments)
        _check_places(self.arguments, taken or Taken(FRAMING))
        _check_body(config, template, self.arguments)
        for argument in self.arguments:
            _check_default(argument)
        self._output = None
        if config.output_schema is not None:
            self._output = Schema.compile(config.output_schema)
        self.defaults = {
            argument.name: argument.config.default
            for argument in self.arguments
            if argument.has_default
        }
        """The values to send for omitted arguments, by argument name."""
        self.plan = RequestPlan(
            config.method,
            config.path,
            tuple(
                _parameter(argument)
                for argument in self.arguments
                if argument.location in ("path", "query", "header")
            ),
            _body(config, template, self.arguments),
            {name: value.get_secret_value() for name, value in config.headers.items()},
            "&".join(pair for name, value in config.query.items() for pair in pairs(name, value)),
            is_repeatable=self._is_repeatable,
            wants=tuple(name.lower() for name in config.result_headers.values()),
            max_bytes=config.max_response_bytes,
        )
        """The plan of the requests, without the defaults of arguments."""

    @cached_property
    def _is_repeatable(self) -> bool:
        """Return whether a request may be sent twice, according to the hints or the method (RFC
        9110 section 9.2.2)."""
        if self.config.idempotent is not None:
            return self.config.idempotent
        return self.config.read_only is True or self.config.method not in ("POST", "PATCH")

    def definition(self) -> dict[str, Any]:
        """Return the tool's definition (schema: `Tool`). Without a destructive hint, clients and
        the gateway assume that the tool is destructive (schema: `ToolAnnotations`)."""
        required = [
            argument.name
            for argument in self.arguments
            if argument.is_certain and not argument.has_default
        ]
        schema = {
            "type": "object",
            "properties": {argument.name: argument.schema() for argument in self.arguments},
            "required": required,
            "additionalProperties": False,
        }
        return self.config.definition(schema, method_hints(self.config.method))

    def request(self, arguments: Mapping[str, Any]) -> Outgoing:
        """Build the request for arguments that conform to the input schema.

        Raises:
            ToolError: a value is not allowed in a path or header, or is not a file.
        """
        return self.plan.request({**self.defaults, **arguments})

    def result(self, answer: ServiceAnswer) -> ToolResult:
        """Return the tool's result for an answer.

        Raises:
            BackendError: the answer is an error, or does not match the declared result.
        """
        name, pointer, members = self.config.name, self.config.result, self.config.result_headers
        try:
            if not members:
                return result_from_answer(name, answer, pointer, self._output)
            plain = result_from_answer(name, answer, pointer)
            return with_headers(plain, answer, members, self._output)
        except BackendError as error:
            if not self._is_repeatable:
                with_doubt(error)
            raise


def _arguments(config: HttpToolConfig, in_template: frozenset[str]) -> list[Argument]:
    """Return the arguments that the path implies, then the declared ones.

    Raises:
        ValueError: a fixed value contains an argument's name in braces, or a list in a path or
            header has the style `repeat` or `brackets`.
    """
    variables = PATH_VARIABLE.findall(config.path)
    usual: Location = "query" if config.method in ("GET", "HEAD", "DELETE") else "body"
    declared: list[Argument] = []
    for name, argument in config.arguments.items():
        wire_name = argument.wire_name or name
        location = argument.location
        if location is None and wire_name in variables:
            location = "path"
        if location in ("path", "header") and argument.list_ in ("repeat", "brackets"):
            raise ValueError(
                f"argument {name!r}: a list in a {location} is comma, pipe, space or json"
            )
        elsewhere: Location = "template" if name in in_template else usual
        declared.append(Argument(name, wire_name, location or elsewhere, argument))
    named = {item.wire_name for item in declared if item.location == "path"} | {*config.arguments}
    implied = [
        Argument(name, name, "path", HttpArgument())
        for name in dict.fromkeys(variables)
        if name not in named
    ]
    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    for place, fixed in (("header", headers), ("query", config.query)):
        _check_fixed(place, fixed, named | {*variables})
    return implied + declared


def _parameter(argument: Argument) -> Parameter:
    return Parameter(
        argument.name,
        argument.wire_name,
        cast("Place", argument.location),
        argument.style,
        argument.explodes,
        argument.config.allow_slash,
        sends_empty=argument.config.send_empty,
    )


def _body(
    config: HttpToolConfig, template: BodyTemplate | None, arguments: Sequence[Argument]
) -> Body | None:
    for argument in arguments:
        if argument.location == "whole_body":
            media_type = argument.config.content_type or config.content_type
            if argument.config.file:
                return Body("binary", media_type or "*/*", required=False, argument=argument.name)
            return Body("any", media_type or "", required=False, argument=argument.name)
    members = [argument for argument in arguments if argument.location == "body"]
    if not members and not config.fixed and template is None:
        return None
    kind = _body_kind(config)
    encoding = dict.fromkeys(config.fixed, Member("repeat"))
    for argument in members:
        encoding[argument.wire_name] = Member(
            argument.style,
            argument.explodes,
            argument.config.content_type if kind == "multipart" else None,
            argument.config.file,
            argument.config.send_empty,
        )
    return Body(
        kind,
        config.content_type or MEDIA_TYPES[kind],
        required=True,
        members={argument.name: argument.wire_name for argument in members},
        encoding=encoding,
        fixed=config.fixed,
        template=template,
    )


def _body_kind(config: HttpToolConfig) -> BodyKind:
    return "json" if isinstance(config.body, dict) else config.body


def _check_fixed(place: str, fixed: Mapping[str, str], arguments: Collection[str]) -> None:
    for name, value in fixed.items():
        if named := sorted({*PATH_VARIABLE.findall(value)} & {*arguments}):
            raise ValueError(
                f"{place} {name!r} is fixed, and {{{named[0]}}} would be sent unchanged; remove it. With"
                f" `kind: http` an argument is sent there if it has `in: {place}` and `as: {name}`"
            )


def _check_path(path: str, arguments: Sequence[Argument]) -> None:
    """Raise ValueError unless the variables of a path equal the path arguments."""
    if stray := re.search(r"[{}?#]", PATH_VARIABLE.sub("", path)):
        raise ValueError(
            f"path {path!r}: {stray[0]!r} is out of place; variables are {{name}}, queries go into query"
        )
    of_routers = [f":{argument.wire_name}" for argument in arguments]
    if stray_name := next(
        (argument for argument in path.split("/") if argument in of_routers), None
    ):
        raise ValueError(
            f"path {path!r}: {stray_name!r} is not a variable; write {{{stray_name[1:]}}}"
        )
    variables = PATH_VARIABLE.findall(path)
    names = {argument.wire_name for argument in arguments if argument.location == "path"}
    if names != set(variables):
        raise ValueError(
            f"path {path!r} needs {sorted(variables)}, but the arguments in path are {sorted(names)}"
        )


def _check_places(placed: Sequence[Argument], taken: Taken) -> None:
    """Raise ValueError if two arguments share a place, an argument uses a name that the gateway
    uses, or a header name is invalid."""
    first_names: dict[tuple[str, str], str] = {}
    for argument in placed:
        location, wire_name = argument.location, argument.wire_name
        is_header = location == "header"
        key = wire_name.lower() if is_header else wire_name
        if is_header and not _HEADER_NAME.fullmatch(wire_name):
            raise ValueError(
                f"argument {argument.name!r}: {wire_name!r} is not a header name; set `as`"
            )
        is_taken = is_header and header_key(wire_name) in taken.headers
        if is_taken or (location == "query" and wire_name in taken.query):
            raise ValueError(
                f"argument {argument.name!r}: the {location} {wire_name!r} is reserved for the gateway; set `as`"
            )
        if (location, key) in first_names:
            raise ValueError(
                f"arguments {first_names[location, key]!r} and {argument.name!r} are both {wire_name!r} in {location};"
                " set `as` of one of them"
            )
        first_names[location, key] = argument.name


def _check_body(
    config: HttpToolConfig, template: BodyTemplate | None, placed: Sequence[Argument]
) -> None:
    """Raise ValueError if the body's arguments contradict each other or the body."""
    whole = [argument for argument in placed if argument.location == "whole_body"]
    members = {argument.wire_name for argument in placed if argument.location == "body"}
    is_fixed = template is not None or bool(config.fixed)
    if len(whole) > 1 or (whole and (members or is_fixed)):
        raise ValueError(
            "whole_body is for one argument, and cannot be combined with other arguments in body"
        )
    top = config.fixed.keys() | (set() if template is None else template.members.keys())
    if twice := sorted(members & top):
        raise ValueError(
            f"{', '.join(twice)} is in the body already; set `as`, or remove it from the body"
        )
    if template is not None:
        _check_template(template, [argument.name for argument in placed])
    is_multipart = config.body == "multipart"
    if config.content_type is not None and is_multipart:
        raise ValueError(
            "content_type cannot be used with a multipart body, whose parts have their own"
        )
    for argument in placed:
        is_part = argument.location == "body" and is_multipart
        if argument.config.file and argument.location != "whole_body" and not is_part:
            raise ValueError(
                f"argument {argument.name!r}: a file must be the whole body, or a member with `body: multipart`"
            )


def _check_template(template: BodyTemplate, names: Sequence[str]) -> None:
    if unknown := sorted(template.names - set(names)):
        raise ValueError(
            f"body needs {', '.join(unknown)}, which is not an argument; declare it under arguments,"
            " or write {{ for a brace"
        )
    if odd := next((name for name in names if template.mentions(name)), None):
        raise ValueError(
            f"body has {{{odd}}}, but variables have only letters, digits, _ . and -; rename the"
            " argument, or write {{ for a brace"
        )


def _check_default(argument: Argument) -> None:
    if not argument.has_default:
        return
    if problems := Schema.compile(argument.schema()).problems(argument.config.default, "default"):
        raise ValueError(f"argument {argument.name!r}: {'; '.join(problems)}")
