"""multipart/form-data (RFC 7578), with names written as the HTML standard has it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from roundgate.backends.http.files import OCTETS, File

MEDIA_TYPE: Final = "multipart/form-data"
_ENDS_A_NAME: Final = re.compile(r'[\x00-\x1f"\x7f]')


def text_part(name: str, data: bytes, media_type: str | None = None) -> bytes:
    """A part that is no file.

    Args:
        name: of the field.
        data: its value.
        media_type: what it says it is, if anything.
    """
    return _part(name, "", media_type, data)


def file_part(name: str, file: File, media_type: str | None = None) -> bytes:
    """A part that is a file, with its name, or the field's.

    Args:
        name: of the field.
        file: its value.
        media_type: what it is where the file does not say.
    """
    about = f'; filename="{_quoted(file.name or name)}"'
    return _part(name, about, file.media_type or media_type or OCTETS, file.data)


def multipart(parts: Sequence[bytes], media_type: str = MEDIA_TYPE) -> tuple[bytes, str]:
    """The body with these parts, and its media type with the boundary."""
    # of what is in it, so that a step that is run again sends the same bytes; and nobody can write
    # it into a part
    boundary = f"roundgate-{hashlib.sha256(b''.join(parts)).hexdigest()[:40]}"
    opening = f"--{boundary}\r\n".encode()
    whole = b"".join(opening + part + b"\r\n" for part in parts) + f"--{boundary}--\r\n".encode()
    return whole, f"{media_type}; boundary={boundary}"


def _part(name: str, about: str, media_type: str | None, data: bytes) -> bytes:
    kind = f"\r\nContent-Type: {media_type}" if media_type else ""
    head = f'Content-Disposition: form-data; name="{_quoted(name)}"{about}{kind}\r\n\r\n'
    return head.encode("utf-8", "replace") + data


def _quoted(name: str) -> str:
    """Nothing that would end the name, or the line."""
    return _ENDS_A_NAME.sub(lambda found: quote(found[0]), name)
