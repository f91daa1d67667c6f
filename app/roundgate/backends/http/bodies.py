"""Request bodies: JSON, forms, multipart, texts and files.

A JSON body may be a template, in which `{name}` stands for an argument:

    customer: {id: "{customer_id}"}      ─▶  {"customer": {"id": 7}}              the value, of whatever type
    title: "Order for {name}"            ─▶  {"title": "Order for Ada"}           inside a text, as text
    braces: "{{name}}"                   ─▶  {"braces": "{name}"}

A member without its argument is omitted, and so is an object or list that becomes empty.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct, field

from roundgate import json
from roundgate.backends.http.values import SEPARATORS, ListStyle, pairs, text
from roundgate.errors import InvalidParams, ResourceNotFound, ToolError, Unavailable
from roundgate.protocol import (
    ABSENT,
    ResourceContents,
    TextResourceContents,
    base64_text,
    without_none,
)
from roundgate.replay import Context, run_of

Location: TypeAlias = Literal["path", "query", "header", "body", "whole_body", "template"]
BodyKind: TypeAlias = Literal["json", "form", "multipart"]

OCTETS: Final = "application/octet-stream"
FILE: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "base64": {"type": "string", "description": "The file's bytes in base64."},
        "text": {"type": "string", "description": "The file's text, instead of base64."},
        "resource": {
            "type": "string",
            "description": "URI of a resource of this server, instead of base64 or text.",
        },
        "file_name": {"type": "string", "maxLength": 255},
        "media_type": {
            "type": "string",
            "pattern": "^[A-Za-z0-9!#$&^_.+-]{1,80}/[A-Za-z0-9!#$&^_.+-]{1,80}$",
        },
    },
    "oneOf": [{"required": [source]} for source in ("base64", "text", "resource")],
    "additionalProperties": False,
}
"""The JSON Schema of a file argument."""
_VARIABLE: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_WHOLE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_BRACES: Final = {"{{": "{", "}}": "}"}
_ENDS_A_NAME: Final = re.compile(r'[\x00-\x1f"\x7f]')


class Argument(Struct, frozen=True):
    """An argument and its place in the request."""

    name: str
    location: Location
    """`body` means a member of the body, `whole_body` the body itself, and `template` the places
    where the body's template names the argument."""
    wire_name: str
    """The argument's name in the request."""
    schema: Mapping[str, Any]
    required: bool = False
    """Whether a call must have the argument. Path arguments are always required."""
    allow_slash: bool = False
    """Whether a path argument may span several segments."""
    description: str | None = None
    default: Any = ABSENT
    """The value to send if the call omits the argument."""
    style: ListStyle = "repeat"
    """The format of a list. In a path or header, `repeat` and `brackets` are written as JSON."""
    sends_empty: bool = False
    is_file: bool = False
    content_type: str | None = None
    """The media type of the argument's part, or of the whole body."""


