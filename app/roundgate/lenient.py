"""Answers of services and servers: unpacked within a limit, decoded, and read leniently.

Requests are read strictly (`roundgate.json.decode`), because the gateway and others must read them
alike. An answer has one reader, so one bad character must not cost it. Answers of authorization
servers (tokens, metadata, keys) are read strictly, too: what they grant must not be a guess.

    half a surrogate pair, bytes that are not UTF-8   U+FFFD
    NaN, Infinity, 1e400                              null
    a repeated name                                   the last value
    a byte order mark                                 ignored
    a charset that the header names                   decoded, if web pages use it
"""

from __future__ import annotations

import json
import logging
import math
import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import jiter
from msgspec import Struct

from roundgate.errors import AnswerTooLarge, ParseError, UnknownEncoding
from roundgate.json import decode

CHARACTERS: Final = "characters that are not Unicode became U+FFFD"
NUMBERS: Final = "NaN and infinite numbers became null"
NAMES: Final = "of members with one name the last was taken"
"""The repairs that lose a part of an answer."""
MAX_LOGGED: Final = 10_000
"""The limit on the pairs of a source and a repair that are logged."""
_PIECE_BYTES: Final = 65_536
_CHARSET: Final = re.compile(r"charset=\"?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_CHARSETS: Final = frozenset(
    {
        "utf8", "utf16", "utf16le", "utf16be", "utf32", "ascii", "usascii", "latin1", "gb2312", "gbk", "gb18030",
        "big5", "shiftjis", "sjis", "eucjp", "iso2022jp", "euckr", "koi8r", "koi8u", "tis620",
        *(f"iso8859{part}" for part in range(1, 17)), *(f"windows{page}" for page in range(1250, 1259)),
        *(f"cp{page}" for page in range(1250, 1259)),
    }
)  # fmt: skip
"""Charsets of web pages. Some of Python's other codecs (punycode, idna) take minutes for 1 MB."""
_MARKS: Final = (
    (BOM_UTF8, "utf-8-sig"),
    (BOM_UTF32_LE, "utf-32"),  # begins with the mark of UTF-16
    (BOM_UTF32_BE, "utf-32"),
    (BOM_UTF16_LE, "utf-16"),
    (BOM_UTF16_BE, "utf-16"),
)
_ANY_MARK: Final = tuple(mark for mark, _ in _MARKS)
_HALF: Final = re.compile("[\ud800-\udfff]")
"""Half a surrogate pair. `json.loads` has joined the two halves of each pair."""

log = logging.getLogger("roundgate.answers")
_logged: set[tuple[str, str]] = set()


# -- JSON ------------------------------------------------------------------------------------------


class Read(Struct, frozen=True):
    """A JSON value, and the repairs without which it could not be read."""

    value: Any
    repairs: tuple[str, ...] = ()


def read(body: bytes) -> Read:
    """Read JSON in UTF-8.

    Raises:
        ParseError: the body is not JSON even with repairs, or is nested too deeply.
    """
    try:
        return Read(decode(body))
    except ParseError as error:
        return _repaired(body.removeprefix(BOM_UTF8), str(error))


def value(body: bytes, source: str) -> Any:
    """Read JSON in UTF-8, and log each kind of repair once for a source.

    Args:
        source: the name of the server or tool whose answer it is.

    Raises:
        ParseError: see `read`.
    """
    answer = read(body)
    for repair in answer.repairs:
        if (source, repair) not in _logged and len(_logged) < MAX_LOGGED:
            _logged.add((source, repair))
            log.warning(
                "answers are not valid JSON; they are repaired",
                extra={"fields": {"of": source, "repair": repair}},
            )
    return answer.value


def _repaired(body: bytes, problem: str) -> Read:
    """Read JSON whose strict reading failed with `problem`. Each pass over the text is one call of
    compiled code, because an answer of several megabytes may consist of faults alone."""
    text, numbers = body.decode("utf-8", "replace"), list[str]()
    has_lost = "\ufffd" in text and text.encode() != body
    try:
        found = json.loads(
            text, parse_constant=numbers.append, parse_float=partial(_finite, numbers)
        )
        if "\\ud" in text or "\\uD" in text:
            text, halves = _HALF.subn("\ufffd", json.dumps(found, ensure_ascii=False))
            has_lost = has_lost or halves > 0
            found = jiter.from_json(text.encode(), cache_mode="keys")
        else:
            jiter.from_json(text.encode())  # bounds the depth
    except (ValueError, RecursionError) as error:
        raise ParseError(f"Parse error: {str(error)[:200]}") from None
    is_made = {CHARACTERS: has_lost, NAMES: "duplicate key" in problem, NUMBERS: bool(numbers)}
    return Read(found, tuple(repair for repair in is_made if is_made[repair]))


def _finite(numbers: list[str], text: str) -> float | None:
    """Return a number; note a number that is too large, and return `None`."""
    number = float(text)
    if math.isfinite(number):
        return number
    numbers.append(text)
    return None


