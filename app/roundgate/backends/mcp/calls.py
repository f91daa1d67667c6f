"""A call of a server's tool: its requests, the relayed notifications, and the rounds in between.

    round 1   tools/call {arguments}                           ──▶ input_required {keys, requestState}
              our input_required: the same keys; the server's state inside our sealed journal
    round 2   tools/call {arguments, inputResponses, state}    ──▶ the result

Each request is a step, so a later round or another worker does not repeat it. The server receives
only capabilities that the client's current request declares and the gateway can carry.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, NoReturn

from msgspec import Struct

from roundgate.backends.base import Returned
from roundgate.backends.dialogue import (
    Answering,
    HandedOver,
    Lacking,
    McpRefusal,
    Outcome,
    PagesToOpen,
    Questions,
    Recorded,
    Result,
    Step,
    dialogue,
    recorded,
)
from roundgate.backends.mcp.apps import declared_extension
from roundgate.backends.mcp.config import McpBackendConfig
from roundgate.backends.mcp.eras import refuses_to_ask
from roundgate.backends.mcp.held import CallOutcome, HeldCalls, can_hold, refusal
from roundgate.backends.mcp.server import (
    CARRIED,
    McpServer,
    answers_questions,
    needed_pages,
    refuse_answers,
)
from roundgate.backends.mcp.tasks import view_from_wire
from roundgate.backends.mcp.tools import UsableTool, result_from_wire
from roundgate.backends.mcp.uris import Uris
from roundgate.backends.service_tasks import check_request, may_hand_over
from roundgate.client import Limits
from roundgate.client.flows import AskingResult, read_input_required
from roundgate.client.messages import META, Listener, of_arguments
from roundgate.client.sender import Headers
from roundgate.client.types import Json, is_object_list
from roundgate.errors import (
    BackendError,
    BadAnswer,
    ClientError,
    NeedsCapability,
    NeedsEngine,
    ServerRefused,
    ToolError,
    UnexpectedAnswer,
)
from roundgate.json import bounded_number
from roundgate.observability import tracing
from roundgate.protocol import LOG_LEVELS, REQUIRED, merged
from roundgate.replay import NAME, AnyContext, Call, Context, Raw, call_of, run_of

MAX_NOTICES: Final = 10_000
"""The maximum number of progress and log messages of one request."""
MAX_EXCHANGES: Final = 100
"""The maximum number of requests of one call, including rounds that have only a state."""
FOUND: Final = (
    "{text}\nThis tool asks its user as servers before 2026-07-28 do. From now on the gateway calls it "
    "in a session of an older revision, in which it can ask: call it again. This call may have taken "
    "effect up to its question"
)
CLOSED: Final = (
    "{text}\nThis tool asks its user as servers before 2026-07-28 do, which the settings of {server} do "
    "not allow: the operator can set 'questions: true', and add an older revision to 'revision'"
)
_LIST_CHANGED: Final = ("error -32602", "error -32601", "error -32020")
"""Errors that may mean that the list of tools has changed: the server refuses the tool, or the
headers that repeat arguments."""
_OWN_MEMBERS: Final = frozenset({"progressToken", "roundgate/idempotencyKey", *tracing.KEYS})
"""Members of `_meta` that the gateway replaces."""

log = logging.getLogger("roundgate.backends")


class ToolCalls(Struct, frozen=True):
    """The calls of one tool."""

    config: McpBackendConfig
    server: McpServer
    tool: UsableTool
    limits: Limits
    has_tasks: bool
    """Whether the server has the tasks extension, so that calls may become its tasks."""
    on_unknown: Callable[[], None]
    """Called when the server no longer knows the tool."""
    uris: Uris
    """The gateway's URIs for the server's resources."""
    require_accepted: Callable[[str], Awaitable[None]]
    """Raises `BackendError` if the server's definition of the tool is quarantined."""
    held_calls: HeldCalls | None = None
    """Makes calls in sessions of their callers, in which an older server may ask; `None` if it may
    not."""
    is_older: bool = False
    """Whether the server speaks only revisions before 2026-07-28."""

    def __call__(
        self, context: AnyContext, arguments: dict[str, Any]
    ) -> Coroutine[Any, Any, Returned]:
        if isinstance(context, Call):
            return self._call_directly(context, arguments)
        return self._call(context, arguments)

    async def _call(self, context: Context, arguments: dict[str, Any]) -> Returned:
        await context.continue_as_task()
        outcome = await server_dialogue(
            context,
            "call",
            self.config.name,
            {"name": self.tool.name, "arguments": arguments},
            partial(self._exchange, context),
            partial(self._answer, context),
            at_most_once=context.task_id is not None and not self.tool.listed.may_be_repeated,
        )
        match outcome:
            case Result(result):
                return result_from_wire(self.uris.in_result(result), self.config.name)
            case HandedOver(task):
                return view_from_wire(task, self.uris)
            case Lacking(required):
                what_for = f"The tool {self.tool.name} of {self.config.name}"
                refuse_for_lack(required, context, what_for)
            case McpRefusal(error=message, code=code, data=data) if code is not None:
                raise ServerRefused(message, code, data)
        raise AssertionError("an exchange has no other outcome")

    async def _call_directly(self, call: Call, arguments: dict[str, Any]) -> Returned:
        """Send the call as one request.

        Raises:
            NeedsEngine: the server did not answer with a result, or the result says that the tool has
                to ask.
        """
        try:
            outcome = await self._send(call, {"name": self.tool.name, "arguments": arguments})
        except BackendError as error:
            raise NeedsEngine(error) from None
        if not isinstance(outcome, Result):
            raise NeedsEngine(outcome)
        raw = outcome.result
        is_result = "inputRequests" not in raw and raw.get("resultType", "complete") == "complete"
        if not is_result or (raw.get("isError") is True and refuses_to_ask(_error_text(outcome))):
            raise NeedsEngine(outcome)
        return result_from_wire(self.uris.in_result(raw), self.config.name)

    async def _send(self, context: AnyContext, params: Json) -> CallOutcome:
        """Send a request; the first one in a session of the caller if the tool asks there."""
        await self.require_accepted(self.tool.name)
        held_calls = None if answers_questions(params) else self._held_calls(context)
        relay = Relay(context, self.server)
        if held_calls is None and (level := relay.log_level) is not None:
            try:
                await (await self.server.connection()).set_log_level(level)
            except ClientError as error:
                log.debug("a server refused a log level", exc_info=error)
        headers = of_arguments(self.tool.listed, params["arguments"])
        listener = relay.listener(headers, REQUIRED if self._may_be_task(context) else {})
        is_repeatable = self.tool.listed.may_be_repeated
        return await send_request(
            self.server, held_calls, context, "tools/call", params, listener, is_repeatable
        )

    def _exchange(self, context: Context, params: Json, may_open: bool) -> Step:
        async def exchange() -> Recorded:
            if self.is_older and answers_questions(params):
                refuse_answers(self.config.name)
            call = call_of(context)
            begun, call.begun = call.begun, None
            if isinstance(begun, BackendError):
                raise begun
            if begun is not None:
                return self._outcome(begun, context)
            return self._outcome(await self._send(context, params), context)

        async def checked_exchange() -> Mapping[str, Any]:
            try:
                outcome = await exchange()
            except NeedsCapability as error:  # a failed step would not record what is needed
                return recorded(Lacking(error.required))
            except ServerRefused as error:
                if may_open and (pages := pages_to_open(error, context)):
                    return recorded(PagesToOpen(pages))
                if error.reason in _LIST_CHANGED:
                    self.on_unknown()
                await self._check_refusal(str(error), context)
                return recorded(refusal(error))  # a failed step would not record code and data
            await self._check_refusal(_error_text(outcome), context)
            return recorded(outcome)

        return checked_exchange

    def _held_calls(self, context: AnyContext) -> HeldCalls | None:
        """Return the calls in sessions if the tool asks there and this call can be held."""
        held_calls = self.held_calls
        if held_calls is None or not can_hold(context):
            return None
        is_there = self.is_older or held_calls.has_to_ask(self.tool.name)
        return held_calls if is_there else None

    async def _check_refusal(self, text: str, context: Context) -> None:
        """Raise ToolError if the text of an error says that the tool asks in older revisions only; it
        is called there from now on."""
        if self.is_older or not refuses_to_ask(text) or self._held_calls(context) is not None:
            return
        if self.held_calls is None or not can_hold(context):
            raise ToolError(CLOSED.format(text=text, server=self.config.name))
        if await self.held_calls.find(context, self.tool.name):
            raise ToolError(FOUND.format(text=text))

    def _answer(self, context: Context, questions: Questions, answers: Mapping[str, Any]) -> Step:
        async def answer() -> Mapping[str, Any]:
            if self.held_calls is None:
                refuse_answers(self.config.name)
            token = self.held_calls.progress_token(questions)
            notify = Relay(context, self.server, token).notify
            outcome = await self.held_calls.answer(context, questions, answers, notify)
            return recorded(self._outcome(outcome, context))

        return answer

    def _may_be_task(self, context: AnyContext) -> bool:
        """Return whether the call may become a task of the server. A call that is a task of the
        gateway must not become one."""
        return self.has_tasks and may_hand_over(context)

    def _outcome(self, raw: CallOutcome, context: Context) -> Recorded:
        may_be_task = self._may_be_task(context)
        return outcome_from_wire(raw, self.limits, self.config.name, context, may_be_task)


