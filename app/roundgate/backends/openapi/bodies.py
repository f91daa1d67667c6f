"""Request bodies: JSON, forms, multipart with files, text and bytes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from roundgate import json
from roundgate.backends.openapi import styles
from roundgate.backends.openapi.plan import Body, Member
from roundgate.errors import ToolError

FILE: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "base64": {"type": "string", "description": "The file's bytes in base64."},
        "text": {"type": "string", "description": "The file's text, instead of base64."},
        "file_name": {"type": "string", "maxLength": 255},
        "media_type": {
            "type": "string",
            "pattern": "^[A-Za-z0-9!#$&^_.+-]{1,80}/[A-Za-z0-9!#$&^_.+-]{1,80}$",
        },
    },
    "oneOf": [{"required": ["base64"]}, {"required": ["text"]}],
    "additionalProperties": False,
}
"""The schema of an argument that is a file."""
_OCTETS: Final = "application/octet-stream"


def encoded(body: Body, value: Any) -> tuple[bytes, str]:
    """The bytes of a body and their media type.

    Raises:
        ToolError: a file's base64 is none.
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
    data, _, media_type = _file(body.argument, value)
    named = "*" not in body.media_type
    return data, body.media_type if named else media_type or _OCTETS


def _with_charset(media_type: str) -> str:
    return media_type if "charset" in media_type.lower() else f"{media_type}; charset=utf-8"


def _form(body: Body, value: Mapping[str, Any]) -> str:
    quoted = styles.query_quote(reserved=False)
    pairs: list[str] = []
    for name, item in value.items():
        how = body.encoding.get(name, Member())
        if how.media_type is not None and isinstance(item, (dict, list)):
            item = json.encode(item).decode()
        pairs += styles.in_query(name, item, how.style, how.explode, quoted)
    return "&".join(pairs)


def _multipart(body: Body, value: Mapping[str, Any]) -> tuple[bytes, str]:
    parts = [
        part
        for name, item in value.items()
        for part in _parts(name, item, body.encoding.get(name, Member()))
    ]
    # of what is in it, so that a step that is run again sends the same bytes; and nobody can write it into a part
    boundary = f"roundgate-{hashlib.sha256(b''.join(parts)).hexdigest()[:40]}"
    opening = f"--{boundary}\r\n".encode()
    whole = b"".join(opening + part + b"\r\n" for part in parts) + f"--{boundary}--\r\n".encode()
    kind = body.media_type.partition(";")[0]
    return whole, f"{kind}; boundary={boundary}"


def _parts(name: str, value: Any, how: Member) -> Iterator[bytes]:
    for item in value if isinstance(value, list) else [value]:
        if item is None:
            continue
        if how.is_file:
            data, file_name, media_type = _file(name, item)
            about = f'; filename="{_quoted(file_name or name)}"'
            yield _part(name, about, media_type or _single(how.media_type) or _OCTETS, data)
        elif isinstance(item, (dict, list)):
            yield _part(name, "", _single(how.media_type) or "application/json", json.encode(item))
        else:
            yield _part(name, "", _single(how.media_type), styles.text(item).encode())


def _single(media_type: str | None) -> str | None:
    """A media type, if one is named and not a choice of several."""
    first = (media_type or "").partition(",")[0].strip()
    return None if not first or "*" in first else first


def _part(name: str, about: str, media_type: str | None, data: bytes) -> bytes:
    kind = f"\r\nContent-Type: {media_type}" if media_type else ""
    return (
        f'Content-Disposition: form-data; name="{_quoted(name)}"{about}{kind}\r\n\r\n'.encode()
        + data
    )


def _quoted(name: str) -> str:
    """As the HTML standard has it for multipart/form-data: nothing that would end the name, or the line."""
    return re.sub(r'[\x00-\x1f"\x7f]', lambda found: quote(found[0]), name)


def _file(name: str, value: Any) -> tuple[bytes, str | None, str | None]:
    if not isinstance(value, dict):
        raise ToolError(f"arguments.{name}: is a file; give an object with base64 or text")
    if "text" in value:
        data = value["text"].encode()
        return data, value.get("file_name"), value.get("media_type", "text/plain; charset=utf-8")
    try:
        data = base64.b64decode(value["base64"], validate=True)
    except (binascii.Error, ValueError):
        raise ToolError(
            f"arguments.{name}: base64 is not base64; encode the file's bytes"
        ) from None
    return data, value.get("file_name"), value.get("media_type")
