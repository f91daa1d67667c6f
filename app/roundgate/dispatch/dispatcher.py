"""From an inbound request to its result.

One function per method, and for those that run a handler one path: rungs 7 and 8 of the ladder, the engine, and the
translation of what came out. A tool's failure becomes a result with `isError`; what the caller must not see stays in
the log under a reference.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from roundgate.auth.principal import Principal
from roundgate.backends.catalog import Catalog, ServedTool
from roundgate.carrier import carrier
from roundgate.clock import Clock
from roundgate.config import CacheHint, GatewayConfig, ServerConfig
from roundgate.dispatch.rounds import IDEMPOTENCY_KEY, BecomesTask, InputRequired, Reply, Round, Rounds, Target
from roundgate.dispatch.subscriptions import SUBSCRIPTION_ID, Hub, Subscription
from roundgate.errors import (
    CallTimeout,
    InsufficientScope,
    InternalError,
    InvalidParams,
    MissingCapability,
    NotJson,
    ProtocolError,
    TaskNotFound,
    ToolError,
    Unavailable,
)
from roundgate.protocol import params, tasks
from roundgate.protocol.capabilities import merged
from roundgate.protocol.content import ToolResult, without_none
from roundgate.protocol.inbound import Inbound
from roundgate.protocol.jsonrpc import encode
from roundgate.protocol.methods import SUPPORTED_VERSIONS
from roundgate.protocol.pages import Page, Pages
from roundgate.protocol.tasks import EXTENSION
from roundgate.replay import engine
from roundgate.replay.call import Call, Notify
from roundgate.replay.context import Context, run_of
from roundgate.replay.engine import Completed, Failed, Restarted, Suspended
from roundgate.replay.journal import Journal
from roundgate.replay.run import Run
from roundgate.storage.tasks import TaskRecord
from roundgate.tasks.call import TaskCall
from roundgate.tasks.outcome import Ended, ended, log_failure, tool_result
from roundgate.tasks.service import Tasks
from roundgate.tasks.watch import Watch
from roundgate.tracing import Span

T = TypeVar("T")

SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"

log = logging.getLogger("roundgate.dispatch")

MAX_PAGES_KEPT: Final = 64
MAX_STREAM_S: Final = 30 * 86_400
"""How long a stream lives whose token holds for longer than anybody should hold one."""
_UNCACHED: Final = CacheHint(ttl_ms=0, scope="private")


@carrier
class CallContext:
    """One request and what belongs to it. `notify` sends on its stream, where the client wants and can have that."""

    inbound: Inbound
    principal: Principal
    notify: Notify | None
    span: Span
    remaining_ms: float | None = None
    """For how long the environment lets the request run, if it says so."""


@dataclass(frozen=True, slots=True)
class Stream:
    """subscriptions/listen: the open subscription and the result that closes it."""

    subscription: Subscription
    closing_result: bytes


Answer: TypeAlias = Reply | Stream


class Dispatcher:
    """The methods of the revision over one catalog."""

    def __init__(
        self,
        config: GatewayConfig,
        catalog: Catalog,
        hub: Hub,
        rounds: Rounds,
        tasks: Tasks,
        watch: Watch,
        clock: Clock,
        *,
        streams: bool,
    ) -> None:
        self._catalog = catalog
        self._hub = hub
        self._rounds = rounds
        self._tasks = tasks
        self._watch = watch
        self._clock = clock
        self._checks_scopes = config.auth != "none"
        self._has_scoped_tasks = self._checks_scopes and any(
            served.tool.scopes for served in catalog.tools.values() if served.tool.task != "forbidden"
        )
        self._caching = config.caching
        self._call_timeout_ms = config.limits.call_timeout_s * 1000
        self._server_info = _server_info(config.server)
        self._instructions = config.server.instructions
        self._max_result_bytes = config.tasks.max_result_bytes
        self.features = _features(catalog, streams)
        self._ack = self._stamp({})
        self._handlers: Mapping[str, Callable[[CallContext], Awaitable[Answer]]] = {
            "server/discover": self._discover,
            "tools/list": self._list("tools", self._tool_pages, self._tools_hint()),
            "tools/call": self._call_tool,
            "resources/list": self._list("resources", lambda _: catalog.resource_pages, self._caching.resources),
            "resources/templates/list": self._list(
                "resourceTemplates", lambda _: catalog.template_pages, self._caching.resource_templates
            ),
            "resources/read": self._read_resource,
            "prompts/list": self._list("prompts", lambda _: catalog.prompt_pages, self._caching.prompts),
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
            "subscriptions/listen": self._listen,
            "tasks/get": self._get_task,
            "tasks/update": self._update_task,
            "tasks/cancel": self._cancel_task,
        }

    async def dispatch(self, context: CallContext) -> Answer:
        """Serve one request.

        Raises:
            GatewayError: anything that is answered as a JSON-RPC error.
            AuthError: the caller may not do this.
        """
        return await self._handlers[context.inbound.method.name](context)

    def end(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        self._hub.unsubscribe(stream.subscription)

    async def _discover(self, context: CallContext) -> Answer:
        result = {
            "supportedVersions": list(SUPPORTED_VERSIONS),
            "capabilities": self._capabilities(),
            **without_none(instructions=self._instructions),
            **_hint(self._caching.discover),
        }
        return Reply(self._stamp(result))

    def _capabilities(self) -> dict[str, Any]:
        """The schema's `ServerCapabilities`: exactly what the features let through."""
        changes = {"listChanged": True} if "subscriptions" in self.features else {}
        capabilities: dict[str, Any] = {
            name: dict(changes) for name in ("tools", "prompts", "resources") if name in self.features
        }
        if "resources" in capabilities and changes:
            capabilities["resources"]["subscribe"] = True
        if "completions" in self.features:
            capabilities["completions"] = {}
        if capabilities:
            capabilities["logging"] = {}  # any handler may log to a client that asks for it
        if "tasks" in self.features:
            capabilities["extensions"] = {EXTENSION: {}}
        return capabilities

    def _list(
        self, member: str, pages_for: Callable[[Principal], Pages], hint: CacheHint
    ) -> Callable[[CallContext], Awaitable[Answer]]:
        """A list method. Nothing is serialised per request: a page and what stands around it are joined, and kept."""
        head, tail = b'{"%b":[' % member.encode(), self._stamp(_hint(hint))[1:]
        made: dict[Page, Reply] = {}

        async def serve(context: CallContext) -> Answer:
            page = pages_for(context.principal).page(params.validate(params.ListParams, context.inbound.params).cursor)
            reply = made.get(page)
            if reply is None:
                more = b"" if page.next_cursor is None else b'"nextCursor":%b,' % encode(page.next_cursor)
                reply = Reply(b"%b%b],%b%b" % (head, page.entries, more, tail))
                if len(made) < MAX_PAGES_KEPT:
                    made[page] = reply
            return reply

        return serve

    def _tools_hint(self) -> CacheHint:
        """A list that depends on the caller's scopes must not be kept for others (server/utilities/caching)."""
        differs = self._checks_scopes and any(served.tool.scopes for served in self._catalog.tools.values())
        return self._caching.tools.model_copy(update={"scope": "private"}) if differs else self._caching.tools

    def _tool_pages(self, principal: Principal) -> Pages:
        return self._catalog.tool_pages_for(principal.scopes) if self._checks_scopes else self._catalog.tool_pages

    async def _call_tool(self, context: CallContext) -> Answer:
        asked = params.validate(params.CallToolParams, context.inbound.params)
        served = self._catalog.tool(asked.name)
        self._check_scopes(served.name, context.principal)
        for header in served.param_headers:
            header.check(asked.arguments, context.inbound.headers.params)
        if requires := _requirements(served):
            context.inbound.meta.capabilities.require(requires, f"tool {served.name}")
        target = Target("tools/call", served.name, asked.arguments)
        key = context.inbound.meta.raw.get(IDEMPOTENCY_KEY)
        round_ = self._begin(target, asked, context, key=key)
        call = self._call(context, round_, served)
        if not served.tool.once:
            return await self._run_tool(served, round_, call)
        try:
            return await self._rounds.once(round_, asked, call, lambda: self._run_tool(served, round_, call))
        except ToolError as error:  # nobody knows the outcome
            return self._tool_reply(ToolResult.error(str(error)))

    def _check_scopes(self, tool: str, principal: Principal) -> None:
        """What a caller may do with a tool, and with the tasks of its calls, is what its token of now grants.

        A tool that is not served here was taken away, or is yet to be deployed: its tasks remain their owners'.

        Raises:
            InsufficientScope
        """
        served = self._catalog.tools.get(tool)
        if self._checks_scopes and served is not None and not served.tool.scopes <= principal.scopes:
            raise InsufficientScope(f"tool {tool}", sorted(served.tool.scopes))

    async def _run_tool(self, served: ServedTool, round_: Round, call: Call) -> Reply:
        arguments = dict(round_.target.arguments)
        if not served.arguments.is_valid(arguments):
            return self._tool_reply(_invalid_arguments(served, arguments))

        def handler(ctx: Context) -> Awaitable[ToolResult]:
            return served.tool.call(ctx, _arguments(round_, run_of(ctx).journal))

        if call.may_become_task and (known := await self._known_task(served, round_, call)) is not None:
            return known
        return await self._tool_outcome(await self._rounds.run_or_defer(round_, call, handler), served, round_, call)

    async def _tool_outcome(
        self,
        outcome: Completed[ToolResult] | InputRequired | BecomesTask | Failed,
        served: ServedTool,
        round_: Round,
        call: Call,
    ) -> Reply:
        """What is said of how a round ended; a task where it has to go on as one, or must be one."""
        match outcome:
            case InputRequired():
                return self._input_reply(outcome)
            case BecomesTask(journal, message):
                return await self._create_task(served, round_, call, journal, message=message)
            case Failed(MissingCapability() as error):  # the call can be sent again with it, a task could not
                raise error
            case Completed() | Failed():
                if served.tool.task == "required":
                    end = ended(outcome, served.name, self._clock, self._max_result_bytes)
                    return await self._create_task(served, round_, call, Journal(), end=end)
                return self._tool_reply(tool_result(outcome, served.name, self._clock))

    async def _known_task(self, served: ServedTool, round_: Round, call: Call) -> Reply | None:
        """The answer to a call whose task is decided already, if that is there, or needs nothing but to be written."""
        if served.tool.task == "required":
            try:
                self._tasks.check_size(_task_call(served, round_, call, round_.journal))
            except ToolError as error:  # before anything is run that would be lost
                return self._tool_reply(ToolResult.error(str(error)))
        destiny = round_.destiny
        if destiny is None:
            return None
        try:
            created = await self._tasks.created(call.principal, destiny.task_id)
        except Unavailable as error:
            return await self._in_doubt(error, round_, call, round_.journal, destiny.ended)
        if created is not None:
            return Reply(self._stamp(created), "task")
        if destiny.ended is None:
            return None
        return await self._create_task(served, round_, call, Journal(), end=Ended.from_json(destiny.ended))

    async def _create_task(
        self,
        served: ServedTool,
        round_: Round,
        call: Call,
        journal: Journal,
        *,
        message: str | None = None,
        end: Ended | None = None,
    ) -> Reply:
        """The task of a call that goes on, or, with an end, of one that is over already."""
        task_call = _task_call(served, round_, call, journal)
        try:
            created = await self._tasks.create(task_call, journal, task_id=round_.task_id, message=message, ended=end)
        except Unavailable as error:
            return await self._in_doubt(error, round_, call, journal, None if end is None else end.to_json())
        except (NotJson, ToolError) as error:  # in ctx.state; too large; too many
            return self._tool_reply(tool_result(Failed(error), served.name, self._clock))
        return Reply(self._stamp(created), "task")

    async def _in_doubt(self, error: Unavailable, round_: Round, call: Call, journal: Journal, end: Any) -> Reply:
        fields = {"task": round_.task_id, "error": str(error)}
        log.warning("a task may have been created or not; its client is asked to call again", extra={"fields": fields})
        return self._input_reply(await self._rounds.in_doubt(round_, call, journal, end))

    def _input_reply(self, outcome: InputRequired) -> Reply:
        return Reply(self._stamp(outcome.wire), "input_required")

    def _tool_reply(self, result: ToolResult) -> Reply:
        return Reply(self._stamp(result.to_wire()), "tool_error" if result.is_error else "ok")

    async def _get_prompt(self, context: CallContext) -> Answer:
        asked = params.validate(params.GetPromptParams, context.inbound.params)
        prompt = self._catalog.prompt(asked.name)
        _check_prompt_arguments(prompt.definition.get("arguments", ()), asked.arguments)
        target = Target("prompts/get", asked.name, asked.arguments)
        round_ = self._begin(target, asked, context)
        call = self._call(context, round_)
        outcome = await self._rounds.run(round_, call, lambda ctx: prompt.get(ctx, asked.arguments))
        if isinstance(outcome, InputRequired):
            return self._input_reply(outcome)
        messages = self._value(outcome, f"prompt {asked.name}")
        described = without_none(description=prompt.definition.get("description"))
        return Reply(self._stamp({**described, "messages": [message.to_wire() for message in messages]}))

    async def _read_resource(self, context: CallContext) -> Answer:
        asked = params.validate(params.ReadResourceParams, context.inbound.params)
        resource, values = self._catalog.resource(asked.uri)
        round_ = self._begin(Target("resources/read", asked.uri), asked, context)
        call = self._call(context, round_)
        outcome = await self._rounds.run(round_, call, lambda ctx: resource.read(ctx, asked.uri, values))
        if isinstance(outcome, InputRequired):
            return self._input_reply(outcome)
        contents = self._value(outcome, f"resource {asked.uri[:200]}")
        # "requests carrying inputResponses or requestState MUST NOT be cached" (server/utilities/caching)
        hint = _UNCACHED if asked.input_responses is not None or round_.opened else self._caching.read
        return Reply(self._stamp({"contents": [one.to_wire() for one in contents], **_hint(hint)}))

    async def _complete(self, context: CallContext) -> Answer:
        asked = params.validate(params.CompleteParams, context.inbound.params)
        name = asked.ref.name if isinstance(asked.ref, params.PromptReference) else asked.ref.uri
        completer = self._catalog.completers(asked.ref.type, name).get(asked.argument.name)
        if completer is None:
            return Reply(self._stamp({"completion": {"values": []}}))
        call = self._call(context)
        outcome = await engine.run(lambda: completer(asked.argument.value), Run(call, Journal()))
        if isinstance(outcome, (Suspended, Restarted)):  # a completion has no context to ask with
            error = RuntimeError("it asked something")
            raise InternalError(log_failure(f"completion of {name[:200]}", error, self._clock))
        return Reply(self._stamp({"completion": self._value(outcome, f"completion of {name[:200]}").to_wire()}))

    async def _listen(self, context: CallContext) -> Answer:
        wanted = params.validate(params.ListenParams, context.inbound.params).notifications
        closing = self._stamp({"_meta": {SUBSCRIPTION_ID: context.inbound.id}})
        records = await self._tasks_of(context, wanted.task_ids)
        task_ids = [record.ref.id for record in records]
        subscription = self._hub.subscribe(context.inbound.id, context.principal, wanted, self.features, task_ids)
        for record in records:
            self._follow(subscription, record)
        self._end_with_token(subscription, context.principal)
        return Stream(subscription, closing)

    def _end_with_token(self, subscription: Subscription, principal: Principal) -> None:
        """Close a stream when the token that opened it expires: from then on nobody may be told anything on it."""
        if principal.expires_at_s is None:
            return
        left_s = principal.expires_at_s - self._clock.now_ms() / 1000
        timer = asyncio.get_running_loop().call_later(min(max(0.0, left_s), MAX_STREAM_S), subscription.close)
        subscription.ends.append(timer.cancel)

    async def _tasks_of(self, context: CallContext, task_ids: Sequence[str]) -> list[TaskRecord]:
        """Those of the tasks that there are, that are the caller's, and whose tools it may call."""
        if not task_ids:
            return []
        context.inbound.meta.capabilities.require(tasks.REQUIRED, "listening to tasks")
        if "tasks" not in self.features:
            return []
        found = [await self._tasks.record(context.principal, task_id) for task_id in dict.fromkeys(task_ids)]
        return [record for record in found if record is not None and self._may_see(record, context.principal)]

    def _may_see(self, record: TaskRecord, principal: Principal) -> bool:
        try:
            self._check_scopes(record.tool, principal)
        except InsufficientScope:
            return False
        return True

    def _follow(self, subscription: Subscription, record: TaskRecord) -> None:
        """Tell a stream how a task is now, and each time that changes."""

        def tell(record: TaskRecord) -> None:
            subscription.offer((tasks.NOTIFICATION, record.ref.id), self._tasks.shown(record))

        tell(record)  # what happened between the client's last look and this is not lost
        subscription.ends.append(self._watch.begin(record, tell))

    async def _get_task(self, context: CallContext) -> Answer:
        context.inbound.meta.capabilities.require(tasks.REQUIRED, "tasks/get")
        asked = params.validate(params.TaskParams, context.inbound.params)
        record = await self._record(context.principal, asked.task_id)
        return Reply(b"%b,%b" % (self._tasks.shown(record)[:-1], self._ack[1:]))

    async def _update_task(self, context: CallContext) -> Answer:
        context.inbound.meta.capabilities.require(tasks.REQUIRED, "tasks/update")
        asked = params.validate(params.UpdateTaskParams, context.inbound.params)
        await self._check_scopes_of_task(context.principal, asked.task_id)
        await self._tasks.update(context.principal, asked.task_id, asked.input_responses)
        return Reply(self._ack)

    async def _cancel_task(self, context: CallContext) -> Answer:
        context.inbound.meta.capabilities.require(tasks.REQUIRED, "tasks/cancel")
        asked = params.validate(params.TaskParams, context.inbound.params)
        await self._check_scopes_of_task(context.principal, asked.task_id)
        await self._tasks.cancel(context.principal, asked.task_id)
        return Reply(self._ack)

    async def _record(self, principal: Principal, task_id: str) -> TaskRecord:
        """The row of a task that is the caller's, and of a tool that it may call.

        Raises:
            TaskNotFound: it is unknown, has expired, or is somebody else's.
            InsufficientScope
        """
        record = await self._tasks.record(principal, task_id)
        if record is None:
            raise TaskNotFound
        self._check_scopes(record.tool, principal)
        return record

    async def _check_scopes_of_task(self, principal: Principal, task_id: str) -> None:
        """As `_record`, for requests that need the row for nothing else: it is read only where scopes are asked for."""
        if self._has_scoped_tasks:
            await self._record(principal, task_id)

    def _begin(self, target: Target, asked: params.InputParams, context: CallContext, *, key: Any = None) -> Round:
        """The round that this request is; a later one is linked to where the call began."""
        round_ = self._rounds.begin(target, asked, context.principal, context.span.carrier(), key=key)
        if round_.opened is not None:
            context.span.link(round_.origin)
        return round_

    def _call(self, context: CallContext, round_: Round | None = None, served: ServedTool | None = None) -> Call:
        mode = "forbidden" if served is None else served.tool.task
        limit_ms = self._call_timeout_ms if context.remaining_ms is None else context.remaining_ms
        deadline = self._clock.deadline(min(limit_ms, self._call_timeout_ms))
        return Call(
            principal=context.principal,
            meta=context.inbound.meta,
            deadline=deadline,
            notify=context.notify,
            publish=self._hub.publish,
            may_become_task=mode != "forbidden" and context.inbound.meta.capabilities.has(tasks.REQUIRED),
            needs_row=mode == "required",
            takes_unasked=served is not None and served.tool.unasked_answers,
            idempotency=None if round_ is None else round_.task_id,
        )

    def _value(self, outcome: Completed[T] | Failed, what: str) -> T:
        """What a handler returned, where there is no tool error to answer with.

        Raises:
            ProtocolError: the handler's own, or -32602 with the text of its `ToolError`.
            InternalError: any other failure; its cause is in the log.
        """
        match outcome:
            case Completed(value):
                return value
            case Failed(ProtocolError() as error):
                raise error
            case Failed(ToolError() as error) if not isinstance(error, CallTimeout):
                raise InvalidParams(str(error))
            case Failed(error):
                raise InternalError(log_failure(what, error, self._clock))

    def _stamp(self, result: dict[str, Any]) -> bytes:
        """Serialise a result with `resultType` and `serverInfo`, which every result carries (basic/index).

        Raises:
            InternalError: a handler put something into it that is not JSON.
        """
        meta = {**result.get("_meta", {}), SERVER_INFO: self._server_info}
        try:
            return encode({"resultType": "complete", **result, "_meta": meta})
        except (TypeError, ValueError, RecursionError) as error:
            raise InternalError(log_failure("writing the result", error, self._clock)) from error


