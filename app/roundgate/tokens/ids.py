"""Ids that are sealed tokens. Every process with the keys can open them, but only for their owner;
nothing about them is stored. The tokens of events and bearer tokens are valid for any caller.

`Mcp-Session-Id`      the facts that a client stated when it opened its session
id of a question      its session, the hidden task that asks, and the name of the question in it
id of an event        the hidden task of a call, and the id of its request
id of a remote task   the back end and the tool that have it, and the service's own id
token of an event     the task that waits for it, and its name in the task's record
bearer token          the claims of a session or a link of the console

The first claim of each is its purpose, so no other token under the same keys can replace it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import ParseError, SessionNotFound
from roundgate.tokens.sealed import KeyRing, Refusals, SealBroken

_SESSION: Final = "session"
MAX_SESSION_CHARS: Final = 4_096
"""The limit on the characters of a session id to open. The gateway's own ids have a few hundred."""


class SessionFacts(Struct, frozen=True):
    """The facts of a session, which never change."""

    id: str
    revision: str
    """The protocol revision of the session."""
    requested: str
    """The revision that the client requested, which determines how it can use a stream."""
    capabilities: Mapping[str, Any]
    """The client's capabilities to answer questions, shaped as `ClientCapabilities`."""
    client_info: Mapping[str, str]
    expires_ms: int
    """When the session ends, in milliseconds since the epoch."""


class SessionSealer(Struct, frozen=True):
    """The sealer of session ids. `lifetime_s` is the lifetime of a session in seconds."""

    ring: KeyRing
    clock: Clock
    lifetime_s: float
    leeway_s: float = field(default=5)
    """The allowed difference between the clocks of two replicas, in seconds."""
    refusals: Refusals = field(default_factory=lambda: Refusals(of_sessions=True))

    def seal(
        self,
        owner: Principal,
        revision: str,
        requested: str,
        capabilities: Mapping[str, Any],
        client_info: Mapping[str, str],
    ) -> str:
        """Return the id of a new session."""
        now_ms = self.clock.now_ms()
        claims = [
            _SESSION,
            self.clock.new_id(),
            revision,
            requested,
            dict(capabilities),
            dict(client_info),
            now_ms,
            now_ms + int(self.lifetime_s * 1000),
        ]
        return self.ring.seal(json.encode(claims), owner)

    def open(self, token: str, owner: Principal) -> SessionFacts:
        """Return the facts of the session with an id.

        Raises:
            SessionNotFound: the id is invalid; the text is always the same. The log has the reason,
                once per caller and minute.
        """
        try:
            return self._open(token, owner)
        except SealBroken as error:
            raise self.refused(str(error), owner) from None

    def refused(self, reason: str, owner: Principal) -> SessionNotFound:
        """Log the reason of a refusal, and return the error to raise."""
        self.refusals.note(reason, owner, self.clock.monotonic_ms())
        return SessionNotFound()

    def _open(self, token: str, owner: Principal) -> SessionFacts:
        if len(token) > MAX_SESSION_CHARS:
            raise SealBroken("too long")
        try:
            claims = json.decode(self.ring.open(token, owner))
            purpose, *_, issued_ms, expires_ms = claims
            early_ms, late_ms = issued_ms - self.clock.now_ms(), self.clock.now_ms() - expires_ms
            facts = SessionFacts(*[*claims[1:-2], expires_ms])
        except (ParseError, ValueError, TypeError):
            raise SealBroken("no session, or sealed by an incompatible version") from None
        if purpose != _SESSION:
            raise SealBroken("sealed for another purpose")
        if late_ms > self.leeway_s * 1000:
            raise SealBroken("expired")
        if early_ms > self.leeway_s * 1000:
            raise SealBroken("not yet valid: the clock of the replica that sealed it is ahead")
        return facts


MAX_STREAM_CHARS: Final = 8_192
"""The limit on the characters of a question's or event's id to open. The gateway's own ids are
shorter; some servers reject headers of this length."""
MAX_TASK_CHARS: Final = 2_048
"""The limit on the characters of a task id to open; the gateway's own ids are shorter."""
MAX_EVENT_CHARS: Final = 2_048
"""The limit on the characters of an event's token to open; the gateway's own tokens are shorter."""
_SERVICES: Final = Principal("roundgate:events", "any service")
"""The owner of all event tokens. The token is the only credential of a service that posts an
event."""
_BEARERS: Final = Principal("roundgate:bearers", "any bearer")
"""The owner of all bearer tokens. The token is the only credential of its bearer."""


