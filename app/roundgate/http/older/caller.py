"""Who sends a request of a session, and how that request ended."""

from __future__ import annotations

from dataclasses import dataclass

from roundgate.auth import Principal
from roundgate.clock import Deadline
from roundgate.protocol.v2025 import REVISIONS, Revision
from roundgate.tokens.ids import SessionFacts


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request of a session, and until when the environment lets it run."""

    session: SessionFacts
    principal: Principal
    deadline: Deadline
    remaining_ms: float | None
    """Milliseconds that the environment gave the request; `None` for as long as it likes."""

    @property
    def revision(self) -> Revision:
        """The session's."""
        return REVISIONS[self.session.revision]

    @property
    def is_nearly_over(self) -> bool:
        """Whether another round had better be a request of its own."""
        left_ms = self.deadline.remaining_ms()
        return (
            left_ms is not None
            and self.remaining_ms is not None
            and left_ms < self.remaining_ms / 2
        )


@dataclass(frozen=True, slots=True)
class Responded:
    """How a request ended. Without a response it goes on elsewhere, or nobody waits for it."""

    response: bytes | None
    label: str
    reason: str | None = None
