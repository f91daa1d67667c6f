"""Calls and their rounds (SEP-2322): a round opens the client's state, runs the handler on its journal,
and seals the new journal.

    round 1   tools/call {arguments}                                →  input_required {inputRequests, requestState}
    round 2   tools/call {arguments, inputResponses, requestState}  →  … another round, or the result

The process keeps nothing between rounds; round 2 may reach any process that has the keys.

**The id of the task that a call becomes** is decided before the task exists, so that a client that
sends a request again, because its answer was lost, gets the same task:

    a key of the client's (`_meta`)   its owner, the key, the tool and the arguments; the same in every later round
    a state                           the state's id and the answers in the same request
    neither                           a new id; if its write is in doubt, the client gets a state with the id

The id is never the JSON-RPC id: clients count from 1 in every process, so two clients of one user
would share a task, and a client has to repeat a call under a new JSON-RPC id.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from msgspec import Struct, field

from roundgate.aio import TaskWatch
from roundgate.auth import Principal
from roundgate.backends import ServedTool
from roundgate.clock import Clock
from roundgate.errors import (
    BackendBusy,
    CallTimeout,
    InternalError,
    InvalidParams,
    ProtocolError,
    StateTooLarge,
    ToolError,
    Unavailable,
)
from roundgate.json import digest
from roundgate.methods.changes import OpenSubscription
from roundgate.observability.tracing import Correlation, Span
from roundgate.protocol import Inbound, InputParams, tasks
from roundgate.replay import (
    Call,
    Completed,
    Context,
    Failed,
    HiddenRounds,
    Journal,
    LongTexts,
    Publish,
    Read,
    Restarted,
    Run,
    engine,
)
from roundgate.tasks import Life, log_failure, said_by
from roundgate.tokens import Binding, FixedTask, OpenedState, StateSealer

if TYPE_CHECKING:  # loaded only if there is an audit log
    from roundgate.audit import Trail

log: Final = logging.getLogger("roundgate.methods")

T = TypeVar("T")

IDEMPOTENCY_KEY: Final = "roundgate/idempotencyKey"
"""The member of a request's `_meta` with a client's key for a call: 1 to 256 visible ASCII
characters. The protocol reserves no prefix of one label (basic/index, "_meta")."""
WAITING: Final = "wait."
"""The beginning of a `requestState` that names a task (`methods.task_tools`)."""
_KEY: Final = re.compile(r"[\x21-\x7e]{1,256}")
_DOUBT_PAUSE_S: Final = 0.25
"""Seconds that a round without questions waits, times its number: its client repeats it immediately,
and the store needs a moment."""
_LAST_DOUBT: Final = 8
"""The round in which a task in doubt is an error. Clients often stop at 10, and would only say that
the server still asks."""
_NOT_WRITTEN: Final = (
    "The gateway's store does not answer, so the task of this call may or may not exist, and the call "
    "may still take effect. The same request with the same requestState or idempotency key gets the "
    "same task; check for effects before you make a new call"
)


class RequestContext(Call, kw_only=True, eq=False):
    """One request, and the call that it makes."""

    inbound: Inbound
    watch: TaskWatch
    """The watch over the request, which cancels the call at its deadline."""
    span: Span
    correlation: Correlation
    """The ids of the call, for the log; the code that serves the request completes them."""
    address: str = ""
    """The address from which the request came."""
    is_counted: bool = True
    """Whether the request counts for the limits of its caller (`methods.rates`)."""
    continued: asyncio.Future[Any] | None = None
    """The work of the request that continues if its client hangs up; `None` if there is none."""


class Reply(Struct):
    """A serialised result, and its label in the log: ok, tool_error, input_required or task."""

    result: bytes
    label: str = "ok"
    reason: str | None = None
    """The reason for a tool's failure in a word or two, for the log."""


class Stream(Struct, frozen=True):
    """The response of subscriptions/listen: the open subscription and the result that closes it."""

    subscription: OpenSubscription
    closing_result: bytes


Response: TypeAlias = Reply | Stream


