"""Rounds that run once, however many requests continue a call.

A client may resume while its first connection is still alive, call `continue_call` twice, or use a
proxy that resends requests. All these requests have the answers, and would run the round:

    GET      ──claim──▶ (won)  runs it, renews the claim every second ──▶ stores its end ──▶ answered
    another  ──claim──▶ (lost) polls for the end ─────────────────────────────────────────▶ answered with it
                               no renewal for a while: the first has died, this one runs it (`claims`)

The end of a round is a row that is inserted once: the first one counts for all requests. It names
the next round, so all of them ask the same questions. After a death a round may run twice, with the
rules of any call: finished steps of earlier rounds are not repeated, a `once` tool does not run again
(`methods.once`). A round runs to its end if the client hangs up, and the client can fetch that end.

A first round is not claimed, because most end before any client could resume them. Once a client
knows how to resume, the end of its first round is stored too. A first round never runs twice.
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
"""The errors that end a request but not its round."""
_INTERRUPTED: Final = (
    "The connection was lost while this ran, and it is not known how far it came;"
    " find out whether it took effect before calling again"
)


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of a round, and the name of the next round if it asks."""

    reply: Reply
    next_round: str
    until_ms: int
    """When the wait for answers ends, in milliseconds since the epoch."""


class OneRun:
    """One request's part in a round.

    Args:
        rows: the store of claims and ends.
        clock: the clock of the process.
        key: the key of the session, the round and the caller's scopes.
        keep_ms: milliseconds for which the end is stored: as long as a client may ask for it.
        wait_ms: milliseconds that the next round waits for answers, if this one asks.
        room: counts requests that wait for another's round.
        working: entered around work that continues when the client hangs up.
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
        """Run the round, or wait for the request that runs it; return `None` if that takes longer
        than `wait_s` seconds.

        Raises:
            GatewayError: the round ended with this error.
            Unavailable: the store cannot be reached, or too many requests wait.
        """
        if not self._claim.is_anothers and await self._claim.is_first():
            return await self._run(serve)

        async def lost() -> Ran | None:
            if not await self._claim.is_taken_over():
                return None
            return await self._ran() or await self._run(serve)  # it may have just ended

        return await self._after_another(lost, wait_s)

    async def of_first(self, wait_s: float) -> Ran | None:
        """Return the end of a first round that another request runs, or `None` if it takes longer
        than `wait_s` seconds.

        Raises:
            GatewayError: the round ended with this error.
            ToolError: likewise, or the process that ran it has died.
            Unavailable: the store cannot be reached, or too many requests wait.
        """

        async def lost() -> Ran | None:
            if not await self._claim.is_lost():
                return None
            if (ran := await self._ran()) is None:
                raise ToolError(_INTERRUPTED)
            return ran

        return await self._after_another(lost, wait_s)

    async def heed(self) -> None:
        """Begin to renew a claim to this first round once another request waits for it.

        Raises:
            Unavailable: the store cannot be reached.
        """
        if self._beats is None and await self._claim.is_wanted():
            self._beats = asyncio.create_task(self._claim.beat())

    async def rest(self) -> None:
        """Stop renewing the claim to this first round, and release it."""
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
            # it was cancelled, perhaps for too many calls without a client: its client may resume it
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
        """Store the end of the round, and return or raise the one that counts: the first one
        stored."""
        mine = Ran(reply, self._clock.new_id(), self._clock.now_ms() + self._wait_ms)
        before = await self._before(mine.next_round, mine.until_ms, kept_reply(reply))
        return mine if before is None else _opened(before)

    async def failed(self, error: GatewayError) -> Ran:
        """Store an error as the end of the round, and raise it unless an earlier end counts. An
        error that does not end a round is only raised."""
        if isinstance(error, _NO_END):
            raise error
        until_ms = self._clock.now_ms() + self._wait_ms
        before = await self._before(self._clock.new_id(), until_ms, kept_error(error))
        if before is None:
            raise error
        return _opened(before)

    async def _before(self, next_round: str, until_ms: int, kept: bytes) -> bytes | None:
        """Store an end. Return the earlier one, or `None` if there is none or the store cannot be
        reached."""
        ended = b"%b %d %b" % (next_round.encode(), until_ms, kept)
        forget_ms = self._clock.now_ms() + self._keep_ms
        with suppress(Unavailable):  # then only this request knows the end, and asks its questions
            if not await self._rows.put_new(self._end, ended, forget_ms):
                before = await self._rows.read(self._end)
                return None if before is None else before.value
        return None


def _opened(ended: bytes) -> Ran:
    """Return a stored end; raise it if it is an error."""
    next_round, until_ms, kept = ended.split(b" ", 2)
    return Ran(stored_reply(kept), next_round.decode(), int(until_ms))
