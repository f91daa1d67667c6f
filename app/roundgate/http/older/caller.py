"""The caller of a request in a session, and the end of such a request."""

from __future__ import annotations

from msgspec import Struct

from roundgate.auth import Principal
from roundgate.clock import Deadline
from roundgate.observability.tracing import TracedTransport
from roundgate.protocol.v2025 import REVISIONS, OlderRevision
from roundgate.tokens.ids import SessionFacts


class SessionCaller(Struct, frozen=True):
    """The caller of a request in a session, with the deadline that the environment sets."""

    session: SessionFacts
    principal: Principal
    deadline: Deadline
    remaining_ms: float | None
    """Milliseconds that the environment gave the request; `None` without a limit."""
    transport: TracedTransport
    """The HTTP exchange of the request, for spans."""
    address: str = ""
    """The address from which the request came."""

    @property
    def revision(self) -> OlderRevision:
        """The session's revision."""
        return REVISIONS[self.session.revision]

    @property
    def is_nearly_over(self) -> bool:
        """Return whether less than half of the request's time is left. The next round then gets a
        new request."""
        left_ms = self.deadline.remaining_ms()
        return (
            left_ms is not None
            and self.remaining_ms is not None
            and left_ms < self.remaining_ms / 2
        )


class Responded(Struct, frozen=True):
    """The end of a request. Without a response, another process continues the call, or the call was
    cancelled."""

    response: bytes | None
    label: str
    reason: str | None = None
