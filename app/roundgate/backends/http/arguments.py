"""The arguments of an endpoint and their places in its requests, and what cannot be placed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from roundgate.backends.http.lists import ListStyle
from roundgate.backends.http.writing import BodyPlan
from roundgate.protocol import ABSENT, Schema

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

Location: TypeAlias = Literal["path", "query", "header", "body", "whole_body", "template"]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument and its place in the request."""

    name: str
    location: Location
    """`body` is a member of the body, `whole_body` the body itself, `template` wherever the
    body's template has it."""
    wire_name: str
    """Its name in the request."""
    schema: Mapping[str, Any]
    required: bool = False
    """Whether a call needs it; a path argument always is."""
    allow_slash: bool = False
    """Whether a path argument may be several segments."""
    description: str | None = None
    default: Any = ABSENT
    """What is sent where a call does not have it."""
    style: ListStyle = "repeat"
    """Of a list; in a path or header the first and `brackets` are JSON."""
    sends_empty: bool = False
    is_file: bool = False
    content_type: str | None = None
    """Of its part, or of the whole body."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Names in a request that no argument may have, because something else has them."""

    headers: frozenset[str] = FRAMING
    """In small letters."""
    query: frozenset[str] = frozenset()


def check_places(placed: Sequence[Argument], taken: Taken) -> None:
    """Do nothing if each argument has a place of its own, and none is the gateway's.

    Raises:
        ValueError
    """
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


def check_body(plan: BodyPlan, placed: Sequence[Argument]) -> None:
    """Do nothing if a body can be made of these arguments.

    Raises:
        ValueError: they contradict each other, or the plan.
    """
    whole = [one for one in placed if one.location == "whole_body"]
    members = {one.wire_name for one in placed if one.location == "body"}
    if len(whole) > 1 or (whole and (members or plan.is_always_sent)):
        raise ValueError("whole_body is for one argument, and leaves no room for others in body")
    template = plan.template
    top = set(plan.fixed) | (set() if template is None else set(template.members))
    if twice := sorted(members & top):
        raise ValueError(
            f"{', '.join(twice)} stands in the body already; set `as`, or remove it there"
        )
    known = {one.name for one in placed}
    if template is not None and (unknown := sorted(template.names - known)):
        raise ValueError(
            f"body needs {', '.join(unknown)}, which is no argument; declare it under arguments,"
            " or write {{ for a brace"
        )
    odd = [] if template is None else [one.name for one in placed if template.mentions(one.name)]
    if odd:
        raise ValueError(
            f"body has {{{odd[0]}}}, and variables have letters, digits, _ . and - alone; call the argument"
            " so, or write {{ for a brace"
        )
    if plan.content_type is not None and plan.kind == "multipart":
        raise ValueError("content_type is not for a multipart body, whose parts have their own")
    for one in placed:
        _check_way(one, plan)
        _check_default(one)


def _check_way(one: Argument, plan: BodyPlan) -> None:
    if one.is_file and not (
        one.location == "whole_body" or (one.location == "body" and plan.kind == "multipart")
    ):
        raise ValueError(
            f"argument {one.name!r}: a file is the whole body, or a member with `body: multipart`"
        )


def _check_default(argument: Argument) -> None:
    if argument.default is ABSENT:
        return
    problems = Schema.compile(argument.schema).problems(argument.default, "default")
    if problems:
        raise ValueError(f"argument {argument.name!r}: {'; '.join(problems)}")
