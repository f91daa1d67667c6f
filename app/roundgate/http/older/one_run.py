"""A round behind a question is run once, however many requests go on with it.

A client may come back while its first connection only seems to be dead, call `continue_call` twice, or have a proxy
that sends a request again. All of them have the answers, and would run the round:

    GET      ──claim──▶ (won)  runs it, and says every second that it does ──▶ its end is a row ──▶ answered
    another  ──claim──▶ (lost) looks for the end ──────────────────────────────────────────────▶ answered with it
                               nothing was said for `LOST_MS`: the first has died, and this one runs it

The end of a round is a row that is inserted once: the first counts, for all of them. It names the round that follows,
so questions are the same for all too. Who runs a round twice around a death does what any call does there: finished
steps of earlier rounds are not repeated; a `once` tool is not run again (`methods.once`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Final

from roundgate.carrier import carrier
from roundgate.clock import Clock
from roundgate.errors import AuthError, CallCancelled, GatewayError, Unavailable
from roundgate.methods import Reply, kept_error, kept_reply, reply_of
from roundgate.storage import SessionRow, SessionStore

BEAT_S: Final = 1.0
"""How often whoever runs a round says so."""
LOST_MS: Final = 5_000
"""When nothing was said for so long, nobody runs it any more. Watched on the clock of who waits: clocks differ."""
FIRST_LOOK_S: Final = 0.05
LAST_LOOK_S: Final = 1.0
PAUSES_S: Final = (0.1, 0.5, 2.0)
"""Between attempts at a claim, where the store cannot be reached."""
RELEASE_S: Final = 2.0
"""How long a request that is over may take to say that it does not run the round."""
_FREE: Final = b"free"


@carrier
class Ran:
    """How a round ended, and what the next one is called, if it asks."""

    reply: Reply
    next_round: str
    until_ms: int
    """Until when somebody waits for answers, in milliseconds since the epoch."""


class OneRun:
    """One request's part in the run of a round.

    Args:
        rows: where claims and ends are.
        clock: of the process.
        key: of session and round.
        keep_ms: milliseconds for which its end is kept: as long as anybody could ask for it.
        wait_ms: milliseconds that somebody waits for answers, if the round asks.
        room: counts those who wait for another.
    """

    def __init__(
        self,
        rows: SessionStore,
        clock: Clock,
        key: str,
        *,
        keep_ms: int,
        wait_ms: int,
        room: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._room = room
        self._rows = rows
        self._clock = clock
        self._claim, self._end = f"run.{key}", f"ran.{key}"
        self._mine = clock.new_id().encode()
        self._keep_ms = keep_ms
        self._wait_ms = wait_ms
        self._seen: tuple[int, float] | None = None
        """The version of another's claim, and since when it is the same, in monotonic milliseconds."""

    async def of(self, serve: Callable[[], Awaitable[Reply]], wait_s: float) -> Ran | None:
        """Run the round, or wait for whoever does; `None` if `wait_s` was too short for that.

        Raises:
            GatewayError: it ended so.
            Unavailable: the store cannot be reached, or too many wait.
        """
        if self._seen is None and await self._is_claimed():
            return await self._run(serve)
        with self._room():
            return await self._after_another(serve, wait_s)

    async def _after_another(
        self, serve: Callable[[], Awaitable[Reply]], wait_s: float
    ) -> Ran | None:
        look_s, until = FIRST_LOOK_S, self._clock.monotonic_ms() + wait_s * 1000
        while True:
            if (ran := await self._ran()) is not None:
                return ran
            if await self._is_taken_over():  # it may have ended just before
                return await self._ran() or await self._run(serve)
            left_s = (until - self._clock.monotonic_ms()) / 1000
            if left_s <= 0:
                return None
            await self._clock.sleep(min(look_s, left_s))
            look_s = min(LAST_LOOK_S, look_s * 1.5)

    async def _ran(self) -> Ran | None:
        row = await self._rows.read(self._end)
        return None if row is None else _opened(row.value)

    async def _is_claimed(self) -> bool:
        """Whether this is the first claim. A store that is away for a moment must not cost a call that was answered."""
        for pause_s in PAUSES_S:
            try:
                return await self._rows.put_new(self._claim, self._mine, self._forget_ms(2))
            except Unavailable:
                await self._clock.sleep(pause_s)
        return await self._rows.put_new(self._claim, self._mine, self._forget_ms(2))

    async def _is_taken_over(self) -> bool:
        """Whether nobody ran the round any more, and now this request does."""
        row = await self._rows.read(self._claim)
        if row is not None and row.value == self._mine:  # a write of which nobody heard
            return True
        if row is None:  # forgotten, as everything is for which nobody can ask any more
            return await self._is_claimed()
        if not self._is_free(row):
            return False
        return await self._rows.replace(self._claim, self._mine, row.version, self._forget_ms(2))

    def _is_free(self, row: SessionRow) -> bool:
        now_ms = self._clock.monotonic_ms()
        if self._seen is None or self._seen[0] != row.version:
            self._seen = row.version, now_ms
        return row.value == _FREE or now_ms - self._seen[1] > LOST_MS

    async def _run(self, serve: Callable[[], Awaitable[Reply]]) -> Ran:
        beats = asyncio.create_task(self._beat())
        try:
            return _opened(await self._ended(kept_reply(await serve())))
        except (AuthError, CallCancelled, Unavailable):
            await self._release()
            raise
        except GatewayError as error:
            ours = kept_error(error)
            counts = await self._ended(ours)
            if counts.endswith(ours):
                raise
            return _opened(counts)
        except BaseException:  # its client has gone, and may come back
            await self._release()
            raise
        finally:
            beats.cancel()

    async def _ended(self, kept: bytes) -> bytes:
        """The end of the round that counts: this one, unless there was one before."""
        until_ms = self._clock.now_ms() + self._wait_ms
        ended = b"%b %d %b" % (self._clock.new_id().encode(), until_ms, kept)
        with suppress(
            Unavailable
        ):  # then it is known here alone, and its questions are asked by nobody else
            if not await self._rows.put_new(self._end, ended, self._forget_ms()):
                before = await self._rows.read(self._end)
                return ended if before is None else before.value
        return ended

    async def _beat(self) -> None:
        """Say again and again that the round is run, until another runs it."""
        while True:
            await asyncio.sleep(BEAT_S)
            with suppress(Unavailable):
                row = await self._rows.read(self._claim)
                if row is None or row.value != self._mine:
                    return
                await self._rows.replace(self._claim, self._mine, row.version, self._forget_ms(2))

    async def _release(self) -> None:
        """Let another run the round now; if that cannot be said, it does after a while."""
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                row = await self._rows.read(self._claim)
                if row is not None and row.value == self._mine:
                    await self._rows.replace(self._claim, _FREE, row.version, self._forget_ms(2))

    def _forget_ms(self, times: int = 1) -> int:
        """When a row is forgotten; a claim later than the end, or somebody might claim what has ended."""
        return self._clock.now_ms() + times * self._keep_ms


def _opened(ended: bytes) -> Ran:
    """Raises the error that a round ended with."""
    next_round, until_ms, kept = ended.split(b" ", 2)
    return Ran(reply_of(kept), next_round.decode(), int(until_ms))
