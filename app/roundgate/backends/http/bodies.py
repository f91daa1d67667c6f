"""Request bodies: JSON, forms, multipart, texts and files.

A JSON body may be a template, in which `{name}` stands for an argument:

    customer: {id: "{customer_id}"}      ─▶  {"customer": {"id": 7}}              the value, of whatever type
    title: "Order for {name}"            ─▶  {"title": "Order for Ada"}           inside a text, as text
    braces: "{{name}}"                   ─▶  {"braces": "{name}"}

A member without its argument is omitted, and so is an object or list that becomes empty by that.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from roundgate import json
from roundgate.backends.http.values import (
    Style,
    clashing,
    exploded_names,
    items,
    pairs,
    separator_of,
    text,
)
from roundgate.errors import InvalidParams, ResourceNotFound, ToolError, Unavailable
from roundgate.protocol import (
    ABSENT,
    ResourceContents,
    TextResourceContents,
    base64_text,
    without_none,
)
from roundgate.replay import Context, run_of

BodyKind: TypeAlias = Literal["json", "form", "multipart", "text", "binary", "any"]
"""The kind of a body. `any` is a text or JSON, by the value."""

MEDIA_TYPES: Final[Mapping[BodyKind, str]] = {
    "json": "application/json",
    "form": "application/x-www-form-urlencoded",
    "multipart": "multipart/form-data",
}
"""The usual media types of bodies with members."""
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


class BodyTemplate(Struct, frozen=True):
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


class Member(Struct, frozen=True):
    """The encoding of one member of a form or multipart body (OpenAPI "Encoding Object")."""

    style: Style = "form"
    explode: bool = True
    media_type: str | None = None
    """The media type of a multipart part. In a form, a media type makes objects and lists JSON."""
    is_file: bool = False
    sends_empty: bool = False
    """Whether a form has `name=` for an empty list, instead of nothing."""


class Body(Struct, frozen=True):
    """The plan of a request body (OpenAPI "Request Body Object")."""

    kind: BodyKind
    media_type: str
    """The media type; empty for the usual one of a body of the kind `any`."""
    required: bool
    """Whether a call without values for the body sends one."""
    members: Mapping[str, str] | None = None
    """The members' names in the request, by argument; `None` if one argument is the whole body."""
    argument: str = "body"
    """The name of the argument that is the whole body."""
    encoding: Mapping[str, Member] = {}
    """The encoding of members, by their names in the request; the default is `Member()`."""
    fixed: Mapping[str, Any] = {}
    """Members that are always sent."""
    template: BodyTemplate | None = None
    """The template of a JSON body."""

    def content(self, arguments: Mapping[str, Any]) -> Any:
        """Return the value of the body, or `ABSENT` if there is no body."""
        if self.members is None:
            return arguments.get(self.argument, ABSENT)
        members = {
            name: arguments[argument]
            for argument, name in self.members.items()
            if argument in arguments
        }
        if self.fixed or self.template is not None:
            filled = {} if self.template is None else self.template.filled(arguments)
            return {**filled, **self.fixed, **members}
        return members if members or self.required else ABSENT

    def encoded(self, value: Any) -> tuple[bytes, str]:
        """Return the bytes of a value of the body, and their media type.

        Raises:
            ToolError: the value of a file argument is not a file, its base64 is invalid, or a
                member of an object in a form has the name of another member.
        """
        media_type = self.media_type
        match self.kind:
            case "json":
                return json.encode(value), media_type
            case "form":
                return self._form(value).encode(), media_type
            case "multipart":
                parts = [part for name, item in value.items() for part in self._parts(name, item)]
                return multipart(parts, media_type.partition(";")[0])
            case "text":
                return _text(value, media_type)
            case "any":
                if not isinstance(value, str):
                    return json.encode(value), media_type or "application/json"
                media_type = media_type or "text/plain"
                if media_type.lower().startswith("text/"):
                    return _text(value, media_type)
                return value.encode("utf-8", "replace"), media_type
        file = file_from_value(self.argument, value)
        return file.data, file.media_type or OCTETS if "*" in media_type else media_type

    @property
    def files(self) -> frozenset[str]:
        """The names in the request of the members that are files."""
        return frozenset(name for name, member in self.encoding.items() if member.is_file)

    async def read_resources(
        self, arguments: Mapping[str, Any], context: Context
    ) -> Mapping[str, Any]:
        """Return the arguments with each file's resource URI replaced by the resource's contents.

        Raises:
            ToolError: a resource does not exist.
        """
        files = self.files
        if self.members is not None:
            named = [file for file, name in self.members.items() if name in files]
            return await _with_resources(named, arguments, context)
        if self.kind == "binary":
            return await _with_resources([self.argument], arguments, context)
        if not files or self.argument not in arguments:
            return arguments
        whole = await _with_resources(files, arguments[self.argument], context)
        return {**arguments, self.argument: whole}

    def _form(self, value: Mapping[str, Any]) -> str:
        written: list[str] = []
        for name, item in value.items():
            member = self.encoding.get(name, _USUAL)
            if member.media_type is not None and isinstance(item, (dict, list)):
                item = json.encode(item).decode()
            if exploded := exploded_names(item, member.style, member.explode):
                names = value.keys() | set((self.members or {}).values())
                if clashes := clashing(exploded, names - {name}):
                    raise ToolError(
                        f"{name}: move {', '.join(clashes)} to the argument of that name"
                    )
            written += pairs(
                name, item, member.style, explode=member.explode, sends_empty=member.sends_empty
            )
        return "&".join(written)

    def _parts(self, name: str, value: Any) -> Iterator[bytes]:
        member = self.encoding.get(name, _USUAL)
        media_type = (member.media_type or "").partition(",")[0].strip()
        single = None if "*" in media_type else media_type or None
        if member.is_file:
            arguments = {wire: argument for argument, wire in (self.members or {}).items()}
            for item in items(value):
                file = file_from_value(arguments.get(name, name), item)
                yield file_part(name, file, single)
            return
        each = items(value)
        if isinstance(value, list):
            if member.style == "json":
                each = [value]
            elif not member.explode:
                each = [separator_of(member.style).join(map(text, each))]
            elif member.style == "brackets":
                name = f"{name}[]"
        for item in each:
            usual = "application/json" if isinstance(item, (dict, list)) else None
            yield text_part(name, text(item).encode("utf-8", "replace"), single or usual)


