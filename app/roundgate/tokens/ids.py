"""Ids that are sealed tokens. Every process with the keys can open them, but only for their owner;
nothing about them is stored. The tokens of events and bearer tokens are valid for any caller.

`Mcp-Session-Id`      the facts that a client stated when it opened its session
id of a question      its session, the hidden task that asks, and the name of the question in it
id of an event        the hidden task of a call, and the id of its request
id of a remote task   the back end and the tool that have it, and the service's own id
token of an event     the task that waits for it, and its name in the task's record
bearer token          the claims of a session or a link of the console

Each is a JSON array. The first claim is its purpose (the tag of its class), so no other token under
the same keys can replace it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import ParseError, SessionNotFound
from roundgate.tokens.sealed import KeyRing, Refusals, SealBroken, check_dates

MAX_SESSION_CHARS: Final = 4_096
"""The limit on the characters of a session id to open. The gateway's own ids have a few hundred."""
MAX_STREAM_CHARS: Final = 8_192
"""The limit on the characters of a question's or event's id to open. The gateway's own ids are
shorter; some servers reject headers of this length."""
MAX_PLACE_CHARS: Final = 2_048
"""The limit on the characters of a task id or an event's token to open; the gateway's own are
shorter."""
_SERVICES: Final = Principal("roundgate:events", "any service")
"""The owner of all event tokens. The token is the only credential of a service that posts an
event."""
_BEARERS: Final = Principal("roundgate:bearers", "any bearer")
"""The owner of all bearer tokens. The token is the only credential of its bearer."""

C = TypeVar("C", bound=Struct)


def _seal(ring: KeyRing, owner: Principal, claims: Struct) -> str:
    return ring.seal(json.encode(msgspec.to_builtins(claims)), owner)


def _opened(ring: KeyRing, owner: Principal, kind: type[C], token: Any, max_chars: int) -> C:
    """Return the claims that were sealed.

    Raises:
        SealBroken: the token is invalid, or was sealed for another purpose.
        Unavailable: the keys cannot be read at the moment.
    """
    if not isinstance(token, str) or len(token) > max_chars:
        raise SealBroken("too long")
    try:
        claims: C = msgspec.convert(json.decode(ring.open(token, owner)), kind)
    except (ParseError, msgspec.ValidationError):
        raise SealBroken("sealed for another purpose, or by an incompatible version") from None
    return claims


def _claims(ring: KeyRing, owner: Principal, kind: type[C], token: Any, max_chars: int) -> C | None:
    """Return the claims that were sealed; `None` if the token is invalid."""
    try:
        return _opened(ring, owner, kind, token, max_chars)
    except SealBroken:
        return None


class SessionFacts(Struct, frozen=True, array_like=True, tag="session"):
    """The facts of a session, which never change."""

    id: str
    revision: str
    """The protocol revision of the session."""
    requested: str
    """The revision that the client requested, which determines how it can use a stream."""
    capabilities: Mapping[str, Any]
    """The client's capabilities to answer questions, shaped as `ClientCapabilities`."""
    client_info: Mapping[str, str]
    issued_ms: int
    """When the session began, in milliseconds since the epoch."""
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
        until_ms = now_ms + int(self.lifetime_s * 1000)
        new_id = self.clock.new_id()
        facts = SessionFacts(
            new_id, revision, requested, capabilities, client_info, now_ms, until_ms
        )
        return _seal(self.ring, owner, facts)

    def open(self, token: str, owner: Principal) -> SessionFacts:
        """Return the facts of the session with an id.

        Raises:
            SessionNotFound: the id is invalid; the text is always the same. The log has the reason,
                once per caller and minute.
        """
        try:
            facts = _opened(self.ring, owner, SessionFacts, token, MAX_SESSION_CHARS)
            check_dates(facts.issued_ms, facts.expires_ms, self.clock.now_ms(), self.leeway_s)
        except SealBroken as error:
            raise self.refused(str(error), owner) from None
        return facts

    def refused(self, reason: str, owner: Principal) -> SessionNotFound:
        """Log the reason of a refusal, and return the error to raise."""
        self.refusals.note(reason, owner, self.clock.monotonic_ms())
        return SessionNotFound()


