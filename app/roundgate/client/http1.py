"""HTTP/1.1 responses, from bytes as they arrive (RFC 9112). No sockets, no clock.

`parse_head` reads what stands before the body, a `Body` delimits and decodes what follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from roundgate.errors import BadAnswer

END_OF_HEAD: Final = b"\r\n\r\n"
_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?")
_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FORBIDDEN: Final = re.compile(r"[\r\n\0]")
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;.*)?")
_LONGEST_CHUNK_LINE: Final = 1024
_LONGEST_TRAILERS: Final = 64 * 1024
_BODILESS: Final = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers. Names are in lower case, values of a name that repeats
    are joined by a comma."""

    status: int
    headers: Mapping[str, str]
    keeps_alive: bool


def parse_head(raw: bytes) -> Head:
    """Status line and headers, without the empty line that ends them.

    Raises:
        BadAnswer: it is no head of an HTTP/1.1 response.
    """
    # A server repeats the same head until the second in its Date header changes.
    return _parse_short_head(raw) if len(raw) <= _SHORT else _parse_head(raw)


_SHORT: Final = 1024


def _parse_head(raw: bytes) -> Head:
    first, *lines = raw.decode("latin-1").split("\r\n")
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None:
        raise BadAnswer(f"The server does not answer in HTTP/1.1: its first line is {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        # No expression looks for the blanks around a value: a line of nothing else would take it
        # minutes.
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None or _FORBIDDEN.search(value):
            raise BadAnswer(f"The server sent a malformed header: {line[:80]!r}")
        name, value = name.lower(), value.strip(" \t")
        if name in headers and name in ("content-length", "transfer-encoding"):
            raise BadAnswer(
                f"The server sent {name} more than once, so the end of its answer is not known"
            )
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    tokens = {token.strip().lower() for token in headers.get("connection", "").split(",")}
    keeps_alive = "close" not in tokens if status_line[1] == "1" else "keep-alive" in tokens
    return Head(int(status_line[2]), headers, keeps_alive)


_parse_short_head = lru_cache(maxsize=64)(_parse_head)


class Body:
    """The body of one response: of a known length, in chunks, or until the connection ends."""

    __slots__ = ("_buffer", "_chunked", "_left", "_state", "_trailers", "is_done", "left_over")

    def __init__(self, head: Head) -> None:
        coding = head.headers.get("transfer-encoding")
        length = head.headers.get("content-length")
        if coding is not None and (coding.lower() != "chunked" or length is not None):
            raise BadAnswer(
                "The server sent a body whose end is not known: only Transfer-Encoding: chunked is "
                "taken"
            )
        if length is not None and not (length.isascii() and length.isdigit() and len(length) < 16):
            raise BadAnswer("The server sent a malformed Content-Length")
        self._chunked = coding is not None
        self._buffer = b""
        self._state = "size"
        self._trailers = 0
        bodiless = head.status in _BODILESS or head.status < 200
        self._left: int | None = (
            0 if bodiless or self._chunked else None if length is None else int(length)
        )
        self.is_done = bodiless or (not self._chunked and self._left == 0)
        self.left_over = b""
        """What came behind the end of the body."""

    @property
    def ends_with_the_connection(self) -> bool:
        return self._left is None

    def feed(self, data: bytes) -> bytes:
        """The decoded part of the body that is in `data`.

        Raises:
            BadAnswer: a chunk is malformed.
        """
        if self._chunked:
            return self._feed_chunks(data)
        if self._left is None:
            return data
        part, self.left_over = data[: self._left], data[self._left :]
        self._left -= len(part)
        self.is_done = self._left == 0
        return part

    def end(self) -> bool:
        """The connection ended. Whether the body is whole."""
        if self._left is None:
            self.is_done = True
        return self.is_done

    def _feed_chunks(self, data: bytes) -> bytes:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        parts: list[bytes] = []
        while not self.is_done:
            if self._state == "data":
                assert self._left is not None
                part = buffer[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._state = "end of data"
            end = buffer.find(b"\r\n", at, at + _LONGEST_CHUNK_LINE + 2)
            if end < 0:
                if len(buffer) - at > _LONGEST_CHUNK_LINE:
                    raise BadAnswer("The server sent a malformed chunk")
                break
            line, at = buffer[at:end], end + 2
            self._take_line(line)
        rest = buffer[at:]
        self._buffer, self.left_over = (b"", rest) if self.is_done else (rest, b"")
        return b"".join(parts)

    def _take_line(self, line: bytes) -> None:
        if self._state == "end of data":
            if line:
                raise BadAnswer("The server sent a malformed chunk: it is longer than announced")
            self._state = "size"
        elif self._state == "size":
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise BadAnswer("The server sent a malformed chunk size")
            self._left = int(size[1], 16)
            self._state = "data" if self._left else "trailers"
        else:  # trailers, which are ignored; an empty line ends them
            self.is_done = not line
            self._trailers += len(line)
            if self._trailers > _LONGEST_TRAILERS:
                raise BadAnswer("The server sent a malformed chunk: its trailers have no end")


def request_head(
    method: str, target: str, headers: Sequence[tuple[str, str]], length: int | None
) -> bytes:
    """The bytes before a request's body.

    Raises:
        ValueError: a name or a value cannot stand in a header.
    """
    lines = [f"{method} {target} HTTP/1.1"]
    for name, value in headers:
        lines.append(f"{name}: {value}")
    if length is not None:
        lines.append(f"Content-Length: {length}")
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1 or "\0" in head:
        raise ValueError("a header has a line end in it")
    return head.encode("latin-1") + END_OF_HEAD
