"""One round of a call: open the state that came back, run the handler on it, seal
what it leaves (SEP-2322).

    round 1   tools/call {arguments}                                →  input_required {inputRequests, requestState}
    round 2   tools/call {arguments, inputResponses, requestState}  →  … another round, or the result

Nothing is kept here in between; round 2 may reach any process that has the keys.

**Which task a call becomes** is decided before there is one, so that whoever sends a request again,
because its answer was lost, is told of the same task:

    a key of the client's (`_meta`)   its owner, the key, the tool and the arguments; the same in every later round
    a state                           the state's id and the answers that came with it
    neither                           a new id; should its write be in doubt, a state goes back that has it inside

It is never the JSON-RPC id: clients count from 1 in every process, so two of one user's would meet
in one task, and a client that repeats a call has to take another id.

`RequestContext` is a request and what belongs to it, `Rounds` opens and seals, `Calls` makes the
round and the `Call` of a request and reads outcomes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from roundgate.auth import Principal
from roundgate.backends import ServedTool
from roundgate.clock import Clock
from roundgate.errors import (
    CallTimeout,
    InternalError,
    InvalidParams,
    ProtocolError,
    StateTooLarge,
    ToolError,
    Unavailable,
)
from roundgate.json import digest
from roundgate.observability.correlation import Correlation
from roundgate.observability.tracing import Span
from roundgate.protocol import Inbound, InputParams, tasks
from roundgate.replay import (
    Call,
    Completed,
    Context,
    Failed,
    Journal,
    Notify,
    PageDone,
    Publish,
    Read,
    Restarted,
    Run,
    Suspended,
    Texts,
    engine,
)
from roundgate.tasks import log_failure, said_by
from roundgate.tokens import Binding, FixedTask, Opened, StateSealer


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request and what belongs to it. `notify` sends on its stream, where the client
    wants and can have that."""

    inbound: Inbound
    principal: Principal
    notify: Notify | None
    span: Span
    correlation: Correlation
    """The ids of the call, for the log; the code that serves the request completes them."""
    remaining_ms: float | None = None
    """For how long the environment lets the request run, in milliseconds, if it says so."""
    page_done: PageDone | None = None
    """Tells the client that its user has finished with a page; `None` for clients that cannot be
    told."""


T = TypeVar("T")

IDEMPOTENCY_KEY: Final = "roundgate/idempotencyKey"
"""The member of a request's `_meta` with a client's key for a call: 1 to 256
visible ASCII characters.

The prefix is ours and of one label: no name that the protocol keeps for itself has only
one (basic/index, "_meta").
"""
_KEY: Final = re.compile(r"[\x21-\x7e]{1,256}")
_DOUBT_PAUSE_S: Final = 0.5
"""A client sends a round without questions again at once; a store that is away for a
moment is given that moment."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is called: bound into the token, so that it opens for the same call alone."""

    method: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def binding(self) -> Binding:
        """What ties a token to this call; made when there is a token, because digests cost."""
        return Binding.of(self.method, self.name, self.arguments)


@dataclass(slots=True)
class Round:
    """A call on its way: which round this is, and what is known from the ones before."""

    number: int
    journal: Journal
    target: Target
    opened: Opened | None
    origin: Mapping[str, str]
    make_task_id: Callable[[], str]
    """Makes `task_id`, when somebody asks for it."""
    correlation: Correlation
    """The ids of the call, for the log."""
    is_keyed: bool = False
    """Whether the client gave the call a key."""
    _task_id: str | None = None

    @property
    def task_id(self) -> str:
        """The id of the task that the call becomes in this round, if it does: the same however
        often the round is sent."""
        if self._task_id is None:
            self._task_id = self.make_task_id()
        return self._task_id

    @property
    def fixed_task(self) -> FixedTask | None:
        """What later rounds have to keep of which task this is."""
        if self.opened is not None and self.opened.fixed_task is not None:
            return self.opened.fixed_task
        return FixedTask(self.task_id) if self.is_keyed else None

    @property
    def once_id(self) -> str | None:
        """What a round that must happen once is known by; a call without state and key
        is a new one each time."""
        if self.opened is not None:
            return self.opened.id
        return self.task_id if self.is_keyed else None


@dataclass(frozen=True, slots=True)
class InputRequired:
    """The round ended with questions, or only with state: the facts of an `InputRequiredResult`."""

    requests: Mapping[str, Any]
    request_state: str


@dataclass(frozen=True, slots=True)
class BecomesTask:
    """The call goes on as a task, with what is known of it; `message` is what
    its handler last said."""

    journal: Journal
    message: str | None