class QuestionId(Struct, frozen=True, array_like=True, tag="question"):
    """A question: its session, the id of the hidden task that asks it, and its name in the
    task."""

    session: str
    task: str
    name: str


class _CallFacts(Struct, frozen=True, array_like=True, tag="call"):
    """The facts for continuing a call of a session."""

    session: str
    facts: Any


class StreamIds(Struct, frozen=True):
    """The sealer of question ids and event ids, each for one caller and one session."""

    ring: KeyRing

    def seal_question(self, question: QuestionId, owner: Principal) -> str:
        """Return the JSON-RPC id of a question, about 140 characters."""
        return _seal(self.ring, owner, question)

    def open_question(self, token: Any, session: str, owner: Principal) -> QuestionId | None:
        """Return the question that an id identifies, or `None` if this session was never asked
        it."""
        question = _claims(self.ring, owner, QuestionId, token, MAX_STREAM_CHARS)
        return None if question is None or question.session != session else question

    def seal_call(self, session: str, facts: Any, owner: Principal) -> str:
        """Return a token with the facts for continuing a call; `facts` is any JSON value."""
        return _seal(self.ring, owner, _CallFacts(session, facts))

    def open_call(self, token: Any, session: str, owner: Principal) -> Any:
        """Return the facts of a call of this session, or `None` if the token is invalid."""
        call = _claims(self.ring, owner, _CallFacts, token, MAX_STREAM_CHARS)
        return None if call is None or call.session != session else call.facts


class TaskPlace(Struct, frozen=True, array_like=True, tag="task"):
    """The place of a task that runs in another service."""

    backend: str
    """The name of the back end that has the task."""
    tool: str
    """The called tool, by the name under which the gateway served it."""
    id: str
    """The service's own id of the task."""


class TaskIds(Struct, frozen=True):
    """The sealer of task places. Two seals of the same place are different ids. `open` returns `None`
    if an id was not sealed for this caller, and raises Unavailable if the keys cannot be read."""

    ring: KeyRing

    def seal(self, place: TaskPlace, owner: Principal) -> str:
        return _seal(self.ring, owner, place)

    def open(self, task_id: str, owner: Principal) -> TaskPlace | None:
        return _claims(self.ring, owner, TaskPlace, task_id, MAX_PLACE_CHARS)


class EventPlace(Struct, frozen=True, array_like=True, tag="event"):
    """An external event: its task, and its name in the task's record."""

    owner: str
    """The digest of the task's owner."""
    task_id: str
    name: str


class EventTokens(Struct, frozen=True):
    """The sealer of event places, as `TaskIds` is of task places. A service with a token may deliver
    the event once."""

    ring: KeyRing

    def seal(self, place: EventPlace) -> str:
        return _seal(self.ring, _SERVICES, place)

    def open(self, token: str) -> EventPlace | None:
        return _claims(self.ring, _SERVICES, EventPlace, token, MAX_PLACE_CHARS)


class _BearerClaims(Struct, frozen=True, array_like=True):
    purpose: str
    claims: Mapping[str, Any]


class BearerTokens(Struct, frozen=True):
    """The sealer of claims that anyone with the token may present, for one purpose; otherwise as
    `TaskIds`."""

    ring: KeyRing
    purpose: str
    max_chars: int
    """The limit on the characters of a token to open."""

    def seal(self, claims: Mapping[str, Any]) -> str:
        return _seal(self.ring, _BEARERS, _BearerClaims(self.purpose, claims))

    def open(self, token: str) -> Mapping[str, Any] | None:
        opened = _claims(self.ring, _BEARERS, _BearerClaims, token, self.max_chars)
        return None if opened is None or opened.purpose != self.purpose else opened.claims
