"""An endpoint of an HTTP service as a tool: what it looks like, the request for a call, the result of an answer.

Plain values and no I/O. Who describes it is another matter: gateway.yaml (`roundgate.backends.http.declared`), or a
document of the service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from roundgate import json
from roundgate.backends.http.answers import result_of
from roundgate.backends.http.messages import Answer, Outgoing
from roundgate.backends.http.paths import path_text
from roundgate.errors import ToolError
from roundgate.protocol import ABSENT, Schema, ToolResult, without_none

FRAMING: Final = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "keep-alive",
        "expect",
    }
)
"""Headers that say where a request goes and where it ends, which no argument may decide."""
PATH_VARIABLE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")

Location: TypeAlias = Literal["path", "query", "header", "body", "whole_body"]
Method: TypeAlias = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument and its place in the request."""

    name: str
    location: Location
    """`body` is a member of the JSON or form body, `whole_body` the body itself."""
    wire_name: str
    """Its name in the request."""
    schema: Mapping[str, Any]
    required: bool = False
    """Whether a call needs it; a path argument always is."""
    allow_slash: bool = False
    """Whether a path argument may be several segments."""
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """Names in a request that no argument may have, because something else has them."""

    headers: frozenset[str] = FRAMING
    """In small letters."""
    query: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint.

    Raises:
        ValueError: path and arguments contradict each other or what is taken, or a schema is unusable.
    """

    name: str
    description: str
    method: Method
    path: str
    """Below the service's base URL; `{name}` stands for a path argument, by its name in the request."""
    arguments: Sequence[Argument] = ()
    title: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Fixed request headers."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Fixed query parameters."""
    body: Literal["json", "form"] = "json"
    """How body arguments are sent."""
    pointer: str = ""
    """JSON Pointer to the part of a JSON answer that is the result."""
    output_schema: Mapping[str, Any] | None = None
    read_only: bool | None = None
    """`readOnlyHint`; `None`: what the method says. So for the next two."""
    destructive: bool | None = None
    idempotent: bool | None = None
    taken: Taken = Taken()
    max_bytes: int | None = None
    """Of an answer; `None`: what holds for the back end."""
    _output: Schema | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        variables = PATH_VARIABLE.findall(self.path)
        if stray := re.search(r"[{}?#]", PATH_VARIABLE.sub("", self.path)):
            raise ValueError(
                f"path {self.path!r}: {stray[0]!r} is out of place; variables are {{name}}, queries go into query"
            )
        _check_places(self.arguments, self.taken)
        in_path = {argument.wire_name for argument in self.arguments if argument.location == "path"}
        if in_path != set(variables):
            raise ValueError(
                f"path {self.path!r} needs {sorted(variables)}, but the arguments in path are {sorted(in_path)}"
            )
        whole = [argument for argument in self.arguments if argument.location == "whole_body"]
        if len(whole) > 1 or (
            whole and any(argument.location == "body" for argument in self.arguments)
        ):
            raise ValueError(
                "whole_body is for one argument, and leaves no room for others in body"
            )
        if self.output_schema is not None:
            object.__setattr__(self, "_output", Schema.compile(self.output_schema))

    def _destructive_hint(self) -> bool | None:
        """`None` where nobody said: clients take that for true, and so do we (schema: `ToolAnnotations`)."""
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
            argument.name: {**argument.schema, **without_none(description=argument.description)}
            for argument in self.arguments
        }
        required = [a.name for a in self.arguments if a.required or a.location == "path"]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def request(self, arguments: Mapping[str, Any]) -> Outgoing:
        """Place arguments that conform to the input schema.

        Raises:
            ToolError: a value cannot stand where it has to go.
        """
        path = self.path
        query = list(self.query.items())
        headers = dict(self.headers)
        members: dict[str, Any] = {}
        whole: Any = ABSENT
        for placed in self.arguments:
            if placed.name not in arguments:
                continue
            value = arguments[placed.name]
            if value is None and placed.location == "header":
                continue  # it cannot say null
            match placed.location:
                case "path":
                    path = path.replace(f"{{{placed.wire_name}}}", _path_text(placed, value))
                case "query":
                    query.extend(_pairs(placed.wire_name, value))
                case "header":
                    headers[placed.wire_name] = _header_value(placed.name, value)
                case "body":
                    members[placed.wire_name] = value
                case _:
                    whole = value
        body, content_type = self._body(members, whole)
        return Outgoing(
            self.method,
            path,
            query,
            headers | content_type,
            body,
            is_repeatable=self._is_repeatable(),
            max_bytes=self.max_bytes,
        )

    def _is_repeatable(self) -> bool:
        """Whether a request may be sent twice: what the hints say, else what the method means (RFC 9110 9.2.2)."""
        if self.idempotent is not None:
            return self.idempotent
        return self.read_only is True or self.method not in ("POST", "PATCH")

    def _body(self, members: dict[str, Any], whole: Any) -> tuple[bytes | None, dict[str, str]]:
        if isinstance(whole, str):
            return whole.encode(), {"content-type": "text/plain; charset=utf-8"}
        if whole is not ABSENT:
            return json.encode(whole), {"content-type": "application/json"}
        if not any(argument.location == "body" for argument in self.arguments):
            return None, {}
        if self.body == "form":
            pairs = [pair for name, value in members.items() for pair in _pairs(name, value)]
            return urlencode(pairs, quote_via=quote, safe="").encode(), {
                "content-type": "application/x-www-form-urlencoded"
            }
        return json.encode(members), {"content-type": "application/json"}

    def result(self, answer: Answer) -> ToolResult:
        """The tool's result for an answer.

        Raises:
            BackendError: the answer is an error, or not what the declaration promises.
        """
        return result_of(self.name, answer, self.pointer, self._output)


def _check_places(placed: Sequence[Argument], taken: Taken) -> None:
    seen: dict[tuple[str, str], str] = {}
    for argument in placed:
        wire_name = argument.wire_name
        if argument.location == "header" and not _HEADER_NAME.fullmatch(wire_name):
            raise ValueError(
                f"argument {argument.name!r}: {wire_name!r} is not a header name; set `as`"
            )
        if (argument.location == "header" and wire_name.lower() in taken.headers) or (
            argument.location == "query" and wire_name in taken.query
        ):
            raise ValueError(
                f"argument {argument.name!r}: the {argument.location} {wire_name!r} is the gateway's own; set `as`"
            )
        place = (
            argument.location,
            wire_name.lower() if argument.location == "header" else wire_name,
        )
        if place in seen:
            raise ValueError(
                f"arguments {seen[place]!r} and {argument.name!r} are both {wire_name!r} in {place[0]}"
            )
        seen[place] = argument.name


def _pairs(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A value in a query or form: a list repeats the name, and null, which neither can say, is left out."""
    for one in value if isinstance(value, list) else (value,):
        if one is not None:
            yield name, _text(one)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.encode(value).decode()


def _path_text(placed: Argument, value: Any) -> str:
    try:
        return path_text(_text(value), allow_slash=placed.allow_slash)
    except ValueError as error:
        raise ToolError(f"arguments.{placed.name}: {error}") from None


def _header_value(name: str, value: Any) -> str:
    text = _text(value)
    if not _HEADER_VALUE.fullmatch(text):
        raise ToolError(
            f"arguments.{name}: goes into an HTTP header and may only have visible ASCII characters"
        )
    return text