class Rounds:
    """Opens states, runs handlers for one round, and seals what is to travel.

    Args:
        sealer: seals and opens states.
        clock: of the process.
        max_rounds: after so many a call ends with an error.
        view: which view is asked; the same key of a client means another task in each.
    """

    def __init__(self, sealer: StateSealer, clock: Clock, max_rounds: int, view: str = "") -> None:
        self._view = view
        self._sealer = sealer
        self._clock = clock
        self._max_rounds = max_rounds

    def begin(
        self,
        target: Target,
        asked: InputParams,
        principal: Principal,
        origin: Mapping[str, str],
        correlation: Correlation,
        key: Any = None,
    ) -> Round:
        """Return the round that a request makes, with its answers added to the journal.

        An answer counts only for a question that the state says was asked. Answers in a request
        without state count only if the handler accepts them unasked (`Call.takes_unasked`).

        Args:
            target: the tool, prompt or resource, and its arguments.
            asked: the params, with answers and state.
            principal: the caller.
            origin: the trace of this request, kept if it is the first round.
            correlation: receives the id of the call.
            key: the client's key for the call, unvalidated; `None` without one.

        Raises:
            StateRefused: the state was not sealed by this gateway for this caller and call.
            InvalidParams: the client's key is malformed.
        """
        responses = asked.input_responses or {}
        keyed_id = None if key is None else _id_for_key(key, target, principal, self._view)
        correlation.make_call_id = self._clock.new_id
        if asked.request_state is None:
            journal = Journal()
            if responses:
                journal.receive_unasked(responses)
            make_id = self._clock.new_id if keyed_id is None else lambda: keyed_id
            is_keyed = keyed_id is not None
            return Round(1, journal, target, None, origin, make_id, correlation, is_keyed)
        return self._later(target, asked.request_state, responses, principal, keyed_id, correlation)

    def _later(
        self,
        target: Target,
        state: Any,
        responses: Mapping[str, Any],
        principal: Principal,
        keyed_id: str | None,
        correlation: Correlation,
    ) -> Round:
        opened = self._sealer.open(state, principal, target.binding())
        correlation.known_call_id = opened.call_id
        try:
            journal = Journal.from_json(opened.payload)
        except (ValueError, TypeError, KeyError):
            raise self._sealer.refused("sealed by an incompatible version", principal) from None
        journal.receive(responses)
        known_id = keyed_id if opened.fixed_task is None else opened.fixed_task.task_id

        def make_id() -> str:
            return known_id or digest(["state", opened.id, responses])

        return Round(
            opened.round + 1,
            journal,
            target,
            opened,
            opened.origin,
            make_id,
            correlation,
            keyed_id is not None,
        )

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
            outcome = await engine.run_handler(partial(handler, Context(run)), run)
            if not isinstance(outcome, Restarted):
                break
            journal = journal.restarted(outcome.arguments)
        if not isinstance(outcome, Suspended):
            return outcome
        # what the client can be asked at once is asked before there is a task
        # (SEP-2663, "Task Creation")
        if call.may_become_task and outcome.wants_task and not outcome.requests:
            return BecomesTask(outcome.journal, run.message)
        if round_.number >= self._max_rounds:
            return Failed(
                ToolError(
                    f"The call needed more than {self._max_rounds} rounds; ask for less at once"
                )
            )
        try:
            return self._input_required(outcome, round_, call.principal)
        except StateTooLarge as error:
            largest = outcome.journal.largest()
            return Failed(
                RuntimeError(
                    f"what the handler remembered is too large: {error}; the largest is {largest}"
                )
            )
        except TypeError as error:  # ctx.state holds what JSON cannot
            return Failed(error)

    def _input_required(
        self, outcome: Suspended, round_: Round, principal: Principal
    ) -> InputRequired:
        return InputRequired(
            outcome.requests, self._seal(outcome.journal, round_, principal, round_.fixed_task)
        )

    async def in_doubt(
        self, round_: Round, call: Call, journal: Journal, ended: Any = None
    ) -> InputRequired:
        """The end of a round whose task may have been written or not: state alone,
        with the task's id inside.

        The retry comes back with it, finds the row or writes it, and answers with the one task.

        Args:
            round_: the round.
            call: what it is part of.
            journal: what is known of the call.
            ended: how the call had ended, as JSON; `None` if it had not.

        Raises:
            Unavailable: there have been too many such rounds, or what is known of the
                call is too large to travel.
        """
        if round_.number >= self._max_rounds:
            raise Unavailable(
                "The task of this call could not be written; send the same request again"
            )
        await asyncio.sleep(min(_DOUBT_PAUSE_S, (call.deadline.remaining_ms() or 0) / 2000))
        try:
            state = self._seal(journal, round_, call.principal, FixedTask(round_.task_id, ended))
        except (StateTooLarge, TypeError):
            raise Unavailable(
                "The task of this call could not be written; send the same request again"
            ) from None
        return InputRequired({}, state)

    def _seal(
        self, journal: Journal, round_: Round, principal: Principal, fixed_task: FixedTask | None
    ) -> str:
        return self._sealer.seal(
            journal.to_json(),
            principal,
            round_.target.binding(),
            round_=round_.number,
            origin=round_.origin,
            fixed_task=fixed_task,
            call_id=round_.correlation.call_id,
        )