def _seal(ring: KeyRing, owner: Principal, purpose: str, *claims: Any) -> str:
    return ring.seal(json.encode([purpose, *claims]), owner)


def _claims(ring: KeyRing, owner: Principal, purpose: str, token: Any, max_chars: int) -> list[Any]:
    """Return the claims that were sealed for a purpose; none if the token is invalid.

    Raises:
        Unavailable: the keys cannot be read at the moment.
    """
    if not isinstance(token, str) or len(token) > max_chars:
        return []
    try:
        match json.decode(ring.open(token, owner)):
            case [str(sealed_for), *claims] if sealed_for == purpose:
                return claims
    except (SealBroken, ParseError):
        pass
    return []


class QuestionId(Struct, frozen=True):
    """A question: its session, the id of the hidden task that asks it, and its name in the
    task."""

    session: str
    task: str
    name: str


class StreamIds(Struct, frozen=True):
    """The sealer of question ids and event ids, each for one caller and one session."""

    ring: KeyRing

    def seal_question(self, question: QuestionId, owner: Principal) -> str:
        """Return the JSON-RPC id of a question, about 140 characters."""
        return _seal(self.ring, owner, "question", question.session, question.task, question.name)

    def open_question(self, token: Any, session: str, owner: Principal) -> QuestionId | None:
        """Return the question that an id identifies, or `None` if this session was never asked
        it."""
        match _claims(self.ring, owner, "question", token, MAX_STREAM_CHARS):
            case [str(asked), str(task), str(name)] if asked == session:
                return QuestionId(session, task, name)
        return None

    def seal_call(self, session: str, facts: Any, owner: Principal) -> str:
        """Return a token with the facts for continuing a call; `facts` is any JSON value."""
        return _seal(self.ring, owner, "call", session, facts)

    def open_call(self, token: Any, session: str, owner: Principal) -> Any:
        """Return the facts of a call of this session, or `None` if the token is invalid."""
        match _claims(self.ring, owner, "call", token, MAX_STREAM_CHARS):
            case [str(of), facts] if of == session:
                return facts
        return None


class TaskPlace(Struct, frozen=True):
    """The place of a task that runs in another service."""

    backend: str
    """The name of the back end that has the task."""
    tool: str
    """The called tool, by the name under which the gateway served it."""
    id: str
    """The service's own id of the task."""


class TaskIds(Struct, frozen=True):
    """The sealer of task places."""

    ring: KeyRing

    def seal(self, place: TaskPlace, owner: Principal) -> str:
        """Return the id of a task for its owner. Two calls for the same place return different
        ids."""
        return _seal(self.ring, owner, "task", place.backend, place.tool, place.id)

    def open(self, task_id: str, owner: Principal) -> TaskPlace | None:
        """Return the place of a task, or `None` if the id was not sealed for this caller. Raise
        Unavailable if the keys cannot be read at the moment."""
        claims = _claims(self.ring, owner, "task", task_id, MAX_TASK_CHARS)
        return TaskPlace(*claims) if len(claims) == 3 else None


class EventPlace(Struct, frozen=True):
    """An external event: its task, and its name in the task's record."""

    owner: str
    """The digest of the task's owner."""
    task_id: str
    name: str


class EventTokens(Struct, frozen=True):
    """The sealer of event places. A service with a token may deliver the event once."""

    ring: KeyRing

    def seal(self, place: EventPlace) -> str:
        """Return a token for an event. Two calls for the same event return different tokens."""
        return _seal(self.ring, _SERVICES, "event", place.owner, place.task_id, place.name)

    def open(self, token: str) -> EventPlace | None:
        """Return the place of an event, or `None` if the token is invalid. Raise Unavailable if the
        keys cannot be read at the moment."""
        claims = _claims(self.ring, _SERVICES, "event", token, MAX_EVENT_CHARS)
        return EventPlace(*claims) if len(claims) == 3 else None


class BearerTokens(Struct, frozen=True):
    """The sealer of claims that anyone with the token may present, for one purpose."""

    ring: KeyRing
    purpose: str
    max_chars: int
    """The limit on the characters of a token to open."""

    def seal(self, claims: Mapping[str, Any]) -> str:
        """Return a token with these claims. Two calls return different tokens."""
        return _seal(self.ring, _BEARERS, self.purpose, dict(claims))

    def open(self, token: str) -> Mapping[str, Any] | None:
        """Return the claims of a token, or `None` if the token is invalid. Raise Unavailable if the
        keys cannot be read at the moment."""
        match _claims(self.ring, _BEARERS, self.purpose, token, self.max_chars):
            case [dict(claims)]:
                return claims
        return None