# -- charsets --------------------------------------------------------------------------------------


def text(body: bytes, content_type: str) -> str | None:
    """Return the text of a body, or `None` if its charset is unknown or wrong."""
    name = _charset(content_type) or ("" if _CHARSET.search(content_type) else "utf-8")
    try:
        return body.decode(name) if name else None
    except (UnicodeDecodeError, LookupError):
        return None


def in_utf8(body: bytes, content_type: str) -> bytes:
    """Return JSON in UTF-8, without a byte order mark. A body that is not UTF-8, as JSON has to be
    (RFC 8259 section 8.1), is decoded by its mark or by the charset of its header."""
    if body.startswith(_ANY_MARK):
        name = next(name for mark, name in _MARKS if body.startswith(mark))
        return body.decode(name, "replace").encode()
    name = _charset(content_type)
    if name and not _may_be_utf8(body):
        try:
            return body.decode(name, "replace").encode("utf-8", "replace")
        except LookupError:
            return body
    return body


def _charset(content_type: str) -> str:
    """Return the charset of a header, or an empty string if it names none, or an unknown one."""
    if (match := _CHARSET.search(content_type)) is None:
        return ""
    name = match[1].lower()
    return name if re.sub(r"[^a-z0-9]", "", name) in _CHARSETS else ""


def _may_be_utf8(body: bytes) -> bool:
    """Return whether bytes are UTF-8 without the characters that UTF-16 and ISO 2022 have in every
    text, and JSON in none."""
    if b"\0" in body or b"\x1b" in body:
        return False
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


# -- content encodings -----------------------------------------------------------------------------


class Unpacker:
    """A decompressor for an answer while it arrives.

    httpx decompresses each piece completely: 2.5 KB of `gzip, gzip` become 3 GB before their size
    can be checked. This class unpacks at most 64 KiB at once, and a body never exceeds its limit by
    more than that.
    """

    def __init__(self, content_encoding: str, limit: int = 0) -> None:
        """Prepare to decompress a body of at most `limit` bytes; `unpacked` needs no limit.

        Raises:
            UnknownEncoding: the encoding is not gzip, deflate or identity.
        """
        encoding = content_encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise UnknownEncoding
        self._limit = limit
        self._raw_bytes = 0
        self._body = bytearray()
        self._inflate: Any = None
        self._is_gzip = encoding in ("gzip", "x-gzip")
        if self._is_gzip:
            self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        elif encoding == "deflate":
            self._inflate = zlib.decompressobj()
        self._may_be_raw = encoding == "deflate"
        self._header = b""

    def feed(self, piece: bytes) -> None:
        """Decompress a piece and append it to the body.

        Raises:
            AnswerTooLarge: the limit is exceeded.
            UnknownEncoding: the bytes are invalid in the encoding.
        """
        self._raw_bytes += len(piece)
        if self._raw_bytes > self._limit + 1024:  # compression can add a few bytes
            raise AnswerTooLarge
        for part in (piece,) if self._inflate is None else self.unpacked(piece):
            self._body += part
            if len(self._body) > self._limit:
                raise AnswerTooLarge

    def body(self) -> bytes:
        """Return the whole body; raise UnknownEncoding if its compression is incomplete."""
        if self._inflate is not None and self._raw_bytes and not self._inflate.eof:
            raise UnknownEncoding
        return bytes(self._body)

    def unpacked(self, piece: bytes) -> Iterator[bytes]:
        """Yield a piece of a stream decompressed, in parts of at most 64 KiB. Raise UnknownEncoding
        if its bytes are invalid in the encoding."""
        if self._inflate is None:
            yield piece
            return
        part = b""
        while piece or len(part) == _PIECE_BYTES:  # after a full part, zlib may hold more
            if piece and self._inflate.eof:  # it would keep all further bytes
                self._inflate = self._next_member()
            part = self._inflated(piece)
            yield part
            piece = self._inflate.unconsumed_tail or self._inflate.unused_data

    def _next_member(self) -> Any:
        """Return a decompressor for what follows the end of gzip data: more gzip data (RFC 1952
        section 2.2). Raise UnknownEncoding after the end of deflate data."""
        if not self._is_gzip:
            raise UnknownEncoding
        return zlib.decompressobj(16 + zlib.MAX_WBITS)

    def _inflated(self, piece: bytes) -> bytes:
        try:
            part = bytes(self._inflate.decompress(piece, _PIECE_BYTES))
        except zlib.error:
            if not self._may_be_raw:
                raise UnknownEncoding from None
            # some servers send raw deflate, contrary to RFC 9110
            self._may_be_raw, self._inflate = False, zlib.decompressobj(-zlib.MAX_WBITS)
            return self._inflated(self._header + piece)
        if self._may_be_raw:
            self._header += piece[:2]
            self._may_be_raw = len(self._header) < 2  # zlib checks its header at the second byte
        return part