def _id_for_key(key: Any, target: Target, principal: Principal, view: str) -> str:
    """The id that follows from a client's key; it is one for this tool of this view and
    these arguments alone."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidParams(
            f'params._meta["{IDEMPOTENCY_KEY}"] must be a string of 1 to 256 visible ASCII characters'
        )
    owner = [principal.issuer, principal.subject, principal.client_id]
    facts = ["key", owner, key, target.method, target.name, digest(target.arguments)]
    return digest([*facts, view] if view else facts)


class Calls:
    """Begins calls and reads their outcomes.

    Args:
        rounds: opens, runs and seals.
        publish: tells streams of what a handler changed.
        clock: of the process.
        timeout_ms: milliseconds that a call may take.
        texts: keeps what is too long for a result.
        read: reads the resources that are served beside the tools.
    """

    def __init__(
        self,
        rounds: Rounds,
        publish: Publish,
        clock: Clock,
        timeout_ms: float,
        texts: Texts | None = None,
        read: Read | None = None,
        *,
        shows_errors: bool = False,
    ) -> None:
        self._read = read
        self._texts = texts
        self._shows_errors = shows_errors
        self._rounds = rounds
        self._publish = publish
        self._clock = clock
        self._timeout_ms = timeout_ms

    def begin(
        self, target: Target, asked: InputParams, context: RequestContext, *, key: Any = None
    ) -> Round:
        """The round that this request is; a later one is linked to where the call began.

        Args:
            target: what is called, and with which arguments.
            asked: the params, with answers and state.
            context: of the request.
            key: the client's key for the call, as it came; `None` for none.

        Raises:
            StateRefused, InvalidParams: see `Rounds.begin`.
        """
        round_ = self._rounds.begin(
            target,
            asked,
            context.principal,
            context.span.carrier(),
            context.correlation,
            key=key,
        )
        if round_.opened is not None:
            context.span.link(round_.origin)
        return round_

    def call(
        self, context: RequestContext, round_: Round | None = None, served: ServedTool | None = None
    ) -> Call:
        """The carrier of a request's call.

        Args:
            context: of the request.
            round_: which round of its call it is; `None` where there are no rounds.
            served: the tool, if it is a call of one.
        """
        mode = "forbidden" if served is None else served.tool.task
        limit_ms = self._timeout_ms if context.remaining_ms is None else context.remaining_ms
        return Call(
            principal=context.principal,
            meta=context.inbound.meta,
            deadline=self._clock.deadline(min(limit_ms, self._timeout_ms)),
            notify=context.notify,
            page_done=context.page_done,
            publish=self._publish,
            may_become_task=mode != "forbidden"
            and context.inbound.meta.capabilities.has(tasks.REQUIRED),
            needs_row=mode == "required",
            takes_unasked=served is not None and served.tool.unasked_answers,
            round=round_,
            texts=self._texts,
            read=self._read,
        )

    def value(self, outcome: Completed[T] | Failed, what: str) -> T:
        """What a handler returned, where there is no tool error to answer with.

        Args:
            outcome: of the handler.
            what: what the handler is, for the log: `prompt greet`.

        Raises:
            ProtocolError: the handler's own, or -32602 with the text of its `ToolError`.
            InternalError: any other failure; its cause is in the log.
        """
        match outcome:
            case Completed(value):
                return value
            case Failed(ProtocolError() as error):
                raise error
            case Failed(ToolError() as error) if not isinstance(error, CallTimeout):
                raise InvalidParams(str(error))
            case Failed(error):
                shown = said_by(error) if self._shows_errors else None
                raise InternalError(log_failure(what, error, self._clock), shown)
