"""Server-Sent Events from bytes as they arrive (WHATWG HTML, section 9.2). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from roundgate.errors import BadAnswer

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. `id` is the stream's last one at this event, `retry_ms` what a
    `retry` field before it said."""

    data: bytes
    id: str | None
    retry_ms: int | None


class EventReader:
    """Collects the bytes of one stream and hands out its events."""

    __slots__ = (
        "_data", "_ended_with_cr", "_line_so_far", "_max", "_retry", "_saw_data", "_start", "_started", "last_id",
    )  # fmt: skip

    def __init__(self, max_event: int) -> None:
        self._max = max_event
        self._line_so_far = bytearray()
        self._data = bytearray()
        self._saw_data = False
        self._start = b""
        self._started = self._ended_with_cr = False
        self._retry: int | None = None
        self.last_id: str | None = None

    def feed(self, data: bytes) -> list[ServerEvent]:
        """The events that `data` completes.

        Raises:
            BadAnswer: an event is longer than it may be.
        """
        if not self._started:
            self._start += data
            if len(self._start) < len(_BOM) and _BOM.startswith(self._start):
                return []
            self._started = True
            data, self._start = self._start.removeprefix(_BOM), b""
        # A carriage return ends its line at once; the line feed behind it may be in the next piece.
        if self._ended_with_cr and data:
            data = data.removeprefix(b"\n")
            self._ended_with_cr = False
        events: list[ServerEvent] = []
        start = 0
        # Only what is new is searched: a line that comes byte by byte is not read again with each
        # of them.
        for found in _LINE_END.finditer(data):
            line = data[start : found.start()]
            if self._line_so_far:
                line = bytes(self._line_so_far + line)
                self._line_so_far.clear()
            if (event := self._line(line)) is not None:
                events.append(event)
            start = found.end()
        self._ended_with_cr = data.endswith(b"\r") or (self._ended_with_cr and not data)
        self._line_so_far += data[start:]
        self._check_size(len(self._line_so_far))
        return events

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value
            self._data += b"\n"
            self._saw_data = True
            self._check_size(0)
        elif name == b"id" and b"\0" not in value and len(value) <= 4096:
            self.last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self._retry = int(value)
        return None

    def _dispatch(self) -> ServerEvent | None:
        data = bytes(self._data[:-1])
        self._data.clear()
        saw, self._saw_data = self._saw_data, False
        retry, self._retry = self._retry, None
        if not saw and retry is None:
            return None
        return ServerEvent(data, self.last_id, retry)

    def _check_size(self, more: int) -> None:
        if len(self._data) + more > self._max:
            raise BadAnswer(
                f"The server sent an event of more than {self._max} bytes (limit max_message)"
            )
