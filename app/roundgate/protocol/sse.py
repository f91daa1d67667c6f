"""Server-Sent Events as bytes (WHATWG HTML, section 9.2), as far as streamable-http uses them: data and comments."""

from __future__ import annotations

from typing import Final

CONTENT_TYPE: Final = b"text/event-stream"
KEEP_ALIVE: Final = b":\r\n\r\n"
"""A comment: keeps idle connections open and is ignored by every reader (streamable-http, "Receiving Messages")."""


def event(message: bytes) -> bytes:
    """One JSON-RPC message, which is one line, as one event."""
    return b"event: message\r\ndata: %b\r\n\r\n" % message
