"""Requests of a session that run something: round after round until there is a result.

The methods answer a round as they do for any revision. Where one ends with questions, a client of today is told so and
sends the call again; a client of a session is asked here, on the stream of its request, and the next round begins here
with what it answers. What is needed to go on is in the id of the event, so another process can do so as well:

    POST  tools/call          ─▶ question, id: T.1 ─▶ (holder dies)
    GET   Last-Event-ID: T.1  ─▶ any replica: the answers' rows ─▶ replay ─▶ result

Where no stream can be held, a body ends with the question, and each GET waits for the answer for a moment. A client
that resumes nothing gets a result with the question, which says `PENDING` and has a token that a tool takes:

    POST  tools/call X           ─▶ question; result: PENDING T           one body
    POST  the answer             ─▶ 202
    POST  tools/call continue T  ─▶ the answers' rows ─▶ replay ─▶ result, or PENDING T
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from roundgate import json
from roundgate.auth import Principal
from roundgate.carrier import carrier
from roundgate.clock import Clock, Deadline
from roundgate.errors import (
    CallCancelled,
    InvalidRequest,
    MissingCapability,
    ToolError,
    Unavailable,
)
from roundgate.http.questions import Asked, Questions
from roundgate.http.session_stream import SessionStream
from roundgate.methods import CurrentMethods, Reply, RequestContext, Sessions, Stream
from roundgate.protocol import (
    LOG_LEVELS,
    ClientCapabilities,
    Inbound,
    Request,
    RequestId,
    ToolResult,
    jsonrpc,
)
from roundgate.protocol.v2025 import REVISIONS, Results, Revision, inbound_of
from roundgate.protocol.v2025.asking import answer_of, request_params
from roundgate.protocol.v2025.results import asked as read_asked
from roundgate.storage import SessionStore
from roundgate.tokens import SessionFacts
from roundgate.tracing import Span, Tracing, context_of

MAX_TOKEN: Final = 4_000
"""Characters of an event's id that travels whole: proxies take headers of 8 KB."""
SHORT_WAIT_S: Final = 3.0
"""How long a request waits for answers where no stream can be held: clients give up reading after 5 s."""
CONTINUED_WAIT_S: Final = 3.0
"""How long a call that goes on with a token waits for answers. A client that gave up before that and called again would
have the round behind the question run twice."""
MAX_COPIED: Final = 1_000
"""Characters of a token that a model has to copy."""
LEAVE_MS: Final = 2_000
"""What is left of the environment's time when a stream that is held there ends."""
PENDING: Final = "PENDING"
"""The first word of a result that is none yet."""
_UNKNOWN: Final = (
    "This token is not valid: it is too old, of another session, or not copied exactly."
    " Call the first tool again"
)
_CONTINUE: Final = {
    "description": f"The result of a call that was answered with {PENDING}: takes the token that stands behind it.",
    "inputSchema": {
        "type": "object",
        "properties": {"token": {"type": "string", "description": "The token, copied exactly."}},
        "required": ["token"],
    },
}
_MESSAGE: Final = "notifications/message"
_INTERRUPTED: Final = (
    "The connection was lost while this ran, and it is not known how far it came;"
    " find out whether it took effect before calling again"
)


@carrier
class OpenCall:
    """A call between its rounds: the facts behind an event's id."""

    request: Request
    requests: Mapping[str, Any]
    """What the client has been asked, by key."""
    state: str | None
    """The `requestState` of the round that asked; `None` before the first has ended."""
    round: str
    until_ms: int
    """Until when somebody waits for the answers, in milliseconds since the epoch."""

    def to_json(self) -> list[Any]:
        """For an event's id."""
        request = self.request
        return [
            request.id,
            request.method,
            request.params,
            dict(self.requests),
            self.state,
            self.round,
            self.until_ms,
        ]

    @classmethod
    def from_json(cls, facts: Any) -> OpenCall:
        """From an event's id that we sealed.

        Raises:
            InvalidRequest: another version wrote it.
        """
        try:
            request_id, method, params, requests, state, round_, until_ms = facts
            return cls(
                Request(request_id, method, params),
                dict(requests),
                state,
                str(round_),
                int(until_ms),
            )
        except (TypeError, ValueError):
            raise InvalidRequest(
                "Last-Event-ID is of an incompatible version; call again"
            ) from None


@carrier
class Caller:
    """Who sends a request of a session, and until when the environment lets it run."""

    session: SessionFacts
    principal: Principal
    deadline: Deadline
    remaining_ms: float | None

    @property
    def revision(self) -> Revision:
        """The session's."""
        return REVISIONS[self.session.revision]


