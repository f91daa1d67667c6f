"""What streamable HTTP wants of the head of a request to the MCP endpoint: POST, JSON in, JSON or a
stream out; in a session of an older revision GET and DELETE too.

Looked at before anybody is asked who they are: a client that tries GET learns that there is none,
not that it needs a token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import lru_cache
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from roundgate.errors import TransportError
from roundgate.http import exchange
from roundgate.protocol import SESSION_HEADER as SESSION
from roundgate.protocol import opening

JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream"
MAX_KEPT_BYTES: Final = 256
_BOTH: Final = frozenset({JSON, EVENT_STREAM})


class HeadMiddleware:
    """Raises TransportError (405, 415, 406), or says in the exchange what the client accepts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and (found := exchange.of(scope)).is_mcp:
            found.accepted = _check(scope["method"], found.headers)
        return self._app(scope, receive, send)


def _check(method: str, headers: Mapping[bytes, bytes]) -> frozenset[bytes]:
    """What the client accepts of JSON and event streams.

    Raises:
        TransportError: the HTTP method or a media type is none that this endpoint has.
    """
    accept = headers.get(b"accept")
    if method in ("GET", "DELETE") and SESSION in headers and opening.may_be_older(headers):
        accepted = _BOTH if accept is None or method == "DELETE" else _media(accept)
        if EVENT_STREAM not in accepted:
            raise TransportError(
                406, "GET answers with a stream: the Accept header must list text/event-stream"
            )
        return accepted
    if method != "POST":
        raise TransportError(
            405,
            "The MCP endpoint takes POST only; revision 2026-07-28 has no GET stream and no "
            "sessions",
            [(b"allow", b"POST")],
        )
    content_type = headers.get(b"content-type", b"")
    if (
        content_type != JSON  # what nearly everybody sends
        and content_type.partition(b";")[0].strip().lower() != JSON
    ):
        raise TransportError(415, "Content-Type must be application/json")
    accepted = (
        _BOTH
        if accept is None
        else _accepted(accept)
        if len(accept) <= MAX_KEPT_BYTES
        else _media(accept)
    )
    if not accepted:
        raise TransportError(
            406, "The Accept header must list application/json and text/event-stream"
        )
    return accepted


def _media(accept: bytes) -> frozenset[bytes]:
    ranges = {part.partition(b";")[0].strip().lower() for part in accept.split(b",")}
    if b"*/*" in ranges:
        return _BOTH
    return frozenset(
        kind for kind in _BOTH if kind in ranges or kind.partition(b"/")[0] + b"/*" in ranges
    )


_accepted: Final = lru_cache(maxsize=64)(_media)
"""Clients send one and the same value with every request; a long one is not kept."""
