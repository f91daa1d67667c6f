"""Calls between two rounds, sealed in the id of an event: any process can continue one from it.

    id: <token>.2        the client has received two of the questions

The token has the request, the `requestState` of the round that asked, and its questions. If it is
too long for a header, or for a model to copy, it is stored in a row, and the token names the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from roundgate.clock import Clock
from roundgate.errors import InvalidRequest
from roundgate.http.older.caller import Caller
from roundgate.protocol import Request
from roundgate.storage import RowsOf
from roundgate.tokens.ids import StreamIds

MAX_TOKEN: Final = 4_000
"""The longest token that travels whole, in characters: proxies accept headers of 8 KB."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call between its rounds: the facts behind an event's id."""

    request: Request
    requests: Mapping[str, Any]
    """The questions to the client, by key."""
    state: str | None
    """The `requestState` of the round that asked; `None` before the first has ended."""
    round: str
    until_ms: int
    """When the wait for answers ends, in milliseconds since the epoch."""
    pages: dict[str, str] = field(default_factory=dict)
    """The `elicitationId` of each page that the client's user has not finished, by the key of its
    question."""

    def asking(self, requests: Mapping[str, Any], state: str, round_: str, until_ms: int) -> Self:
        """Return the call after a round that asks questions."""
        pages = {
            key: f"{round_}.{number}"
            for number, (key, request) in enumerate(requests.items())
            if request.get("params", {}).get("mode") == "url"
        }
        return type(self)(self.request, requests, state, round_, until_ms, {**self.pages, **pages})

    def to_json(self) -> list[Any]:
        """Return the facts for an event's id."""
        request = self.request
        return [
            request.id,
            request.method,
            request.params,
            dict(self.requests),
            self.state,
            self.round,
            self.until_ms,
            self.pages,
        ]

    @classmethod
    def from_json(cls, facts: Any) -> OpenCall:
        """Return the call from the facts of an event's id, which the gateway has sealed.

        Raises:
            InvalidRequest: an incompatible version of the gateway wrote them.
        """
        try:
            request_id, method, params, requests, state, round_, until_ms, pages = facts
            return cls(
                Request(request_id, method, params),
                dict(requests),
                state,
                str(round_),
                int(until_ms),
                dict(pages),
            )
        except (TypeError, ValueError):
            raise InvalidRequest(
                "Last-Event-ID is of an incompatible version; call again"
            ) from None


class OpenCalls:
    """Makes and reads the ids of events.

    Args:
        rows_of: returns the rows of a caller, which keep calls that are too long for an id.
        ids: seals and opens tokens.
        clock: the clock of the process.
        keep_s: seconds for which such a row is kept.
    """

    def __init__(self, rows_of: RowsOf, ids: StreamIds, clock: Clock, *, keep_s: float) -> None:
        self._rows_of = rows_of
        self._ids = ids
        self._clock = clock
        self._keep_ms = int(keep_s * 1000)

    async def event_id(
        self, call: OpenCall, caller: Caller, number: int = 0, most: int = MAX_TOKEN
    ) -> str:
        """Return the id of an event after which any process can continue a call.

        Args:
            call: the call at that event.
            caller: the caller.
            number: how many of the call's questions the client has received.
            most: the longest token, in characters; a longer one is stored in a row.

        Raises:
            Unavailable: the row cannot be written now.
        """
        session = caller.session.id
        token = self._ids.seal_call(session, call.to_json(), caller.principal)
        if len(token) > most:
            key = f"call.{self._clock.new_id()}"
            rows, forget_ms = self._rows_of(caller.principal), self._clock.now_ms() + self._keep_ms
            await rows.put_new(key, token.encode(), forget_ms)
            facts = {"row": key, "until_ms": call.until_ms}
            token = self._ids.seal_call(session, facts, caller.principal)
        return f"{token}.{number}"

    async def reopened(self, event_id: str, caller: Caller) -> tuple[OpenCall, int]:
        """Return the call of an event, and how many of its questions have reached the client.

        Raises:
            InvalidRequest: the id does not belong to this session, or has expired.
            Unavailable: the row of the call cannot be read now.
        """
        token, _, number = event_id.rpartition(".")
        facts = await self._facts(token, caller)
        if facts is None or not (number.isascii() and number.isdigit() and len(number) <= 4):
            raise InvalidRequest(
                "Last-Event-ID is none that this session was given, or is too old; call again"
            )
        return OpenCall.from_json(facts), int(number)

    def until_ms(self, event_id: str, caller: Caller) -> int:
        """Return when the wait for answers after an event ends, in milliseconds since the epoch,
        without reading the store; 0 if the id does not belong to this session."""
        token, _, _ = event_id.rpartition(".")
        match self._ids.open_call(token, caller.session.id, caller.principal):
            case {"until_ms": int(until_ms)} | [*_, int(until_ms), dict()]:
                return until_ms
        return 0

    async def _facts(self, token: str, caller: Caller) -> Any:
        session = caller.session.id
        facts = self._ids.open_call(token, session, caller.principal)
        match facts:
            case {"row": str(key)}:
                row = await self._rows_of(caller.principal).read(key)
                if row is None:
                    return None
                return self._ids.open_call(row.value.decode(), session, caller.principal)
        return facts


def after(event_id: str, number: int) -> str:
    """Return an event's id with another number of received questions."""
    return f"{event_id.rpartition('.')[0]}.{number}"
