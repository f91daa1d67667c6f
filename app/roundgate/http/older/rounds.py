"""The rounds of calls in this process. A hidden task keeps the state that a later request needs.

    first round ─▶ result                             no task
                ─▶ reports, to a client that resumes  a task that this process holds
                ─▶ asks                               a task that asks
    a claimed task ─▶ the next round ─▶ its end, or questions again

The id of an event names the task of its call, so that any process can continue after the event:

    id: <token>.<mark>.2        the client has received two of the questions with this mark
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
from roundgate.aio import TaskWatch, is_draining
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
from roundgate.http.older.sessions import SessionCaller
from roundgate.http.older.streams import OlderParts, RequestStream
from roundgate.methods.once import kept_error, kept_reply
from roundgate.methods.rounds import Reply, RequestContext, Stream
from roundgate.observability.tracing import (
    Correlation,
    Span,
    correlated,
)
from roundgate.protocol import (
    ClientCapabilities,
    Inbound,
    Request,
    ToolResult,
    notifications,
)
from roundgate.protocol.v2025 import OlderRevision, Results, make_inbound
from roundgate.protocol.v2025.asking import answer_from_result
from roundgate.protocol.v2025.results import read_asked
from roundgate.storage import Ending, TaskRef
from roundgate.tasks import hidden
from roundgate.tasks.hidden import Holding, NewCall

FIRST_LOOK_S: Final = 1.0
LAST_LOOK_S: Final = 5.0
"""The first and the longest pause between two checks whether a running call was cancelled, in
seconds. Most calls end before they could be cancelled."""
RELEASE_S: Final = 2.0
"""Seconds that a request that is cut off may spend on releasing its task."""
MAX_NAME: Final = 100
"""The maximum length of a name or URI in an event id, in characters. Only the log shows it."""
MAX_MESSAGE: Final = 500
"""The maximum length of the shown reason of a client that cannot answer, in characters."""
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


class AskedSoFar(Struct, frozen=True):
    """The mark of a round's questions, and the number of questions that the client has received."""

    mark: str = ""
    number: int = 0

    @classmethod
    def named(cls, name: str) -> AskedSoFar:
        """Return the mark of a question's name, and its number in its round, from 0."""
        mark, _, number = name.rpartition(".")
        return cls(mark, int(number))

    def event_id(self, token: str) -> str:
        """Return the id of an event of the call with a token."""
        return f"{token}.{self.mark}.{self.number}"


class CallState(Struct, frozen=True):
    """The state of a call between two rounds, stored in its task."""

    state: str
    """The `requestState` of the last round."""
    requests: Mapping[str, Any]
    """The questions to the client, by key."""
    pages: Mapping[str, str]
    """The `elicitationId` of each page that the client's user has not finished, by the key of its
    question."""
    mark: str
    """A unique id that distinguishes the questions of this round from all others."""

    @property
    def names(self) -> list[str]:
        """The names of the questions in the task."""
        return [f"{self.mark}.{number}" for number in range(len(self.requests))]

    @property
    def asked(self) -> dict[str, bytes]:
        """The method of each question, by name. Operators see nothing else of a question."""
        methods = ({"method": request["method"]} for request in self.requests.values())
        return dict(zip(self.names, map(json.encode, methods), strict=True))

    def to_bytes(self) -> bytes:
        """Encode the state for its task."""
        return json.encode([self.state, dict(self.requests), dict(self.pages), self.mark])

    @classmethod
    def from_bytes(cls, data: bytes) -> CallState:
        """Decode the state that a task stores."""
        return cls(*json.decode(data))


class OpenCall(Struct, frozen=True):
    """A call that a request continues."""

    ref: TaskRef
    request: Request
    """The request; if the call has ended, only its id, method and name."""
    position: AskedSoFar
    scopes: frozenset[str] = field(default_factory=frozenset)
    """The scopes with which the call began; empty if the call has ended, because its outcome has
    them."""


