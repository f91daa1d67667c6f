"""How a call of one operation becomes a request: plain values that an index holds as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

Place: TypeAlias = Literal["path", "query", "header", "cookie", "querystring"]
Style: TypeAlias = Literal[
    "simple", "label", "matrix", "form", "spaceDelimited", "pipeDelimited", "deepObject", "cookie"
]
BodyKind: TypeAlias = Literal["json", "form", "multipart", "text", "binary"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter (OpenAPI "Parameter Object")."""

    argument: str
    """The tool's name of it."""
    name: str
    """The service's."""
    place: Place
    style: Style
    explode: bool = False
    reserved: bool = False
    """Whether what RFC 3986 reserves may stand, as far as it cannot begin another parameter;
    in a path that is "/"."""
    media_type: str | None = None
    """What the value is written as before it is placed, for one with `content`."""


@dataclass(frozen=True, slots=True)
class Member:
    """How one member of a form is written ("Encoding Object")."""

    style: Style = "form"
    explode: bool = True
    media_type: str | None = None
    """JSON, where it is not written in a style; in multipart, what its part says it is."""
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class Body:
    """A request body ("Request Body Object")."""

    kind: BodyKind
    media_type: str
    required: bool
    members: Mapping[str, str] | None = None
    """Arguments that are its members, with the service's names; `None`: the
    argument `body` is all of it."""
    argument: str = "body"
    encoding: Mapping[str, Member] = field(default_factory=dict)
    """By the service's names; those that are not in it are written as their kind has it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A request but for the values."""

    method: str
    path: str
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    accept: str = "*/*"

    def kept(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def revived(cls, kept: Mapping[str, Any]) -> Plan:
        """From what `kept` returned."""
        body = kept["body"]
        if body is not None:
            encoding = {name: Member(**member) for name, member in body["encoding"].items()}
            body = Body(**{**body, "encoding": encoding})
        parameters = tuple(Parameter(**one) for one in kept["parameters"])
        return cls(kept["method"], kept["path"], parameters, body, kept["accept"])
