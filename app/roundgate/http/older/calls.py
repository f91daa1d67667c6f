"""Requests of sessions for tools, prompts and resources: run round after round until there is a result.

The methods serve a round as for any revision. If a round ends with questions, a client of 2026-07-28
gets them as a result and sends the call again. A client of a session is asked on the stream of its
request (`asking`), and the next round runs here with its answers. The id of the event has everything
that is needed to continue (`open_calls`), so any process can:

    POST  tools/call          ─▶ question, id: T.1 ─▶ (holder dies)
    GET   Last-Event-ID: T.1  ─▶ any replica: the answers' rows ─▶ replay ─▶ result

If the platform cannot hold a stream, the body ends with the question, and each GET waits briefly for
the answer. A client that cannot resume streams calls again (`continued`). Each round runs once even
if several requests continue one call (`one_run`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from roundgate import json
from roundgate.clock import Clock
from roundgate.errors import CallCancelled, GatewayError, MissingCapability, ToolError
from roundgate.http.older.asking import Asking
from roundgate.http.older.caller import Caller, Responded
from roundgate.http.older.cancelling import CancelWatch
from roundgate.http.older.continued import ContinueTool
from roundgate.http.older.notices import Notices
from roundgate.http.older.one_run import OneRun, Ran
from roundgate.http.older.open_calls import OpenCall, OpenCalls
from roundgate.http.older.questions import Questions
from roundgate.http.older.sessions import Sessions
from roundgate.http.older.stream import SessionStream
from roundgate.methods.parts import CurrentMethods
from roundgate.methods.rounds import Reply, RequestContext, Stream
from roundgate.observability.correlation import Correlation, correlated
from roundgate.observability.tracing import Span, Tracing, context_of
from roundgate.protocol import (
    ClientCapabilities,
    Inbound,
    Request,
    RequestId,
    ToolResult,
    jsonrpc,
    notifications,
)
from roundgate.protocol.v2025 import Results, Revision, inbound_of
from roundgate.protocol.v2025.results import asked as read_asked
from roundgate.storage import RowsOf


@dataclass(frozen=True, slots=True)
class _Going:
    """A request that is being answered."""

    caller: Caller
    stream: SessionStream
    span: Span
    correlation: Correlation
    notify: Callable[[str, dict[str, Any]], Awaitable[None]] | None


class SessionCalls:
    """Runs requests of sessions to their responses.

    Args:
        methods: the methods of each revision, by version.
        sessions: the changes that sessions have made.
        questions: asks clients and waits for answers.
        rows_of: returns the rows of a caller, which replicas share.
        tracing: makes the span of a request.
        clock: the clock of the process.
        answer_timeout_s: seconds that a user has for an answer.
        lifetime_s: seconds until the state of a round expires.
        keep_alive_s: seconds between comments on a quiet stream.
        continue_tool: the name of the tool that takes the token of an unfinished call.
    """

    def __init__(
        self,
        methods: Mapping[str, CurrentMethods],
        sessions: Sessions,
        questions: Questions,
        rows_of: RowsOf,
        tracing: Tracing,
        clock: Clock,
        *,
        answer_timeout_s: float,
        lifetime_s: float,
        keep_alive_s: float,
        continue_tool: str,
    ) -> None:
        self.questions = questions
        keep_s = max(lifetime_s, answer_timeout_s) * 2
        self.open_calls = OpenCalls(rows_of, questions.ids, clock, keep_s=keep_s)
        self._asking = Asking(questions, self.open_calls, keep_alive_s=keep_alive_s)
        self._continue_tool = ContinueTool(continue_tool, self.open_calls)
        self._methods = methods
        self._sessions = sessions
        self._rows_of = rows_of
        self._tracing = tracing
        self._clock = clock
        # an answer after the state has expired could not be used
        self._wait_ms = int(min(answer_timeout_s, lifetime_s) * 1000)
        self._keep_ms = int(keep_s * 1000)

    def respond(
        self, request: Request, caller: Caller, stream: SessionStream, correlation: Correlation
    ) -> Awaitable[Responded]:
        """Return the response to a new request.

        Args:
            request: the request.
            caller: the caller.
            stream: the stream of the request.
            correlation: the ids of the call, for the log; completed here.

        Raises:
            GatewayError: the request is answered with an error.
            AuthError: the caller may not do this.
        """
        if self._continue_tool.is_called(request, stream):
            return self._continued(request, caller, stream, correlation)
        call = OpenCall(request, {}, None, "", 0)
        if stream.resumes:
            # the stream is an argument: a reference to it would be a cycle
            stream.token = partial(self._first_id, call, caller)
        return self._respond(call, caller, stream, 0, correlation)

    async def _continued(
        self, request: Request, caller: Caller, stream: SessionStream, correlation: Correlation
    ) -> Responded:
        try:
            call, told = await self._continue_tool.call_of(request, caller)
        except ToolError as error:
            return _responded(request.id, _tool_error(caller.revision, error))
        correlation.tool = str(call.request.params.get("name"))
        correlation.through = str(request.params.get("name"))
        return await self._respond(call, caller, stream, told, correlation)

    def resume(
        self,
        call: OpenCall,
        told: int,
        caller: Caller,
        stream: SessionStream,
        correlation: Correlation,
    ) -> Awaitable[Responded]:
        """Resume a call whose stream broke. Raises the errors of `respond`.

        Args:
            call: as `OpenCalls.reopened` returned it.
            told: how many of the call's questions have reached the client.
            caller: the caller that resumes the call.
            stream: receives the rest of the call.
            correlation: the ids of the call, for the log; completed here.
        """
        return self._respond(call, caller, stream, told, correlation)

    async def _respond(
        self,
        call: OpenCall,
        caller: Caller,
        stream: SessionStream,
        told: int,
        correlation: Correlation,
    ) -> Responded:
        inbound = self._inbound(call, caller)
        trace = context_of(inbound.meta.raw)
        with self._tracing.request(inbound.method, inbound.name, trace, inbound.version) as span:
            notify = Notices(stream, self._sessions, caller).notify if stream.can_tell else None
            try:
                reply = await self._rounds(
                    call, inbound, _Going(caller, stream, span, correlation, notify), told
                )
            except CallCancelled:
                span.end("cancelled", None)
                return Responded(None, "cancelled")
            except ToolError as error:
                if inbound.method != "tools/call":
                    raise
                reply = _tool_error(caller.revision, error)
            if reply is None:
                span.end("input_required", None)
                return Responded(None, "input_required")
            span.end(reply.label, None)
        return _responded(call.request.id, reply)

    async def _rounds(
        self, call: OpenCall, inbound: Inbound, going: _Going, told: int
    ) -> Reply | None:
        """Return the result, or `None` if the stream ended before it."""
        caller, stream, own = going.caller, going.stream, inbound.params
        while True:
            if call.state is not None:
                answers: dict[str, Any] | None = {}
                if call.requests:
                    answers = await self._asking.answers(call, caller, stream, told)
                if answers is None:
                    return await self._later(call, going)
                more = {"inputResponses": answers, "requestState": call.state}
                inbound, told = replace(inbound, params={**own, **more}), 0
            if call.state is None and not (stream.is_resumed and inbound.method == "tools/call"):
                ran: Ran | None = await self._first(call, inbound, going)
            else:
                ran = await self._ran(call, inbound, going)
            if ran is None:  # another request is still running the round
                await self._asking.leave(call, caller, stream)
                return await self._later(call, going)
            if ran.reply.label != "input_required":
                is_list = inbound.method == "tools/list" and stream.is_finite
                return self._continue_tool.listed(ran.reply) if is_list else ran.reply
            requests, state = read_asked(ran.reply.result)
            if requests and stream.is_unheard:  # a request that resumes the call asks
                raise CallCancelled
            call = call.asking(requests, state, ran.next_round, ran.until_ms)
            # state alone: the next round gets a new request, with its own time
            if not requests and stream.can_tell and stream.resumes:
                await stream.leave(await self.open_calls.event_id(call, caller))
                return None
            if not requests and stream.is_finite and caller.is_nearly_over:
                return await self._later(call, going)

    async def _ran(self, call: OpenCall, inbound: Inbound, going: _Going) -> Ran | None:
        """Return how a round ended that another request may be running; run the round if none does.
        Return `None` if another request still runs it and this one must not wait any longer."""
        caller, stream = going.caller, going.stream
        run = self._one_run(call, caller, stream)
        while True:
            wait_s = self._asking.patience_s(caller, stream)
            if call.state is None:  # a first round may have had effects: never run it again
                ran = await run.of_first(wait_s)
            else:
                ran = await run.of(lambda: self._served(call, inbound, going), wait_s)
            if ran is not None or not await self._asking.goes_on(caller, stream):
                return ran

    async def _first(self, call: OpenCall, inbound: Inbound, going: _Going) -> Ran:
        """Run the first round and return how it ended. No claim is written for it, because most
        first rounds end before any client could resume them."""
        stream = going.stream
        try:
            with stream.working:
                try:
                    reply = await self._served(call, inbound, going)
                except GatewayError as error:
                    if stream.first is None:
                        raise
                    return await stream.first.failed(error)
                if stream.first is not None:
                    return await stream.first.ended(reply)
        finally:
            if stream.first is not None:
                await stream.first.rest()
        if reply.label != "input_required":  # no round follows
            return Ran(reply, "", 0)
        return Ran(reply, self._clock.new_id(), self._clock.now_ms() + self._wait_ms)

    async def _first_id(self, call: OpenCall, caller: Caller, stream: SessionStream) -> str:
        """Return the event id with which a client resumes a call that has asked nothing yet."""
        until_ms = self._clock.now_ms() + self._wait_ms
        call = replace(call, round=self._clock.new_id(), until_ms=until_ms)
        event_id = await self.open_calls.event_id(call, caller)
        if stream.holds:  # otherwise the client gets the whole body or none of it
            stream.first = self._one_run(call, caller, stream)
        return event_id

    def _one_run(self, call: OpenCall, caller: Caller, stream: SessionStream) -> OneRun:
        # a token with fewer scopes must not get an outcome that needed more
        scopes = json.digest(sorted(caller.principal.scopes))
        return OneRun(
            self._rows_of(caller.principal),
            self._clock,
            f"{caller.session.id}.{call.round}.{scopes}",
            keep_ms=self._keep_ms,
            wait_ms=self._wait_ms,
            room=lambda: self.questions.room(caller.principal),
            working=stream.working,
        )

    async def _served(self, call: OpenCall, inbound: Inbound, going: _Going) -> Reply:
        """Serve one round. If the client of a tool call lacks a capability, return an error result
        for its model."""
        caller = going.caller
        left_ms = caller.deadline.remaining_ms()
        ids = going.correlation

        async def page_done(key: str) -> None:
            page = call.pages.pop(key, None)  # notify once, however often the handler is replayed
            if page is not None and going.notify is not None:
                await going.notify(notifications.ELICITATION_COMPLETE, {"elicitationId": page})

        context = RequestContext(
            inbound, caller.principal, going.notify, going.span, ids, left_ms, page_done
        )
        request_id, session = call.request.id, caller.session

        async def is_cancelled() -> bool:
            if going.stream.first is not None:
                await going.stream.first.heed()
            return await self.questions.is_cancelled(request_id, session, caller.principal)

        try:
            with CancelWatch(is_cancelled), correlated(ids):
                answer = await self._methods[session.revision].serve(context)
        except MissingCapability as error:
            if inbound.method != "tools/call":
                raise
            return _tool_error(caller.revision, error)
        assert not isinstance(answer, Stream), "no method of these revisions is one"
        return answer

    async def _later(self, call: OpenCall, going: _Going) -> Reply | None:
        """Return the result with a token for a call that continues later, or `None` if the client
        resumes its stream or made no tool call."""
        if not going.stream.is_finite or call.request.method != "tools/call":
            return None
        methods = self._methods[going.caller.session.revision]
        is_error = methods.now.has_output_schema(str(call.request.params.get("name")))
        return await self._continue_tool.pending(call, going.caller, is_error=is_error)

    def _inbound(self, call: OpenCall, caller: Caller) -> Inbound:
        session = caller.session
        declared = ClientCapabilities(session.capabilities)
        features = self._methods[session.revision].features
        return inbound_of(call.request, caller.revision, declared, session.client_info, features)


def name_of(request: Request) -> str | None:
    """Return the tool, prompt or URI that a request names, if any."""
    named = request.params.get("name", request.params.get("uri"))
    return named if isinstance(named, str) else None


def _tool_error(revision: Revision, error: GatewayError) -> Reply:
    return Reply(Results(revision).write(ToolResult.error(str(error)).to_wire()), "tool_error")


def _responded(request_id: RequestId, reply: Reply) -> Responded:
    return Responded(jsonrpc.result_response(request_id, reply.result), reply.label, reply.reason)