class CallTarget(Struct):
    """The tool, prompt or resource of a call. A token opens for the same target alone."""

    method: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    backend: str = ""
    """The back end of a tool."""

    def binding(self) -> Binding:
        """Return the binding of tokens to this call. Computes a digest."""
        return Binding.of(self.method, self.name, self.arguments)


class Round(Struct):
    """A round of a call: its number, and the facts from earlier rounds."""

    number: int
    journal: Journal
    target: CallTarget
    opened: OpenedState | None
    origin: Mapping[str, str]
    make_task_id: Callable[[], str]
    correlation: Correlation
    is_keyed: bool = False
    """Whether the client gave the call a key."""
    protection: str = ""
    """The protection of the tool from a second run (`ServedTool.protection`)."""
    _task_id: str | None = None

    @property
    def task_id(self) -> str:
        """The id of the task that the call may become in this round. The same round has the
        same id, however often it is sent."""
        if self._task_id is None:
            self._task_id = self.make_task_id()
        return self._task_id

    @property
    def fixed_task(self) -> FixedTask | None:
        """The task that later rounds have to keep, or `None`."""
        if self.opened is not None and self.opened.fixed_task is not None:
            return self.opened.fixed_task
        return FixedTask(self.task_id) if self.is_keyed else None

    @property
    def once_id(self) -> str | None:
        """The id of a round that must be served once. `None` for a call without state and
        key, which is a new call each time."""
        if self.opened is not None:
            return self.opened.id
        return self.task_id if self.is_keyed else None


class InputRequired(Struct, frozen=True):
    """The end of a round with questions or with state alone: the facts of an
    `InputRequiredResult`."""

    requests: Mapping[str, Any]
    request_state: str


class BecomesTask(Struct, frozen=True):
    """The end of a round whose call continues as a task. `message` is the handler's last report."""

    journal: Journal
    message: str | None


