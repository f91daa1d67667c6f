"""Server-Sent Events from bytes as they arrive (WHATWG HTML, section 9.2). Pure."""

from __future__ import annotations

import re
from typing import Final

from roundgate.carrier import carrier
from roundgate.errors import BadAnswer

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BOM: Final = b"\xef\xbb\xbf"


@carrier
class ServerEvent:
    """One event. `id` is the stream's last one at this event, `retry_ms` what a `retry` field before it said."""

    data: bytes
    id: str | None
    retry_ms: int | None


class EventReader:
    """Collects the bytes of one stream and hands out its events."""

    __slots__ = ("_buffer", "_data", "_max", "_retry", "_saw_data", "_size", "_started", "last_id")

    def __init__(self, max_event: int) -> None:
        self._max = max_event
        self._buffer = b""
        self._data: list[bytes] = []
        self._size = 0
        self._saw_data = False
        self._started = False
        self._retry: int | None = None
        self.last_id: str | None = None

    def feed(self, data: bytes) -> list[ServerEvent]:
        """The events that `data` completes.

        Raises:
            BadAnswer: an event is longer than it may be.
        """
        buffer = self._buffer + data if self._buffer else data
        if not self._started:
            if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
                self._buffer = buffer
                return []
            self._started = True
            buffer = buffer.removeprefix(_BOM)
        events: list[ServerEvent] = []
        start = 0
        for found in _LINE_END.finditer(buffer):
            # A carriage return that is the last byte may be half a line end.
            if found.end() == len(buffer) and found[0] == b"\r":
                break
            if (event := self._line(buffer[start : found.start()])) is not None:
                events.append(event)
            start = found.end()
        self._buffer = buffer[start:]
        if len(self._buffer) + self._size > self._max:
            raise BadAnswer(
                f"The server sent an event of more than {self._max} bytes (limit max_message)"
            )
        return events

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
            self._saw_data = True
            if self._size > self._max:
                raise BadAnswer(
                    f"The server sent an event of more than {self._max} bytes (limit max_message)"
                )
        elif name == b"id" and b"\0" not in value and len(value) <= 4096:
            self.last_id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self._retry = int(value)
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, self._data, self._size = b"\n".join(self._data), [], 0
        saw, self._saw_data = self._saw_data, False
        retry, self._retry = self._retry, None
        if not saw and retry is None:
            return None
        return ServerEvent(data, self.last_id, retry)
