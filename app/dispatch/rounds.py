"""One round of a call: open the state that came back, run the handler on it, seal what it leaves (SEP-2322).

    round 1   tools/call {arguments}                                →  input_required {inputRequests, requestState}
    round 2   tools/call {arguments, inputResponses, requestState}  →  … another round, or the result

Nothing is kept here in between; round 2 may reach any process that has the keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from app.auth.principal import Principal
from app.clock import Clock
from app.errors import (
    GatewayError,
    InternalError,
    InvalidParams,
    MissingCapability,
    ResourceNotFound,
    StateTooLarge,
    ToolError,
    Unavailable,
)
from app.protocol import jsonrpc
from app.protocol.digest import digest
from app.protocol.params import InputParams
from app.replay import engine
from app.replay.call import Call
from app.replay.context import Context
from app.replay.engine import Completed, Failed, Restarted, Suspended
from app.replay.journal import Journal
from app.replay.run import Run
from app.storage.base import OnceRecord, OnceStore
from app.tokens.request_state import Binding, Opened, StateSealer, refused

T = TypeVar("T")

_POLL_S: Final = 0.05
_LATE_MS: Final = 5_000
_UNKNOWN_OUTCOME: Final = (
    "An earlier attempt at this step ended without a known outcome; "
    "find out whether it took effect before calling again"
)


@dataclass(frozen=True, slots=True)
class Target:
    """What is called: bound into the token, so that it opens for the same call alone."""

    method: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def binding(self) -> Binding:
        """What ties a token to this call; made when there is a token, because digests cost."""
        return Binding.of(self.method, self.name, self.arguments)


@dataclass(frozen=True, slots=True)
class Round:
    """A call on its way: which round this is, and what is known from the ones before."""

    number: int
    journal: Journal
    target: Target
    opened: Opened | None
    origin: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    """A result, serialised, and what the log says of it: ok, tool_error, input_required or task."""

    result: bytes
    outcome: str = "ok"


@dataclass(frozen=True, slots=True)
class InputRequired:
    """The round ended with questions, or only with state; `wire` is the `InputRequiredResult`."""

    wire: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BecomesTask:
    """The call goes on as a task, with what is known of it; `message` is what its handler last said."""

    journal: Journal
    message: str | None


class Rounds:
    """Opens, runs and seals."""

    def __init__(self, sealer: StateSealer, clock: Clock, max_rounds: int, once: OnceStore) -> None:
        self._sealer = sealer
        self._clock = clock
        self._max_rounds = max_rounds
        self._once = once
        self._working: set[asyncio.Future[bytes]] = set()

    async def aclose(self) -> None:
        """Let rounds whose clients have hung up come to their end, so that the retries find their outcomes."""
        await asyncio.gather(*self._working, return_exceptions=True)

    def begin(self, target: Target, asked: InputParams, principal: Principal, origin: Mapping[str, str]) -> Round:
        """The round that a request is, with its answers taken into the journal.

        Raises:
            StateRefused: its state is not one that we sealed for this caller and this call.
        """
        responses = asked.input_responses or {}
        if asked.request_state is None:
            journal = Journal()
            journal.receive_unasked(responses)
            return Round(1, journal, target, None, origin)
        opened = self._sealer.open(asked.request_state, principal, target.binding())
        try:
            journal = Journal.from_json(opened.payload)
        except (ValueError, TypeError, KeyError):
            raise refused("sealed by an incompatible version", principal) from None
        journal.receive(responses)
        return Round(opened.round + 1, journal, target, opened, opened.origin)

    async def run(
        self, round_: Round, call: Call, handler: Callable[[Context], Awaitable[T]]
    ) -> Completed[T] | InputRequired | Failed:
        """Run a handler for one round."""
        outcome = await self.run_or_defer(round_, call, handler)
        assert not isinstance(outcome, BecomesTask), "it may not"
        return outcome

    async def run_or_defer(
        self, round_: Round, call: Call, handler: Callable[[Context], Awaitable[T]]
    ) -> Completed[T] | InputRequired | BecomesTask | Failed:
        """Run a handler for one round, after which the call may have to go on as a task."""
        journal = round_.journal
        while True:
            run = Run(call, journal)
            outcome = await engine.run(partial(handler, Context(run)), run)
            if not isinstance(outcome, Restarted):
                break
            journal = journal.restarted(outcome.arguments)
        if not isinstance(outcome, Suspended):
            return outcome
        # what the client can be asked at once is asked before there is a task (SEP-2663, "Task Creation")
        if call.may_become_task and outcome.wants_task and not outcome.requests:
            return BecomesTask(outcome.journal, run.message)
        if round_.number >= self._max_rounds:
            return Failed(ToolError(f"The call needed more than {self._max_rounds} rounds; ask for less at once"))
        try:
            return self._input_required(outcome, round_, call.principal)
        except StateTooLarge as error:
            largest = outcome.journal.largest()
            return Failed(RuntimeError(f"what the handler remembered is too large: {error}; the largest is {largest}"))
        except TypeError as error:  # ctx.state holds what JSON cannot
            return Failed(error)

    def _input_required(self, outcome: Suspended, round_: Round, principal: Principal) -> InputRequired:
        payload = outcome.journal.to_json()
        state = self._sealer.seal(
            payload, principal, round_.target.binding(), round_=round_.number, origin=round_.origin
        )
        questions = {"inputRequests": dict(outcome.requests)} if outcome.requests else {}
        return InputRequired({"resultType": "input_required", **questions, "requestState": state})

    async def once(self, round_: Round, asked: InputParams, call: Call, serve: Callable[[], Awaitable[Reply]]) -> Reply:
        """Serve a round of a `once` tool: the same retry gets the same outcome, and it is served once.

        The first round has no token, so nothing to be once about: a new call is a new call.

        Raises:
            StateRefused: the token was used with other answers.
            Unavailable: the same retry is being served elsewhere and takes longer than this one can wait; or a store
                cannot be reached.
            ToolError: it was being served where it will never be finished.
        """
        if round_.opened is None:
            return await serve()
        answers = digest(asked.input_responses or {})
        now_ms = self._clock.now_ms()
        give_up_ms = now_ms + int(call.deadline.remaining_ms() or 0) + _LATE_MS
        forget_ms = now_ms + int(self._sealer.lifetime_s * 2000)
        record = await self._once.claim(round_.opened.id, answers, give_up_ms, forget_ms)
        if record is not None:
            return _unpacked(await self._outcome_of_twin(round_.opened.id, record, answers, call))
        # the client may hang up now: the round is served to its end all the same, so that its retry finds an outcome
        work = asyncio.ensure_future(self._serve_and_record(round_.opened.id, serve))
        self._working.add(work)
        work.add_done_callback(self._working.discard)
        return _unpacked(await asyncio.shield(work))

    async def _serve_and_record(self, token_id: str, serve: Callable[[], Awaitable[Reply]]) -> bytes:
        try:
            reply = await serve()
            outcome = b"%b %b" % (reply.outcome.encode(), reply.result)
        except Unavailable:  # what the handler did until then it may have done; its journal is gone
            with suppress(Unavailable):
                await self._once.finish(token_id, _packed(ToolError(_UNKNOWN_OUTCOME)))
            raise
        except GatewayError as error:
            outcome = _packed(error)
        await self._once.finish(token_id, outcome)
        return outcome

    async def _outcome_of_twin(self, token_id: str, record: OnceRecord, answers: str, call: Call) -> bytes:
        if record.answers != answers:
            raise refused("used before with other answers", call.principal)
        while record.outcome is None:
            if self._clock.now_ms() > record.give_up_ms:
                raise ToolError(_UNKNOWN_OUTCOME)
            if call.deadline.is_past:
                raise Unavailable("The same request is still being served; send it again")
            await asyncio.sleep(_POLL_S)
            record = await self._once.read(token_id) or record
        return record.outcome


def _packed(error: GatewayError) -> bytes:
    """An error as an outcome: what it takes to raise it again for a twin."""
    match error:
        case MissingCapability():
            facts: list[Any] = ["MissingCapability", str(error), dict(error.missing)]
        case ResourceNotFound():
            facts = ["ResourceNotFound", error.uri]
        case InternalError():
            facts = ["InternalError", error.reference]
        case ToolError():
            facts = ["ToolError", str(error)]
        case _:
            facts = ["InvalidParams", str(error)]
    return b"error " + jsonrpc.encode(facts)


def _unpacked(outcome: bytes) -> Reply:
    """The reply that an outcome is.

    Raises:
        GatewayError: it is an error.
    """
    word, _, body = outcome.partition(b" ")
    if word != b"error":
        return Reply(body, word.decode())
    name, *facts = jsonrpc.decode(body)
    kinds = {
        kind.__name__: kind for kind in (MissingCapability, ResourceNotFound, InternalError, ToolError, InvalidParams)
    }
    raise kinds[name](*facts)
