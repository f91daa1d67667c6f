"""HTTP endpoints as tools: definitions, requests for calls, and results from answers.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from roundgate.backends.http.bodies import Argument, BodyPlan, encode_body, whole_body
from roundgate.backends.http.credential_config import FRAMING, Taken, header_key
from roundgate.backends.http.messages import (
    Answer,
    Outgoing,
    doubted,
    result_from_answer,
    with_headers,
)
from roundgate.backends.http.values import header_schema, in_header, in_path, pairs, path_text
from roundgate.errors import ToolError
from roundgate.protocol import ABSENT, Schema, ToolResult, without_none

PATH_VARIABLE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
Method: TypeAlias = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


class Endpoint(Struct, frozen=True, dict=True):
    """An endpoint of a service as a tool.

    Raises:
        ValueError: path, arguments, body and `taken` contradict each other, a default does not
            match its schema, or a schema is unusable.
    """

    name: str
    description: str
    method: Method
    path: str
    """The path below the service's base URL. `{name}` stands for the path argument with that wire
    name."""
    arguments: Sequence[Argument] = ()
    title: str | None = None
    headers: Mapping[str, str] = {}
    """Fixed request headers."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Fixed query parameters."""
    body: BodyPlan = field(default_factory=BodyPlan)
    pointer: str = ""
    """JSON Pointer to the part of a JSON answer that is the result."""
    output_schema: Mapping[str, Any] | None = None
    read_only: bool | None = None
    """`readOnlyHint`; `None` derives it from the method."""
    destructive: bool | None = None
    """`destructiveHint`; `None` derives it from the method."""
    idempotent: bool | None = None
    """`idempotentHint`; `None` derives it from the method."""
    taken: Taken = field(default_factory=lambda: Taken(FRAMING))
    result_headers: Mapping[str, str] = field(default_factory=dict)
    """Header names of the answer, by the members of the result that they become."""
    max_bytes: int | None = None
    """The limit for an answer in bytes; `None` means the back end's limit."""

    def __post_init__(self) -> None:
        _check_path(self.path, self.arguments)
        _check_places(self.arguments, self.taken)
        _check_body(self.body, self.arguments)
        for argument in self.arguments:
            _check_default(argument)
        _ = self._output  # refuses an unusable schema

    def __repr__(self) -> str:
        return f"Endpoint({self.name!r}, {self.method!r}, {self.path!r})"

    @cached_property
    def _output(self) -> Schema | None:
        return None if self.output_schema is None else Schema.compile(self.output_schema)

    def definition(self) -> dict[str, Any]:
        """Return the tool's definition (schema: `Tool`). Without a destructive hint, clients and
        the gateway assume that the tool is destructive (schema: `ToolAnnotations`)."""
        safe = self.method in ("GET", "HEAD")
        destructive = self.destructive
        if destructive is None:
            destructive = {"GET": False, "HEAD": False, "DELETE": True}.get(self.method)
        hints = {
            "readOnlyHint": safe if self.read_only is None else self.read_only,
            **without_none(destructiveHint=destructive),
            "idempotentHint": self.method not in ("POST", "PATCH")
            if self.idempotent is None
            else self.idempotent,
            "openWorldHint": True,
        }
        return {
            "name": self.name,
            **without_none(title=self.title),
            "description": self.description,
            "inputSchema": self._input_schema(),
            **without_none(outputSchema=self.output_schema),
            "annotations": hints,
        }

    def _input_schema(self) -> dict[str, Any]:
        properties = {argument.name: _member(argument) for argument in self.arguments}
        required = [
            a.name
            for a in self.arguments
            if (a.required or a.location == "path") and a.default is ABSENT
        ]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    @property
    def defaults(self) -> dict[str, Any]:
        """The values to send for omitted arguments, by argument name."""
        return {
            argument.name: argument.default
            for argument in self.arguments
            if argument.default is not ABSENT
        }

    def request(self, arguments: Mapping[str, Any]) -> Outgoing:
        """Build the request for arguments that conform to the input schema.

        Raises:
            ToolError: a value is not allowed in a path or header, or is not a file.
        """
        arguments = {**self.defaults, **arguments}
        placed = [
            (argument, arguments[argument.name])
            for argument in self.arguments
            if argument.name in arguments
        ]
        path = self.path
        headers = dict(self.headers)
        query = self.fixed_query()
        for argument, value in placed:
            match argument.location:
                case "path":
                    path = path.replace(f"{{{argument.wire_name}}}", _path_value(argument, value))
                case "header" if value is not None:  # a header cannot express null
                    headers[argument.wire_name] = _header_value(argument, value)
                case "query":
                    query += pairs(
                        argument.wire_name, value, argument.style, sends_empty=argument.sends_empty
                    )
        body, content_type = self._body(placed, arguments)
        if content_type is not None and "content-type" not in map(str.lower, headers):
            headers["content-type"] = content_type
        return Outgoing(
            self.method,
            path,
            "&".join(query),
            headers,
            body,
            is_repeatable=self._is_repeatable(),
            wants=tuple(name.lower() for name in self.result_headers.values()),
            max_bytes=self.max_bytes,
            route=self.path,
        )

    def fixed_query(self) -> list[str]:
        """Return the fixed query parameters as `name=value`."""
        return [pair for name, value in self.query.items() for pair in pairs(name, value)]

    def _body(
        self, placed: Sequence[tuple[Argument, Any]], arguments: Mapping[str, Any]
    ) -> tuple[bytes | None, str | None]:
        for argument, value in placed:
            if argument.location == "whole_body":
                return whole_body(argument, value)
        takes_any = any(argument.location == "body" for argument in self.arguments)
        if not takes_any and not self.body.is_always_sent:
            return None, None
        members = [(argument, value) for argument, value in placed if argument.location == "body"]
        return encode_body(self.body, members, arguments)

    def _is_repeatable(self) -> bool:
        """Return whether a request may be sent twice, according to the hints or the method (RFC
        9110 section 9.2.2)."""
        if self.idempotent is not None:
            return self.idempotent
        return self.read_only is True or self.method not in ("POST", "PATCH")

    def result(self, answer: Answer) -> ToolResult:
        """Return the tool's result for an answer.

        Raises:
            BackendError: the answer is an error, or does not match the declared result.
        """
        with doubted(not self._is_repeatable()):
            if not self.result_headers:
                return result_from_answer(self.name, answer, self.pointer, self._output)
            plain = result_from_answer(self.name, answer, self.pointer)
            return with_headers(plain, answer, self.result_headers, self._output)


