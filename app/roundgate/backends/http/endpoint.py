"""An endpoint of an HTTP service as a tool: what it looks like, the request for a
call, the result of an answer.

Plain values and no I/O. Who describes it is another matter: gateway.yaml
(`roundgate.backends.http.declared`), or a document of the service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from roundgate.backends.http.answers import result_of, with_headers
from roundgate.backends.http.arguments import (
    PATH_VARIABLE,
    Argument,
    Taken,
    check_body,
    check_places,
)
from roundgate.backends.http.lists import in_header, in_path, pairs, text
from roundgate.backends.http.messages import Answer, Outgoing
from roundgate.backends.http.paths import path_text
from roundgate.backends.http.writing import BodyPlan, Member, body_of, whole_body
from roundgate.errors import ToolError
from roundgate.protocol import ABSENT, Schema, ToolResult, without_none

_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
Method: TypeAlias = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint.

    Raises:
        ValueError: path and arguments contradict each other or what is
            taken, or a schema is unusable.
    """

    name: str
    description: str
    method: Method
    path: str
    """Below the service's base URL; `{name}` stands for a path argument, by
    its name in the request."""
    arguments: Sequence[Argument] = ()
    title: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Fixed request headers."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Fixed query parameters."""
    body: BodyPlan = field(default_factory=BodyPlan)
    """How body arguments are sent."""
    pointer: str = ""
    """JSON Pointer to the part of a JSON answer that is the result."""
    output_schema: Mapping[str, Any] | None = None
    read_only: bool | None = None
    """`readOnlyHint`; `None`: what the method says. So for the next two."""
    destructive: bool | None = None
    idempotent: bool | None = None
    taken: Taken = field(default_factory=Taken)
    result_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of an answer, by the members of the result that they become."""
    max_bytes: int | None = None
    """Of an answer; `None`: what holds for the back end."""
    _output: Schema | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        variables = PATH_VARIABLE.findall(self.path)
        if stray := re.search(r"[{}?#]", PATH_VARIABLE.sub("", self.path)):
            raise ValueError(
                f"path {self.path!r}: {stray[0]!r} is out of place; variables are {{name}}, queries go into query"
            )
        of_routers = [f":{one.wire_name}" for one in self.arguments]
        if stray_name := next((one for one in self.path.split("/") if one in of_routers), None):
            raise ValueError(
                f"path {self.path!r}: {stray_name!r} is no variable; write {{{stray_name[1:]}}}"
            )
        check_places(self.arguments, self.taken)
        in_path = {argument.wire_name for argument in self.arguments if argument.location == "path"}
        if in_path != set(variables):
            raise ValueError(
                f"path {self.path!r} needs {sorted(variables)}, but the arguments in path are {sorted(in_path)}"
            )
        check_body(self.body, self.arguments)
        if self.output_schema is not None:
            object.__setattr__(self, "_output", Schema.compile(self.output_schema))

    def _destructive_hint(self) -> bool | None:
        """`None` where nobody said: clients take that for true, and so do we (schema:
        `ToolAnnotations`)."""
        if self.destructive is not None:
            return self.destructive
        return {"GET": False, "HEAD": False, "DELETE": True}.get(self.method)

    def definition(self) -> dict[str, Any]:
        """The schema's `Tool`."""
        safe = self.method in ("GET", "HEAD")
        hints = {
            "readOnlyHint": safe if self.read_only is None else self.read_only,
            **without_none(destructiveHint=self._destructive_hint()),
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
        properties = {
            argument.name: {
                **argument.schema,
                **without_none(description=argument.description),
                **({} if argument.default is ABSENT else {"default": argument.default}),
            }
            for argument in self.arguments
        }
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
        """What is sent where a call does not have it, by argument."""
        return {
            argument.name: argument.default
            for argument in self.arguments
            if argument.default is not ABSENT
        }

    def request(self, arguments: Mapping[str, Any]) -> Outgoing:
        """Place arguments that conform to the input schema.

        Raises:
            ToolError: a value cannot stand where it has to go.
        """
        arguments = {**self.defaults, **arguments}
        given = [(one, arguments[one.name]) for one in self.arguments if one.name in arguments]
        path = self.path
        headers = dict(self.headers)
        query, raw_query = list(self.query.items()), list[str]()
        for placed, value in given:
            if placed.location == "path":
                path = path.replace(f"{{{placed.wire_name}}}", _path_text(placed, value))
            elif placed.location == "header" and value is not None:  # it cannot say null
                headers[placed.wire_name] = _header_value(placed, value)
            elif placed.location == "query" and placed.style == "repeat" and value != []:
                query.extend(_pairs(placed.wire_name, value))
            elif placed.location == "query":
                name, style = placed.wire_name, placed.style
                raw_query += pairs(name, value, style, sends_empty=placed.sends_empty)
        body, content_type = self._body(given, arguments)
        if content_type is not None and "content-type" not in map(str.lower, headers):
            headers["content-type"] = content_type
        return Outgoing(
            self.method,
            path,
            query,
            headers,
            body,
            "&".join(raw_query),
            is_repeatable=self._is_repeatable(),
            wants=tuple(name.lower() for name in self.result_headers.values()),
            max_bytes=self.max_bytes,
        )

    def _body(
        self, given: Sequence[tuple[Argument, Any]], arguments: Mapping[str, Any]
    ) -> tuple[bytes | None, str | None]:
        for one, value in given:
            if one.location == "whole_body":
                return whole_body(one.name, value, is_file=one.is_file, media_type=one.content_type)
        takes_any = any(one.location == "body" for one in self.arguments)
        if not takes_any and not self.body.is_always_sent:
            return None, None
        members = [
            Member(
                one.wire_name,
                one.name,
                value,
                one.style,
                one.sends_empty,
                one.is_file,
                one.content_type,
            )
            for one, value in given
            if one.location == "body"
        ]
        return body_of(self.body, members, arguments)

    def _is_repeatable(self) -> bool:
        """Whether a request may be sent twice: what the hints say, else what the method
        means (RFC 9110 9.2.2)."""
        if self.idempotent is not None:
            return self.idempotent
        return self.read_only is True or self.method not in ("POST", "PATCH")

    def result(self, answer: Answer) -> ToolResult:
        """The tool's result for an answer.

        Raises:
            BackendError: the answer is an error, or not what the declaration promises.
        """
        if not self.result_headers:
            return result_of(self.name, answer, self.pointer, self._output)
        plain = result_of(self.name, answer, self.pointer)
        return with_headers(plain, answer, self.result_headers, self._output)


def _pairs(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A value in a query: a list repeats the name, and null, which it cannot say, is left out."""
    for one in value if isinstance(value, list) else (value,):
        if one is not None:
            yield name, text(one)


def _path_text(placed: Argument, value: Any) -> str:
    def written(one: str) -> str:
        return path_text(one, allow_slash=placed.allow_slash)

    try:
        return in_path(value, placed.style, written)
    except ValueError as error:
        raise ToolError(f"arguments.{placed.name}: {error}") from None


def _header_value(placed: Argument, value: Any) -> str:
    try:
        written = in_header(value, placed.style)
    except ValueError as error:
        raise ToolError(f"arguments.{placed.name}: {error}") from None
    if not _HEADER_VALUE.fullmatch(written):
        raise ToolError(
            f"arguments.{placed.name}: goes into an HTTP header and may only have visible ASCII characters"
        )
    return written