def _features(catalog: Catalog, streams: bool) -> frozenset[str]:
    """What there is something to serve for; the method table asks this before it lets a request in."""
    served = {
        "tools": bool(catalog.tools),
        "prompts": bool(catalog.prompts),
        "resources": bool(catalog.resources or catalog.templates),
        "completions": catalog.can_complete,
        "subscriptions": streams,
        "tasks": any(served.tool.task != "forbidden" for served in catalog.tools.values()),
    }
    return frozenset(feature for feature, is_served in served.items() if is_served)


def _arguments(round_: Round, journal: Journal) -> dict[str, Any]:
    """What the handler is to be called with: what it was restarted with, if it was."""
    return dict(round_.target.arguments) if journal.arguments is None else journal.arguments


def _task_call(served: ServedTool, round_: Round, call: Call, journal: Journal) -> TaskCall:
    """The call as its task keeps it."""
    return TaskCall(
        served.name,
        _arguments(round_, journal),
        call.principal,
        call.meta.capabilities.declared,
        call.meta.client_info,
        round_.origin,
        journal.generation,
    )


def _requirements(served: ServedTool) -> Mapping[str, Any]:
    """What a client must have declared before the tool is run."""
    if served.tool.task != "required":
        return served.tool.requires
    return merged([served.tool.requires, tasks.REQUIRED])


def _server_info(server: ServerConfig) -> dict[str, Any]:
    optional = without_none(title=server.title, description=server.description, websiteUrl=server.website_url)
    return {"name": server.name, "version": server.version, **optional}


def _hint(hint: CacheHint) -> dict[str, Any]:
    return {"ttlMs": hint.ttl_ms, "cacheScope": hint.scope}


def _invalid_arguments(served: ServedTool, arguments: dict[str, Any]) -> ToolResult:
    problems = served.arguments.problems(arguments, "arguments")
    return ToolResult.error("Invalid arguments; correct them and call again:\n" + "\n".join(f"- {p}" for p in problems))


def _check_prompt_arguments(declared: Any, given: Mapping[str, str]) -> None:
    names = [argument["name"] for argument in declared]
    missing = [argument["name"] for argument in declared if argument.get("required") and argument["name"] not in given]
    if missing:
        raise InvalidParams(f"Invalid params: missing arguments: {', '.join(missing)}")
    if unknown := [name for name in given if name not in names]:
        raise InvalidParams(
            f"Invalid params: unknown arguments {', '.join(unknown)[:200]}; there are: {', '.join(names)}"
        )
