"""Server-Sent Events as bytes (WHATWG HTML, section 9.2), as far as streamable-http uses them:
messages, ids, `retry` and comments."""

from __future__ import annotations

from typing import Final

CONTENT_TYPE: Final = b"text/event-stream"
KEEP_ALIVE: Final = b":\r\n\r\n"
"""A comment, which keeps an idle connection open and is ignored by every reader (streamable-http,
"Receiving Messages")."""


def event(message: bytes) -> bytes:
    """Return one JSON-RPC message, which is one line, as one event."""
    return b"event: message\r\ndata: %b\r\n\r\n" % message


def event_with_id(message: bytes, event_id: str, retry_ms: int | None = None) -> bytes:
    """Return an event with an id from which a client can continue at another replica; an empty
    message sends only the id. `retry_ms` is the pause before a client reconnects, in
    milliseconds."""
    retry = b"" if retry_ms is None else b"retry: %d\r\n" % retry_ms
    kind = b"event: message\r\n" if message else b""
    return b"id: %b\r\n%b%bdata: %b\r\n\r\n" % (event_id.encode(), retry, kind, message)