class Calls(Struct, frozen=True, kw_only=True):
    """Begins calls, runs their rounds, and reads their outcomes."""

    sealer: StateSealer
    clock: Clock
    view: str
    """The name of the view; a client's key names a different task in each view."""
    max_rounds: int
    """The number of rounds after which a call ends with an error."""
    publish: Publish
    """Publishes the changes that a handler reports."""
    texts: LongTexts | None
    """The store for the rest of long results."""
    hidden: Callable[[], HiddenRounds]
    """Returns the rounds of calls of older servers."""
    read: Read | None
    """Reads resources of the catalog."""
    shows_errors: bool
    """Whether callers see the text of unexpected exceptions."""
    life: Life
    trail: Trail | None
    """The audit log, if there is one."""

    def begin(
        self, target: CallTarget, params: InputParams, context: RequestContext, *, key: Any = None
    ) -> Round:
        """Return the round of a request, with the request's answers added to the journal. Link a
        later round to the span of the first.

        An answer counts only for a question that the state records. Answers in a request without
        state count only if the handler accepts them unasked (`Call.takes_unasked`).

        Args:
            target: the tool, prompt or resource, and its arguments.
            params: the params, with answers and state.
            context: the context of the request.
            key: the client's key for the call, unvalidated; `None` without one.

        Raises:
            StateRefused: the state was not sealed by this gateway for this caller and call.
            InvalidParams: the client's key is malformed.
            Unavailable: the audit log cannot be written.
        """
        round_ = self._begin(target, params, context, key)
        if context.begun is None:  # else the call was recorded when it ran without the engine
            self.record(round_.number, target, params, context)
        return round_

    def record(
        self, number: int, target: CallTarget, params: InputParams, context: RequestContext
    ) -> None:
        """Record a round in the audit log, if there is one; raise Unavailable if it cannot be
        written."""
        if self.trail is None:
            return
        self.trail.called(
            context.correlation,
            context.principal,
            number,
            method=target.method,
            name=target.name,
            backend=target.backend,
            view=self.view,
            arguments=target.arguments,
            answers=params.input_responses or {},
        )
        context.correlation.round = number  # only once the record is written

    def _begin(
        self, target: CallTarget, params: InputParams, context: RequestContext, key: Any
    ) -> Round:
        principal, correlation = context.principal, context.correlation
        responses = params.input_responses or {}
        keyed_id = None if key is None else _id_for_key(key, target, principal, self.view)
        correlation.make_call_id = self.clock.new_id
        is_keyed = keyed_id is not None
        if params.request_state is None:
            journal = Journal(unasked=responses)
            make_id = self.clock.new_id if keyed_id is None else lambda: keyed_id
            origin = context.span.carrier()
            return Round(1, journal, target, None, origin, make_id, correlation, is_keyed)
        opened = self.sealer.open(params.request_state, principal, target.binding())
        correlation.known_call_id = opened.call_id
        try:
            journal = Journal.from_json(opened.payload)
        except (ValueError, TypeError, KeyError):
            raise self.sealer.refused("sealed by an incompatible version", principal) from None
        journal.receive(responses)
        context.span.link(opened.origin)
        known_id = keyed_id if opened.fixed_task is None else opened.fixed_task.task_id

        def id_of_retry() -> str:
            return known_id or digest(["state", opened.id, responses])

        number = opened.round + 1
        return Round(
            number, journal, target, opened, opened.origin, id_of_retry, correlation, is_keyed
        )

    def call(
        self, context: RequestContext, round_: Round | None = None, served: ServedTool | None = None
    ) -> Call:
        """Return a request as the `Call` of a handler in the engine.

        Args:
            context: the context of the request.
            round_: the round of the call; `None` if there are no rounds.
            served: the tool, if a tool is called.
        """
        context.round, context.publish, context.trail = round_, self.publish, self.trail
        context.texts, context.hidden, context.read = self.texts, self.hidden, self.read
        if served is None:
            return context
        tool = served.tool
        context.takes_unasked, context.needs_row = tool.unasked_answers, tool.task == "required"
        if tool.task != "forbidden" and context.capabilities.has(tasks.REQUIRED):
            context.may_become_task = True
            context.last_ms = self.life.last_ms(self.clock.now_ms())
        if served.rules is not None:
            context.authorize = served.rules.authorizer(context.principal)
        return context

    async def run(
        self, round_: Round, call: Call, handler: Callable[[Context], Awaitable[T]]
    ) -> Completed[T] | InputRequired | Failed:
        """Run the handler of a prompt or resource for one round."""
        outcome = await self.run_or_defer(round_, call, handler)
        assert not isinstance(outcome, BecomesTask), "only calls of tools become tasks"
        return outcome

    async def ask(
        self, context: RequestContext, what: str, handler: Callable[[], Awaitable[T]]
    ) -> T:
        """Return the value of a handler that has no context, so that it cannot suspend. `what` is its
        name in the log. Raise as `value` does."""
        outcome = await engine.run_handler(handler, Run(self.call(context), Journal()))
        assert isinstance(outcome, Completed | Failed), "only a context suspends a run"
        return self.value(outcome, what)

    async def run_or_defer(
        self, round_: Round, call: Call, handler: Callable[[Context], Awaitable[T]]
    ) -> Completed[T] | InputRequired | BecomesTask | Failed:
        """Run a handler for one round, after which the call may have to continue as a task."""
        journal = round_.journal
        while True:
            run = Run(call, journal)
            outcome = await engine.run_handler(partial(handler, Context(run)), run)
            if not isinstance(outcome, Restarted):
                break
            journal = journal.restarted(outcome.arguments)
        if isinstance(outcome, Completed):
            return outcome
        if isinstance(outcome, Failed):
            if isinstance(outcome.error, BackendBusy) and call.may_become_task:
                return BecomesTask(run.journal, run.message)
            return outcome
        # questions that the client can answer at once come before the task
        # (SEP-2663, "Task Creation")
        if call.may_become_task and outcome.wants_task and not outcome.requests:
            return BecomesTask(outcome.journal, run.message)
        if round_.number >= self.max_rounds:
            if call.may_become_task:
                return BecomesTask(outcome.journal, run.message)
            return Failed(
                ToolError(
                    f"The call needed more than {self.max_rounds} rounds (state.max_rounds); ask for "
                    "less at once"
                )
            )
        try:
            state = self._seal(outcome.journal, round_, call.principal, round_.fixed_task)
            if self.trail is not None:
                ids = {"call": round_.correlation.call_id, "round": round_.number}
                self.trail.asked(outcome.requests, ids)
            if outcome.requests and log.isEnabledFor(logging.DEBUG):
                asked = {"round": round_.number, "questions": list(outcome.requests)}
                log.debug("a call asks its client", extra={"fields": asked})
            return InputRequired(outcome.requests, state)
        except StateTooLarge as error:
            if call.may_become_task:  # its row has more room, so no answer is lost
                return BecomesTask(outcome.journal, run.message)
            largest = outcome.journal.largest()
            return Failed(
                StateTooLarge(
                    f"the handler's journal is too large: {error}; its largest entry is {largest}"
                )
            )
        except TypeError as error:  # ctx.state holds a value without JSON
            return Failed(error)

    async def in_doubt(
        self, round_: Round, call: Call, journal: Journal, ended: Any = None
    ) -> InputRequired:
        """Return the end of a round whose task may or may not have been written: state alone, with
        the task's id inside. The client's retry finds the row or writes it, and gets the same task.

        Args:
            round_: the round.
            call: the call.
            journal: the journal of the call.
            ended: the end of the call as JSON; `None` if it has not ended.

        Raises:
            Unavailable: there have been too many such rounds, or the state is too large.
        """
        if round_.number >= min(self.max_rounds, _LAST_DOUBT):
            raise Unavailable(_NOT_WRITTEN)
        pause_s = _DOUBT_PAUSE_S * round_.number
        await asyncio.sleep(min(pause_s, (call.deadline.remaining_ms() or 0) / 2000))
        try:
            state = self._seal(journal, round_, call.principal, FixedTask(round_.task_id, ended))
        except (StateTooLarge, TypeError):
            raise Unavailable(_NOT_WRITTEN) from None
        return InputRequired({}, state)

    def _seal(
        self, journal: Journal, round_: Round, principal: Principal, fixed_task: FixedTask | None
    ) -> str:
        return self.sealer.seal(
            journal.to_json(),
            principal,
            round_.target.binding(),
            round_=round_.number,
            origin=round_.origin,
            fixed_task=fixed_task,
            call_id=round_.correlation.call_id,
            protection=round_.protection,
        )

    def value(self, outcome: Completed[T] | Failed, what: str) -> T:
        """Return the value that a handler returned; raise an error if it failed.

        Args:
            outcome: the outcome of the handler.
            what: the name of the handler in the log: `prompt greet`.

        Raises:
            ProtocolError: the handler's own, or -32602 with the text of its `ToolError`.
            Unavailable: a server that the handler asked did not answer.
            InternalError: any other failure; its cause is in the log.
        """
        match outcome:
            case Completed(value):
                return value
            case Failed(ProtocolError() | Unavailable() as error):
                raise error
            case Failed(ToolError() as error) if not isinstance(error, CallTimeout):
                raise InvalidParams(str(error))
            case Failed(error):
                shown = said_by(error) if self.shows_errors else None
                raise InternalError(log_failure(what, error, self.clock), shown)


def is_waiting(params: InputParams) -> bool:
    """Return whether a call already waits for a task."""
    return isinstance(params.request_state, str) and params.request_state.startswith(WAITING)


def _id_for_key(key: Any, target: CallTarget, principal: Principal, view: str) -> str:
    """Return the id of a client's key for this caller, tool, view and arguments.

    Raises:
        InvalidParams: the key is malformed.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise InvalidParams(
            f'params._meta["{IDEMPOTENCY_KEY}"] must be a string of 1 to 256 visible ASCII characters'
        )
    owner = [principal.issuer, principal.subject, principal.client_id]
    facts = ["key", owner, key, target.method, target.name, digest(target.arguments)]
    return digest([*facts, view] if view else facts)
