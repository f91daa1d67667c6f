"""Rounds of `once` tools: the same retry gets the same outcome, and takes effect once.

    retry        ──claim──▶ (won)  served, its outcome stored ──▶ answered
                                   or BackendBusy, so nothing was done: the claim is released
    second retry ──claim──▶ (lost) waits for the outcome      ──▶ answered with it

A token proves integrity, not single use. So a round is claimed by a conditional write under the id
of its token, or under the client's key, with a digest of the answers in the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from roundgate import json
from roundgate.auth import task_owner
from roundgate.clock import Clock
from roundgate.errors import (
    BackendBusy,
    GatewayError,
    InternalError,
    InvalidParams,
    MissingCapability,
    QuotaExceeded,
    ResourceNotFound,
    ToolError,
    Unavailable,
)
from roundgate.json import digest
from roundgate.methods.rounds import Reply, RequestContext, Round
from roundgate.protocol import InputParams
from roundgate.replay import Call
from roundgate.storage import Accounts, OnceRecord, OnceStore
from roundgate.storage.accounts import ROW, Reserved
from roundgate.storage.ports import CLOCKS_AHEAD_MS
from roundgate.tokens import StateSealer

_KINDS: Final = {
    kind.__name__: kind
    for kind in (MissingCapability, ResourceNotFound, InternalError, ToolError, InvalidParams)
}
_ERROR: Final = b"error"


def kept_reply(reply: Reply) -> bytes:
    """Return a reply in the format of a row."""
    return b"%b %b" % (reply.label.encode(), reply.result)


def kept_error(error: GatewayError) -> bytes:
    """Return an error in the format of a row; an error of another kind becomes `InvalidParams`."""
    match error:
        case MissingCapability():
            about = [error.what_for, dict(error.missing), error.has_substitute]
            facts: list[Any] = ["MissingCapability", *about]
        case ResourceNotFound():
            facts = ["ResourceNotFound", error.uri]
        case InternalError():
            facts = ["InternalError", error.reference]
        case ToolError():
            facts = ["ToolError", str(error)]
        case _:
            facts = ["InvalidParams", str(error)]
    return b"%b %b" % (_ERROR, json.encode(facts))


def stored_reply(stored: bytes) -> Reply:
    """Return the reply from a row, or raise the error in it."""
    word, _, body = stored.partition(b" ")
    if word != _ERROR:
        return Reply(body, word.decode())
    name, *facts = json.decode(body)
    raise _KINDS[name](*facts)


_POLL_S: Final = 0.05
_LATE_MS: Final = 5_000
_UNKNOWN_OUTCOME: Final = (
    "An earlier attempt at this step ended without a known outcome; "
    "find out whether it took effect before calling again"
)
_NOT_KEPT: Final = (
    "An earlier attempt at this step has ended, but too much was stored for you to keep its result "
    "(limits.max_stored_bytes); find out what it did before calling again"
)


class Once:
    """Serves each round of a `once` tool at most once. Its records count towards its caller's
    limits."""

    def __init__(
        self, store: OnceStore, accounts: Accounts, sealer: StateSealer, clock: Clock, view: str
    ) -> None:
        self._once = store
        self._accounts = accounts
        self._view = view
        self._sealer = sealer
        self._clock = clock
        self._working: set[asyncio.Future[tuple[bytes, str | None]]] = set()

    async def aclose(self) -> None:
        """Wait for rounds whose clients have hung up, so that retries find their outcomes."""
        await asyncio.gather(*self._working, return_exceptions=True)

    async def serve(
        self,
        round_: Round,
        params: InputParams,
        call: Call,
        context: RequestContext,
        run: Callable[[], Awaitable[Reply]],
    ) -> Reply:
        """Serve a round of a `once` tool. A first round has no token, so without a key it is a new
        call.

        Args:
            round_: the round.
            params: the params; their answers distinguish retries from other requests.
            call: the call.
            context: the context of the request, which gets the work that continues.
            run: a function that serves the round; called unless the round was already served.

        Raises:
            StateRefused: the token was used with other answers.
            QuotaExceeded: too much is stored for the caller; the round was not served.
            Unavailable: another process is serving the same retry, longer than the call's deadline;
                or a store cannot be reached.
            ToolError: an earlier attempt ended without a known outcome.
            BackendBusy: nothing was sent to the back end; a retry may run the round.
        """
        once_id = round_.once_id
        if once_id is None:
            return await run()
        answers = digest(params.input_responses or {})
        now_ms = self._clock.now_ms()
        give_up_ms = now_ms + int(call.deadline.remaining_ms() or 0) + _LATE_MS
        forget_ms = now_ms + int(self._sealer.lifetime_s * 2000)

        async def reserve(size: int) -> Reserved:
            owner = task_owner(call.principal, self._view)
            return await self._accounts.reserve(owner, size, forget_ms + CLOCKS_AHEAD_MS)

        async def claim() -> OnceRecord | None:
            try:
                reserved = await reserve(2 * ROW)
            except QuotaExceeded:  # a retry still gets its outcome
                if record := await self._once.read(once_id):
                    return record
                raise
            record = await self._once.claim(once_id, answers, give_up_ms, forget_ms)
            if record is not None:
                self._accounts.give_back(reserved)
            return record

        record = await claim()
        if record is not None:
            return stored_reply(await self._earlier_outcome(once_id, record, answers, call))
        # if the client hangs up now, the round still runs to its end, for a retry
        work = asyncio.ensure_future(self._serve_and_record(once_id, run, reserve, forget_ms))
        self._working.add(work)
        work.add_done_callback(self._working.discard)
        context.continued = work
        outcome, reason = await asyncio.shield(work)
        reply = stored_reply(outcome)
        reply.reason = reason  # only for the log, so the row has none
        return reply

    async def _serve_and_record(
        self,
        token_id: str,
        run: Callable[[], Awaitable[Reply]],
        reserve: Callable[[int], Awaitable[Reserved]],
        forget_ms: int,
    ) -> tuple[bytes, str | None]:
        """Run the round and store its outcome. Return the outcome, and the reason of a failure."""
        reason = None
        try:
            reply = await run()
            outcome, reason = kept_reply(reply), reply.reason
        except BackendBusy:
            with suppress(Unavailable):  # without a release, a retry's outcome is unknown
                await self._once.release(token_id, forget_ms)
            raise
        except Unavailable:  # the journal is lost, and the handler may have done something
            with suppress(Unavailable):
                unknown = kept_error(ToolError(_UNKNOWN_OUTCOME))
                await self._once.finish(token_id, unknown, forget_ms)
            raise
        except GatewayError as error:
            outcome = kept_error(error)
        stored = outcome
        if len(outcome) > ROW:  # a short outcome was counted with the record
            try:
                await reserve(len(outcome))
            except QuotaExceeded:  # the round has run and must not run again
                stored = kept_error(ToolError(_NOT_KEPT))
            except Unavailable:
                stored = kept_error(ToolError(_UNKNOWN_OUTCOME))
        await self._once.finish(token_id, stored, forget_ms)
        return outcome, reason

    async def _earlier_outcome(
        self, token_id: str, record: OnceRecord, answers: str, call: Call
    ) -> bytes:
        if record.answers != answers:
            raise self._sealer.refused("used before with other answers", call.principal)
        while record.outcome is None:
            if record.is_released:
                raise Unavailable("The same request was released without effect; send it again")
            if self._clock.now_ms() > record.give_up_ms:
                raise ToolError(_UNKNOWN_OUTCOME)
            if call.deadline.is_past:
                raise Unavailable("The same request is still being served; send it again")
            await self._clock.sleep(_POLL_S)
            record = await self._once.read(token_id) or record
        return record.outcome
