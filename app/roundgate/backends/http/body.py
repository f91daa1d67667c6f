"""What a service's answer is made of: unpacked while it arrives, within the limit; text
in charsets that are known.

httpx would unpack each piece whole, layer upon layer: 2.5 KB of `gzip, gzip` become 3 GB
before anybody counts them.
"""

from __future__ import annotations

import re
import zlib
from typing import Any, Final

from roundgate.errors import AnswerTooLarge, UnknownEncoding

ACCEPTED: Final = "gzip, deflate"
"""What we tell services that we take."""

_CHARSET: Final = re.compile(r"charset=\"?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_CHARSETS: Final = frozenset(
    {
        "utf8", "utf16", "utf16le", "utf16be", "utf32", "ascii", "usascii", "latin1", "gb2312", "gbk", "gb18030",
        "big5", "shiftjis", "sjis", "eucjp", "iso2022jp", "euckr", "koi8r", "koi8u", "tis620",
        *(f"iso8859{part}" for part in range(1, 17)), *(f"windows{page}" for page in range(1250, 1259)),
        *(f"cp{page}" for page in range(1250, 1259)),
    }
)  # fmt: skip
"""Of Python's hundred, those that pages are written in: some others take minutes for a
megabyte (punycode, idna)."""


class Unpacker:
    """Takes the bytes of an answer as they arrive, and never holds more than
    `limit` of what is in them."""

    def __init__(self, content_encoding: str, limit: int) -> None:
        self._limit = limit
        self._raw_bytes = 0
        self._body = bytearray()
        self._inflate: Any = None
        match content_encoding.strip().lower():
            case "" | "identity":
                pass
            case "gzip" | "x-gzip":
                self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
            case "deflate":
                self._inflate = zlib.decompressobj()
            case _:
                raise UnknownEncoding
        self._may_be_raw = (
            self._inflate is not None and content_encoding.strip().lower() == "deflate"
        )

    def feed(self, piece: bytes) -> None:
        """Take a piece.

        Raises:
            AnswerTooLarge: with it, there is more than the limit.
            UnknownEncoding: it is not what the answer says it is.
        """
        self._raw_bytes += len(piece)
        if self._raw_bytes > self._limit + 1024:  # packed it may be a little longer than it is
            raise AnswerTooLarge
        self._body += piece if self._inflate is None else self._unpacked(piece)
        if len(self._body) > self._limit:
            raise AnswerTooLarge

    def body(self) -> bytes:
        """All of it.

        Raises:
            UnknownEncoding: it ends in the middle.
        """
        if self._inflate is not None and self._raw_bytes and not self._inflate.eof:
            raise UnknownEncoding
        return bytes(self._body)

    def _unpacked(self, piece: bytes) -> bytes:
        room = self._limit - len(self._body) + 1
        try:
            return bytes(self._inflate.decompress(piece, room))
        except zlib.error:
            if not self._may_be_raw or self._body:
                raise UnknownEncoding from None
        # as some have it, not RFC 9110
        self._may_be_raw, self._inflate = (
            False,
            zlib.decompressobj(-zlib.MAX_WBITS),
        )
        return self._unpacked(piece)


def decoded(body: bytes, content_type: str) -> str | None:
    """The text of a body; `None` if its charset is not known or it is not in it."""
    found = _CHARSET.search(content_type)
    name = found[1].lower() if found else "utf-8"
    if re.sub(r"[^a-z0-9]", "", name) not in _CHARSETS:
        return None
    try:
        return body.decode(name)
    except (UnicodeDecodeError, LookupError):
        return None
