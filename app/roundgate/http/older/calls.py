"""Requests of sessions for tools, prompts and resources, which run round after round until there is
a result.

The methods serve a round as for any revision. If a round ends with questions, a client of 2026-07-28
gets them as a result and sends the call again. A client of a session is asked on the stream of its
request, and the call becomes a hidden task (`tasks.hidden`), which any process can follow and claim:

    POST  tools/call          ─▶ task; question, id: T.0.1 ─▶ (holder dies)
    POST  the answer          ─▶ any replica: the task has it
    GET   Last-Event-ID: T.0.1 ─▶ any replica: claims the task ─▶ replay ─▶ result

If the platform cannot hold a stream, the body ends with the question, and each GET waits briefly
for a change of the task. A client that cannot resume streams calls again (`continued`). Several
requests may follow a task: one of them claims each round, and all get the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Final

from roundgate import json
from roundgate.clock import Clock
from roundgate.errors import (
    AuthError,
    CallCancelled,
    GatewayError,
    InsufficientScope,
    InvalidRequest,
    ProtocolError,
    QuotaExceeded,
    ToolError,
    Unavailable,
)
from roundgate.http.exchange import Exchange
from roundgate.http.older.asking import answer_bytes, question
from roundgate.http.older.caller import Responded, SessionCaller
from roundgate.http.older.continued import ContinueTool
from roundgate.http.older.following import Followers
from roundgate.http.older.open_calls import (
    CallState,
    OpenCall,
    OpenCalls,
    position_from_name,
)
from roundgate.http.older.open_calls import moved as event_id_at
from roundgate.http.older.rounds import OlderCall, Rounds, cancel_key, tool_error
from roundgate.http.older.sessions import Sessions
from roundgate.http.older.stream import Notices, RequestStream
from roundgate.http.request import REFUSED
from roundgate.methods.once import stored_reply
from roundgate.methods.parts import CurrentMethods
from roundgate.methods.rounds import Reply
from roundgate.observability.correlation import Correlation
from roundgate.observability.tracing import (
    Span,
    TracedMessage,
    TracedOperation,
    Tracing,
    context_of,
)
from roundgate.protocol import (
    Request,
    RequestId,
    Response,
    Status,
    jsonrpc,
)
from roundgate.protocol.v2025 import wire_errors
from roundgate.storage import RowsOf, TaskRecord, TaskRef
from roundgate.tasks import hidden
from roundgate.tasks.hidden import HiddenTasks, Sight
from roundgate.tokens.ids import QuestionId, StreamIds

FIRST_LOOK_S: Final = 0.05
LAST_FOLLOW_S: Final = 1.0
"""The maximum pause between two reads of a followed task, in seconds; the first is
`FIRST_LOOK_S`."""
SHORT_WAIT_S: Final = 3.0
"""Seconds that a request waits for a change if the platform cannot hold a stream. Clients stop
reading after 5 s."""
_NOT_ANSWERED: Final = (
    "The question of this call was not answered in time; call again to be asked again"
)
LEAVE_MS: Final = 2_000
"""The minimum time, in milliseconds, that the environment must leave for a held stream to
continue."""


class SessionCalls:
    """Runs requests of sessions to their responses.

    Args:
        methods: the methods of each revision, by version.
        sessions: the changes that sessions have made.
        tasks: the hidden tasks.
        followers: the requests of this process that wait.
        ids: the sealer of the ids of events and questions.
        rows_of: a function that returns the rows of a caller, for cancellations of calls without a task.
        tracing: the factory of request spans.
        clock: the clock of the process.
        keep_alive_s: seconds between comments on a quiet stream.
        continue_tool: the name of the tool that accepts the token of an unfinished call.
    """

    def __init__(
        self,
        methods: Mapping[str, CurrentMethods],
        sessions: Sessions,
        tasks: HiddenTasks,
        followers: Followers,
        ids: StreamIds,
        rows_of: RowsOf,
        tracing: Tracing,
        clock: Clock,
        *,
        keep_alive_s: float,
        continue_tool: str,
    ) -> None:
        self.followers = followers
        self.open_calls = OpenCalls(tasks, ids)
        self._continue_tool = ContinueTool(continue_tool, self.open_calls)
        self._methods = methods
        self._sessions = sessions
        self._tasks = tasks
        self._ids = ids
        self._rows_of = rows_of
        self._rounds = Rounds(methods, tasks, self.open_calls, followers, rows_of, clock)
        self._tracing = tracing
        self._clock = clock
        self._keep_alive_s = keep_alive_s

    # the entries

    def respond(
        self,
        request: Request,
        caller: SessionCaller,
        stream: RequestStream,
        correlation: Correlation,
    ) -> Awaitable[Responded]:
        """Return the response to a new request.

        Args:
            request: the request.
            caller: the caller.
            stream: the stream of the request.
            correlation: the ids of the call, for the log, which this method completes.

        Raises:
            GatewayError: the request fails with this error.
            AuthError: the caller lacks a scope.
        """
        if self._continue_tool.is_called(request, stream):
            return self._continued(request, caller, stream, correlation)
        if stream.resumes and stream.holds:
            # pass the stream as an argument, because a reference to it would be a cycle
            stream.token = partial(self._rounds.reported, request, caller, correlation)
        return self._respond(request, None, caller, stream, correlation)

    async def _continued(
        self,
        request: Request,
        caller: SessionCaller,
        stream: RequestStream,
        correlation: Correlation,
    ) -> Responded:
        try:
            call = await self._continue_tool.reopened_call(request, caller)
        except ToolError as error:
            return _responded(request.id, tool_error(caller.revision, error))
        correlation.tool = str(call.request.params.get("name"))
        correlation.through = str(request.params.get("name"))
        return await self._respond(call.request, call, caller, stream, correlation)

    def resume(
        self, call: OpenCall, caller: SessionCaller, stream: RequestStream, correlation: Correlation
    ) -> Awaitable[Responded]:
        """Resume a call whose stream broke; raise the errors of `respond`.

        Args:
            call: the result of `OpenCalls.reopened`.
            caller: the caller that resumes the call.
            stream: the stream for the rest of the call.
            correlation: the ids of the call, for the log, which this method completes.
        """
        return self._respond(call.request, call, caller, stream, correlation)

    async def take(self, response: Response, caller: SessionCaller) -> None:
        """Accept the answer to a question, unless the question already has an answer.

        Raises:
            InvalidRequest: this session was not asked such a question.
            Unavailable: the answer cannot be stored now.
        """
        question_facts = self._ids.open_question(response.id, caller.session.id, caller.principal)
        if question_facts is None:
            raise InvalidRequest(
                "This session was not asked a question with this id, so there is nothing to answer"
            )
        ref = self._tasks.ref_of(caller.principal, question_facts.task)
        ends = response.result is None
        await self._tasks.answer(ref, question_facts.name, answer_bytes(response), ends=ends)
        self.followers.wake(ref)

    async def cancel(self, request_id: RequestId, caller: SessionCaller) -> None:
        """Cancel a call of the session, wherever it runs.

        Raises:
            Unavailable: the cancellation cannot be stored now.
        """
        # a replica that runs the call without a task reads this row
        key, forget_ms = cancel_key(caller.session, request_id), self._tasks.until_ms
        rows = self._rows_of(caller.principal)
        ref = self._tasks.ref(caller.principal, caller.session.id, request_id)
        full: QuotaExceeded | None = None
        try:
            await self._tasks.patiently(lambda: rows.put_new(key, b"{}", forget_ms))
        except QuotaExceeded as error:  # a call with a task needs no row
            full = error
        await self._tasks.cancel(ref)
        self.followers.wake(ref)
        if full is not None:
            raise full

    # a request

    async def _respond(
        self,
        request: Request,
        opened: OpenCall | None,
        caller: SessionCaller,
        stream: RequestStream,
        correlation: Correlation,
    ) -> Responded:
        try:
            inbound = self._rounds.inbound(request, caller)
        except ProtocolError as error:
            message = TracedMessage(request.id, request.method, version=caller.session.revision)
            with self.span(message, {}, caller, correlation) as span:
                end_span(span, error)
            raise
        with self.span(inbound, context_of(inbound.meta.raw), caller, correlation) as span:
            notify = Notices(stream, self._sessions, caller).notify if stream.can_tell else None
            scopes = caller.principal.scopes
            call = OlderCall(request, caller, stream, correlation, span, notify, inbound, scopes)
            if opened is not None:
                call.ref, call.position = opened.ref, opened.position
                _check_scopes(opened.scopes, caller, inbound.name)
                call.scopes = opened.scopes
            try:
                reply = await self._reply(call)
            except CallCancelled:
                span.end("cancelled")
                return Responded(None, "cancelled")
            except ToolError as error:
                if not call.is_tool_call:
                    raise
                reply = tool_error(caller.revision, error)
            except GatewayError as error:
                end_span(span, error)
                raise
            if reply is None:
                span.end("input_required")
                return Responded(None, "input_required")
            span.end(reply.label)
        return _responded(request.id, reply)

    def span(
        self,
        operation: TracedOperation,
        trace: Mapping[str, str],
        caller: SessionCaller,
        correlation: Correlation,
    ) -> AbstractContextManager[Span]:
        """Return the span of a request or notification in a session."""
        return self._tracing.request(
            operation,
            trace,
            caller.transport,
            correlation,
            knows=self._methods[caller.session.revision].now.knows,
            session=caller.session.id,
        )

    def opening_span(self, request: Request, exchange: Exchange) -> AbstractContextManager[Span]:
        """Return the span of `initialize`, which has no session yet."""
        requested = request.params.get("protocolVersion")
        is_known = isinstance(requested, str) and requested in self._methods
        version = str(requested) if is_known else ""
        operation = TracedMessage(request.id, request.method, version=version)
        return self._tracing.request(
            operation, {}, exchange, exchange.correlation, knows=lambda method, name: False
        )

    async def _reply(self, call: OlderCall) -> Reply | None:
        """Return the result, or `None` if the stream ended before it."""
        if call.ref is None:
            reply = await self._rounds.run(call, None)
            if reply is not None:
                is_list = call.request.method == "tools/list" and call.stream.is_finite
                return self._continue_tool.listed(reply) if is_list else reply
        while not call.leaves:
            assert call.ref is not None, "a call without a result has a task"
            record = await self._awaited(call, call.ref)
            if record is None:
                break
            if not record.is_open or self._is_past(record):
                return await self._outcome(call, record)
            call.stream.held = await self._tasks.claim(record)
            if call.stream.held is None:  # another request was first
                await self._clock.sleep(FIRST_LOOK_S)
            elif (reply := await self._rounds.run(call, call.stream.held.claimed)) is not None:
                return reply
        return await self._leave(call)

    # following

    async def _awaited(self, call: OlderCall, ref: TaskRef) -> TaskRecord | None:
        """Ask the questions of a task, and return its record once it is over or can be claimed;
        return `None` if this request must stop waiting.

        Raises:
            CallCancelled: the client has hung up, or another call has replaced this call.
            Unavailable: too many requests wait, or the store cannot be reached.
        """
        caller, stream = call.caller, call.stream
        if stream.is_unheard:
            raise CallCancelled
        sight, pause_s, record = Sight(self._clock), FIRST_LOOK_S, None
        until_ms = self._clock.monotonic_ms() + self._patience_s(call) * 1000
        with self.followers.following(ref, caller.principal) as news:
            while True:
                news.clear()
                record = await self._record(ref, record)
                if call.correlation.known_call_id not in (None, record.call_id):
                    raise CallCancelled  # another request with the same id has replaced the call
                call.correlation.known_call_id = record.call_id
                call.asks = record.status is Status.INPUT_REQUIRED
                if self._is_past(record) or not record.is_open:
                    return record
                if record.status is Status.WORKING and sight.is_free(record):
                    return record
                if call.asks and await self._send_questions(call, record):
                    if stream.is_finite:
                        return None
                    # a platform that holds no streams delivers the body, and so the questions, at
                    # its end
                    if not stream.holds and not stream.is_resumed:
                        await stream.responder.end()
                        return None
                left_s = (until_ms - self._clock.monotonic_ms()) / 1000
                if left_s <= 0 or self.followers.is_closing:
                    if not self._may_wait(call):
                        return None
                    until_ms = self._clock.monotonic_ms() + self._patience_s(call) * 1000
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(pause_s, left_s)):
                        await news.wait()
                pause_s = min(LAST_FOLLOW_S, pause_s * 1.5)

    async def _record(self, ref: TaskRef, known: TaskRecord | None) -> TaskRecord:
        """Return the record of a followed task. While the task asks, tolerate an unavailable store.
        Raise ToolError if the task does not exist."""
        if known is not None and known.status is Status.INPUT_REQUIRED:
            try:
                record = await self._tasks.head(ref)
            except Unavailable:  # read again, until the wait for answers ends
                record = known
        else:
            record = await self._tasks.patiently(lambda: self._tasks.head(ref))
        if record is None:
            if known is not None and not self._is_past(known):
                raise CallCancelled  # another request with the same id is replacing the call
            raise ToolError(_NOT_ANSWERED)
        return record

    async def _send_questions(self, call: OlderCall, record: TaskRecord) -> bool:
        """Send the questions that the client has not received; return whether there were any."""
        mark = position_from_name(record.asked[0])[0]
        if call.position[0] != mark:
            call.position = mark, 0
        unseen = [name for name in record.asked if position_from_name(name)[1] >= call.position[1]]
        if not unseen:
            return False
        if call.state is None or call.state.mark != mark:
            _, work = await self._tasks.whole(record.ref)
            call.state = None if work is None else CallState.from_bytes(work.state)
        state = call.state
        if state is None or state.mark != mark:  # the questions have changed meanwhile
            return False
        event_id, questions = self._rounds.event_id(call), list(state.requests.items())
        for name in unseen:
            number = position_from_name(name)[1]
            key, request = questions[number]
            facts = QuestionId(call.caller.session.id, record.ref.id, name)
            question_id = self._ids.seal_question(facts, call.caller.principal)
            message = question(question_id, request, call.caller, state.pages.get(key))
            call.position = mark, number + 1
            await call.stream.message(message, event_id_at(event_id, call.position))
        return True

    async def _outcome(self, call: OlderCall, record: TaskRecord) -> Reply:
        """Return the outcome of a call's task.

        Raises:
            CallCancelled: the client cancelled the call.
            GatewayError: the call ended with an error.
        """
        if record.is_open:
            await self._tasks.cancel(record.ref, _NOT_ANSWERED)
            raise ToolError(_NOT_ANSWERED)
        if record.status is Status.CANCELLED:
            if record.status_message == hidden.CANCELLED:
                raise CallCancelled
            message = str(record.status_message)
            raise ToolError(message)
        outcome = await self._tasks.outcome(record.ref)
        if outcome is None:  # the task has expired
            raise ToolError(_NOT_ANSWERED)
        scopes, _, reply_bytes = outcome.partition(b"\n")
        _check_scopes(frozenset(json.decode(scopes)), call.caller, record.tool)
        return stored_reply(reply_bytes)

    def _is_past(self, record: TaskRecord) -> bool:
        """Return whether an open task has expired, or has waited too long for answers."""
        now_ms = self._clock.now_ms()
        is_late = record.status is Status.INPUT_REQUIRED and self._tasks.is_late(record, now_ms)
        return record.is_open and (is_late or record.expires_ms < now_ms)

    # leaving

    async def _leave(self, call: OlderCall) -> Reply | None:
        """End a stream whose call another request will continue. For a client that calls again,
        return the result with a token; otherwise return `None`.

        Raises:
            ToolError: the client cannot continue the call.
        """
        stream = call.stream
        if stream.is_finite:
            return self._pending(call) if call.is_tool_call else None
        if not stream.resumes:
            if call.ref is not None:
                await self._tasks.cancel(call.ref, _NOT_ANSWERED)
            raise ToolError("The server is being restarted; call again to be asked again")
        if not stream.is_over:
            await stream.leave(self._rounds.event_id(call))
        return None

    def _pending(self, call: OlderCall) -> Reply:
        methods = self._methods[call.caller.session.revision]
        is_error = methods.now.has_output_schema(str(call.request.params.get("name")))
        token = self._rounds.event_id(call)
        return self._continue_tool.pending(
            token, call.request, call.caller, asks=call.asks, is_error=is_error
        )

    def _patience_s(self, call: OlderCall) -> float:
        """Return the seconds that a request waits before it checks its time, or ends."""
        if call.stream.holds:
            return self._keep_alive_s
        left_ms = call.caller.deadline.remaining_ms() if call.stream.is_finite else None
        return SHORT_WAIT_S if left_ms is None else min(SHORT_WAIT_S, left_ms / 2000)

    def _may_wait(self, call: OlderCall) -> bool:
        """Return whether a request may wait longer."""
        left_ms = call.caller.deadline.remaining_ms()
        is_late = left_ms is not None and left_ms < LEAVE_MS
        return call.stream.holds and not self.followers.is_closing and not is_late


def _check_scopes(scopes: frozenset[str], caller: SessionCaller, name: str | None) -> None:
    """Raise InsufficientScope if the caller's token lacks any of the scopes with which a call
    began, because the outcome may need them."""
    if not scopes <= caller.principal.scopes:
        raise InsufficientScope(f"the call of {name}", sorted(scopes))


def _responded(request_id: RequestId, reply: Reply) -> Responded:
    return Responded(jsonrpc.result_response(request_id, reply.result), reply.label, reply.reason)


def end_span(span: Span, error: GatewayError) -> None:
    """Record the error that the client gets."""
    if isinstance(error, AuthError):
        span.end(error.outcome, REFUSED, str(error), error.status)
    else:
        wire = wire_errors.look_up(error)
        span.end(error.outcome, wire.code, str(error), wire.status)
