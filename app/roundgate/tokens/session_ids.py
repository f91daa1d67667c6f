"""`Mcp-Session-Id` as a sealed token: what a client said when it opened its session, in
the client's own keeping.

Inside the seal stand the revision that the session has and the one that was asked for, what the
client can be asked, its name and version, when it was issued, until when it holds, and an id
under which the little that a session may change later is kept. Any process with the keys opens
it, and for its owner alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from roundgate import json
from roundgate.auth import Principal
from roundgate.clock import Clock
from roundgate.errors import ParseError, SealBroken, SessionNotFound
from roundgate.tokens.refusals import Refusals
from roundgate.tokens.sealed import KeyRing

PURPOSE: Final = "session"
"""The first of a token's claims: nothing else that the same keys seal has it."""
MAX_CHARS: Final = 4_096
"""Of a header that is looked at; ours have some hundred."""


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
        """The id of a new session."""
        now_ms = self.clock.now_ms()
        claims = [
            PURPOSE,
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
        """The session behind an id.

        Raises:
            SessionNotFound: always with the same words; the reason goes to the log,
                once per caller and minute.
        """
        try:
            return self._open(token, owner)
        except SealBroken as error:
            raise self.refused(str(error), owner) from None

    def refused(self, reason: str, owner: Principal) -> SessionNotFound:
        """The refusal to raise; its reason goes to the log."""
        self.refusals.note(reason, owner, self.clock.monotonic_ms())
        return SessionNotFound()

    def _open(self, token: str, owner: Principal) -> SessionFacts:
        known = self._opened.get((token, owner.identity))
        if known is not None and self.clock.now_ms() <= known.expires_ms:
            return known
        if len(token) > MAX_CHARS:
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
        if purpose != PURPOSE:
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
