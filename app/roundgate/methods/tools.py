"""The methods tools/list and tools/call.

A tool's failure becomes a result with `isError`; details that the caller must not see stay in the
log under a reference. A call continues as a task if its tool requires it, its handler asks for it,
or its deadline nears.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from roundgate.aio import ROOM, Room, in_own_context
from roundgate.auth import Principal
from roundgate.backends import DirectCall, Returned, ServedTool
from roundgate.errors import (
    AnswersUnread,
    ArgumentsRefused,
    BackendBusy,
    BackendError,
    MissingCapability,
    NeedsEngine,
    NotJson,
    ServerAway,
    ToolError,
    Unavailable,
)
from roundgate.json import approximate_size
from roundgate.methods.parts import Kit, Listing, list_hint
from roundgate.methods.rounds import (
    IDEMPOTENCY_KEY,
    BecomesTask,
    CallTarget,
    InputRequired,
    Reply,
    RequestContext,
    Round,
)
from roundgate.observability.metrics import CallOutcome
from roundgate.protocol import (
    REQUIRED,
    CallToolParams,
    ListParams,
    Schema,
    TaskView,
    ToolResult,
)
from roundgate.replay import Call, Completed, Context, Failed, Journal, engine, run_of
from roundgate.tasks import Ended, TaskCall, call_outcome, ended, failure_reason, tool_result

log: Final = logging.getLogger("roundgate.methods")


class ToolMethods:
    """The methods of tools."""

    def __init__(self, kit: Kit) -> None:
        parts, config = kit.parts, kit.config
        self._catalog = kit.catalog
        self._access = kit.access
        self._arguments = kit.arguments
        metrics = parts.rates.metrics
        self._metrics = metrics if metrics.are_recorded else None
        self._calls = kit.calls
        self._once = parts.once
        self._tasks = parts.tasks.own
        self._named = parts.tasks
        self._results = kit.results
        self._clock = parts.clock
        self._trail = parts.trail
        self._max_result_bytes = config.tasks.max_result_bytes
        self._shows_errors = parts.shows_errors
        hint = list_hint(config.caching.tools, kit.catalog, is_personal=kit.access.any_tool)
        self._list = Listing("tools", hint, kit.results)

    async def list(self, context: RequestContext, params: ListParams) -> Reply:
        """Serve tools/list."""
        return self._list.reply(self._access.tool_pages(context.principal), params.cursor)

    def call(self, context: RequestContext, params: CallToolParams) -> Awaitable[Reply]:
        """Serve tools/call."""
        inbound = context.inbound
        try:
            served = self._catalog.tool(params.name)
        except ServerAway as away:
            return self._unserved(away)
        context.correlation.tool = served.name
        if self._access.checks_tools:
            self._access.check(served.name, context.principal)
        sent = {} if params.sent is None else params.sent
        arguments, is_valid = self._arguments.of_tool(served, sent)
        if inbound.headers is not None:
            for mirrored in served.mirrored:
                mirrored.check(sent, inbound.headers)
                if arguments is not sent:  # what a proxy read is what the tool gets
                    mirrored.check(arguments, inbound.headers)
        if served.requires:
            inbound.meta.capabilities.require(served.requires, f"tool {served.name}")
        key = inbound.meta.raw.get(IDEMPOTENCY_KEY)
        direct = served.direct if params.request_state is None and key is None else None
        if direct is not None:
            context.correlation.make_call_id = self._clock.new_id
            context.hidden = self._calls.hidden
            if self._trail is not None:
                target = CallTarget("tools/call", served.name, arguments, served.backend)
                self._calls.record(1, target, params, context)
            if served.rules is not None:
                context.authorize = served.rules.authorizer(context.principal)
            if not is_valid:
                return self._invalid(served, arguments)
            return self._run_direct(direct, served, arguments, params, context)
        target = CallTarget("tools/call", served.name, arguments, served.backend)
        round_ = self._calls.begin(target, params, context, key=key)
        if round_.opened is not None:
            served = served.protected(round_.opened.protection)
        round_.protection = served.protection
        call = self._calls.call(context, round_, served)
        if served.tool.once:
            return self._run_once(served, round_, call, params, context, is_valid)
        return self._run(served, round_, call, is_valid)

    async def _unserved(self, away: ServerAway) -> Reply:
        return self._results.tool(ToolResult.error(str(away)), "not served")

    async def _run_direct(
        self,
        direct: DirectCall,
        served: ServedTool,
        arguments: dict[str, Any],
        params: CallToolParams,
        context: RequestContext,
    ) -> Reply:
        """Run a call without the engine to its end or to its deadline, in a context of its own:
        pipelined requests share one. Go on with the engine if the call needs it after all.

        Raises:
            CancelledError: the call was cancelled.
        """
        watch, deadline = context.watch, context.deadline
        limit_s = watch.limit(deadline)
        try:
            value = await in_own_context(direct.run(context, arguments))
        except BaseException as error:
            # some libraries convert the cancellation
            if watch.end_limit() and isinstance(error, CancelledError | TimeoutError):
                failure = engine.late_error(deadline, limit_s)
            else:
                failure = engine.failure_of(error)
            if isinstance(failure, NeedsEngine):
                return await self._run_begun(failure, served, arguments, params, context)
            return self._ended(Failed(failure), served, context.principal)
        watch.end_limit()
        if not isinstance(value, ToolResult):
            return self._ended(Completed(value), served, context.principal)
        room = ROOM.get()
        if room is None or room.is_idle:
            return self._completed(value, served)
        return await self._in_room(value, room, served)

    async def _run_begun(
        self,
        needs: NeedsEngine,
        served: ServedTool,
        arguments: dict[str, Any],
        params: CallToolParams,
        context: RequestContext,
    ) -> Reply:
        """Run a call with the engine, which takes the answer to the request that was sent."""
        context.begun = needs.begun
        target = CallTarget("tools/call", served.name, arguments, served.backend)
        round_ = self._calls.begin(target, params, context)
        return await self._run(served, round_, self._calls.call(context, round_, served), True)

    async def _run_once(
        self,
        served: ServedTool,
        round_: Round,
        call: Call,
        params: CallToolParams,
        context: RequestContext,
        is_valid: bool,
    ) -> Reply:
        def run() -> Awaitable[Reply]:
            return self._run_recorded(served, round_, call, is_valid)

        try:
            return await self._once.serve(round_, params, call, context, run)
        except ToolError as error:  # no place, or the outcome of an earlier attempt is unknown
            return self._result(Failed(error), served)

    async def _run_recorded(
        self, served: ServedTool, round_: Round, call: Call, is_valid: bool
    ) -> Reply:
        """Run a round of a `once` tool, and record that it ran: its client may hang up meanwhile, and
        get the stored outcome later."""
        outcome = "error"
        try:
            reply = await self._run(served, round_, call, is_valid)
            outcome = reply.label
            return reply
        except BackendBusy:
            outcome = ""  # nothing ran, so a retry may run the round
            raise
        finally:
            if self._trail is not None and outcome:
                ids = {"call": round_.correlation.call_id, "round": round_.number}
                self._trail.record("ran", {**ids, "outcome": outcome})

    async def _run(self, served: ServedTool, round_: Round, call: Call, is_valid: bool) -> Reply:
        if not is_valid:
            return await self._invalid(served, round_.target.arguments)

        def handler(ctx: Context) -> Awaitable[Returned]:
            journal = run_of(ctx).journal
            if journal.arguments is not None:  # a restarted handler may have new arguments
                return served.call(ctx, journal.arguments)
            return served.call(ctx, dict(round_.target.arguments))

        if (
            call.may_become_task
            and (known := await self._known_task(served, round_, call)) is not None
        ):
            return known
        outcome = await self._calls.run_or_defer(round_, call, handler)
        value = outcome.value if isinstance(outcome, Completed) else None
        if not isinstance(value, ToolResult) or served.tool.task == "required":
            return await self._answer(outcome, served, round_, call)
        room = ROOM.get()
        # the outcome of `once` is stored first
        if room is None or room.is_idle or served.tool.once:
            return self._completed(value, served)
        return await self._in_room(value, room, served)

    async def _answer(
        self,
        outcome: Completed[Returned] | InputRequired | BecomesTask | Failed,
        served: ServedTool,
        round_: Round,
        call: Call,
    ) -> Reply:
        """Return the reply for the end of a round; create the task if the call becomes one. Raise
        MissingCapability if the client lacks a capability that the handler needs."""
        match outcome:
            case InputRequired():
                return self._results.input_required(outcome)
            case BecomesTask(journal, message):
                return await self._create_task(served, round_, call, journal, message=message)
            case Completed(TaskView() as view) if call.meta.capabilities.has(REQUIRED):
                return self._hand_over(served, view, call)
            case Completed() | Failed():
                is_refused = isinstance(outcome, Failed) and isinstance(
                    outcome.error, (ArgumentsRefused, MissingCapability)
                )
                if served.tool.task != "required" or is_refused:
                    return self._ended(outcome, served, call.principal)
                self._count(served, call_outcome(outcome))
                end = ended(
                    outcome,
                    served.name,
                    self._clock,
                    self._max_result_bytes,
                    shows_errors=self._shows_errors,
                )
                return await self._create_task(served, round_, call, Journal(), end=end)

    async def _in_room(self, result: ToolResult, room: Room, served: ServedTool) -> Reply:
        """Return the reply for a result, once there is room for it."""
        try:
            await room.keep(approximate_size(result.to_wire()))
        except AnswersUnread as error:
            return self._result(Failed(error), served)
        return self._completed(result, served)

    def _completed(self, result: ToolResult, served: ServedTool) -> Reply:
        """Count a call, and return the reply for its result."""
        self._count(served, "tool_error" if result.is_error else "ok")
        return self._results.tool(result, "result")

    def _ended(
        self, outcome: Completed[Returned] | Failed, served: ServedTool, principal: Principal
    ) -> Reply:
        """Return the reply for the end of a call. Raise MissingCapability, so that the client can
        repeat the call with the capability, and BackendBusy for a `once` tool."""
        match outcome:
            case Failed(MissingCapability() as error):
                raise error
            case Failed(BackendBusy() as busy) if served.tool.once:
                raise busy  # nothing was done, so a retry may run the round
            case Failed(ArgumentsRefused() as refusal):
                self._access.tell_refused(refusal.rule, principal)
        return self._result(outcome, served)

    def _count(self, served: ServedTool, outcome: CallOutcome) -> None:
        if self._metrics is not None:
            self._metrics.called(served.name, served.backend, outcome)

    async def _invalid(self, served: ServedTool, arguments: Mapping[str, Any]) -> Reply:
        self._count(served, "refused")
        result = invalid_arguments(served, arguments)
        return self._results.tool(result, "invalid arguments")

    def _result(self, outcome: Completed[Returned] | Failed, served: ServedTool) -> Reply:
        self._count(served, call_outcome(outcome))
        result = tool_result(outcome, served.name, self._clock, shows_errors=self._shows_errors)
        return self._results.tool(result, failure_reason(outcome))

    def _hand_over(self, served: ServedTool, view: TaskView, call: Call) -> Reply:
        """Return the reply for a call that continues as a task of the tool's service."""
        try:
            return self._results.task(self._named.hand_over(served, view, call.principal))
        except BackendError as error:
            return self._result(Failed(error), served)

    async def _known_task(self, served: ServedTool, round_: Round, call: Call) -> Reply | None:
        """Return the reply for a call whose task is stored or needs only its outcome written, or
        the error of a call that is too large for a task. Return `None` if the handler must run."""
        if served.tool.task == "required":
            try:
                self._tasks.check_size(self._task_call(served, round_, call, round_.journal))
            except ToolError as error:  # too large: refuse the call before its handler runs
                return self._result(Failed(error), served)
        fixed_task = round_.fixed_task
        if fixed_task is None:
            return None
        try:
            created = await self._tasks.created(call.principal, fixed_task.task_id)
        except Unavailable as error:
            return await self._in_doubt(error, round_, call, round_.journal, fixed_task.ended)
        if created is not None:
            return self._task(created, round_, call)
        if fixed_task.ended is None:
            return None
        return await self._create_task(
            served, round_, call, Journal(), end=Ended.from_json(fixed_task.ended)
        )

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
        """Create the task of a call that continues, or, with `end`, of a call that has ended."""
        task_call = self._task_call(served, round_, call, journal)
        try:
            created = await self._tasks.create(
                task_call,
                journal,
                task_id=round_.task_id,
                message=message,
                ended=end,
                cleans_up=served.tool.cleans_up,
                call_id=round_.correlation.call_id,
            )
        except Unavailable as error:
            return await self._in_doubt(
                error, round_, call, journal, None if end is None else end.to_json()
            )
        except (NotJson, ToolError) as error:  # a value in ctx.state, the size, or too many tasks
            return self._result(Failed(error), served)
        return self._task(created, round_, call)

    def _task(self, created: Mapping[str, Any], round_: Round, call: Call) -> Reply:
        """Return the reply for a call that has become a task, and log the task's id."""
        ref = self._tasks.ref(call.principal, created["taskId"])
        round_.correlation.task = str(ref)
        return self._results.task(created)

    def _task_call(
        self, served: ServedTool, round_: Round, call: Call, journal: Journal
    ) -> TaskCall:
        return TaskCall(
            served.name,
            dict(round_.target.arguments) if journal.arguments is None else journal.arguments,
            call.principal.keeping(self._catalog.kept_claims),
            call.meta.capabilities.declared,
            call.meta.client_info,
            round_.origin,
            journal.generation,
            self._tasks.view,
            call.meta.capabilities.substituted,
        )

    async def _in_doubt(
        self, error: Unavailable, round_: Round, call: Call, journal: Journal, end: Any
    ) -> Reply:
        ref = self._tasks.ref(call.principal, round_.task_id)
        fields = {"task": str(ref), "error": str(error)}
        log.warning(
            "a task may have been created; the client is asked to call again",
            extra={"fields": fields},
        )
        return self._results.input_required(await self._calls.in_doubt(round_, call, journal, end))


def invalid_arguments(served: ServedTool, arguments: Mapping[str, Any]) -> ToolResult:
    """Return the error result for arguments that do not match the tool's schema."""
    problems = argument_problems(served.arguments, arguments)
    return ToolResult.error("Invalid arguments; correct them and call again:\n" + problems)


def argument_problems(schema: Schema, arguments: Mapping[str, Any]) -> str:
    """Return the problems of arguments as text, one line each."""
    return "\n".join(f"- {text}" for text in schema.problems(dict(arguments), "arguments"))
