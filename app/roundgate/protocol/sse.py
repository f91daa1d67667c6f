"""Server-Sent Events as bytes (WHATWG HTML, section 9.2), as far as streamable-http uses
them: data and comments."""

from __future__ import annotations

from typing import Final

CONTENT_TYPE: Final = b"text/event-stream"
KEEP_ALIVE: Final = b":\r\n\r\n"
"""A comment: keeps idle connections open and is ignored by every reader
(streamable-http, "Receiving Messages")."""


def event(message: bytes) -> bytes:
    """One JSON-RPC message, which is one line, as one event."""
    return b"event: message\r\ndata: %b\r\n\r\n" % message


def event_with_id(message: bytes, event_id: str, retry_ms: int | None = None) -> bytes:
    """An event after which a client can go on elsewhere; with an empty message it says only that.

    `retry_ms` is how many milliseconds a client waits before it does.
    """
    retry = b"" if retry_ms is None else b"retry: %d\r\n" % retry_ms
    kind = b"event: message\r\n" if message else b""
    return b"id: %b\r\n%b%bdata: %b\r\n\r\n" % (event_id.encode(), retry, kind, message)
