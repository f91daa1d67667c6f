"""Ids that are sealed tokens: every process with the keys can open them, for their owner alone, and
nothing about them is stored.

`Mcp-Session-Id`      the facts that a client stated when it opened its session
id of a question      its session, its round, and its number in the round
id of an event        everything that a process needs to continue a call: its request and its state
id of a remote task   the back end and the tool that have it, and the service's own id

The first claim of each is its purpose, so no other token under the same keys can replace it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import ParseError, SessionNotFound
from roundgate.tokens.sealed import KeyRing, Refusals, SealBroken

_SESSION: Final = "session"
MAX_SESSION_CHARS: Final = 4_096
"""The most characters of a session id that is opened; the gateway's own have a few hundred."""


MAX_OPENED: Final = 1_000
"""The most opened sessions that a process keeps; beyond that it forgets the one opened longest
ago."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The facts of a session, which never change."""

    id: str
    revision: str
    """The version of the session's revision."""
    requested: str
    """The version that the client asked for, which decides how it can use a stream."""
    capabilities: Mapping[str, Any]
    """The capabilities that the server may use to ask the client, shaped as
    `ClientCapabilities`."""
    client_info: Mapping[str, str]
    expires_ms: int
    """When the session ends, in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class SessionSealer:
    """The sealer of session ids. `lifetime_s` is the lifetime of a session in seconds."""

    ring: KeyRing
    clock: Clock
    lifetime_s: float
    leeway_s: float = field(default=5)
    """The most seconds by which the clocks of two replicas may differ."""
    _opened: dict[tuple[str, tuple[str, str, str]], SessionFacts] = field(default_factory=dict)
    """The sessions opened here, by token and owner. Invalid tokens are never kept."""
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
        """Return the session that an id identifies.

        Raises:
            SessionNotFound: always with the same text; the log has the reason, once per caller and
                minute.
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
        known = self._opened.get((token, owner.identity))
        if known is not None and self.clock.now_ms() <= known.expires_ms:
            return known
        if len(token) > MAX_SESSION_CHARS:
            raise SealBroken("too long")
        try:
            claims = json.decode(self.ring.open(token, owner))
            (
                purpose,
                session_id,
                revision,
                requested,
                capabilities,
                client_info,
                issued_ms,
                expires_ms,
            ) = claims
            early_ms, late_ms = issued_ms - self.clock.now_ms(), self.clock.now_ms() - expires_ms
        except (ParseError, ValueError, TypeError):
            raise SealBroken("no session, or sealed by an incompatible version") from None
        if purpose != _SESSION:
            raise SealBroken("sealed for another purpose")
        if late_ms > self.leeway_s * 1000:
            raise SealBroken("expired")
        if early_ms > self.leeway_s * 1000:
            raise SealBroken("not yet valid: the clock of the replica that sealed it is ahead")
        facts = SessionFacts(session_id, revision, requested, capabilities, client_info, expires_ms)
        self._opened[token, owner.identity] = facts
        if len(self._opened) > MAX_OPENED:
            self._opened.pop(next(iter(self._opened)), None)
        return facts


_QUESTION: Final = "question"
_CALL: Final = "call"
MAX_STREAM_CHARS: Final = 8_192
"""The most characters of a question's id that is opened; the gateway's own are shorter, and not
every server accepts headers of this length. The token of a call has no limit here."""


@dataclass(frozen=True, slots=True)
class QuestionId:
    """A question: its session, the round that asked it, and its number in that round."""

    session: str
    round: str
    number: int
    until_ms: int
    """When the wait for its answer ends, in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class StreamIds:
    """The sealer of question ids and event ids, each for one caller and one session."""

    ring: KeyRing

    def seal_question(self, question: QuestionId, owner: Principal) -> str:
        """Return the JSON-RPC id of a question, about 160 characters."""
        place = [question.session, question.round, question.number]
        claims = [_QUESTION, *place, question.until_ms]
        return self.ring.seal(json.encode(claims), owner)

    def open_question(self, token: Any, session: str, owner: Principal) -> QuestionId | None:
        """Return the question of an answer, or `None` if this session was never asked it."""
        match self._opened(token, owner):
            case [str(purpose), str(asked), str(round_), int(number), int(until_ms)] if (
                purpose == _QUESTION and asked == session
            ):
                return QuestionId(session, round_, number, until_ms)
        return None

    def seal_call(self, session: str, facts: Any, owner: Principal) -> str:
        """Return a token that holds the facts for continuing a call, which are any JSON value."""
        return self.ring.seal(json.encode([_CALL, session, facts]), owner)

    def open_call(self, token: Any, session: str, owner: Principal) -> Any:
        """Return the facts of a call of this session, or `None` if the token has none."""
        match self._opened(token, owner, limit=None):
            case [str(purpose), str(of), facts] if purpose == _CALL and of == session:
                return facts
        return None

    def _opened(self, token: Any, owner: Principal, limit: int | None = MAX_STREAM_CHARS) -> Any:
        if not isinstance(token, str) or (limit is not None and len(token) > limit):
            return None
        try:
            return json.decode(self.ring.open(token, owner))
        except (SealBroken, ParseError):
            return None


_TASK: Final = "task"
MAX_TASK_CHARS: Final = 2_048
"""The most characters of a task id that is opened; the gateway's own are shorter."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """The place of a task that runs in another service."""

    backend: str
    """The name of the back end that has the task."""
    tool: str
    """The tool that was called, by the name under which it was served."""
    id: str
    """The service's own id of the task."""


class TaskIds:
    """The sealer of task places."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    def seal(self, place: TaskPlace, owner: Principal) -> str:
        """Return the id of a task for its owner. Two calls for one place return different ids."""
        return self._ring.seal(json.encode([_TASK, place.backend, place.tool, place.id]), owner)

    def open(self, task_id: str, owner: Principal) -> TaskPlace | None:
        """Return the place of a task, or `None` if the id was not sealed for this caller.

        Raises:
            Unavailable: the keys cannot be read now.
        """
        if len(task_id) > MAX_TASK_CHARS:
            return None
        try:
            purpose, backend, tool, source_id = json.decode(self._ring.open(task_id, owner))
        except (SealBroken, ParseError, ValueError, TypeError):
            return None
        return TaskPlace(backend, tool, source_id) if purpose == _TASK else None
