"""tools/list and tools/call for clients that cannot be asked, or know no tasks, where there
is a substitute for that.

A call is made as if its client could do everything that there is a substitute for. What the client
itself cannot take of what comes of it, questions or a task, is then told by other means:

    questions   in words, with a tool that takes the answers                  `in_words`
    a task      its result, which is waited for, or a handle, and its tools   `waiting`, `task_tools`

Nothing in here runs for clients and tools that need none of it. A list has the gateway's own
tools for clients that lack what they stand for, so it depends on what a client declares, and is
its own (`cacheScope: private`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from roundgate import json
from roundgate.backends import Fallback, OwnTool, is_approval
from roundgate.clock import Deadline
from roundgate.errors import MissingCapability, StateRefused, ToolError
from roundgate.methods.in_words import CAN_BE_WORDS, InWords, answer_definition, requirement_of
from roundgate.methods.parts import Kit, Tools
from roundgate.methods.results import Listing, Reply
from roundgate.methods.rounds import RequestContext
from roundgate.methods.task_tools import TaskTools, Waiting, definitions, result_of
from roundgate.protocol import (
    REQUIRED,
    CallToolParams,
    ClientCapabilities,
    ListParams,
    Pages,
    ToolResult,
    merged,
)

MAX_VIEWS: Final = 256
_LABELS: Final = frozenset({"input_required", "task"})


class FallbackTools:
    """Tools, for clients of every kind."""

    def __init__(self, tools: Tools, fallback: Fallback, kit: Kit) -> None:
        parts, config = kit.parts, kit.config
        self._tools = tools
        self._fallback = fallback
        self._scopes = kit.scopes
        self._tasks = parts.tasks
        self._results = kit.results
        self._in_words = InWords(parts.sealer, parts.rows, parts.clock, config.fallback.answer_tool)
        self._waiting = Waiting(
            parts.watch,
            parts.sealer,
            parts.clock,
            timeout_s=config.limits.call_timeout_s,
            max_rounds=config.state.max_rounds,
        )
        self._own = {name: own for own, name in fallback.names.items()}
        self._task_tools = TaskTools(fallback, parts.tasks, kit.scopes, self._waiting, kit.results)
        hint = config.caching.tools.model_copy(update={"scope": "private"})
        self._list = Listing("tools", hint, kit.results)
        self._views: dict[tuple[int, bool, bool], tuple[Pages, Pages]] = {}

    async def list(self, context: RequestContext, asked: ListParams) -> Reply:
        """tools/list"""
        capabilities = context.inbound.meta.capabilities
        in_words = bool(self._fallback.in_words) and not capabilities.has_declared(CAN_BE_WORDS)
        handles = bool(self._fallback.with_handles) and not capabilities.has_declared(REQUIRED)
        pages = self._scopes.tool_pages(context.principal)
        return self._list.reply(self._view(pages, in_words, handles), asked.cursor)

    def _view(self, pages: Pages, in_words: bool, handles: bool) -> Pages:
        """What a client sees that lacks what it takes to be asked, or the tasks extension. It is
        made once for each set of scopes and lacks."""
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
        if len(self._views) < MAX_VIEWS:
            self._views[key] = pages, view
        return view

    async def call(self, context: RequestContext, asked: CallToolParams) -> Reply:
        """tools/call"""
        deadline = self._waiting.deadline(context)
        own = self._own.get(asked.name)
        if own is None:
            return await self._call(context, asked, deadline)
        try:
            if own is not OwnTool.ANSWER:
                return await self._task_tools.serve(own, asked, context, deadline)
            continued = await self._in_words.continued(asked.arguments, context.principal)
            context.correlation.tool = continued.name
            context.correlation.through = asked.name
            # a later round of this very request: its own state is newer than the one in words
            if asked.request_state is not None:
                continued = continued.model_copy(
                    update={
                        "input_responses": asked.input_responses,
                        "request_state": asked.request_state,
                    }
                )
            # what mirrors arguments are the headers of the call that asked
            inbound = replace(context.inbound, headers=None, name=continued.name)
            return await self._call(replace(context, inbound=inbound), continued, deadline)
        except (ToolError, StateRefused) as error:
            return self._results.tool(ToolResult.error(str(error)))

    async def _call(
        self, context: RequestContext, asked: CallToolParams, deadline: Deadline
    ) -> Reply:
        capabilities = context.inbound.meta.capabilities
        substituted = self._substituted(asked.name, capabilities)
        if not substituted:
            return await self._tools.call(context, asked)
        begun = self._waiting.begun(asked, context)
        if begun is not None:
            return await self._wait(context, asked, deadline, *begun)
        meta = replace(
            context.inbound.meta, capabilities=capabilities.with_substitutes(substituted)
        )
        able = replace(context, inbound=replace(context.inbound, meta=meta))
        reply = await self._tools.call(able, asked)
        if reply.label not in _LABELS:
            return reply
        told = json.decode(reply.result)
        if reply.label == "input_required":
            requests = told.get("inputRequests", {})
            return await self._asked(reply, requests, told["requestState"], context, asked)
        if capabilities.has_declared(REQUIRED):
            return reply
        if asked.name in self._fallback.with_handles:
            return self._task_tools.handle(told)
        return await self._wait(context, asked, deadline, told["taskId"], 1)

    def _substituted(self, tool: str, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """What there is a substitute for with this tool, unless the client can do all of it."""
        found: dict[str, Any] = {}
        if tool in self._fallback.in_words:
            found |= CAN_BE_WORDS
        if tool in self._fallback.with_handles or tool in self._fallback.waiting:
            found |= REQUIRED
        return {} if capabilities.has_declared(found) else found

    async def _wait(
        self,
        context: RequestContext,
        asked: CallToolParams,
        deadline: Deadline,
        task_id: str,
        round_: int,
    ) -> Reply:
        """The result of a call whose task this is, or what the task asks, or a
        round that goes on waiting."""
        task = self._tasks.find(context.principal, task_id)
        context.correlation.tool = asked.name
        context.correlation.task = self._tasks.name_in_log(context.principal, task_id)
        self._scopes.check(asked.name, context.principal)
        if asked.input_responses:
            await task.update(asked.input_responses)
        view = await self._waiting.until_settled(task, deadline)
        if view is not None and view.status.is_terminal:
            return self._results.tool_of(result_of(view))
        still = self._waiting.still(task_id, view, asked, context, round_)
        if still is None:
            await task.cancel()
            return self._results.tool(
                ToolResult.error(
                    "This took longer than a call may that is waited for, and was cancelled;"
                    " ask for less at once"
                )
            )
        reply = self._results.input_required(still)
        return await self._asked(reply, still.requests, still.request_state, context, asked)

    async def _asked(
        self,
        reply: Reply,
        requests: Mapping[str, Any],
        request_state: str,
        context: RequestContext,
        asked: CallToolParams,
    ) -> Reply:
        """The questions of a round: as they are if the client can be asked, else in words."""
        required = merged(requirement_of(request) for request in requests.values())
        capabilities = context.inbound.meta.capabilities
        if capabilities.has_declared(required):
            return reply
        # approvals are never asked in words, also not because of what is asked beside them
        is_for_a_person = any(map(is_approval, requests.values()))
        if asked.name not in self._fallback.in_words or is_for_a_person:
            what_for, has_substitute = f"asking {', '.join(requests)}", not is_for_a_person
            capabilities.require(required, what_for, has_substitute=has_substitute)
            raise MissingCapability(what_for, required, has_substitute)
        return self._results.tool(
            await self._in_words.asked(requests, request_state, asked, context.principal)
        )


def _without_output(entry: bytes) -> bytes:
    """A tool that may answer something else than its output schema says:
    clients would refuse that."""
    definition = json.decode(entry)
    if definition.pop("outputSchema", None) is None:
        return entry
    return json.encode(definition)