async def send_request(
    server: McpServer,
    held_calls: HeldCalls | None,
    context: AnyContext,
    method: str,
    params: Json,
    listener: Listener,
    is_repeatable: bool,
) -> CallOutcome:
    """Send a request; return its result, or with `held_calls`, which send it in a session of the
    caller, the questions in the session."""
    full_params, deadline = with_meta(params, context), context.deadline
    if held_calls is None:
        return Result(
            await server.request(
                method, full_params, listener, deadline, is_repeatable=is_repeatable
            )
        )
    begin = partial(held_calls.begin, context, method, full_params, listener)
    return await server.limited(begin, deadline, is_repeatable=is_repeatable)


async def server_dialogue(
    context: Context,
    step: str,
    server: str,
    params: Json,
    exchange: Callable[[Json, bool], Step],
    answer: Callable[[Questions, Mapping[str, Any]], Step],
    *,
    at_most_once: bool = False,
) -> Outcome:
    """Run the rounds of a request to a server; return the last outcome.

    Args:
        context: the context of the request.
        step: the name of the steps in the journal.
        server: the server's name for error texts.
        params: the params of the request.
        exchange: returns the step that sends the params; the flag says whether the user may be asked
            to open pages.
        answer: returns the step that answers the questions of a call in a session (`mcp.held`).
        at_most_once: as for `dialogue`.
    """

    def next_step(
        _: int, asked: Questions | PagesToOpen | None, answering: Answering | None
    ) -> Step:
        if isinstance(asked, Questions) and asked.held is not None:
            return answer(asked, {} if answering is None else answering.responses)
        full = params if answering is None else {**params, **answering.params()}
        return exchange(full, not isinstance(asked, PagesToOpen))

    return await dialogue(
        context, step, next_step, server, at_most_once=at_most_once, most=MAX_EXCHANGES
    )