class Template(Struct, frozen=True):
    """A JSON body with variables."""

    members: Mapping[str, Any]

    @property
    def names(self) -> frozenset[str]:
        """Names of the arguments that the template uses."""
        return frozenset(name for template in _texts(self.members) for name in _names(template))

    def mentions(self, name: str) -> bool:
        """Return whether a text contains the name in braces although it is not a valid variable
        name, so that the braces would be sent unchanged."""
        return _WHOLE.fullmatch(f"{{{name}}}") is None and any(
            f"{{{name}}}" in template.replace("{{", "").replace("}}", "")
            for template in _texts(self.members)
        )

    def filled(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body with the arguments in place of the variables."""
        body = _filled(self.members, arguments)
        return {} if body is ABSENT else body


def _names(value: str) -> list[str]:
    return [match[1] for match in _VARIABLE.finditer(value) if match[1]]


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


def _filled(value: Any, arguments: Mapping[str, Any]) -> Any:
    match value:
        case str():
            return _filled_text(value, arguments)
        case Mapping():
            members = {name: _filled(item, arguments) for name, item in value.items()}
            filled_items = {name: item for name, item in members.items() if item is not ABSENT}
            return filled_items if filled_items or not value else ABSENT
        case list():
            items = [_filled(item, arguments) for item in value]
            present = [item for item in items if item is not ABSENT]
            return present if present or not value else ABSENT
    return value


def _filled_text(value: str, arguments: Mapping[str, Any]) -> Any:
    if whole := _WHOLE.fullmatch(value):
        return arguments.get(whole[1], ABSENT)
    if any(name not in arguments for name in _names(value)):
        return ABSENT
    return _VARIABLE.sub(
        lambda match: text(arguments[match[1]]) if match[1] else _BRACES[match[0]], value
    )


class BodyPlan(Struct, frozen=True):
    """The rules by which arguments become a body."""

    kind: BodyKind = "json"
    content_type: str | None = None
    """The media type; `None` means the usual one for the kind."""
    template: Template | None = None
    """The template of a JSON body."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Members that are always sent."""

    @property
    def is_always_sent(self) -> bool:
        """Whether a call without arguments has a body."""
        return self.template is not None or bool(self.fixed)


def encode_body(
    plan: BodyPlan, members: Sequence[tuple[Argument, Any]], arguments: Mapping[str, Any]
) -> tuple[bytes, str]:
    """Return the bytes of a body and their media type.

    Args:
        plan: the kind, template and fixed members of the body.
        members: the arguments that become members of the body, with their values.
        arguments: all arguments of the call, for the template.

    Raises:
        ToolError: the value of a file argument is not a file, or its base64 is invalid.
    """
    fixed = [(Argument(name, "body", name, {}), value) for name, value in plan.fixed.items()]
    match plan.kind:
        case "form":
            written = [
                pair
                for argument, value in (*fixed, *members)
                for pair in pairs(
                    argument.wire_name, value, argument.style, sends_empty=argument.sends_empty
                )
            ]
            return "&".join(written).encode(), (
                plan.content_type or "application/x-www-form-urlencoded"
            )
        case "multipart":
            return multipart(
                [part for argument in (*fixed, *members) for part in _parts(*argument)]
            )
    body = {} if plan.template is None else plan.template.filled(arguments)
    body = {**body, **plan.fixed, **{argument.wire_name: value for argument, value in members}}
    return json.encode(body), plan.content_type or "application/json"


def whole_body(argument: Argument, value: Any) -> tuple[bytes, str]:
    """Return the bytes and media type of a body that is one argument: a file, a text, or JSON.

    Raises:
        ToolError: the value of a file argument is not a file, or its base64 is invalid.
    """
    media_type = argument.content_type
    if argument.is_file:
        file = file_from_value(argument.name, value)
        return file.data, media_type or file.media_type or OCTETS
    if not isinstance(value, str):
        return json.encode(value), media_type or "application/json"
    media_type = media_type or "text/plain"
    is_text = media_type.lower().startswith("text/") and "charset" not in media_type.lower()
    suffix = "; charset=utf-8" if is_text else ""
    return value.encode("utf-8", "replace"), f"{media_type}{suffix}"


def _parts(member: Argument, value: Any) -> Iterator[bytes]:
    is_list = isinstance(value, list)
    if is_list and not member.is_file and member.style not in ("repeat", "brackets"):
        if member.style in SEPARATORS:
            value = SEPARATORS[member.style].join(text(item) for item in value if item is not None)
        yield _text_part(member, member.wire_name, value)
        return
    suffix = "[]" if is_list and member.style == "brackets" else ""
    for item in value if is_list else [value]:
        if item is None:
            continue
        if member.is_file:
            yield file_part(
                member.wire_name, file_from_value(member.name, item), member.content_type
            )
        else:
            yield _text_part(member, member.wire_name + suffix, item)


def _text_part(member: Argument, name: str, value: Any) -> bytes:
    usual = "application/json" if isinstance(value, (dict, list)) else None
    return text_part(name, text(value).encode("utf-8", "replace"), member.content_type or usual)


class File(Struct, frozen=True):
    """A file to send."""

    data: bytes
    name: str | None
    """The file name without directories."""
    media_type: str | None


def file_from_value(argument: str, value: Any) -> File:
    """Return the file in an argument's value.

    Raises:
        ToolError: the value is not a file, or its base64 is invalid.
    """
    if not isinstance(value, dict):
        raise ToolError(
            f"arguments.{argument}: must be a file; give an object with base64, text or resource"
        )
    # RFC 7578 section 4.2: send no directories, which may lead outside the target folder
    name = (value.get("file_name") or "").replace("\\", "/").rpartition("/")[2]
    name = None if name in ("", ".", "..") else name
    if "text" in value:
        media_type = value.get("media_type", "text/plain; charset=utf-8")
        return File(value["text"].encode("utf-8", "replace"), name, media_type)
    try:
        data = base64.b64decode(value["base64"], validate=True)
    except (binascii.Error, ValueError):
        raise ToolError(
            f"arguments.{argument}: base64 is invalid; encode the file's bytes"
        ) from None
    return File(data, name, value.get("media_type"))


async def with_resources(argument: str, value: Any, context: Context) -> Any:
    """Return a file argument's value, or a list of them, with each resource URI replaced by the
    resource's contents.

    Raises:
        ToolError: a resource does not exist for the caller, or is not a single part.
    """
    if isinstance(value, list):
        return [await with_resources(argument, item, context) for item in value]
    if not isinstance(value, dict) or not isinstance(uri := value.get("resource"), str):
        return value
    contents = await _read(argument, uri, context)
    implied = {"file_name": unquote(urlsplit(uri).path), "media_type": contents.mime_type}
    stated = {name: item for name, item in value.items() if name != "resource"}
    if isinstance(contents, TextResourceContents):
        return {**without_none(**implied), "text": contents.text, **stated}
    return {**without_none(**implied), "base64": base64_text(contents.blob), **stated}


async def _read(argument: str, uri: str, context: Context) -> ResourceContents:
    read = run_of(context).call.read
    try:
        contents = [] if read is None else list(await read(context, uri))
    except (ResourceNotFound, ValueError):
        contents = []
    except (InvalidParams, Unavailable) as error:  # of a server that has the resource
        raise ToolError(f"arguments.{argument}: {error}") from None
    if len(contents) != 1:
        how = "there is no resource" if not contents else "several parts are in"
        raise ToolError(
            f"arguments.{argument}: {how} {uri[:200]!r}; give the URI of a resource that is a single file"
        )
    return contents[0]


def text_part(name: str, data: bytes, media_type: str | None = None) -> bytes:
    """Return a part of a multipart body (RFC 7578) that is not a file. Names are escaped as in the
    HTML standard."""
    return _part(name, "", media_type, data)


def file_part(name: str, file: File, media_type: str | None = None) -> bytes:
    """Return a file as a part of a multipart body. A file without a name takes the field's name,
    and a file without a media type takes `media_type`."""
    about = f'; filename="{_quoted(file.name or name)}"'
    return _part(name, about, file.media_type or media_type or OCTETS, file.data)


def multipart(parts: Sequence[bytes], media_type: str = "multipart/form-data") -> tuple[bytes, str]:
    """Return the body with these parts, and its media type with the boundary. The boundary is a
    digest of the parts, so a retry sends the same bytes and no value can contain the boundary."""
    boundary = f"roundgate-{hashlib.sha256(b''.join(parts)).hexdigest()[:40]}"
    opening = f"--{boundary}\r\n".encode()
    whole = b"".join(opening + part + b"\r\n" for part in parts) + f"--{boundary}--\r\n".encode()
    return whole, f"{media_type}; boundary={boundary}"


def _part(name: str, about: str, media_type: str | None, data: bytes) -> bytes:
    kind = f"\r\nContent-Type: {media_type}" if media_type else ""
    head = f'Content-Disposition: form-data; name="{_quoted(name)}"{about}{kind}\r\n\r\n'
    return head.encode("utf-8", "replace") + data


def _quoted(name: str) -> str:
    """Percent-encode the characters that would end the name or the line."""
    return _ENDS_A_NAME.sub(lambda match: quote(match[0]), name)
