"""A call between its rounds: all that any process needs to go on with it,
sealed in the id of an event.

    id: <token>.2        the client has seen two of the questions

The token has the request, the `requestState` of the round that asked, and what was asked. One that
is too long for a header, or for a model to copy, is a row, and the token has its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from roundgate.clock import Clock
from roundgate.errors import InvalidRequest
from roundgate.http.older.caller import Caller
from roundgate.protocol import Request
from roundgate.storage import SessionStore
from roundgate.tokens.ids import StreamIds

MAX_TOKEN: Final = 4_000
"""Characters of an event's id that travels whole: proxies take headers of 8 KB."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call between its rounds: the facts behind an event's id."""

    request: Request
    requests: Mapping[str, Any]
    """What the client has been asked, by key."""
    state: str | None
    """The `requestState` of the round that asked; `None` before the first has ended."""
    round: str
    until_ms: int
    """Until when somebody waits for the answers, in milliseconds since the epoch."""
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
        """For an event's id."""
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
        """From an event's id that we sealed.

        Raises:
            InvalidRequest: another version wrote it.
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
        rows: where calls are kept that are too long for one.
        ids: seals and opens.
        clock: of the process.
        keep_s: seconds for which a call that was written to a row may still be gone on with.
    """

    def __init__(self, rows: SessionStore, ids: StreamIds, clock: Clock, *, keep_s: float) -> None:
        self._rows = rows
        self._ids = ids
        self._clock = clock
        self._keep_ms = int(keep_s * 1000)

    async def event_id(
        self, call: OpenCall, caller: Caller, number: int = 0, most: int = MAX_TOKEN
    ) -> str:
        """The id of an event after which any process can go on with a call.

        Args:
            call: as it is then.
            caller: whose it is.
            number: how many of its questions the client has seen.
            most: characters of its token; one of more is kept, and has its name.

        Raises:
            Unavailable: it cannot be kept just now.
        """
        session = caller.session.id
        token = self._ids.seal_call(session, call.to_json(), caller.principal)
        if len(token) > most:
            key = f"call.{self._clock.new_id()}"
            await self._rows.put_new(key, token.encode(), self._clock.now_ms() + self._keep_ms)
            facts = {"row": key, "until_ms": call.until_ms}
            token = self._ids.seal_call(session, facts, caller.principal)
        return f"{token}.{number}"

    async def reopened(self, event_id: str, caller: Caller) -> tuple[OpenCall, int]:
        """The call that an event was of, and how many of its questions have reached the client.

        Raises:
            InvalidRequest: the id is none of this session's.
            Unavailable: what it stands for cannot be read just now.
        """
        token, _, number = event_id.rpartition(".")
        facts = await self._facts(token, caller)
        if facts is None or not (number.isascii() and number.isdigit() and len(number) <= 4):
            raise InvalidRequest(
                "Last-Event-ID is none that this session was given, or is too old; call again"
            )
        return OpenCall.from_json(facts), int(number)

    def until_ms(self, event_id: str, caller: Caller) -> int:
        """Until when somebody waits for what comes after an event, in milliseconds since the
        epoch, which is known without the store; 0 if the id is none of this session's."""
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
                row = await self._rows.read(key)
                if row is None:
                    return None
                return self._ids.open_call(row.value.decode(), session, caller.principal)
        return facts


def after(event_id: str, number: int) -> str:
    """The id after which so many of the same call's questions have been seen."""
    return f"{event_id.rpartition('.')[0]}.{number}"
