"""Calls between two rounds: hidden tasks, which any process finds by the id of an event.

    id: <token>.<mark>.2        the client has received two of the questions with this mark

The token names the task and the request, sealed for the session; the task stores the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from roundgate import json
from roundgate.errors import InvalidRequest
from roundgate.http.older.caller import SessionCaller
from roundgate.protocol import Request
from roundgate.storage import TaskRef
from roundgate.tasks.hidden import HiddenTasks
from roundgate.tokens.ids import StreamIds

MAX_NAME: Final = 100
"""The maximum length of a name or URI in a token, in characters. Only the log shows it."""

Position: TypeAlias = tuple[str, int]
"""The mark of a round's questions, and the number of questions that the client has received."""


class CallState(Struct, frozen=True):
    """The state of a call between two rounds, stored in its task."""

    state: str
    """The `requestState` of the last round."""
    requests: Mapping[str, Any]
    """The questions to the client, by key."""
    pages: Mapping[str, str]
    """The `elicitationId` of each page that the client's user has not finished, by the key of its
    question."""
    mark: str
    """A unique id that distinguishes the questions of this round from all others."""

    @property
    def names(self) -> list[str]:
        """The names of the questions in the task."""
        return [f"{self.mark}.{number}" for number in range(len(self.requests))]

    @property
    def asked(self) -> dict[str, bytes]:
        """The method of each question, by name. Operators see nothing else of a question."""
        methods = ({"method": request["method"]} for request in self.requests.values())
        return dict(zip(self.names, map(json.encode, methods), strict=True))

    def to_bytes(self) -> bytes:
        """Encode the state for its task."""
        return json.encode([self.state, dict(self.requests), dict(self.pages), self.mark])

    @classmethod
    def from_bytes(cls, data: bytes) -> CallState:
        """Decode the state that a task stores."""
        return cls(*json.decode(data))


class OpenCall(Struct, frozen=True):
    """A call that a request continues."""

    ref: TaskRef
    request: Request
    """The request; if the call has ended, only its id, method and name."""
    position: Position
    scopes: frozenset[str] = field(default_factory=frozenset)
    """The scopes with which the call began; empty if the call has ended, because its outcome has
    them."""


def call_bytes(request: Request, scopes: frozenset[str]) -> bytes:
    """Encode a request for its task."""
    return json.encode([request.params, sorted(scopes)])


def decode_call(data: bytes) -> tuple[dict[str, Any], frozenset[str]]:
    """Decode the params and scopes of the request that a task stores."""
    params, scopes = json.decode(data)
    return params, frozenset(scopes)


class OpenCalls:
    """Makes and reads event ids.

    Args:
        hidden: the tasks of the calls.
        ids: the sealer of tokens.
    """

    def __init__(self, hidden: HiddenTasks, ids: StreamIds) -> None:
        self._hidden = hidden
        self._ids = ids

    def event_id(
        self,
        ref: TaskRef,
        call_id: str | None,
        request: Request,
        caller: SessionCaller,
        position: Position,
    ) -> str:
        """Return the id of an event after which any process can continue a call.

        Args:
            ref: the task of the call.
            call_id: the id of the call in the log. A later call with the same request id has
            another.
            request: the request.
            caller: the caller.
            position: the questions that the client has received.
        """
        known = request.params.get("name", request.params.get("uri"))
        name = known[:MAX_NAME] if isinstance(known, str) else ""
        facts = [ref.id, call_id, request.id, request.method, name, self._hidden.until_ms]
        token = self._ids.seal_call(caller.session.id, facts, caller.principal)
        return after(token, position)

    async def reopened(self, event_id: str, caller: SessionCaller) -> OpenCall:
        """Return the call to which an event belongs.

        Raises:
            InvalidRequest: the id does not belong to this session, or has expired.
            Unavailable: the task cannot be read now.
        """
        refused = InvalidRequest("Last-Event-ID is unknown in this session, or too old; call again")
        facts, position = self._opened(event_id, caller)
        if facts is None or position is None:
            raise refused
        task_id, call_id, request_id, method, name, _ = facts
        ref = self._hidden.ref_of(caller.principal, task_id)
        record, work = await self._hidden.whole(ref)
        if record is None or record.call_id != call_id:
            raise refused
        if work is None:
            params = {"uri" if method == "resources/read" else "name": name}
            return OpenCall(ref, Request(request_id, method, params), position)
        params, scopes = decode_call(work.call)
        return OpenCall(ref, Request(request_id, method, params), position, scopes)

    def until_ms(self, event_id: str, caller: SessionCaller) -> int:
        """Return the end of the wait for answers after an event, in milliseconds since the epoch; 0
        if the id does not belong to this session. Does not read the store."""
        facts, _ = self._opened(event_id, caller)
        return 0 if facts is None else int(facts[-1])

    def _opened(
        self, event_id: str, caller: SessionCaller
    ) -> tuple[list[Any] | None, Position | None]:
        token, *rest = event_id.rsplit(".", 2)
        facts = self._ids.open_call(token, caller.session.id, caller.principal)
        if not isinstance(facts, list) or len(facts) != 6:
            return None, None
        mark, number = rest
        is_number = number.isascii() and number.isdigit() and len(number) <= 4
        return facts, (mark, int(number)) if is_number else None


def position_from_name(name: str) -> Position:
    """Return the mark of a question's name, and its number in its round, from 0."""
    mark, _, number = name.rpartition(".")
    return mark, int(number)


def after(token: str, position: Position) -> str:
    """Return the id of an event at a position."""
    return f"{token}.{position[0]}.{position[1]}"


def moved(event_id: str, position: Position) -> str:
    """Return an event's id with another position."""
    return after(event_id.rsplit(".", 2)[0], position)