@carrier
class Responded:
    """How a request ended. Without a response it goes on elsewhere, or nobody waits for it."""

    response: bytes | None
    label: str
    reason: str | None = None


class SessionCalls:
    """Runs requests of sessions to their responses.

    Args:
        methods: those of each revision, by its version.
        sessions: what sessions have changed.
        questions: asks clients and waits for answers.
        store: keeps calls that are too long for the id of an event.
        tracing: makes the span of a request.
        clock: of the process.
        answer_timeout_s: seconds that a user has for an answer.
        keep_alive_s: seconds between comments on a stream on which nothing happens.
        continue_tool: name of the tool that takes the token of a call that is not over.
    """

    def __init__(
        self,
        methods: Mapping[str, CurrentMethods],
        sessions: Sessions,
        questions: Questions,
        store: SessionStore,
        tracing: Tracing,
        clock: Clock,
        *,
        answer_timeout_s: float,
        keep_alive_s: float,
        continue_tool: str,
    ) -> None:
        self._continue_tool = continue_tool
        self._methods = methods
        self._sessions = sessions
        self.questions = questions
        self._rows = store
        self._tracing = tracing
        self._clock = clock
        self._answer_timeout_s = answer_timeout_s
        self._keep_alive_s = keep_alive_s

    async def respond(self, request: Request, caller: Caller, stream: SessionStream) -> Responded:
        """The response to a request that has just come.

        Raises:
            GatewayError: anything that is answered as an error.
            AuthError: the caller may not do this.
        """
        call, told = OpenCall(request, {}, None, "", 0), 0
        if self._continues(request, stream):
            try:
                call, told = await self._continued(request, caller)
            except InvalidRequest:
                return _responded(request.id, _tool_error(caller.revision, _UNKNOWN))
        elif stream.resumes:
            stream.token = lambda: self._event_id(call, caller, 0)
        return await self._respond(call, caller, stream, told)

    def _continues(self, request: Request, stream: SessionStream) -> bool:
        return (
            stream.is_finite
            and request.method == "tools/call"
            and request.params.get("name") == self._continue_tool
        )

    async def _continued(self, request: Request, caller: Caller) -> tuple[OpenCall, int]:
        """The call behind the token of a request that goes on with it. Raises as `reopened`."""
        arguments = request.params.get("arguments")
        token = arguments.get("token") if isinstance(arguments, dict) else None
        given = token if isinstance(token, str) else ""
        call, told = await self.reopened(given.strip().removeprefix(f"{PENDING} "), caller)
        return replace(call, request=replace(call.request, id=request.id)), told

    async def reopened(self, last_event_id: str, caller: Caller) -> tuple[OpenCall, int]:
        """The call that an event was of, and how many of its questions have reached the client.

        Raises:
            InvalidRequest: the id is none of this session's.
            Unavailable: what it stands for cannot be read just now.
        """
        token, _, number = last_event_id.rpartition(".")
        ids, session = self.questions.ids, caller.session
        facts = ids.open_call(token, session.id, caller.principal)
        match facts:
            case {"row": str(key)}:
                row = await self._rows.read(key)
                facts = (
                    None
                    if row is None
                    else ids.open_call(row.value.decode(), session.id, caller.principal)
                )
        if facts is None or not (number.isascii() and number.isdigit() and len(number) <= 4):
            raise InvalidRequest(
                "Last-Event-ID is none that this session was given, or is too old; call again"
            )
        return OpenCall.from_json(facts), int(number)

    async def resume(
        self, call: OpenCall, told: int, caller: Caller, stream: SessionStream
    ) -> Responded:
        """Go on with a call whose stream broke. Raises as `respond`.

        Args:
            call: as `reopened` returned it.
            told: how many of its questions have reached the client.
            caller: who resumes it.
            stream: where the rest of it is written.
        """
        if call.state is None and call.request.method == "tools/call":  # it may have done anything
            return _responded(call.request.id, _tool_error(caller.revision, _INTERRUPTED))
        return await self._respond(call, caller, stream, told)

    async def _respond(
        self, call: OpenCall, caller: Caller, stream: SessionStream, told: int
    ) -> Responded:
        inbound = self._inbound(call, caller)
        trace = context_of(inbound.meta.raw)
        with self._tracing.request(inbound.method, inbound.name, trace, inbound.version) as span:
            try:
                reply = await self._rounds(call, inbound, caller, stream, told, span)
            except CallCancelled:
                span.end("cancelled", None)
                return Responded(None, "cancelled")
            except ToolError as error:
                if inbound.method != "tools/call":
                    raise
                reply = _tool_error(caller.revision, str(error))
            if reply is None:
                span.end("input_required", None)
                return Responded(None, "input_required")
            span.end(reply.label, None)
        return _responded(call.request.id, reply)

    async def _rounds(
        self,
        call: OpenCall,
        inbound: Inbound,
        caller: Caller,
        stream: SessionStream,
        told: int,
        span: Span,
    ) -> Reply | None:
        """The result; `None` where the stream has ended before."""
        methods = self._methods[caller.session.revision]
        notify = _Notifications(stream, self._sessions, caller).notify if stream.can_tell else None
        own = inbound.params
        while True:
            if call.state is not None:
                answers = await self._ask(call, caller, stream, told) if call.requests else {}
                if answers is None:
                    is_pending = stream.is_finite and call.request.method == "tools/call"
                    return await self._pending(call, caller) if is_pending else None
                told = 0
                inbound = replace(
                    inbound, params={**own, "inputResponses": answers, "requestState": call.state}
                )
            left_ms = caller.deadline.remaining_ms()
            context = RequestContext(inbound, caller.principal, notify, span, left_ms)
            reply = await _serve(methods, context, caller.revision)
            if reply.label != "input_required":
                if inbound.method == "tools/list" and stream.is_finite:
                    return self._with_continue_tool(reply)
                return reply
            requests, state = read_asked(reply.result)
            until_ms = self._clock.now_ms() + int(self._answer_timeout_s * 1000)
            call = OpenCall(call.request, requests, state, self._clock.new_id(), until_ms)
            # its handler wants a turn of its own
            if not requests and stream.can_tell and stream.resumes:
                await stream.leave(await self._event_id(call, caller, 0))
                return None
            if not requests and stream.is_finite and _is_nearly_over(caller):
                return await self._pending(call, caller)

    async def _ask(
        self, call: OpenCall, caller: Caller, stream: SessionStream, told: int
    ) -> dict[str, Any] | None:
        """The answers to what the client is asked; `None` where the stream has ended before they came.

        Raises:
            ToolError: there will be none, with what to do about it.
            CallCancelled: nobody waits for the call any more.
            Unavailable: too many calls wait.
        """
        is_call = call.request.method == "tools/call"
        if not stream.can_tell or (stream.is_finite and not is_call):
            raise ToolError(
                "This has to ask the user something, and this client cannot be asked here: it would have to take event"
                " streams and resume them, as clients of revision 2025-11-25 do"
            )
        asked = Asked(call.round, call.requests, call.until_ms)
        with self.questions.waiting(asked, caller.principal) as news:
            event_id = await self._event_id(call, caller, 0)
            for number, request in enumerate(call.requests.values()):
                if number >= told:
                    message = self._question(asked, number, request, caller)
                    await stream.message(message, _after(event_id, number + 1))
            if stream.is_finite and told < len(call.requests):
                return None
            # what waits for the body gets it when it has ended
            if not stream.holds and stream.resumes and not stream.is_resumed:
                await stream.responder.end()
                return None
            found = await self._wait(asked, news, call, caller, stream)
            if found is None:
                if stream.is_finite:
                    return None
                if not stream.resumes:
                    raise ToolError("The server is being restarted; call again to be asked again")
                await stream.leave(_after(event_id, len(call.requests)))
                return None
        return {
            key: answer_of(
                caller.revision,
                call.requests[key]["method"],
                call.requests[key].get("params", {}),
                result,
            )
            for key, result in found.items()
        }

    async def _wait(
        self,
        asked: Asked,
        news: asyncio.Event,
        call: OpenCall,
        caller: Caller,
        stream: SessionStream,
    ) -> dict[str, dict[str, Any]] | None:
        """The answers; `None` if this request must not wait for them any longer."""
        wait_s = self._keep_alive_s if stream.holds else SHORT_WAIT_S
        if stream.is_finite:
            left_ms = caller.deadline.remaining_ms()
            wait_s = CONTINUED_WAIT_S if left_ms is None else min(CONTINUED_WAIT_S, left_ms / 2000)
        while True:
            found = await self.questions.answers(
                asked, news, call.request.id, caller.session, wait_s=wait_s
            )
            if found is not None:
                return found
            left_ms = caller.deadline.remaining_ms()
            if (
                not stream.holds
                or self.questions.is_closing
                or (left_ms is not None and left_ms < LEAVE_MS)
            ):
                return None
            await stream.keep_alive()

    def _question(
        self, asked: Asked, number: int, request: Mapping[str, Any], caller: Caller
    ) -> bytes:
        """A question as a request to the client."""
        question_id = self.questions.ask(asked, number, caller.session, caller.principal)
        params = request_params(
            caller.revision, request["method"], request.get("params", {}), question_id
        )
        message = {"jsonrpc": "2.0", "id": question_id, "method": request["method"]}
        return json.encode({**message, "params": params} if params else message)

    async def _pending(self, call: OpenCall, caller: Caller) -> Reply:
        """The result of a call that goes on when its client calls again."""
        token = await self._event_id(call, caller, len(call.requests), MAX_COPIED)
        name = str(call.request.params.get("name"))
        why = (
            "The user is being asked." if call.requests else "This takes longer than one call may."
        )
        text = (
            f"{PENDING} {token}\n{why} Call the tool {self._continue_tool} with this token for the result,"
            f" and again for as long as it says {PENDING}. Do not call {name} again."
        )
        # clients refuse what does not fit an output schema, unless it is an error
        is_error = self._methods[caller.session.revision].has_output_schema(name)
        written = Results(caller.revision).write(ToolResult([text], is_error=is_error).to_wire())
        return Reply(written, "input_required")

    def _with_continue_tool(self, reply: Reply) -> Reply:
        """The last page of tools/list with the tool that takes tokens."""
        if not reply.result.endswith(b"]}"):
            return reply
        definition = json.encode({"name": self._continue_tool, **_CONTINUE})
        comma = b"" if reply.result.endswith(b"[]}") else b","
        return Reply(
            b"%b%b%b]}" % (reply.result[:-2], comma, definition), reply.label, reply.reason
        )

    async def _event_id(
        self, call: OpenCall, caller: Caller, number: int, most: int = MAX_TOKEN
    ) -> str:
        """The id of an event after which any process can go on with a call; one of more characters than `most` is kept,
        and has its name."""
        ids, session = self.questions.ids, caller.session
        token = ids.seal_call(session.id, call.to_json(), caller.principal)
        if len(token) > most:
            key = f"call.{self._clock.new_id()}"
            keep_ms = int(self._answer_timeout_s * 2_000)
            await self._rows.put_new(key, token.encode(), self._clock.now_ms() + keep_ms)
            token = ids.seal_call(session.id, {"row": key}, caller.principal)
        return f"{token}.{number}"

    def _inbound(self, call: OpenCall, caller: Caller) -> Inbound:
        session = caller.session
        declared = ClientCapabilities(session.capabilities)
        features = self._methods[session.revision].features
        return inbound_of(call.request, caller.revision, declared, session.client_info, features)


