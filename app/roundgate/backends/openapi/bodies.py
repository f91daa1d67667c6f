"""Request bodies: JSON, forms, multipart with files, text and bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from roundgate import json
from roundgate.backends.http.files import OCTETS, file_of
from roundgate.backends.http.lists import text
from roundgate.backends.http.multipart import file_part, multipart, text_part
from roundgate.backends.openapi import styles
from roundgate.backends.openapi.plan import Body, Member
from roundgate.errors import ToolError


def encoded(body: Body, value: Any) -> tuple[bytes, str]:
    """The bytes of a body and their media type.

    Raises:
        ToolError: a file's base64 is none, or an object in a form has a name that another member
            has.
    """
    match body.kind:
        case "json":
            return json.encode(value), body.media_type
        case "form":
            return _form(body, value).encode(), body.media_type
        case "multipart":
            return _multipart(body, value)
        case "text":
            return value.encode(), _with_charset(body.media_type)
    file = file_of(body.argument, value)
    named = "*" not in body.media_type
    return file.data, body.media_type if named else file.media_type or OCTETS


def _with_charset(media_type: str) -> str:
    return media_type if "charset" in media_type.lower() else f"{media_type}; charset=utf-8"


def _form(body: Body, value: Mapping[str, Any]) -> str:
    quoted = styles.query_quote(reserved=False)
    pairs: list[str] = []
    known = value.keys() | set((body.members or {}).values())
    for name, item in value.items():
        how = body.encoding.get(name, Member())
        if how.media_type is not None and isinstance(item, (dict, list)):
            item = json.encode(item).decode()
        brought = styles.names_of(item, how.style, how.explode)
        if found := styles.clashing(brought, known - {name}):
            raise ToolError(f"{name}: {', '.join(found)} is an argument of its own")
        pairs += styles.in_query(name, item, how.style, how.explode, quoted)
    return "&".join(pairs)


def _multipart(body: Body, value: Mapping[str, Any]) -> tuple[bytes, str]:
    parts = [
        part
        for name, item in value.items()
        for part in _parts(name, item, body.encoding.get(name, Member()))
    ]
    return multipart(parts, body.media_type.partition(";")[0])


def _parts(name: str, value: Any, how: Member) -> Iterator[bytes]:
    for item in value if isinstance(value, list) else [value]:
        if item is None:
            continue
        if how.is_file:
            yield file_part(name, file_of(name, item), _single(how.media_type))
        elif isinstance(item, (dict, list)):
            kind = _single(how.media_type) or "application/json"
            yield text_part(name, json.encode(item), kind)
        else:
            yield text_part(name, text(item).encode(), _single(how.media_type))


def _single(media_type: str | None) -> str | None:
    """A media type, if one is named and not a choice of several."""
    first = (media_type or "").partition(",")[0].strip()
    return None if not first or "*" in first else first
