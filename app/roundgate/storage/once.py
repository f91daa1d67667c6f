"""The ports of storage: what a store promises, in prose; `tests/storage/` holds
each implementation to it.

**OnceStore** makes a round of a `once` tool happen once, however often its token is sent. The
record of a token id goes through

    (nothing) ──claim──▶ claimed ──finish──▶ finished

by conditional writes alone: of any number of claims, in any processes, exactly one gets `None` and
runs the round; every other gets the record that is there. A record is never changed once it is
finished, and never taken over: if the process that claimed it dies, whether the effect happened is
unknown, and a second run could make it happen twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class OnceRecord:
    """What is known of a token id."""

    answers: str
    """Digest of the answers that its round was claimed with."""
    outcome: bytes | None
    """The result of the round as it was sent; `None` while it runs."""
    give_up_ms: int
    """When whoever claimed it must have finished; a record without outcome
    after that never gets one."""


class OnceStore(Protocol):
    """One outcome for each token id."""

    async def claim(
        self, token_id: str, answers: str, give_up_ms: int, forget_ms: int
    ) -> OnceRecord | None:
        """Claim a token id: `None` if it is now ours, else the record that was there first.

        `forget_ms` is when the record may be dropped: not before the token has expired.
        """

    async def finish(self, token_id: str, outcome: bytes) -> None:
        """Put the outcome of the round that we claimed."""

    async def read(self, token_id: str) -> OnceRecord | None:
        """The record of a token id, strongly consistent."""

    async def aclose(self) -> None:
        """Let go of connections."""
