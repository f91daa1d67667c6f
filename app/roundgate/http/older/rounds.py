"""The rounds of calls in this process. A hidden task keeps the state that a later request needs.

first round ─▶ result                             no task
            ─▶ reports, to a client that resumes  a task that this process holds
            ─▶ asks                               a task that asks
a claimed task ─▶ the next round ─▶ its end, or questions again
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from roundgate import json
from roundgate.aio import is_draining
from roundgate.clock import Clock
from roundgate.errors import (
    AuthError,
    CallCancelled,
    Draining,
    GatewayError,
    LeaseLost,
    MissingCapability,
    QuotaExceeded,
    ToolError,
    Unavailable,
)
from roundgate.http.older.asking import check_askable, read_answers
from roundgate.http.older.caller import SessionCaller
from roundgate.http.older.following import Followers
from roundgate.http.older.open_calls import CallState, OpenCalls, Position, call_bytes, decode_call
from roundgate.http.older.stream import RequestStream
from roundgate.http.older.watching import LAST_LOOK_S, CancelWatch
from roundgate.methods.once import kept_error, kept_reply
from roundgate.methods.parts import CurrentMethods
from roundgate.methods.rounds import Reply, RequestContext, Stream
from roundgate.observability.correlation import Correlation, correlated
from roundgate.observability.tracing import Span
from roundgate.protocol import (
    ClientCapabilities,
    Inbound,
    Request,
    RequestId,
    ToolResult,
    notifications,
)
from roundgate.protocol.v2025 import OlderRevision, Results, make_inbound
from roundgate.protocol.v2025.results import read_asked
from roundgate.storage import Ending, RowsOf, TaskRef
from roundgate.tasks import hidden
from roundgate.tasks.hidden import HiddenTasks, Holding, NewCall
from roundgate.tasks.stored import Claimed
from roundgate.tokens.ids import SessionFacts

RELEASE_S: Final = 2.0
"""Seconds that a request that is cut off may spend on releasing its task."""
_INTERRUPTED: Final = (
    "The connection was lost while this call ran, and its progress is unknown;"
    " find out whether it took effect before calling again"
)
_NOT_KEPT: Final = (
    "This call has ended, but too much was stored for you to keep its result"
    " (limits.max_stored_bytes); find out what it did before calling again"
)
_CANNOT_CONTINUE: Final = (
    "This call has begun and cannot continue. It may have taken effect; check before you repeat it."
    " {error}"
)
_NO_END: Final = (AuthError, Unavailable)
"""The errors that end a request but not its round."""


class OlderCall(Struct):
    """A request that is being answered, and the call that it makes or continues."""

    request: Request
    caller: SessionCaller
    stream: RequestStream
    correlation: Correlation
    span: Span
    notify: Callable[[str, dict[str, Any]], Awaitable[None]] | None
    inbound: Inbound
    scopes: frozenset[str]
    """The scopes with which the call began, and with which it continues."""
    ref: TaskRef | None = None
    """The hidden task of the call, if there is one."""
    state: CallState | None = None
    """The last known state; `None` before the first round has ended."""
    position: Position = ("", 0)
    pages: dict[str, str] = field(default_factory=dict)
    """The unfinished pages, as in `CallState.pages`."""
    asks: bool = False
    """Whether questions of the call wait for answers."""
    leaves: bool = False
    """Whether another request continues the call."""

    @property
    def is_tool_call(self) -> bool:
        """Return whether the request calls a tool."""
        return self.request.method == "tools/call"

    @property
    def held(self) -> Holding | None:
        """The hidden task while this process runs one of its rounds, otherwise `None`."""
        return self.stream.held


class Rounds:
    """Runs the rounds of calls.

    Args:
        methods: the methods of each revision, by version.
        tasks: the hidden tasks.
        calls: the maker of event ids.
        followers: the limit on requests that wait.
        rows_of: a function that returns the rows of a caller, for cancellations of calls without a task.
        clock: the clock of the process.
    """

    def __init__(
        self,
        methods: Mapping[str, CurrentMethods],
        tasks: HiddenTasks,
        calls: OpenCalls,
        followers: Followers,
        rows_of: RowsOf,
        clock: Clock,
    ) -> None:
        self._methods = methods
        self._tasks = tasks
        self._calls = calls
        self._followers = followers
        self._rows_of = rows_of
        self._clock = clock

    async def run(self, call: OlderCall, claimed: Claimed | None) -> Reply | None:
        """Run rounds of a call until one ends with a result; return `None` if the task has to be
        followed or left.

        Raises:
            CallCancelled: the client cancelled the call, or hung up and cannot resume it.
            GatewayError: the call ended with this error.
        """
        try:
            with call.stream.working:
                return await self._rounds(call, claimed)
        except (
            LeaseLost
        ):  # another request has the task, or it was cancelled; the task's record shows which
            return None
        except CallCancelled:
            if call.held is not None:
                with suppress(Unavailable):
                    await self._tasks.cancel(call.held.ref)
            raise
        except GatewayError as error:
            if call.held is None or await self._failed(call.held, call, error):
                raise
            return None
        except BaseException:  # cut off, perhaps because too many calls run without a client
            if call.held is not None:
                await self._cut_off(call.held, call)
            raise
        finally:
            if call.held is not None:
                call.ref, call.stream.held = call.held.ref, None

    async def _rounds(self, call: OlderCall, claimed: Claimed | None) -> Reply | None:
        answers = {} if claimed is None else self._restore(call, claimed)
        while True:
            reply = await self._served(call, answers)
            if reply.label != "input_required":
                await self._end(call, kept_reply(reply), _ending_from_reply(reply))
                return reply
            requests, state = read_asked(reply.result)
            call.pages |= {
                key: self._clock.new_id()
                for key, request in requests.items()
                if request.get("params", {}).get("mode") == "url"
            }
            call.state = CallState(state, requests, call.pages, self._clock.new_id())
            answers = {}
            if requests:
                await self._ask(call, call.state)
                return None
            # without questions, the next round gets a new request with its own time limit
            call.leaves = (call.stream.can_tell and call.stream.resumes) or (
                call.stream.is_finite and call.caller.is_nearly_over
            )
            if call.leaves:
                await self._keep(call, call.state)
                return None
            if is_draining():  # the next round would have no time
                raise Draining
            if call.held is not None:
                await self._tasks.patiently(partial(call.held.beat, call.state.to_bytes()))

    def _restore(self, call: OlderCall, claimed: Claimed) -> dict[str, Any]:
        """Restore a claimed call; return the answers to its questions.

        Raises:
            ToolError: the call must not be run again, or the client could not answer.
        """
        if call.held is None or call.held.is_first:
            raise ToolError(_INTERRUPTED)
        if self._tasks.has_died_often(claimed.record):
            raise ToolError(
                f"{claimed.record.deaths} processes that ran this call died; it is not run again"
            )
        params, call.scopes = decode_call(claimed.call)
        call.request = replace(call.request, params=params)
        call.inbound = self.inbound(call.request, call.caller)
        call.state = CallState.from_bytes(claimed.state)
        call.pages = dict(call.state.pages)
        return read_answers(call.state, claimed.answers, call.caller.revision)

    async def _ask(self, call: OlderCall, state: CallState) -> None:
        """Store the questions of a round in the task of the call, before they are sent. Raise
        CallCancelled if the client has hung up."""
        check_askable(call.request.method, call.stream)
        if (
            call.held is None and call.stream.is_unheard
        ):  # its client has no event id with which to resume
            raise CallCancelled
        if call.held is None:
            try:
                self._followers.check_room(call.caller.principal)
            except Unavailable as error:
                raise _cannot_continue(call, error) from None
        await self._keep(call, state)
        if call.stream.is_unheard:  # the request that resumes the call will ask
            raise CallCancelled

    async def _keep(self, call: OlderCall, state: CallState) -> None:
        """Store the state of a completed round, for the requests that follow the call."""
        state_bytes, question_methods = state.to_bytes(), state.asked
        if (held := call.held) is not None:
            await (
                held.suspend(state_bytes, question_methods)
                if question_methods
                else held.release(state_bytes)
            )
            call.ref, call.stream.held = held.ref, None
            return
        new = _new_call(call.request, call.caller, call.correlation)
        stream = call.stream
        try:
            call.ref = await self._tasks.ask(new, state_bytes, question_methods)
            if stream.resumes:
                event_id = stream.last_event_id = self.event_id(call)
                stream.token = lambda _: _known(event_id)
            await self._check_not_cancelled(call.request.id, call.caller, call.ref)
        except Unavailable as error:
            if stream.last_event_id is not None:
                raise
            raise _cannot_continue(call, error) from None

    async def _end(self, call: OlderCall, outcome: bytes, ending: Ending) -> None:
        """End the task of the call, if it has one.

        Raises:
            LeaseLost: another process has ended it, and its end counts.
        """
        if call.held is not None:
            with suppress(Unavailable):  # then only this request knows the outcome
                try:
                    await call.held.finish(_scoped(call.scopes, outcome), ending)
                except QuotaExceeded:  # the call has run and must not run again
                    short = kept_error(ToolError(_NOT_KEPT))
                    await call.held.finish(_scoped(call.scopes, short), ending)

    async def _failed(self, held: Holding, call: OlderCall, error: GatewayError) -> bool:
        """End the task of a call because of an error; return whether the error counts. If the error
        does not end a later round, release the round to another request."""
        if isinstance(error, _NO_END) and not held.is_first:
            await held.let_go()
            return True
        known = ToolError(_INTERRUPTED) if isinstance(error, _NO_END) else error
        try:
            await self._end(call, kept_error(known), Ending.ERROR)
        except LeaseLost:
            return False
        return True

    async def _cut_off(self, held: Holding, call: OlderCall) -> None:
        with suppress(LeaseLost, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                if held.is_first:
                    await self._failed(held, call, ToolError(_INTERRUPTED))
                else:
                    await held.let_go()

    async def _served(self, call: OlderCall, answers: Mapping[str, Any]) -> Reply:
        """Serve one round. If the client of a tool call lacks a capability, return an error result
        for its model."""
        caller, ids = call.caller, call.correlation
        inbound = call.inbound
        if call.state is not None:
            more = {"inputResponses": answers, "requestState": call.state.state}
            inbound = replace(inbound, params={**inbound.params, **more})

        async def page_done(key: str) -> None:
            page = call.pages.pop(key, None)  # notify once, however often the handler is replayed
            if page is not None and call.notify is not None:
                await call.notify(notifications.ELICITATION_COMPLETE, {"elicitationId": page})

        left_ms = caller.deadline.remaining_ms()
        principal = caller.principal
        if principal.scopes != call.scopes:
            principal = dataclasses.replace(principal, scopes=call.scopes)
        methods = self._methods[caller.session.revision]
        try:
            with CancelWatch(partial(self._look, call)) as watch, correlated(ids):
                context = RequestContext(
                    inbound=inbound,
                    meta=inbound.meta,
                    principal=principal,
                    notify=call.notify,
                    deadline=methods.now.deadline(left_ms),
                    watch=watch,
                    span=call.span,
                    correlation=ids,
                    page_done=page_done,
                    address=caller.address,
                    is_counted=call.state is None,
                )
                with methods.use:
                    answer = await methods.now.serve(context)
        except MissingCapability as error:
            if inbound.method != "tools/call":
                raise
            return tool_error(caller.revision, error)
        assert not isinstance(answer, Stream), "no method of these revisions returns a stream"
        return answer

    async def _look(self, call: OlderCall) -> float:
        """Renew the lease of a running call, or check for its cancellation; return the seconds
        until the next look."""
        held = call.held
        if held is not None:
            await held.beat()
            return hidden.BEAT_S
        await self._check_not_cancelled(call.request.id, call.caller, None)
        return LAST_LOOK_S

    async def reported(
        self,
        request: Request,
        caller: SessionCaller,
        correlation: Correlation,
        stream: RequestStream,
    ) -> str:
        """Store a hidden task for a call that sends a notification in its first round; return the
        id of the first event. Raise Unavailable if the caller has too many tasks."""
        try:
            held = await self._tasks.report(_new_call(request, caller, correlation))
        except ToolError as error:  # too many tasks: the call continues without one
            raise Unavailable(str(error)) from None
        stream.held = held
        with suppress(CallCancelled, Unavailable):  # the next renewal notices
            await self._check_not_cancelled(request.id, caller, held.ref)
        return self._calls.event_id(held.ref, correlation.call_id, request, caller, ("", 0))

    async def _check_not_cancelled(
        self, request_id: RequestId, caller: SessionCaller, ref: TaskRef | None
    ) -> None:
        """Raise CallCancelled if the client cancelled the call before it had a task. Also cancel
        `ref`, the task that it has now."""
        key, rows = cancel_key(caller.session, request_id), self._rows_of(caller.principal)
        if await self._tasks.patiently(lambda: rows.read(key)) is not None:
            if ref is not None:
                await self._tasks.cancel(ref)
            raise CallCancelled

    def event_id(self, call: OlderCall) -> str:
        """Return the id of an event after which any process can continue a call with a task."""
        assert call.ref is not None, "only a call with a task can be continued"
        call_id = call.correlation.call_id
        return self._calls.event_id(call.ref, call_id, call.request, call.caller, call.position)

    def inbound(self, request: Request, caller: SessionCaller) -> Inbound:
        """Validate a request of a session; raise MethodNotFound or InvalidParams."""
        session = caller.session
        declared = ClientCapabilities(session.capabilities)
        features = self._methods[session.revision].features
        return make_inbound(request, caller.revision, declared, session.client_info, features)


def target_name(request: Request) -> str | None:
    """Return the tool, prompt or URI that a request names, if any."""
    named = request.params.get("name", request.params.get("uri"))
    return named if isinstance(named, str) else None


def tool_error(revision: OlderRevision, error: GatewayError) -> Reply:
    """Return the result of a tool call that failed, for the model of its client."""
    return Reply(Results(revision).write(ToolResult.error(str(error)).to_wire()), "tool_error")


def _cannot_continue(call: OlderCall, error: Unavailable) -> GatewayError:
    """Return the error for a call whose first round has run. A client repeats a request that is
    answered with 503, so a tool call fails with a tool error."""
    return ToolError(_CANNOT_CONTINUE.format(error=error)) if call.is_tool_call else error


def _scoped(scopes: frozenset[str], outcome: bytes) -> bytes:
    """Return an outcome together with the scopes of its call."""
    return b"%b\n%b" % (json.encode(sorted(scopes)), outcome)


def _ending_from_reply(reply: Reply) -> Ending:
    return Ending.TOOL_ERROR if reply.label == "tool_error" else Ending.OK


async def _known(event_id: str) -> str:
    return event_id


def cancel_key(session: SessionFacts, request_id: RequestId) -> str:
    """Return the key of the row that cancels a call without a task."""
    return f"cancel.{session.id}.{json.digest(request_id)}"


def _new_call(request: Request, caller: SessionCaller, correlation: Correlation) -> NewCall:
    principal = caller.principal
    return NewCall(
        caller.session.id,
        request.id,
        principal,
        target_name(request) or request.method,
        call_bytes(request, principal.scopes),
        correlation.call_id,
    )
