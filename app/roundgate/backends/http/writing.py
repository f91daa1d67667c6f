"""Bodies of requests: JSON, forms, multipart, and a text or a file that is all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from roundgate import json
from roundgate.backends.http.files import OCTETS, file_of
from roundgate.backends.http.lists import SEPARATORS, ListStyle, pairs, text
from roundgate.backends.http.multipart import file_part, multipart, text_part
from roundgate.backends.http.template import Template

BodyKind: TypeAlias = Literal["json", "form", "multipart"]
_FORM: Final = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """How a body is made of members."""

    kind: BodyKind = "json"
    content_type: str | None = None
    """Instead of the usual one of its kind."""
    template: Template | None = None
    """Of a JSON body: where arguments stand in it."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Members that are always sent."""

    @property
    def is_always_sent(self) -> bool:
        """Whether there is one without arguments, too."""
        return self.template is not None or bool(self.fixed)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a body, with what its argument says of how it is written."""

    name: str
    argument: str
    value: Any
    style: ListStyle = "repeat"
    sends_empty: bool = False
    is_file: bool = False
    content_type: str | None = None


def body_of(
    plan: BodyPlan, members: Sequence[Member], arguments: Mapping[str, Any]
) -> tuple[bytes, str]:
    """The bytes of a body and their media type.

    Args:
        plan: of the body.
        members: arguments that are members of it.
        arguments: of the call, for the template.

    Raises:
        ToolError: a file is none.
    """
    fixed = [Member(name, name, value) for name, value in plan.fixed.items()]
    match plan.kind:
        case "form":
            written = [pair for one in (*fixed, *members) for pair in _pairs(one)]
            return "&".join(written).encode(), plan.content_type or _FORM
        case "multipart":
            return multipart([part for one in (*fixed, *members) for part in _parts(one)])
    made = {} if plan.template is None else plan.template.filled(arguments)
    made = {**made, **plan.fixed, **{one.name: one.value for one in members}}
    return json.encode(made), plan.content_type or "application/json"


def whole_body(
    argument: str, value: Any, *, is_file: bool, media_type: str | None
) -> tuple[bytes, str]:
    """A body that is one argument: a file's bytes, a text as it stands, or JSON.

    Args:
        argument: its name.
        value: its value.
        is_file: whether it is a file.
        media_type: what it is; `None`: what the value says.

    Raises:
        ToolError: a file is none.
    """
    if is_file:
        file = file_of(argument, value)
        return file.data, media_type or file.media_type or OCTETS
    if isinstance(value, str):
        return value.encode("utf-8", "replace"), _with_charset(media_type or "text/plain")
    return json.encode(value), media_type or "application/json"


def _with_charset(media_type: str) -> str:
    is_text = media_type.lower().startswith("text/") and "charset" not in media_type.lower()
    return f"{media_type}; charset=utf-8" if is_text else media_type


def _pairs(member: Member) -> list[str]:
    return pairs(member.name, member.value, member.style, sends_empty=member.sends_empty)


def _parts(member: Member) -> Iterator[bytes]:
    value = member.value
    if (
        isinstance(value, list)
        and not member.is_file
        and member.style not in ("repeat", "brackets")
    ):
        yield _text_part(member, _joined(member))
        return
    for one in value if isinstance(value, list) else [value]:
        if one is None:
            continue
        if member.is_file:
            yield file_part(member.name, file_of(member.argument, one), member.content_type)
        else:
            yield _text_part(
                member, one, "[]" if member.style == "brackets" and one is not value else ""
            )


def _joined(member: Member) -> Any:
    if member.style not in SEPARATORS:  # json
        return member.value
    return SEPARATORS[member.style].join(text(one) for one in member.value if one is not None)


def _text_part(member: Member, value: Any, behind: str = "") -> bytes:
    """Objects and lists are JSON, and say so."""
    usual = "application/json" if isinstance(value, (dict, list)) else None
    data = text(value).encode("utf-8", "replace")
    return text_part(member.name + behind, data, member.content_type or usual)
