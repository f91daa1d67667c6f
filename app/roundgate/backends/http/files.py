"""Files that are arguments: bytes in base64 or a text, with a name and a media type."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from roundgate.errors import ToolError

OCTETS: Final = "application/octet-stream"
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


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is sent."""

    data: bytes
    name: str | None
    """Without directories."""
    media_type: str | None


def file_of(argument: str, value: Any) -> File:
    """The file that an argument has.

    Raises:
        ToolError: it has none, or its base64 is none.
    """
    if not isinstance(value, dict):
        raise ToolError(f"arguments.{argument}: is a file; give an object with base64 or text")
    name = _plain(value.get("file_name"))
    if "text" in value:
        media_type = value.get("media_type", "text/plain; charset=utf-8")
        return File(value["text"].encode("utf-8", "replace"), name, media_type)
    try:
        data = base64.b64decode(value["base64"], validate=True)
    except (binascii.Error, ValueError):
        raise ToolError(
            f"arguments.{argument}: base64 is not base64; encode the file's bytes"
        ) from None
    return File(data, name, value.get("media_type"))


def _plain(name: str | None) -> str | None:
    """A name without directories, which are nobody's business (RFC 7578 section 4.2) and may lead elsewhere."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    return None if last in ("", ".", "..") else last