def _member(argument: Argument) -> dict[str, Any]:
    schema = {
        **argument.schema,
        **without_none(description=argument.description),
        **({} if argument.default is ABSENT else {"default": argument.default}),
    }
    return header_schema(schema) if argument.location == "header" else schema


def _path_value(placed: Argument, value: Any) -> str:
    def write(item: str) -> str:
        return path_text(item, allow_slash=placed.allow_slash)

    try:
        return in_path(value, placed.style, write)
    except ValueError as error:
        raise ToolError(f"arguments.{placed.name}: {error}") from None


def _header_value(placed: Argument, value: Any) -> str:
    try:
        written = in_header(value, placed.style)
    except ValueError as error:
        raise ToolError(f"arguments.{placed.name}: {error}") from None
    if not _HEADER_VALUE.fullmatch(written):
        raise ToolError(
            f"arguments.{placed.name}: is sent in an HTTP header and may contain only visible ASCII characters"
        )
    return written


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


def _check_body(plan: BodyPlan, placed: Sequence[Argument]) -> None:
    """Raise ValueError if the body's arguments contradict each other or the plan."""
    whole = [argument for argument in placed if argument.location == "whole_body"]
    members = {argument.wire_name for argument in placed if argument.location == "body"}
    if len(whole) > 1 or (whole and (members or plan.is_always_sent)):
        raise ValueError(
            "whole_body is for one argument, and cannot be combined with other arguments in body"
        )
    template = plan.template
    top = set(plan.fixed) | (set() if template is None else set(template.members))
    if twice := sorted(members & top):
        raise ValueError(
            f"{', '.join(twice)} is in the body already; set `as`, or remove it from the body"
        )
    names = {argument.name for argument in placed}
    if template is not None and (unknown := sorted(template.names - names)):
        raise ValueError(
            f"body needs {', '.join(unknown)}, which is not an argument; declare it under arguments,"
            " or write {{ for a brace"
        )
    odd = (
        []
        if template is None
        else [argument.name for argument in placed if template.mentions(argument.name)]
    )
    if odd:
        raise ValueError(
            f"body has {{{odd[0]}}}, but variables have only letters, digits, _ . and -; rename the"
            " argument, or write {{ for a brace"
        )
    if plan.content_type is not None and plan.kind == "multipart":
        raise ValueError(
            "content_type cannot be used with a multipart body, whose parts have their own"
        )
    for argument in placed:
        is_part = argument.location == "body" and plan.kind == "multipart"
        if argument.is_file and argument.location != "whole_body" and not is_part:
            raise ValueError(
                f"argument {argument.name!r}: a file must be the whole body, or a member with `body: multipart`"
            )


def _check_default(argument: Argument) -> None:
    if argument.default is ABSENT:
        return
    if problems := Schema.compile(argument.schema).problems(argument.default, "default"):
        raise ValueError(f"argument {argument.name!r}: {'; '.join(problems)}")