class OlderCall(Struct):
    """A request that is being answered, and the call that it makes or continues, round by round."""

    parts: OlderParts
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
    held: Holding | None = None
    """The hidden task while this process runs one of its rounds."""
    state: CallState | None = None
    """The last known state; `None` before the first round has ended."""
    position: AskedSoFar = AskedSoFar()
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

    async def run(self) -> Reply | None:
        """Run rounds of a call until one ends with a result; return `None` if the task has to be
        followed or left.

        Raises:
            CallCancelled: the client cancelled the call, or hung up and cannot resume it.
            GatewayError: the call ended with this error.
        """
        try:
            with self.stream.watch.working():
                return await self._rounds()
        except LeaseLost:
            return None  # another request has the task, or it was cancelled: the record shows which
        except CallCancelled:
            if self.held is not None:
                with suppress(Unavailable):
                    await self.parts.tasks.cancel(self.held.ref)
            raise
        except GatewayError as error:
            if self.held is None or await self._failed(self.held, error):
                raise
            return None
        except BaseException:  # cut off, perhaps because too many calls run without a client
            if self.held is not None:
                await self._cut_off(self.held)
            raise
        finally:
            if self.held is not None:
                self.ref, self.held = self.held.ref, None

    async def _rounds(self) -> Reply | None:
        answers = {} if self.held is None else self._restore(self.held)
        while True:
            reply = await self._served(answers)
            if reply.label != "input_required":
                ending = Ending.TOOL_ERROR if reply.label == "tool_error" else Ending.OK
                await self._end(kept_reply(reply), ending)
                return reply
            requests, state = read_asked(reply.result)
            self.pages |= {
                key: self.parts.clock.new_id()
                for key, request in requests.items()
                if request.get("params", {}).get("mode") == "url"
            }
            self.state = CallState(state, requests, self.pages, self.parts.clock.new_id())
            answers = {}
            if requests:
                await self._ask(self.state)
                return None
            # without questions, the next round gets a new request with its own time limit
            self.leaves = (self.stream.can_tell and self.stream.resumes) or (
                self.stream.is_finite and self.caller.is_nearly_over
            )
            if self.leaves:
                await self._keep(self.state)
                return None
            if is_draining():  # the next round would have no time
                raise Draining
            if self.held is not None:
                await self.parts.tasks.patiently(partial(self.held.beat, self.state.to_bytes()))

    def _restore(self, held: Holding) -> dict[str, Any]:
        """Restore a claimed call; return the answers to its questions.

        Raises:
            ToolError: the call must not be run again, or the client could not answer.
        """
        if held.is_first:
            raise ToolError(_INTERRUPTED)
        if self.parts.tasks.has_died_often(held.claimed.record):
            raise ToolError(
                f"{held.claimed.record.deaths} processes that ran this call died; it is not run again"
            )
        params, self.scopes = decode_call(held.claimed.call)
        self.request = replace(self.request, params=params)
        self.inbound = validated(self.parts, self.request, self.caller)
        self.state = CallState.from_bytes(held.claimed.state)
        self.pages = dict(self.state.pages)
        return _read_answers(self.state, held.claimed.answers, self.caller.revision)

    async def _ask(self, state: CallState) -> None:
        """Store the questions of a round in the task of the call, before they are sent. Raise
        CallCancelled if the client has hung up."""
        _check_askable(self.request.method, self.stream)
        if self.held is None:
            if self.stream.is_unheard:  # its client has no event id with which to resume
                raise CallCancelled
            try:
                self.parts.followers.check_room(self.caller.principal)
            except Unavailable as error:
                raise _cannot_continue(self, error) from None
        await self._keep(state)
        if self.stream.is_unheard:  # the request that resumes the call will ask
            raise CallCancelled

    async def _keep(self, state: CallState) -> None:
        """Store the state of a completed round, for the requests that follow the call."""
        state_bytes, question_methods = state.to_bytes(), state.asked
        if (held := self.held) is not None:
            await (
                held.suspend(state_bytes, question_methods)
                if question_methods
                else held.release(state_bytes)
            )
            self.ref, self.held = held.ref, None
            return
        stream = self.stream
        try:
            self.ref = await self.parts.tasks.ask(self._new_task(), state_bytes, question_methods)
            if stream.resumes:
                stream.last_event_id = self.event_id()
                stream.token = self._last_event_id
        except Unavailable as error:
            if stream.last_event_id is not None:
                raise
            raise _cannot_continue(self, error) from None

    async def _end(self, outcome: bytes, ending: Ending) -> None:
        """End the task of the call, if it has one.

        Raises:
            LeaseLost: another process has ended it, and its end counts.
        """
        if self.held is not None:
            with suppress(Unavailable):  # then only this request knows the outcome
                try:
                    await self.held.finish(_scoped(self.scopes, outcome), ending)
                except QuotaExceeded:  # the call has run and must not run again
                    short = kept_error(ToolError(_NOT_KEPT))
                    await self.held.finish(_scoped(self.scopes, short), ending)

    async def _failed(self, held: Holding, error: GatewayError) -> bool:
        """End the task of a call because of an error; return whether the error counts. If the error
        does not end a later round, release the round to another request."""
        if isinstance(error, _NO_END) and not held.is_first:
            await held.let_go()
            return True
        known = ToolError(_INTERRUPTED) if isinstance(error, _NO_END) else error
        try:
            await self._end(kept_error(known), Ending.ERROR)
        except LeaseLost:
            return False
        return True

    async def _cut_off(self, held: Holding) -> None:
        with suppress(LeaseLost, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                if held.is_first:
                    await self._failed(held, ToolError(_INTERRUPTED))
                else:
                    await held.let_go()

    async def _served(self, answers: Mapping[str, Any]) -> Reply:
        """Serve one round. If the client of a tool call lacks a capability, return an error result
        for its model."""
        caller, ids = self.caller, self.correlation
        inbound = self.inbound
        if self.state is not None:
            more = {"inputResponses": answers, "requestState": self.state.state}
            inbound = replace(inbound, params={**inbound.params, **more})

        async def page_done(key: str) -> None:
            page = self.pages.pop(key, None)  # notify once, however often the handler is replayed
            if page is not None and self.notify is not None:
                await self.notify(notifications.ELICITATION_COMPLETE, {"elicitationId": page})

        left_ms = caller.deadline.remaining_ms()
        principal = caller.principal
        if principal.scopes != self.scopes:
            principal = dataclasses.replace(principal, scopes=self.scopes)
        methods = self.parts.methods[caller.session.revision].now
        call_id = ids.known_call_id
        try:
            with CancelWatch(self._look) as watch, correlated(ids):
                context = RequestContext(
                    inbound=inbound,
                    meta=inbound.meta,
                    principal=principal,
                    notify=self.notify,
                    deadline=methods.deadline(left_ms),
                    watch=watch,
                    span=self.span,
                    correlation=ids,
                    page_done=page_done,
                    address=caller.address,
                    is_counted=self.state is None,
                )
                with methods.catalog:
                    answer = await methods.serve(context)
        except MissingCapability as error:
            if inbound.method != "tools/call":
                raise
            return tool_error(caller.revision, error)
        finally:
            # a state from a stored outcome of `once` has the id of the call that was asked first
            ids.known_call_id = call_id or ids.known_call_id
        assert not isinstance(answer, Stream), "no method of these revisions returns a stream"
        return answer

    async def _look(self) -> float:
        """Renew the lease of a running call, or check for its cancellation; return the seconds
        until the next look."""
        held = self.held
        if held is not None:
            await held.beat()
            return hidden.BEAT_S
        caller, tasks = self.caller, self.parts.tasks
        ref = tasks.ref(caller.principal, caller.session.id, self.request.id)
        if await tasks.is_cancelled(ref):
            raise CallCancelled
        return LAST_LOOK_S

    async def reported(self) -> str:
        """Store a hidden task for a call that sends a notification in its first round; return the
        id of the first event. Raise Unavailable if the call has no task: the client cancelled it, or
        the caller has too many tasks."""
        try:
            self.held = await self.parts.tasks.report(self._new_task())
        except (CallCancelled, ToolError) as error:  # the next look notices the cancellation
            raise Unavailable(str(error)) from None
        self.ref = self.held.ref
        return self.event_id()

    async def _last_event_id(self) -> str:
        return str(self.stream.last_event_id)

    def event_id(self) -> str:
        """Return the id of an event after which any process can continue a call with a task."""
        assert self.ref is not None, "only a call with a task can be continued"
        request, caller = self.request, self.caller
        name = (target_name(request) or "")[:MAX_NAME]
        call_id, until_ms = self.correlation.call_id, self.parts.tasks.until_ms
        facts = [self.ref.id, call_id, request.id, request.method, name, until_ms]
        token = self.parts.ids.seal_call(caller.session.id, facts, caller.principal)
        return self.position.event_id(token)

    def _new_task(self) -> NewCall:
        """Return the hidden task that the call becomes."""
        principal = self.caller.principal
        return NewCall(
            self.caller.session.id,
            self.request.id,
            principal,
            target_name(self.request) or self.request.method,
            json.encode([self.request.params, sorted(principal.scopes)]),
            self.correlation.call_id,
        )


class CancelWatch(TaskWatch):
    """A context manager that cancels the current task once `look` raises `CallCancelled` or
    `LeaseLost`, and raises that error. `look` returns the maximum pause before the next look, in
    seconds."""

    def __init__(self, look: Callable[[], Awaitable[float]]) -> None:
        super().__init__()
        self._look = look
        self._reason: CallCancelled | LeaseLost | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        if self._end(kind) and self._reason is not None:
            raise self._reason from error

    async def _watch(self) -> None:
        pause_s, longest_s = FIRST_LOOK_S, LAST_LOOK_S
        await asyncio.sleep(FIRST_LOOK_S)
        try:
            while True:
                with suppress(Unavailable):  # look again later
                    longest_s = await self._look()
                await asyncio.sleep(min(pause_s, longest_s))
                pause_s = min(LAST_LOOK_S, pause_s * 1.5)
        except (CallCancelled, LeaseLost) as error:
            self._reason = error
            self.cancel()


def validated(parts: OlderParts, request: Request, caller: SessionCaller) -> Inbound:
    """Validate a request of a session; raise MethodNotFound or InvalidParams."""
    session = caller.session
    declared = ClientCapabilities(session.capabilities)
    features = parts.methods[session.revision].features
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


def _check_askable(method: str, stream: RequestStream) -> None:
    """Raise ToolError if the client cannot be asked on this stream."""
    if not stream.can_tell or (stream.is_finite and method != "tools/call"):
        raise ToolError(
            "This call must ask the user a question, but this client cannot be asked: it must accept "
            "event streams and resume them, as clients of revision 2025-11-25 do"
        )


def _read_answers(
    state: CallState, stored: Mapping[str, bytes], revision: OlderRevision
) -> dict[str, dict[str, Any]]:
    """Return the answers to the questions of a state by key, in the form of the engine.

    Raises:
        ToolError: the client could not answer one of them.
    """
    answers = {}
    for (key, request), name in zip(state.requests.items(), state.names, strict=True):
        answer = json.decode(stored[name])
        if (error := answer.get("error")) is not None:
            message = error.get("message")
            reason = message[:MAX_MESSAGE] if isinstance(message, str) else "no reason given"
            raise ToolError(f"The client could not answer the question {key!r}: {reason}")
        params = request.get("params", {})
        answers[key] = answer_from_result(revision, request["method"], params, answer["result"])
    return answers


def decode_call(data: bytes) -> tuple[dict[str, Any], frozenset[str]]:
    """Decode the params and scopes of the request that a task stores."""
    params, scopes = json.decode(data)
    return params, frozenset(scopes)
