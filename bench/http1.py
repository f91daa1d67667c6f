"""An HTTP/1.1 client reduced to the needs of a load generator: bytes in, one response at a time out
(RFC 9112).

Requests are not pipelined, so a connection has at most one pending response. Uses only the standard
library.
"""

from dataclasses import dataclass
from functools import lru_cache


class MalformedResponseError(Exception):
    """A response whose end this HTTP/1.1 reader cannot determine."""


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response. `media_type` is the Content-Type without parameters, in lower case."""

    status: int
    media_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The status line and the headers of a response. `length` is `None` for a chunked body."""

    status: int
    media_type: str
    length: int | None


class ResponseReader:
    """A parser of one connection's responses, fed with bytes as they arrive."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Response | None:
        """Return the response that `data` completes, or `None` while it is incomplete.

        Raises:
            MalformedResponseError: the end cannot be determined, or data follows the end.
        """
        received = self._buffer + data if self._buffer else data
        self._buffer = received
        end_of_head = received.find(b"\r\n\r\n")
        if end_of_head < 0:
            return None
        head = read_head(received[:end_of_head])
        start = end_of_head + 4
        if head.length is None:
            body = read_chunks(received, start)
            if body is None:
                return None
        else:
            if len(received) < start + head.length:
                return None
            if len(received) > start + head.length:
                raise MalformedResponseError("bytes after the end of the body")
            body = received[start:]
        self._buffer = b""
        return Response(head.status, head.media_type, body)


# A server repeats the same head while the second in its Date header stays the same.
@lru_cache(maxsize=1024)
def read_head(raw: bytes) -> Head:
    """Parse the status line and the headers, given without the final empty line. Raise
    MalformedResponseError if they are malformed."""
    status_line, *lines = raw.decode("latin-1").split("\r\n")
    version, status, *_ = status_line.split(" ", 2)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    if version != "HTTP/1.1" or headers.get("connection", "").lower() == "close":
        raise MalformedResponseError(f"the connection cannot be kept alive: {status_line!r}")
    is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
    if not is_chunked and "content-length" not in headers:
        raise MalformedResponseError("the response has neither Content-Length nor a chunked body")
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    return Head(int(status), media_type, None if is_chunked else int(headers["content-length"]))


def read_chunks(received: bytes, start: int) -> bytes | None:
    """Return the decoded chunked body that begins at `start`, or `None` while it is incomplete.
    Raise MalformedResponseError if it is malformed."""
    parts: list[bytes] = []
    while (end_of_size := received.find(b"\r\n", start)) >= 0:
        size = int(received[start:end_of_size].partition(b";")[0], 16)
        start = end_of_size + 2
        if len(received) < start + size + 2:
            return None
        if size == 0:
            if received[start:] != b"\r\n":
                raise MalformedResponseError("trailers, or bytes after the last chunk")
            return b"".join(parts)
        parts.append(received[start : start + size])
        start += size + 2
    return None
