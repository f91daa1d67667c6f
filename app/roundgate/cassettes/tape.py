"""What is said while a conversation is recorded, in memory: requests as they begin,
responses as they arrive.

Knows nothing of sockets: a client's transport and a proxy both tell it what passes by. `normalize`
makes a cassette of it. Only what a cassette may hold is kept of the headers; the values of the
others are kept to take them out elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate.client import EventReader
from roundgate.errors import BadAnswer, ParseError
from roundgate.json import decode

KEPT: Final = frozenset({"mcp-session-id", "last-event-id", "mcp-protocol-version"})
KEPT_OF_RESPONSES: Final = frozenset({"mcp-session-id", "retry-after"})
MAX_TAPE: Final = 32 * 1024 * 1024
MAX_EXCHANGES: Final = 20_000
_SECRET_WORDS: Final = ("auth", "cookie", "dpop", "key", "token", "secret", "password")
_SHORTEST_SECRET: Final = 8


@dataclass(slots=True)
class TapeEvent:
    """An event of a stream, as it came."""

    message: Any
    event_id: str | None
    retry_ms: int | None
    after: int


@dataclass(slots=True)
class Exchange:
    """One request and what came back so far."""

    number: int
    http: str
    headers: Mapping[str, str]
    message: Any = None
    text: str | None = None
    status: int | None = None
    response_headers: Mapping[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    events: list[TapeEvent] | None = None
    end: str | None = None
    after: int = 0
    reader: EventReader | None = None
    last_id: str | None = None


class Tape:
    """The exchanges of one conversation, in the order in which they began; from
    `MAX_TAPE` bytes on it is full."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.secrets: dict[str, str] = {}
        """Values that must not stand in a cassette, and what they are called there."""
        self.origins: list[str] = []
        """What is `${server}` in the cassette: where the server is, and the proxy in front of
        it."""
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size > MAX_TAPE or len(self.exchanges) >= MAX_EXCHANGES

    def begin(self, http: str, headers: Sequence[tuple[str, str]], body: bytes | None) -> Exchange:
        """A request is sent."""
        lower = {name.lower(): value for name, value in headers}
        self._hide(lower)
        kept = {
            name: value
            for name, value in lower.items()
            if name in KEPT or name.startswith("mcp-param-")
        }
        exchange = Exchange(len(self.exchanges) + 1, http, kept)
        if body is not None:
            self._size += len(body)
            exchange.message, exchange.text = _decoded(body)
        if not self.is_full:
            self.exchanges.append(exchange)
        return exchange

    def head(self, exchange: Exchange, status: int, headers: Mapping[str, str]) -> None:
        """The head of its response is there."""
        exchange.status = status
        exchange.response_headers = {
            name: headers[name] for name in sorted(KEPT_OF_RESPONSES) if name in headers
        }
        self._hide(
            {name: headers[name] for name in ("set-cookie", "dpop-nonce") if name in headers}
        )
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type == "text/event-stream":
            exchange.events, exchange.reader = [], EventReader(MAX_TAPE)

    def arrived(self, exchange: Exchange, data: bytes) -> None:
        """Part of its body is there."""
        self._size += len(data)
        if self.is_full:
            return
        if exchange.reader is None or exchange.events is None:
            exchange.body += data
            return
        try:
            events = exchange.reader.feed(data)
        except BadAnswer:
            return
        for event in events:
            message, text = _decoded(event.data) if event.data.strip() else (None, None)
            own_id = event.id if event.id != exchange.last_id else None
            exchange.last_id = event.id
            exchange.events.append(
                TapeEvent(
                    message if text is None else text,
                    own_id,
                    event.retry_ms,
                    len(self.exchanges),
                )
            )

    def end(self, exchange: Exchange, by: str) -> None:
        """It is over: "server", "client" (hung up), "cut" (lost). Only the
        first to say so counts."""
        if exchange.end is None:
            exchange.end = by
            exchange.after = len(self.exchanges)

    def _hide(self, headers: Mapping[str, str]) -> None:
        for name, value in headers.items():
            if name.startswith("mcp-") or not any(word in name for word in _SECRET_WORDS):
                continue
            for part in value.replace(";", " ").replace(",", " ").split():
                secret = part.partition("=")[2] if "cookie" in name else part
                if len(secret) >= _SHORTEST_SECRET:
                    self.secrets.setdefault(secret, "CREDENTIALS")


def _decoded(body: bytes) -> tuple[Any, str | None]:
    try:
        message = decode(body)
    except ParseError:
        return None, body.decode("utf-8", "replace")
    return (None, "null") if message is None else (message, None)


def decoded_body(exchange: Exchange) -> tuple[Any, str | None]:
    """The message of a response that is no stream, or its text."""
    body = bytes(exchange.body)
    return _decoded(body) if body.strip() else (None, None)