def outcome_from_wire(
    raw: CallOutcome,
    limits: Limits,
    server: str,
    context: Context,
    may_be_task: bool = False,
) -> Recorded:
    """Return a result, or its questions and state. Raise UnexpectedAnswer if the gateway or the
    client does not support a question."""
    if not isinstance(raw, Result):
        return raw
    result = raw.result
    try:
        required = read_input_required(result, limits)
    except BadAnswer as error:
        raise UnexpectedAnswer(f"{server} failed: {error}") from None
    if required is not None:
        return _questions_from_wire(required, server, context)
    kind = result.get("resultType", "complete")
    if kind == "task" and may_be_task:
        return HandedOver(result)
    if kind != "complete":
        raise UnexpectedAnswer(
            f"{server} answered with a result of the unknown type {str(kind)[:40]!r}"
        )
    return raw


def _error_text(outcome: Recorded) -> str:
    """Return the text of a tool error; "" for any other outcome."""
    result = outcome.result if isinstance(outcome, Result) else {}
    blocks: Any = result.get("content")
    if result.get("isError") is not True or not is_object_list(blocks):
        return ""
    return "\n".join(str(block.get("text", "")) for block in blocks)


def refuse_for_lack(required: Mapping[str, Any], context: Context, what_for: str) -> NoReturn:
    """Refuse a request that a server refused because it needs client capabilities.

    Raises:
        MissingCapability: the client did not declare all of them.
        UnexpectedAnswer: the client declared them, but the gateway does not forward them.
    """
    run_of(context).call.capabilities.require(required, what_for, has_substitute=False)
    raise UnexpectedAnswer(
        f"{what_for} needs client capabilities that the gateway does not forward: "
        f"{', '.join(required)[:200]}"
    )


def pages_to_open(error: BackendError, context: Context) -> Json:
    """Return questions for the pages that a server's error names, by key. Return none if the client
    cannot be asked, or cannot open one of them."""
    requests = [
        {"method": "elicitation/create", "params": {"mode": "url", **page}}
        for page in (needed_pages(error) if isinstance(error, ServerRefused) else ())
    ]
    try:
        for request in requests:
            check_request(request)
        can_open = context.supports(*map(Raw, requests))
    except ValueError:
        return {}
    return {f"page-{at}": each for at, each in enumerate(requests, 1)} if can_open else {}


