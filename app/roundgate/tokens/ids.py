"""Ids that are sealed tokens: whoever has the keys opens them, for their owner alone, and nothing is
kept of them.

`Mcp-Session-Id`      the facts that a client stated when it opened its session
id of a question      the session that was asked, the round, and the number of the question in it
id of an event        everything that a process needs to continue a call: its request and its state
id of a remote task   the back end and the tool that have it, and the service's own id

The first claim of each names its purpose: nothing else that the same keys seal has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import ParseError, SealBroken, SessionNotFound
from roundgate.tokens.sealed import KeyRing, Refusals

_SESSION: Final = "session"
MAX_SESSION_CHARS: Final = 4_096
"""Characters of a session id that is opened; ours have some hundred."""


MAX_OPENED: Final = 1_000
"""Sessions that a process need not open again; of more the one opened longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What a session is, from its beginning to its end."""

    id: str
    revision: str
    """The version of its revision."""
    requested: str
    """The version that the client asked for: what it can do with a stream depends on it."""
    capabilities: Mapping[str, Any]
    """What the client may be asked, shaped as `ClientCapabilities`."""
    client_info: Mapping[str, str]
    expires_ms: int
    """When it ends, in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class SessionSealer:
    """Seals sessions and opens them. `lifetime_s` is how long one holds, in seconds."""

    ring: KeyRing
    clock: Clock
    lifetime_s: float
    leeway_s: float = field(default=5)
    """By how much the clocks of two replicas may differ."""
    _opened: dict[tuple[str, tuple[str, str, str]], SessionFacts] = field(default_factory=dict)
    """Sessions that have been opened here, for their owners; whatever is no session
    of ours never gets in."""
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
"""Characters of an id of a question or an event that is opened; ours are shorter, and not every
server takes headers of this length."""


@dataclass(frozen=True, slots=True)
class QuestionId:
    """Which question: of which session, asked in which round, and its number there."""

    session: str
    round: str
    number: int


@dataclass(frozen=True, slots=True)
class StreamIds:
    """Seals and opens both kinds of ids. They are good for one caller and one session."""

    ring: KeyRing

    def seal_question(self, question: QuestionId, owner: Principal) -> str:
        """Return the JSON-RPC id of a question, about 140 characters."""
        claims = [_QUESTION, question.session, question.round, question.number]
        return self.ring.seal(json.encode(claims), owner)

    def open_question(self, token: Any, session: str, owner: Principal) -> QuestionId | None:
        """Return the question that an answer is for, or `None` if this session was never asked it."""
        match self._opened(token, owner):
            case [str(purpose), str(asked), str(round_), int(number)] if (
                purpose == _QUESTION and asked == session
            ):
                return QuestionId(session, round_, number)
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
"""Characters of a task id that is opened; the longest of ours is shorter."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task of a service is."""

    backend: str
    """The name of the back end that has it."""
    tool: str
    """The tool whose call it is, by the name under which it was served."""
    id: str
    """As its service has it."""


class TaskIds:
    """Seals places of tasks and opens them."""

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
