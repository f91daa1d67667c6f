"""The rows of a held call, through which other processes answer its questions and get its outcomes.

    a0, a1 …   answers; the first insert counts, even if it records that the wait has expired
    1, 2 …     outcomes, so that a repeated round gets the same outcome
    beat       changes every `HEARTBEAT_S` seconds while the server works on answers to a holder

The rows belong to the caller, under the call's random id.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from roundgate import json
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.storage import SessionStore

HEARTBEAT_S: Final = 2.0
"""Seconds between two heartbeats of a holder."""
LOST_MS: Final = 10_000
"""Milliseconds without a heartbeat after which a holder counts as dead."""
FIRST_POLL_S: Final = 0.1
LONGEST_POLL_S: Final = 1.0
"""The bounds on the seconds between two polls: for answers by the holder, for an outcome by a round."""
CHUNK: Final = 250_000
"""The maximum number of bytes of an outcome in one row."""
MAX_CHUNKS: Final = 80
TOO_LARGE: Final = (
    f"The result is too large to pass it to another process: it has more than {CHUNK * MAX_CHUNKS:,} "
    "bytes. The call may have taken effect; check before you repeat it"
)


class CallRows(Struct, frozen=True):
    """The rows of one held call."""

    rows: SessionStore
    id: str
    clock: Clock
    keep_ms: int
    """Milliseconds for which a row is kept after its last write."""

    @property
    def forget_ms(self) -> int:
        """The expiry of a row that is written now, in milliseconds since the epoch."""
        return self.clock.now_ms() + self.keep_ms

    def key(self, name: str | int) -> str:
        """Return the key of a row."""
        return f"held.{self.id}.{name}"

    async def put_outcome(self, number: int, outcome: Json) -> None:
        """Write an outcome. Raise Unavailable if the store fails."""
        data = json.encode(outcome)
        chunks = [data[start : start + CHUNK] for start in range(0, len(data), CHUNK)]
        if len(chunks) > MAX_CHUNKS:
            outcome = {"error": TOO_LARGE}
            return await self.put_outcome(number, outcome)
        # the first row marks the outcome as complete, so write it last
        for place, chunk in reversed(list(enumerate(chunks))):
            head = b"%d\n" % len(chunks) if place == 0 else b""
            await self.rows.put(self.key(f"{number}.{place}"), head + chunk, self.forget_ms)
        return None

    async def read_outcome(self, number: int) -> tuple[Json | None, bytes | None]:
        """Return an outcome without a heartbeat, or `None` with the last heartbeat, if any. Raise
        Unavailable if the store fails."""
        first, beat = self.key(f"{number}.0"), self.key("beat")
        values = await self.rows.read_values([first, beat])
        if (head := values.get(first)) is None:
            return None, values.get(beat)
        count, _, data = head.partition(b"\n")
        keys = [self.key(f"{number}.{place}") for place in range(1, int(count))]
        others = await self.rows.read_values(keys) if keys else {}
        outcome: Json = json.decode(data + b"".join(others.get(key, b"") for key in keys))
        return outcome, None

    async def send_heartbeat(self, number: int) -> None:
        """Write the next heartbeat. Raise Unavailable if the store fails."""
        value, key = b"%020d" % number, self.key("beat")
        if not await self.rows.put_new(key, value, self.forget_ms):
            row = await self.rows.read(key)
            if row is not None:
                await self.rows.replace(key, value, row.version, row.forget_ms)


class Silence(Struct):
    """The time without a heartbeat of a holder, over all rounds that wait for it."""

    since_ms: int
    """When the last heartbeat was first read, in milliseconds since the epoch."""
    beat: str | None = None
    """The last heartbeat."""

    def lasts_ms(self, beat: bytes | None, now_ms: int) -> int:
        """Return the milliseconds for which the heartbeat has not changed."""
        if beat is not None and beat.decode() != self.beat:
            self.beat, self.since_ms = beat.decode(), now_ms
        return now_ms - self.since_ms
