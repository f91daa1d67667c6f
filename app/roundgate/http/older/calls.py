"""Requests of sessions for tools, prompts and resources, which run round after round until there is
a result.

The methods serve a round as for any revision. If a round ends with questions, a client of 2026-07-28
gets them as a result and sends the call again. A client of a session is asked on the stream of its
request, and the call becomes a hidden task (`tasks.hidden`), which any process can follow and claim:

    POST  tools/call           ─▶ task; question, id: T.0.1 ─▶ (holder dies)
    POST  the answer           ─▶ any replica: the task has it
    GET   Last-Event-ID: T.0.1 ─▶ any replica: claims the task ─▶ replay ─▶ result

A question is a JSON-RPC request on the stream; its sealed id proves to the replica with the answer
that this session was asked, and names the task.

If the platform cannot hold a stream, the body ends with the question, and each GET waits briefly
for a change of the task. Several requests may follow a task: one of them claims each round, and all
get the outcome. A client that cannot resume streams, on such a platform, calls again with T:

    POST  tools/call X           ─▶ question; result: PENDING T           one body
    POST  the answer             ─▶ 202
    POST  tools/call continue T  ─▶ result, or PENDING T
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from roundgate import json
from roundgate.errors import (
    AuthError,
    CallCancelled,
    GatewayError,
    InsufficientScope,
    InvalidRequest,
    ProtocolError,
    ToolError,
    Unavailable,
)
from roundgate.http.exchange import Exchange
from roundgate.http.older.rounds import (
    AskedSoFar,
    CallState,
    OlderCall,
    OpenCall,
    decode_call,
    tool_error,
    validated,
)
from roundgate.http.older.sessions import SessionCaller
from roundgate.http.older.streams import Notices, OlderParts, RequestStream
from roundgate.http.request import REFUSED
from roundgate.methods.once import stored_reply
from roundgate.methods.rounds import Reply
from roundgate.observability.tracing import (
    Correlation,
    Span,
    TracedMessage,
    TracedOperation,
    context_of,
)
from roundgate.protocol import (
    Request,
    RequestId,
    Response,
    Status,
    ToolResult,
    jsonrpc,
)
from roundgate.protocol.v2025 import Results, wire_errors
from roundgate.protocol.v2025.asking import request_params
from roundgate.storage import TaskRecord, TaskRef
from roundgate.tasks import hidden
from roundgate.tasks.hidden import Sight
from roundgate.tokens.ids import QuestionId

SHORT_WAIT_S: Final = 3.0
"""Seconds that a request waits for a change if the platform cannot hold a stream. Clients stop
reading after 5 s."""
LEAVE_MS: Final = 2_000
"""The minimum time, in milliseconds, that the environment must leave for a held stream to
continue."""
PENDING: Final = "PENDING"
"""The first word of a result that stands for an unfinished call."""
_DEFINITION: Final = {
    "description": f"Return the result of a call that was answered with {PENDING}, by the token that "
    "follows that word.",
    "inputSchema": {
        "type": "object",
        "properties": {"token": {"type": "string", "description": "The token, copied exactly."}},
        "required": ["token"],
    },
}
_NOT_ANSWERED: Final = (
    "The question of this call was not answered in time; call again to be asked again"
)
_GONE: Final = (
    "The server no longer has this call, which may have taken effect; check before calling again"
)


class Responded(Struct, frozen=True):
    """The end of a request. Without a response, another process continues the call, or the call was
    cancelled."""

    response: bytes | None
    label: str
    reason: str | None = None


class SessionCalls:
    """Runs requests of sessions to their responses."""

    def __init__(self, parts: OlderParts) -> None:
        self._parts = parts
        self._continue_tool = ContinueTool(parts.continue_tool, self.reopened)

    # the entries

    def respond(
        self,
        request: Request,
        caller: SessionCaller,
        stream: RequestStream,
        correlation: Correlation,
    ) -> Awaitable[Responded]:
        """Return the response to a new request; complete its ids for the log.

        Raises:
            GatewayError: the request fails with this error.
            AuthError: the caller lacks a scope.
        """
        if self._continue_tool.is_called(request, stream):
            return self._continued(request, caller, stream, correlation)
        return self._respond(request, None, caller, stream, correlation)

    def resume(
        self, call: OpenCall, caller: SessionCaller, stream: RequestStream, correlation: Correlation
    ) -> Awaitable[Responded]:
        """Resume a call that `reopened` has found, as `respond` does."""
        return self._respond(call.request, call, caller, stream, correlation)

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

    async def take(self, response: Response, caller: SessionCaller) -> None:
        """Accept the answer to a question, unless the question already has an answer.

        Raises:
            InvalidRequest: this session was not asked such a question.
            Unavailable: the answer cannot be stored now.
        """
        question_facts = self._parts.ids.open_question(
            response.id, caller.session.id, caller.principal
        )
        if question_facts is None:
            raise InvalidRequest(
                "This session was not asked a question with this id, so there is nothing to answer"
            )
        ref = self._parts.tasks.ref_of(caller.principal, question_facts.task)
        ends = response.result is None
        answer = {"error": response.error} if ends else {"result": response.result}
        await self._parts.tasks.answer(ref, question_facts.name, json.encode(answer), ends=ends)

    async def cancel(self, request_id: RequestId, caller: SessionCaller) -> None:
        """Cancel a call of the session, wherever it runs.

        Raises:
            Unavailable: the cancellation cannot be stored now.
        """
        ref = self._parts.tasks.ref(caller.principal, caller.session.id, request_id)
        await self._parts.tasks.cancel_call(ref)

    # events

    async def reopened(self, event_id: str, caller: SessionCaller) -> OpenCall:
        """Return the call to which an event belongs.

        Raises:
            InvalidRequest: the id does not belong to this session, or has expired.
            Unavailable: the task cannot be read now.
        """
        refused = InvalidRequest("Last-Event-ID is unknown in this session, or too old; call again")
        facts, position = self._opened(event_id, caller)
        if facts is None or position is None:
            raise refused
        task_id, call_id, request_id, method, name, _ = facts
        ref = self._parts.tasks.ref_of(caller.principal, task_id)
        record, work = await self._parts.tasks.whole(ref)
        if record is None or record.call_id != call_id:
            raise refused
        if work is None:
            params = {"uri" if method == "resources/read" else "name": name}
            return OpenCall(ref, Request(request_id, method, params), position)
        params, scopes = decode_call(work.call)
        return OpenCall(ref, Request(request_id, method, params), position, scopes)

    def until_ms(self, event_id: str, caller: SessionCaller) -> int:
        """Return the end of the wait for answers after an event, in milliseconds since the epoch; 0
        if the id does not belong to this session. Does not read the store."""
        facts, _ = self._opened(event_id, caller)
        return 0 if facts is None else int(facts[-1])

    def _opened(
        self, event_id: str, caller: SessionCaller
    ) -> tuple[list[Any] | None, AskedSoFar | None]:
        token, *rest = event_id.rsplit(".", 2)
        facts = self._parts.ids.open_call(token, caller.session.id, caller.principal)
        if not isinstance(facts, list) or len(facts) != 6:
            return None, None
        mark, number = rest
        is_number = number.isascii() and number.isdigit() and len(number) <= 4
        return facts, AskedSoFar(mark, int(number)) if is_number else None

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
            inbound = validated(self._parts, request, caller)
        except ProtocolError as error:
            message = TracedMessage(request.id, request.method, version=caller.session.revision)
            with self.span(message, {}, caller, correlation) as span:
                end_span(span, error)
            raise
        with self.span(inbound, context_of(inbound.meta.raw), caller, correlation) as span:
            notify = (
                Notices(stream, self._parts.sessions, caller).notify if stream.can_tell else None
            )
            scopes = caller.principal.scopes
            call = OlderCall(
                *(self._parts, request, caller, stream, correlation, span, notify, inbound, scopes)
            )
            if opened is not None:
                call.ref, call.position = opened.ref, opened.position
                _check_scopes(opened.scopes, caller, inbound.name)
                call.scopes = opened.scopes
            elif stream.resumes and stream.holds:
                stream.token = call.reported
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
            finally:
                stream.token = None  # it refers to the call, and so to the stream
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
        return self._parts.tracing.request(
            operation,
            trace,
            caller.transport,
            correlation,
            knows=self._parts.methods[caller.session.revision].now.knows,
            session=caller.session.id,
        )

    def opening_span(self, request: Request, exchange: Exchange) -> AbstractContextManager[Span]:
        """Return the span of `initialize`, which has no session yet."""
        requested = request.params.get("protocolVersion")
        is_known = isinstance(requested, str) and requested in self._parts.methods
        version = str(requested) if is_known else ""
        operation = TracedMessage(request.id, request.method, version=version)
        return self._parts.tracing.request(
            operation, {}, exchange, exchange.correlation, knows=lambda method, name: False
        )

    async def _reply(self, call: OlderCall) -> Reply | None:
        """Return the result, or `None` if the stream ended before it."""
        if call.ref is None:
            reply = await call.run()
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
            call.held = await self._parts.tasks.claim(record)
            if call.held is None:  # another request was first
                await self._parts.clock.sleep(hidden.LOOKS_S[0])
            elif (reply := await call.run()) is not None:
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
        sight, record = Sight(self._parts.clock), None
        until_ms = self._parts.clock.monotonic_ms() + self._patience_s(call) * 1000
        with self._parts.followers.following(ref, caller.principal) as looks:
            while True:
                looks.news.clear()
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
                left_s = (until_ms - self._parts.clock.monotonic_ms()) / 1000
                if left_s <= 0 or self._parts.followers.is_closing:
                    if not self._may_wait(call):
                        return None
                    until_ms = self._parts.clock.monotonic_ms() + self._patience_s(call) * 1000
                    continue
                await looks.pause(left_s)

    async def _record(self, ref: TaskRef, known: TaskRecord | None) -> TaskRecord:
        """Return the record of a followed task. While the task asks, tolerate an unavailable store.
        Raise ToolError if the task does not exist."""
        if known is not None and known.status is Status.INPUT_REQUIRED:
            try:
                record = await self._parts.tasks.head(ref)
            except Unavailable:  # read again, until the wait for answers ends
                record = known
        else:
            record = await self._parts.tasks.patiently(lambda: self._parts.tasks.head(ref))
        if record is None:
            if known is not None and not self._is_past(known):
                raise CallCancelled  # another request with the same id is replacing the call
            raise ToolError(_GONE)
        return record

    async def _send_questions(self, call: OlderCall, record: TaskRecord) -> bool:
        """Send the questions that the client has not received; return whether there were any."""
        asked = [AskedSoFar.named(name) for name in record.asked]
        mark = asked[0].mark
        if call.position.mark != mark:
            call.position = AskedSoFar(mark)
        unseen = [each.number for each in asked if each.number >= call.position.number]
        if not unseen:
            return False
        if call.state is None or call.state.mark != mark:
            _, work = await self._parts.tasks.whole(record.ref)
            call.state = None if work is None else CallState.from_bytes(work.state)
        state = call.state
        if state is None or state.mark != mark:  # the questions have changed meanwhile
            return False
        token = call.event_id().rsplit(".", 2)[0]
        questions = list(state.requests.items())
        for number in unseen:
            key, request = questions[number]
            facts = QuestionId(call.caller.session.id, record.ref.id, state.names[number])
            question_id = self._parts.ids.seal_question(facts, call.caller.principal)
            message = _question(question_id, request, call.caller, state.pages.get(key))
            call.position = AskedSoFar(mark, number + 1)
            await call.stream.message(message, call.position.event_id(token))
        return True

    async def _outcome(self, call: OlderCall, record: TaskRecord) -> Reply:
        """Return the outcome of a call's task.

        Raises:
            CallCancelled: the client cancelled the call.
            GatewayError: the call ended with an error.
        """
        if record.is_open:
            await self._parts.tasks.cancel(record.ref, _NOT_ANSWERED)
            raise ToolError(_NOT_ANSWERED)
        if record.status is Status.CANCELLED:
            if record.status_message == hidden.CANCELLED:
                raise CallCancelled
            message = str(record.status_message)
            raise ToolError(message)
        outcome = await self._parts.tasks.outcome(record.ref)
        if outcome is None:  # the task has expired
            raise ToolError(_GONE)
        scopes, _, reply_bytes = outcome.partition(b"\n")
        _check_scopes(frozenset(json.decode(scopes)), call.caller, record.tool)
        return stored_reply(reply_bytes)

    def _is_past(self, record: TaskRecord) -> bool:
        """Return whether an open task has expired, or has waited too long for answers."""
        now_ms = self._parts.clock.now_ms()
        is_late = record.status is Status.INPUT_REQUIRED and self._parts.tasks.is_late(
            record, now_ms
        )
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
                await self._parts.tasks.cancel(call.ref, _NOT_ANSWERED)
            raise ToolError("The server is being restarted; call again to be asked again")
        if not stream.is_over:
            await stream.leave(call.event_id())
        return None

    def _pending(self, call: OlderCall) -> Reply:
        methods = self._parts.methods[call.caller.session.revision]
        is_error = methods.now.has_output_schema(str(call.request.params.get("name")))
        return self._continue_tool.pending(call, call.event_id(), is_error=is_error)

    def _patience_s(self, call: OlderCall) -> float:
        """Return the seconds that a request waits before it checks its time, or ends."""
        if call.stream.holds:
            return self._parts.keep_alive_s
        left_ms = call.caller.deadline.remaining_ms() if call.stream.is_finite else None
        return SHORT_WAIT_S if left_ms is None else min(SHORT_WAIT_S, left_ms / 2000)

    def _may_wait(self, call: OlderCall) -> bool:
        """Return whether a request may wait longer."""
        left_ms = call.caller.deadline.remaining_ms()
        is_late = left_ms is not None and left_ms < LEAVE_MS
        return call.stream.holds and not self._parts.followers.is_closing and not is_late


class ContinueTool(Struct, frozen=True):
    """The tool that accepts the token of an unfinished call, an event id."""

    name: str
    reopened: Callable[[str, SessionCaller], Awaitable[OpenCall]]
    """Returns the call to which an event belongs."""

    def is_called(self, request: Request, stream: RequestStream) -> bool:
        """Return whether a request calls this tool, from a client to which the tool is offered."""
        return (
            stream.is_finite
            and request.method == "tools/call"
            and request.params.get("name") == self.name
        )

    async def reopened_call(self, request: Request, caller: SessionCaller) -> OpenCall:
        """Return the call that a request continues by its token, under the id of the request.

        Raises:
            ToolError: the token does not belong to this session, or has expired.
            Unavailable: the call cannot be read now.
        """
        arguments = request.params.get("arguments")
        token = arguments.get("token") if isinstance(arguments, dict) else None
        text = token if isinstance(token, str) else ""
        event_id = text.strip().removeprefix(f"{PENDING} ")
        try:
            call = await self.reopened(event_id, caller)
        except InvalidRequest:
            raise ToolError(
                "This token is not valid: it is too old, belongs to another session, or was not copied exactly."
                " Call the first tool again"
            ) from None
        return replace(call, request=replace(call.request, id=request.id))

    def pending(self, call: OlderCall, token: str, *, is_error: bool) -> Reply:
        """Return the result of a call that continues when its client calls again with the id of an
        event. It is an error if the tool has an output schema, because clients validate every other
        result against it."""
        why = (
            "The user is being asked."
            if call.asks
            else "The call takes longer than one request may."
        )
        text = (
            f"{PENDING} {token}\n{why} Call the tool {self.name} with this token for the result,"
            f" and again for as long as it says {PENDING}. Do not call "
            f"{call.request.params.get('name')} again."
        )
        written = Results(call.caller.revision).write(
            ToolResult([text], is_error=is_error).to_wire()
        )
        return Reply(written, "input_required")

    def listed(self, reply: Reply) -> Reply:
        """Return a page of tools/list, with this tool added to the last page."""
        if not reply.result.endswith(b"]}"):
            return reply
        definition = json.encode({"name": self.name, **_DEFINITION})
        comma = b"" if reply.result.endswith(b"[]}") else b","
        return Reply(
            b"%b%b%b]}" % (reply.result[:-2], comma, definition), reply.label, reply.reason
        )


def _question(
    question_id: str, request: Mapping[str, Any], caller: SessionCaller, page: str | None
) -> bytes:
    """Return a question as a JSON-RPC request to the client. `page` is the `elicitationId` of a
    page to open."""
    params = request_params(caller.revision, request["method"], request.get("params", {}), page)
    message = {"jsonrpc": "2.0", "id": question_id, "method": request["method"]}
    return json.encode({**message, "params": params} if params else message)


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