def _questions_from_wire(required: AskingResult, server: str, context: Context) -> Questions:
    """Return a server's questions and state. Raise UnexpectedAnswer if the gateway or the client does
    not support a question."""
    for key, request in required.requests.items():
        try:
            check_request(request)
        except (ValueError, KeyError, TypeError, AttributeError):
            problem = "in a form that the gateway does not know"
        else:
            if NAME.fullmatch(key) is None:
                problem = "under a key that is not 1 to 64 of A-Z a-z 0-9 _ . -"
            elif not context.supports(Raw(request)):
                problem = f"by {request['method']}, which the client did not declare"
            else:
                continue
        raise UnexpectedAnswer(f"{server} asks for input {problem}")
    return Questions(dict(required.requests), required.request_state)


def with_meta(params: Json, context: AnyContext) -> Json:
    """Return the params with the members of `_meta` that the gateway forwards, and the trace context."""
    raw = call_of(context).meta.raw
    meta = {
        key: value
        for key, value in raw.items()
        if not key.startswith(META) and key not in _OWN_MEMBERS
    } | tracing.outgoing(raw)
    return {**params, "_meta": meta} if meta else params


def carried_capabilities(context: AnyContext) -> Json:
    """Return the capabilities whose questions the gateway can carry, and which the client declared
    or the gateway substitutes for it."""
    capabilities = call_of(context).capabilities
    if not capabilities.declared and not capabilities.substituted:
        return {}
    carried: Json = {
        name: {part: {} for part in declared if part in CARRIED[name]}
        for name, declared in capabilities.declared.items()
        if name in CARRIED
    }
    substituted = {
        name: value for name, value in capabilities.substituted.items() if name in CARRIED
    }
    return merged([carried, substituted])


class Relay:
    """Relays the progress and log messages of one request to the client, and refuses questions of
    an older server."""

    def __init__(self, context: AnyContext, server: McpServer, token: str | None = None) -> None:
        """Prepare to relay. `token` is the progress token that an earlier round has sent."""
        meta = call_of(context).meta
        self._context = context
        self._server = server
        self._notices = 0
        self._wants_progress = meta.progress_token is not None or context.task_id is not None
        self._token = token or (context.deadline.clock.new_id() if self._wants_progress else None)
        self.log_level = meta.log_level if context.task_id is None else None
        """The lowest level of log messages that the client requested; `None` for no messages, as in
        a task, which has no stream."""

    def listener(self, headers: Headers, extensions: Mapping[str, Any]) -> Listener:
        """Return the listener of the request. `headers` repeat arguments; `extensions` are declared
        in addition to the carried capabilities."""
        meta: Json = {}
        if self._wants_progress:
            meta["progressToken"] = self._token
        if self.log_level is not None:
            meta[f"{META}logLevel"] = self.log_level
        capabilities = carried_capabilities(self._context)
        if extensions:
            capabilities = merged([capabilities, extensions])
        if pages := declared_extension(self._context):
            capabilities["extensions"] = {**capabilities.get("extensions", {}), **pages}
        caller_headers = self._server.caller_headers(self._context.principal)
        return Listener(*(self.notify, refuse, meta or None, headers, capabilities, caller_headers))

    async def notify(self, method: str, params: Json) -> None:
        """Relay a notification of the server. Raise BadAnswer after `MAX_NOTICES` notifications."""
        self._notices += 1
        if self._notices > MAX_NOTICES:
            raise BadAnswer(f"The server sends more than {MAX_NOTICES:,} notifications")
        if method == "notifications/progress":
            if self._token is not None and params.get("progressToken") == self._token:
                await self._progress(params)
        elif self.log_level is None:
            return
        elif method == "notifications/message" and params.get("level") in LOG_LEVELS:
            logger = params.get("logger")
            logger_name = logger if isinstance(logger, str) else None
            await self._context.log(params["level"], params.get("data"), logger_name)

    async def _progress(self, params: Json) -> None:
        progress, total = map(bounded_number, (params.get("progress"), params.get("total")))
        message = params.get("message")
        if progress is not None:
            text = message if isinstance(message, str) else None
            await self._context.progress(progress, total, text)


async def refuse(request_id: Any, method: str, params: Json) -> Json:
    """Answer a ping, and refuse all other requests of an older server: its session declares no
    capability, so the server should not ask."""
    if method == "ping":
        return {"result": {}}
    message = (
        f"{method} is not supported: the client of this session did not declare the capability"
    )
    return {"error": {"code": -32601, "message": message}}