_USUAL: Final = Member()


def _text(value: str, media_type: str) -> tuple[bytes, str]:
    suffix = "" if "charset" in media_type.lower() else "; charset=utf-8"
    return value.encode("utf-8", "replace"), f"{media_type}{suffix}"


async def _with_resources(
    names: Iterable[str], values: Mapping[str, Any], context: Context
) -> Mapping[str, Any]:
    files = {
        name: await with_resources(name, values[name], context) for name in names if name in values
    }
    return {**values, **files}


class SentFile(Struct, frozen=True):
    """A file to send."""

    data: bytes
    name: str | None
    """The file name without directories."""
    media_type: str | None


def file_from_value(argument: str, value: Any) -> SentFile:
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
        return SentFile(value["text"].encode("utf-8", "replace"), name, media_type)
    try:
        data = base64.b64decode(value["base64"], validate=True)
    except (binascii.Error, ValueError):
        raise ToolError(
            f"arguments.{argument}: base64 is invalid; encode the file's bytes"
        ) from None
    return SentFile(data, name, value.get("media_type"))


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


def file_part(name: str, file: SentFile, media_type: str | None = None) -> bytes:
    """Return a file as a part of a multipart body. A file without a name takes the field's name,
    and a file without a media type takes `media_type`."""
    about = f'; filename="{_quoted(file.name or name)}"'
    return _part(name, about, file.media_type or media_type or OCTETS, file.data)


def multipart(parts: Sequence[bytes], media_type: str) -> tuple[bytes, str]:
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
