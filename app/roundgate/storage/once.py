"""The store for `once` tools, in rows of the session store.

A round of a `once` tool happens at most once, even if its token is sent repeatedly. Each token id
has up to two rows, which never change:

    once.ID      the claim: the digest of the answers, and the claimer's deadline
    outcome.ID   the result of the round

Each row is a conditional insert. Of any number of claims, in any processes, exactly one gets `None`
and runs the round; every other claim gets the record. No process takes over the claim of a dead
process, because the effect may have happened, and a second run could repeat it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from roundgate import json
from roundgate.storage.sessions import SessionStore

CLOCKS_AHEAD_MS: Final = 2 * 86_400_000
"""The time in milliseconds for which a record is kept beyond its expiry, so that a process whose
clock is ahead does not let another run the round again."""


class OnceRecord(Struct, frozen=True):
    """The record of a token id."""

    answers: str
    """The digest of the answers in the claim of the round."""
    outcome: bytes | None
    """The result of the round as it was sent; `None` while it runs."""
    give_up_ms: int
    """The claimer's deadline in milliseconds since the epoch. A record without an outcome at that
    time never gets one."""


class OnceStore:
    """One outcome for each token id. `forget_ms` is a time at which the token has certainly
    expired, in milliseconds since the epoch; the rows are kept for `CLOCKS_AHEAD_MS` more. Every
    method raises `Unavailable` if the store cannot be reached."""

    def __init__(self, rows: SessionStore) -> None:
        self._rows = rows

    async def claim(
        self, token_id: str, answers: str, give_up_ms: int, forget_ms: int
    ) -> OnceRecord | None:
        """Claim a token id. Return `None` if this call claimed it, otherwise the existing
        record."""
        claim, until_ms = json.encode([answers, give_up_ms]), forget_ms + CLOCKS_AHEAD_MS
        while not await self._rows.put_new(f"once.{token_id}", claim, until_ms):
            if (record := await self.read(token_id)) is not None:
                return record
        return None

    async def finish(self, token_id: str, outcome: bytes, forget_ms: int) -> None:
        """Store the outcome of a round that the caller claimed. A second outcome is dropped,
        because the first one was sent to the client."""
        await self._rows.put_new(f"outcome.{token_id}", outcome, forget_ms + CLOCKS_AHEAD_MS)

    async def read(self, token_id: str) -> OnceRecord | None:
        """Return the record of a token id, strongly consistent; `None` if the id was not
        claimed."""
        claim, outcome = f"once.{token_id}", f"outcome.{token_id}"
        values = await self._rows.read_values([claim, outcome])
        if claim not in values:
            return None
        answers, give_up_ms = json.decode(values[claim])
        return OnceRecord(answers, values.get(outcome), give_up_ms)
