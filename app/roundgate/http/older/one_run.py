"""A round behind a question is run once, however many requests go on with it.

A client may come back while its first connection only seems to be dead, call `continue_call` twice,
or have a proxy that sends a request again. All of them have the answers, and would run the round:

    GET      ──claim──▶ (won)  runs it, and says every second that it does ──▶ its end is a row ──▶ answered
    another  ──claim──▶ (lost) looks for the end ──────────────────────────────────────────────▶ answered with it
                               nothing was said for a while: the first has died, and this one runs it (`claims`)

The end of a round is a row that is inserted once: the first counts, for all of them. It names the
round that follows, so questions are the same for all too. Who runs a round twice around a death
does what any call does there: finished steps of earlier rounds are not repeated; a `once` tool is
not run again (`methods.once`). A client that hangs up ends no round: it is run to its end, which is
there when the client comes back.

A first round is claimed by nobody, because most are over before anybody could come back. Where a
client was told how to, its end is kept too; and it is never run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final

from roundgate.clock import Clock
from roundgate.errors import AuthError, CallCancelled, GatewayError, ToolError, Unavailable
from roundgate.http.older.claims import Claim
from roundgate.methods.once import kept_error, kept_reply, stored_reply
from roundgate.methods.rounds import Reply
from roundgate.storage import SessionStore

FIRST_LOOK_S: Final = 0.05
LAST_LOOK_S: Final = 1.0
_NO_END: Final = (AuthError, CallCancelled, Unavailable)
"""With these a request ends, and its round does not."""
_INTERRUPTED: Final = (
    "The connection was lost while this ran, and it is not known how far it came;"
    " find out whether it took effect before calling again"
)


@dataclass(frozen=True, slots=True)
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
        working: is entered around what goes on when the client hangs up.
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
        working: AbstractContextManager[None] = nullcontext(),  # noqa: B008 — has no state
    ) -> None:
        self._room = room
        self._working = working
        self._rows = rows
        self._clock = clock
        self._claim = Claim(rows, clock, key, 2 * keep_ms)
        self._end = f"ran.{key}"
        self._keep_ms = keep_ms
        self._wait_ms = wait_ms
        self._beats: asyncio.Task[None] | None = None

    async def of(self, serve: Callable[[], Awaitable[Reply]], wait_s: float) -> Ran | None:
        """Run the round, or wait for whoever does; `None` if `wait_s` was too short for that.

        Raises:
            GatewayError: it ended so.
            Unavailable: the store cannot be reached, or too many wait.
        """
        if not self._claim.is_anothers and await self._claim.is_first():
            return await self._run(serve)

        async def lost() -> Ran | None:
            if not await self._claim.is_taken_over():
                return None
            return await self._ran() or await self._run(serve)  # it may have ended just before

        return await self._after_another(lost, wait_s)

    async def of_first(self, wait_s: float) -> Ran | None:
        """The end of a first round, which another request runs; `None` if
        `wait_s` was too short for that.

        Raises:
            GatewayError: it ended so.
            ToolError: likewise, or whoever ran it has died.
            Unavailable: the store cannot be reached, or too many wait.
        """

        async def lost() -> Ran | None:
            if not await self._claim.is_lost():
                return None
            if (ran := await self._ran()) is None:
                raise ToolError(_INTERRUPTED)
            return ran

        return await self._after_another(lost, wait_s)

    async def heed(self) -> None:
        """Say from now on that this first round is run, if somebody wants to
        know. Raises Unavailable."""
        if self._beats is None and await self._claim.is_wanted():
            self._beats = asyncio.create_task(self._claim.beat())

    async def rest(self) -> None:
        """Say no longer that this first round is run."""
        if self._beats is not None:
            self._beats.cancel()
            await self._claim.release()

    async def _after_another(
        self, lost: Callable[[], Awaitable[Ran | None]], wait_s: float
    ) -> Ran | None:
        look_s, until = FIRST_LOOK_S, self._clock.monotonic_ms() + wait_s * 1000
        with self._room():
            while True:
                ran = await self._ran() or await lost()
                if ran is not None:
                    return ran
                left_s = (until - self._clock.monotonic_ms()) / 1000
                if left_s <= 0:
                    await self._claim.keep_watch()
                    return None
                await self._clock.sleep(min(look_s, left_s))
                look_s = min(LAST_LOOK_S, look_s * 1.5)

    async def _ran(self) -> Ran | None:
        row = await self._rows.read(self._end)
        return None if row is None else _opened(row.value)

    async def _run(self, serve: Callable[[], Awaitable[Reply]]) -> Ran:
        beats = asyncio.create_task(self._claim.beat())
        try:
            with self._working:
                return await self._ended(serve)
        except GatewayError as error:
            if isinstance(error, _NO_END):
                await self._claim.release()
            raise
        except BaseException:
            # it was cancelled, or too many go on for nobody: its client may come back
            await self._claim.release()
            raise
        finally:
            beats.cancel()

    async def _ended(self, serve: Callable[[], Awaitable[Reply]]) -> Ran:
        try:
            reply = await serve()
        except GatewayError as error:
            return await self.failed(error)
        return await self.ended(reply)

    async def ended(self, reply: Reply) -> Ran:
        """The end of the round that counts: this one, unless there was one before.
        Raises as that one ended."""
        mine = Ran(reply, self._clock.new_id(), self._clock.now_ms() + self._wait_ms)
        before = await self._before(mine.next_round, mine.until_ms, kept_reply(reply))
        return mine if before is None else _opened(before)

    async def failed(self, error: GatewayError) -> Ran:
        """The same where it ended with an error, which is raised if it counts."""
        if isinstance(error, _NO_END):
            raise error
        until_ms = self._clock.now_ms() + self._wait_ms
        before = await self._before(self._clock.new_id(), until_ms, kept_error(error))
        if before is None:
            raise error
        return _opened(before)

    async def _before(self, next_round: str, until_ms: int, kept: bytes) -> bytes | None:
        """Keep an end: the one that was there before, if there was."""
        ended = b"%b %d %b" % (next_round.encode(), until_ms, kept)
        forget_ms = self._clock.now_ms() + self._keep_ms
        with suppress(Unavailable):  # then it is known here alone: nobody else asks its questions
            if not await self._rows.put_new(self._end, ended, forget_ms):
                before = await self._rows.read(self._end)
                return None if before is None else before.value
        return None


def _opened(ended: bytes) -> Ran:
    """Raises the error that a round ended with."""
    next_round, until_ms, kept = ended.split(b" ", 2)
    return Ran(stored_reply(kept), next_round.decode(), int(until_ms))
