"""tools/list and tools/call with substitutes for clients that cannot be asked or do not support
tasks.

A call runs as if its client had every capability with a substitute. If it ends with questions or a
task that the client cannot handle, the client gets the substitute:

    questions   the questions in words, and a tool that takes the answers
    a task      its result, for which the call waits; or a handle, and tools that take it   `task_tools`

    tools/call deploy {env}            →  a result: "It needs answers … call `answer` with {state, answers}"
    tools/call answer {state, answers} →  the next round of `deploy`: its result, or more words

`state` has the tool, its arguments and the `requestState` of the round that asked, sealed for this
caller. The `requestState` is checked as in any other round. If the state is too long for a model to
copy, these facts are stored in a row, and the state has its key. A model may invent an answer, so
approvals are never asked in words.

Calls that need no substitute pass through unchanged. A list with the gateway's own tools depends on
the client's capabilities, so clients must not share it (`cacheScope: private`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from roundgate import json
from roundgate.auth import Principal
from roundgate.backends import Fallback, OwnTool, is_approval
from roundgate.clock import Clock
from roundgate.errors import MissingCapability, ParseError, StateRefused, StateTooLarge, ToolError
from roundgate.methods.parts import Kit, Listing, Tools, ToolsByName
from roundgate.methods.rounds import Reply, RequestContext, is_waiting
from roundgate.methods.task_tools import (
    ANSWERS,
    SCHEMAS,
    TaskTools,
    Waiting,
    arguments_schema,
    definitions,
    questions_in_words,
    required_capabilities,
    result_from_view,
)
from roundgate.methods.tools import argument_problems
from roundgate.protocol import (
    REQUIRED,
    CallToolParams,
    ClientCapabilities,
    ListParams,
    Pages,
    Schema,
    ToolResult,
)
from roundgate.storage import RowsOf
from roundgate.tokens import Binding, StateSealer

MAX_LISTS: Final = 256
"""The limit on cached lists of tools."""
CAN_BE_WORDS: Final[Mapping[str, Any]] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
}
"""The capabilities that questions in words replace."""
MAX_STATE: Final = 2_000
"""The maximum length of a state that a model copies completely, in characters."""
LEEWAY_S: Final = 60.0
"""Seconds that a row is kept after its state has expired."""
MAX_ROW: Final = 250_000
"""The maximum size of a call in a row, in bytes."""
_BINDING: Final = Binding("answer in words", "", "")
_ARGUMENTS: Final = arguments_schema(
    state={"type": "string", "description": "The state, copied exactly."}, answers=ANSWERS
)
_SCHEMAS: Final = {
    own: (schema, Schema(schema)) for own, schema in {OwnTool.ANSWER: _ARGUMENTS, **SCHEMAS}.items()
}
"""The schema of the arguments of each own tool, and the same compiled."""
_LABELS: Final = frozenset({"input_required", "task"})


class FallbackTools(ToolsByName):
    """Tools with substitutes for capabilities that a client lacks. The names are those of tools whose
    calls may need a substitute, and of the gateway's own tools."""

    def __init__(self, tools: Tools, fallback: Fallback, kit: Kit) -> None:
        parts, config = kit.parts, kit.config
        self._own = {name: own for own, name in fallback.names.items()}
        concerned = fallback.in_words | fallback.with_handles | fallback.waiting
        super().__init__(tools, concerned.union(self._own))
        self._fallback = fallback
        self._access = kit.access
        self._arguments = kit.arguments
        self._tasks = parts.tasks
        self._results = kit.results
        self._in_words = InWords(
            parts.sealer, parts.rows_of, parts.clock, config.fallback.answer_tool
        )
        self._waiting = Waiting(
            parts.watch, parts.sealer, parts.clock, max_rounds=config.state.max_rounds
        )
        self._task_tools = TaskTools(fallback, parts.tasks, kit.access, self._waiting, kit.results)
        hint = config.caching.tools.model_copy(update={"scope": "private"})
        self._list = Listing("tools", hint, kit.results)
        self._views: dict[tuple[int, bool, bool], tuple[Pages, Pages]] = {}

    async def list(self, context: RequestContext, params: ListParams) -> Reply:
        """Serve tools/list."""
        capabilities = context.inbound.meta.capabilities
        in_words = bool(self._fallback.in_words) and not capabilities.has_declared(CAN_BE_WORDS)
        handles = bool(self._fallback.with_handles) and not capabilities.has_declared(REQUIRED)
        pages = self._access.tool_pages(context.principal)
        return self._list.reply(self._view(pages, in_words, handles), params.cursor)

    def _view(self, pages: Pages, in_words: bool, handles: bool) -> Pages:
        """Return the list for a client that cannot be asked, or lacks the tasks extension. A list
        is made once for each set of scopes."""
        if not (in_words or handles):
            return pages
        key = (id(pages), in_words, handles)
        known = self._views.get(key)
        if known is not None and known[0] is pages:
            return known[1]
        other = (self._fallback.in_words if in_words else frozenset()) | (
            self._fallback.with_handles if handles else frozenset()
        )
        items = [
            (name, _without_output(entry) if name in other else entry)
            for name, entry in pages.items
        ]
        names = self._fallback.names
        own = [answer_definition(names[OwnTool.ANSWER])] if in_words else []
        own += definitions(names) if handles else []
        items += [(definition["name"], json.encode(definition)) for definition in own]
        view = Pages(items, pages.size)
        if len(self._views) < MAX_LISTS:
            self._views[key] = pages, view
        return view

    def call_named(self, context: RequestContext, params: CallToolParams) -> Awaitable[Reply]:
        """Serve tools/call for a tool that may need a substitute, or an own tool."""
        own = self._own.get(params.name)
        if own is not None:
            return self._call_own(own, context, params)
        if not self._substituted(params.name, context.inbound.meta.capabilities):
            return self._tools.call(context, params)
        return self._call(context, params)

    async def _call_own(
        self, own: OwnTool, context: RequestContext, params: CallToolParams
    ) -> Reply:
        context.correlation.tool = params.name
        definition, schema = _SCHEMAS[own]
        arguments = self._arguments.of_own_tool(params.name, definition, schema, params.arguments)
        params = replace(params, sent=arguments)
        try:
            if not schema.is_valid(arguments):
                problems = argument_problems(schema, arguments)
                raise ToolError("Invalid arguments; correct them and call again:\n" + problems)
            if own is not OwnTool.ANSWER:
                return await self._task_tools.serve(own, params, context)
            continued = await self._in_words.continued(params.arguments, context.principal)
            context.correlation.tool = continued.name
            context.correlation.through = params.name
            # in a later round, the state of this request is newer than the state in the arguments
            if params.request_state is not None:
                continued = replace(
                    continued,
                    input_responses=params.input_responses,
                    request_state=params.request_state,
                )
            # headers mirror the arguments of this call, not of the call that asked
            inbound = replace(context.inbound, headers=None, name=continued.name)
            return await self._call(replace(context, inbound=inbound), continued)
        except (ToolError, StateRefused) as error:
            return self._results.tool(ToolResult.error(str(error)))

    async def _call(self, context: RequestContext, params: CallToolParams) -> Reply:
        capabilities = context.inbound.meta.capabilities
        substituted = self._substituted(params.name, capabilities)
        if not substituted:
            return await self._tools.call(context, params)
        if is_waiting(params):
            return await self._wait(context, params, *self._waiting.begun(params, context))
        meta = replace(
            context.inbound.meta, capabilities=capabilities.with_substitutes(substituted)
        )
        able = replace(context, meta=meta, inbound=replace(context.inbound, meta=meta))
        reply = await self._tools.call(able, params)
        if reply.label not in _LABELS:
            return reply
        result = json.decode(reply.result)
        if reply.label == "input_required":
            requests = result.get("inputRequests", {})
            return await self._question_reply(
                reply, requests, result["requestState"], context, params
            )
        if capabilities.has_declared(REQUIRED):
            return reply
        if params.name in self._fallback.with_handles:
            return self._task_tools.handle(result)
        return await self._wait(context, params, result["taskId"], 1)

    def _substituted(self, tool: str, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return the capabilities that have a substitute for this tool; empty if the client has
        them all."""
        substituted: dict[str, Any] = {}
        # a client that has tasks reads the questions of its task itself
        if tool in self._fallback.in_words and not (
            tool in self._fallback.tasks and capabilities.has_declared(REQUIRED)
        ):
            substituted |= CAN_BE_WORDS
        if tool in self._fallback.with_handles or tool in self._fallback.waiting:
            substituted |= REQUIRED
        if not substituted or capabilities.has_declared(substituted):
            return {}
        return substituted

    async def _wait(
        self,
        context: RequestContext,
        params: CallToolParams,
        task_id: str,
        round_: int,
    ) -> Reply:
        """Return the result of a call's task, its questions, or the state for another round of
        waiting."""
        task = self._tasks.find(context.principal, task_id)
        context.correlation.tool = params.name
        context.correlation.task = self._tasks.name_in_log(context.principal, task_id)
        self._access.check(params.name, context.principal)
        if params.input_responses:
            await task.update(params.input_responses)
        view = await self._waiting.until_settled(task, context)
        if view is not None and view.status.is_terminal:
            return self._results.stored_tool(result_from_view(view))
        still = self._waiting.still(task_id, view, params, context, round_)
        if still is None:
            await task.cancel()
            return self._results.tool(
                ToolResult.error(
                    "This call exceeded its time limit (state.max_rounds) and was cancelled; ask for "
                    "less at once"
                )
            )
        reply = self._results.input_required(still)
        return await self._question_reply(
            reply, still.requests, still.request_state, context, params
        )

    async def _question_reply(
        self,
        reply: Reply,
        requests: Mapping[str, Any],
        request_state: str,
        context: RequestContext,
        params: CallToolParams,
    ) -> Reply:
        """Return the questions of a round, in words if the client cannot be asked.

        Raises:
            MissingCapability: the client cannot be asked, and these questions are not asked in
                words.
        """
        required = required_capabilities(requests)
        capabilities = context.inbound.meta.capabilities
        if capabilities.has_declared(required):
            return reply
        # approvals, and questions beside an approval, are never asked in words
        is_for_a_person = any(map(is_approval, requests.values()))
        if params.name not in self._fallback.in_words or is_for_a_person:
            what_for, has_substitute = f"asking {', '.join(requests)}", not is_for_a_person
            capabilities.require(required, what_for, has_substitute=has_substitute)
            raise MissingCapability(what_for, required, has_substitute)
        return self._results.tool(
            await self._in_words.question_result(requests, request_state, params, context.principal)
        )


def _without_output(entry: bytes) -> bytes:
    """Return a tool without its output schema, because clients would refuse questions or a handle
    as its result."""
    definition = json.decode(entry)
    if definition.pop("outputSchema", None) is None:
        return entry
    return json.encode(definition)


def answer_definition(name: str) -> dict[str, Any]:
    """Return the definition (schema: `Tool`) of the tool that accepts the answers."""
    return {
        "name": name,
        "title": "Answer questions",
        "description": "Continue a call that ended with questions, with its state and the "
        "answers. The answers are the user's; ask the user, and do not make them up.",
        "inputSchema": _ARGUMENTS,
    }


class InWords:
    """Asks questions in words, and continues calls with the answers."""

    def __init__(
        self, sealer: StateSealer, rows_of: RowsOf, clock: Clock, answer_tool: str
    ) -> None:
        self._sealer = sealer
        self._rows_of = rows_of
        self._clock = clock
        self._answer_tool = answer_tool

    async def question_result(
        self,
        requests: Mapping[str, Any],
        request_state: str,
        call: CallToolParams,
        principal: Principal,
    ) -> ToolResult:
        """Return a tool's result with the questions in words.

        Args:
            requests: the questions on the wire, by key.
            request_state: the state of the round that asks.
            call: the call, with the arguments of its first round.
            principal: the caller, who may answer.

        Raises:
            Unavailable: the state is too long to be copied, and cannot be stored now.
        """
        facts = [call.name, dict(call.arguments), request_state]
        try:
            state = self._seal(facts, principal)
        except StateTooLarge:
            state = ""
        if not 0 < len(state) <= MAX_STATE:
            data = json.encode(facts)
            if len(data) > MAX_ROW:
                return ToolResult.error(
                    f"This call must ask a question, but is too large to store ({len(data):,} bytes "
                    "with its arguments); call with smaller arguments"
                )
            key = f"words.{self._clock.new_id()}"
            # longer than the state with the row's key is valid
            kept_s = self._sealer.lifetime_s + self._sealer.leeway_s + LEEWAY_S
            forget_ms = self._clock.now_ms() + int(kept_s * 1000)
            await self._rows_of(principal).put_new(key, data, forget_ms)
            state = self._seal({"row": key}, principal)
        text, answers = questions_in_words(requests)
        example = json.encode({"state": state, "answers": answers}).decode()
        return ToolResult(
            [
                "This call is not finished: it needs answers to continue.\n\n"
                + text
                + f"\n\nThen call the tool {self._answer_tool} with arguments like these, the "
                "state copied exactly:\n" + example
            ]
        )

    async def continued(self, arguments: Mapping[str, Any], principal: Principal) -> CallToolParams:
        """Return the params of the next round of the call that asked. The arguments are valid.

        Raises:
            ToolError: the state is another caller's or has expired.
            Unavailable: the row of the state cannot be read now.
        """
        match await self._facts(arguments["state"], principal):
            case [str(name), dict(called), str(state)]:
                return CallToolParams(
                    name=name,
                    sent=called,
                    input_responses=arguments["answers"],
                    request_state=state,
                )
        raise ToolError(
            "This state is not valid: it is too old, not yours, or not copied exactly. Call the "
            "first tool again"
        )

    async def _facts(self, state: str, principal: Principal) -> Any:
        try:
            facts = self._sealer.open(state.strip(), principal, _BINDING).payload
            match facts:
                case {"row": str(key)}:
                    row = await self._rows_of(principal).read(key)
                    return None if row is None else json.decode(row.value)
        except (StateRefused, ParseError):
            return None
        return facts

    def _seal(self, facts: Any, principal: Principal) -> str:
        return self._sealer.seal(facts, principal, _BINDING, round_=1, origin={})