class _Notifications:
    """What a handler tells its client. Which log messages a session wants is read when there is the first."""

    def __init__(self, stream: SessionStream, sessions: Sessions, caller: Caller) -> None:
        self._stream = stream
        self._sessions = sessions
        self._caller = caller
        self._least: int | None = None

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send one, if the session wants it."""
        if method == _MESSAGE and LOG_LEVELS.index(params["level"]) < await self._level():
            return
        await self._stream.notify(method, params)

    async def _level(self) -> int:
        if self._least is None:
            try:
                state = await self._sessions.state(self._caller.session, self._caller.principal)
            except Unavailable:
                return len(LOG_LEVELS)  # a log message is not worth the call
            self._least = LOG_LEVELS.index(state.level)
        return self._least


async def _serve(methods: CurrentMethods, context: RequestContext, revision: Revision) -> Reply:
    """One round; what a tool cannot do with this client is an error that its model reads."""
    try:
        answer = await methods.serve(context)
    except MissingCapability as error:
        if context.inbound.method != "tools/call":
            raise
        return _tool_error(revision, str(error))
    assert not isinstance(answer, Stream), "no method of these revisions is one"
    return answer


def _is_nearly_over(caller: Caller) -> bool:
    """Whether another round had better be a request of its own."""
    left_ms = caller.deadline.remaining_ms()
    return (
        left_ms is not None
        and caller.remaining_ms is not None
        and left_ms < caller.remaining_ms / 2
    )


def _after(event_id: str, number: int) -> str:
    return f"{event_id.rpartition('.')[0]}.{number}"


def _tool_error(revision: Revision, text: str) -> Reply:
    return Reply(Results(revision).write(ToolResult.error(text).to_wire()), "tool_error")


def _responded(request_id: RequestId, reply: Reply) -> Responded:
    return Responded(jsonrpc.result_response(request_id, reply.result), reply.label, reply.reason)
