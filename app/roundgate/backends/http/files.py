"""Files that are arguments: bytes in base64, a text or a resource of the gateway, with a
name and a media type."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from roundgate.errors import ResourceNotFound, ToolError
from roundgate.protocol import ResourceContents, TextResourceContents, base64_text, without_none
from roundgate.replay import Context, run_of

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
    "oneOf": [{"required": [one]} for one in ("base64", "text", "resource")],
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
        raise ToolError(
            f"arguments.{argument}: is a file; give an object with base64, text or resource"
        )
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


async def with_resources(argument: str, value: Any, context: Context) -> Any:
    """The value of an argument that is a file, or a list of files, with what resources hold
    in the place of their URIs.

    Raises:
        ToolError: there is no such resource for the caller, or it has several parts.
    """
    if isinstance(value, list):
        return [await with_resources(argument, one, context) for one in value]
    if not isinstance(value, dict) or not isinstance(uri := value.get("resource"), str):
        return value
    found = await _read(argument, uri, context)
    named = {"file_name": unquote(urlsplit(uri).path), "media_type": found.mime_type}
    told = {name: one for name, one in value.items() if name != "resource"}
    held = (
        {"text": found.text}
        if isinstance(found, TextResourceContents)
        else {"base64": base64_text(found.blob)}
    )
    return {**without_none(**named), **held, **told}


async def _read(argument: str, uri: str, context: Context) -> ResourceContents:
    read = run_of(context).call.read
    try:
        contents = [] if read is None else list(await read(context, uri))
    except (ResourceNotFound, ValueError):
        contents = []
    if len(contents) != 1:
        how = "there is no resource" if not contents else f"{len(contents)} parts has"
        raise ToolError(
            f"arguments.{argument}: {how} {uri[:200]!r}; give the URI of one that is a single file"
        )
    return contents[0]


def _plain(name: str | None) -> str | None:
    """A name without directories, which are nobody's business (RFC 7578 section 4.2)
    and may lead elsewhere."""
    last = (name or "").replace("\\", "/").rpartition("/")[2]
    return None if last in ("", ".", "..") else last
