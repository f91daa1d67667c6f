"""The port of the store for `once` tools. `tests/storage/` checks each implementation against it.

**OnceStore** makes a round of a `once` tool happen at most once, even if its token is sent
repeatedly. The record of a token id has these states:

    (nothing) ──claim──▶ claimed ──finish──▶ finished

Every transition is a conditional write. Of any number of claims, in any processes, exactly one gets
`None` and runs the round; every other claim gets the existing record. A finished record never
changes. No process takes over the claim of a dead process, because the effect may have happened,
and a second run could repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

CLOCKS_AHEAD_MS: Final = 2 * 86_400_000
"""The time in milliseconds for which a store may keep a record beyond its expiry, so that a process
whose clock is ahead does not let another run the round again."""


@dataclass(frozen=True, slots=True)
class OnceRecord:
    """The record of a token id."""

    answers: str
    """The digest of the answers in the claim of the round."""
    outcome: bytes | None
    """The result of the round as it was sent; `None` while it runs."""
    give_up_ms: int
    """The claimer's deadline in milliseconds since the epoch. A record without an outcome at that
    time never gets one."""


class OnceStore(Protocol):
    """A store of one outcome for each token id."""

    async def claim(
        self, token_id: str, answers: str, give_up_ms: int, forget_ms: int
    ) -> OnceRecord | None:
        """Claim a token id. Return `None` if this call claimed it, otherwise the existing record.

        `forget_ms`, in milliseconds since the epoch, is a time at which the token has certainly
        expired. The store deletes the record after that time, if possible within `CLOCKS_AHEAD_MS`.
        """

    async def finish(self, token_id: str, outcome: bytes) -> None:
        """Store the outcome of a round that the caller claimed."""

    async def read(self, token_id: str) -> OnceRecord | None:
        """Return the record of a token id, strongly consistent; `None` if the id was not
        claimed."""

    async def aclose(self) -> None:
        """Close the connections."""
