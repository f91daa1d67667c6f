"""The call of a tool: its invocations, from the arguments to the result.

A function may ask for input, and receives its own state back (`roundgate docs rounds`):

    function → gateway   {"inputRequests": {"size": {"method": "elicitation/create", "params":
    {…}}}, "state": any}
    gateway → function   {"payload": the first payload, "inputResponses": {"size": {"action": …}},
    "state": …}

A function may start a job, which further invocations follow, fetch or cancel. Executions of durable
functions are followed as jobs (API `Invoke`, `GetDurableExecution`):

    Invoke, Event, under a name ──▶ ARN of the execution     GetDurableExecution … RUNNING … SUCCEEDED ──▶ its result
                                                             └ the task ends early: StopDurableExecution

The name is derived from the call, so repeated starts make one execution.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from msgspec import Struct

from roundgate import json
from roundgate.backends.aws_lambda import messages
from roundgate.backends.aws_lambda.config import (
    DurableConfig,
    LambdaBackendConfig,
    LambdaJobConfig,
    LambdaToolConfig,
)
from roundgate.backends.aws_lambda.invoking import (
    FunctionInvocation,
    Functions,
    FunctionTarget,
    Invoked,
    choose_target,
    target,
)
from roundgate.backends.aws_lambda.messages import facts
from roundgate.backends.base import CallTool, DirectCall
from roundgate.backends.config import JobConfig
from roundgate.backends.dialogue import (
    Answering,
    Kept,
    recorded,
    service_dialogue,
    service_questions,
)
from roundgate.backends.exchange import AnsweredJob, NotNow, follow
from roundgate.backends.http.bodies import BodyTemplate
from roundgate.backends.http.endpoint import ToolEndpoint
from roundgate.backends.http.messages import (
    LARGE_BYTES,
    ServiceAnswer,
    result_from_answer,
    with_doubt,
)
from roundgate.backends.http.secrets import AnswerRedactor
from roundgate.errors import (
    BackendError,
    FunctionAway,
    FunctionFailed,
    ParseError,
    ToolError,
    UnexpectedAnswer,
)
from roundgate.observability.outgoing import OutgoingRequest, function_span
from roundgate.protocol import Schema, TextContent, ToolResult
from roundgate.replay import AnyContext, Context, call_of


class FunctionCalling(Struct, frozen=True):
    """The parts that all calls of a tool share."""

    functions: Functions
    tool: LambdaToolConfig
    backend: LambdaBackendConfig
    target: FunctionTarget
    timeout_s: float
    redacted: AnswerRedactor
    endpoint: ToolEndpoint | None
    """The endpoint that places the arguments, if the function gets events of an HTTP API."""
    output: Schema | None

    @classmethod
    def of(
        cls, functions: Functions, tool: LambdaToolConfig, backend: LambdaBackendConfig
    ) -> FunctionCalling:
        """Prepare the calls of a tool.

        Raises:
            ValueError: a schema is unusable, or does not fit the path.
        """
        return cls(
            functions,
            tool,
            backend,
            choose_target(tool, backend),
            tool.timeout_s or backend.timeout_s,
            AnswerRedactor.of_secrets(messages.fixed_secrets(tool.http or tool.payload)),
            None if tool.http is None else messages.make_endpoint(tool, tool.http),
            None if tool.output_schema is None else Schema.compile(tool.output_schema),
        )

    def result(self, answer: ServiceAnswer) -> ToolResult:
        """Return the tool's result for an answer.

        Raises:
            BackendError: the answer is an error, or does not match the declared result.
        """
        try:
            return result_from_answer(self.tool.name, answer, self.tool.result, self.output)
        except UnexpectedAnswer as error:
            raise self.in_doubt(error) from None

    def in_doubt(self, error: UnexpectedAnswer) -> BackendError:
        """Return an error with `DOUBT`, unless the tool may be called again."""
        return error if self.tool.read_only or self.tool.idempotent else with_doubt(error)


class OneCall(Struct, frozen=True):
    """One call of a tool, with its arguments and context."""

    calling: FunctionCalling
    context: AnyContext
    arguments: Mapping[str, Any]
    key: str
    """The call's idempotency key, the same in every run of this call."""

    def facts(self, exchange: int = 1, *, looks: bool = False) -> dict[str, Any]:
        """Return the facts about this call for its function. `looks` omits the key, for an
        invocation that only asks about a job."""
        key = self.key if exchange == 1 else f"{self.key}-{exchange}"
        meta = call_of(self.context).meta.raw
        name = self.calling.backend.effective_prefix + self.calling.tool.name
        return facts(name, self.context.principal, None if looks else key, exchange, meta)

    def payload(self) -> Any:
        """Return the payload of the first invocation.

        Raises:
            ToolError: an argument is not allowed in its place.
        """
        if self.calling.endpoint is not None:
            outgoing = self.calling.endpoint.request(self.arguments)
            extra = self.facts() if self.calling.backend.client_context else {}
            return messages.http_event(outgoing, self.key, extra)
        return messages.make_payload(self.calling.tool.payload, self.arguments, self.facts())

    async def say(self, payload: Any, exchange: int = 1) -> ServiceAnswer:
        """Send the nth payload of a dialogue to the tool's function; return the answer. `exchange`
        begins at 1.

        Raises:
            BackendError: the function cannot be invoked, or has failed.
        """
        with self._span(self.calling.target, payload) as span:
            try:
                return await self._answered(
                    self.calling.target,
                    payload,
                    self.facts(exchange),
                    span,
                    is_repeatable=self.calling.tool.idempotent is True,
                )
            except UnexpectedAnswer as error:
                raise self.calling.in_doubt(error) from None

    def _span(self, where: FunctionTarget, payload: Any) -> AbstractContextManager[OutgoingRequest]:
        """Return the span of an invocation. `facts` puts its context into the client context."""
        return function_span("Invoke", where.name, where.region, payload)

    async def look(self, where: FunctionTarget, payload: Any) -> ServiceAnswer:
        """Ask a function about a job; return its answer.

        Raises:
            NotNow: a later attempt may succeed.
            BackendError: the function cannot be invoked.
        """
        try:
            with self._span(where, payload) as span:
                facts = self.facts(looks=True)
                return await self._answered(where, payload, facts, span, is_repeatable=True)
        except (FunctionAway, FunctionFailed) as error:
            raise NotNow(str(error)) from None

    async def _answered(
        self,
        where: FunctionTarget,
        payload: Any,
        extra: Mapping[str, Any],
        span: OutgoingRequest,
        *,
        is_repeatable: bool,
    ) -> ServiceAnswer:
        data = messages.encode_payload(payload, is_event=False)
        context = messages.encoded(extra) if self.calling.backend.client_context else None
        invocation = FunctionInvocation(where, data, context, is_repeatable=is_repeatable)
        invoked = await self._invoke(invocation)
        span.invoked(invoked.request_id, has_failed=invoked.has_failed)
        answer = self.calling.redacted.of_bytes(invoked.payload)
        if invoked.has_failed:
            raise messages.failure_from_payload(answer, where)
        return self.calling.redacted(messages.answer_from_payload(answer))

    async def hand_over(self, execution_name: str | None = None) -> Invoked:
        """Start an asynchronous invocation, or a durable execution if it has a name."""
        payload = self.payload()
        with self._span(self.calling.target, payload) as span:
            invocation = FunctionInvocation(
                self.calling.target,
                messages.encode_payload(payload, is_event=True),
                is_event=True,
                execution_name=execution_name,
                is_repeatable=self.calling.tool.idempotent is True,
            )
            invoked = await self._invoke(invocation)
            span.invoked(invoked.request_id, has_failed=invoked.has_failed)
            return invoked

    async def _invoke(self, invocation: FunctionInvocation) -> Invoked:
        timeout_s = self.calling.timeout_s
        return await self.calling.functions.invoke(invocation, timeout_s, self.context.principal)


def make_caller(calling: FunctionCalling) -> CallTool:
    """Return the function that calls the tool."""

    async def call(context: Any, arguments: dict[str, Any]) -> ToolResult:
        await context.continue_as_task()
        invocation = OneCall(
            calling, context, arguments, await context.idempotency_key("invocation")
        )
        if calling.tool.asynchronous:
            return _accepted(await invocation.hand_over(), calling.target)
        answer = await _answered(invocation, context)
        if len(answer.body) > LARGE_BYTES:
            return await asyncio.to_thread(calling.result, answer)
        return calling.result(answer)

    tool = calling.tool
    may_suspend = tool.interactive or tool.job is not None or tool.durable is not None
    return call if may_suspend else DirectCall(call)


async def _answered(call: OneCall, context: Any) -> ServiceAnswer:
    tool = call.calling.tool
    if tool.interactive:
        return ServiceAnswer.revived(await _dialogue(call, context))
    if tool.job is not None:
        return ServiceAnswer.revived(await follow(_job(call, tool.job), context))
    if tool.durable is not None:
        return ServiceAnswer.revived(await follow(_execution(call, tool.durable), context))
    answer = await call.say(call.payload())
    await context.log("debug", {"upstream": call.calling.backend.name, "status": answer.status})
    return answer


def _accepted(invoked: Invoked, taken_by: FunctionTarget) -> ToolResult:
    text = (
        f"Accepted: AWS Lambda has queued the call of the function {taken_by.name}, which runs later."
        " Its outcome is not reported here."
    )
    structured = {"accepted": True, "requestId": invoked.request_id}
    return ToolResult((TextContent(text),), structured_content=structured)


# Dialogues


async def _dialogue(call: OneCall, context: Context) -> Kept:
    payload = call.payload()
    if messages.RESPONSES in payload:  # an argument must not pass for the user's answer
        raise ToolError(f"{messages.RESPONSES}: is reserved for the gateway; leave it out")

    async def exchange(number: int, answering: Answering | None) -> Kept:
        sent = payload
        if answering is not None:
            responses = dict(answering.responses)
            sent = {"payload": payload, messages.RESPONSES: responses, "state": answering.state}
        answer = await call.say(sent, number)
        envelope = _envelope(answer)
        return answer.kept() if envelope is None else recorded(service_questions(envelope))

    return await service_dialogue(exchange, context, call.calling.backend.name)


def _envelope(answer: ServiceAnswer) -> Any:
    """Return the answer as JSON if it asks for input, or None."""
    if b'"inputRequests"' not in answer.body:
        return None
    try:
        value = answer.value()
    except ParseError:
        return None
    return value if isinstance(value, dict) and "inputRequests" in value else None


# Jobs


def check_job(job: LambdaJobConfig, arguments: Collection[str]) -> None:
    """Raise ValueError if a payload of a job has a variable without a value."""
    named = BodyTemplate(job.poll).names | BodyTemplate(job.fetch or {}).names
    if unknown := sorted(named - job.variables.keys()):
        raise ValueError(f"job needs {', '.join(unknown)}, which job.variables does not have")
    known = {*job.variables, *arguments}
    if unknown := sorted(BodyTemplate(job.cancel or {}).names - known):
        raise ValueError(
            f"job.cancel needs {', '.join(unknown)}, which neither job.variables nor input_schema has"
        )


def _job(call: OneCall, config: LambdaJobConfig) -> AnsweredJob:
    """Return the job that the invocation starts. An idempotent function starts it once, because it
    receives the call's key; other functions may ignore a key."""
    calling = call.calling
    where = calling.target
    if config.function is not None:
        where = target(config.function, None, calling.backend.region)

    async def ask(payload: Mapping[str, Any], values: Mapping[str, str]) -> ServiceAnswer:
        return await call.look(where, BodyTemplate(payload).filled(values))

    async def cancel(values: Mapping[str, str]) -> ServiceAnswer:
        return await ask(config.cancel or {}, {**call.arguments, **values})

    return AnsweredJob(
        config,
        "function",
        partial(call.say, call.payload()),
        look=partial(ask, config.poll),
        result=None if config.fetch is None else partial(ask, config.fetch),
        end=None if config.cancel is None else cancel,
        starts_once=calling.tool.idempotent is True,
    )


# Executions of durable functions

_ENDED_BADLY: Final = ["FAILED", "TIMED_OUT", "STOPPED", "DELETING"]


def _execution(call: OneCall, durable: DurableConfig) -> AnsweredJob:
    """Return the execution that the invocation starts, as a job."""
    calling, caller = call.calling, call.context.principal
    at = (calling.target, calling.timeout_s, caller)

    async def begin() -> ServiceAnswer:
        invoked = await call.hand_over(call.key)
        if invoked.execution_arn is None:
            raise BackendError(
                "AWS Lambda started no durable execution: the function must be durable, and named with a"
                " version or an alias"
            )
        return _json({"execution": invoked.execution_arn})

    async def state(values: Mapping[str, str]) -> Mapping[str, Any]:
        try:
            return await calling.functions.execution(values["execution"], *at)
        except FunctionAway as error:
            raise NotNow(str(error)) from None

    async def look(values: Mapping[str, str]) -> ServiceAnswer:
        execution = await state(values)
        reason = calling.redacted.of_bytes(_reason(execution).encode("utf-8", "replace")).decode()
        return _json({"status": execution.get("Status"), "reason": reason or None})

    async def result(values: Mapping[str, str]) -> ServiceAnswer:
        execution = await state(values)
        return messages.answer_from_payload(
            calling.redacted.of_bytes(str(execution.get("Result") or "null").encode())
        )

    async def stop(values: Mapping[str, str]) -> ServiceAnswer:
        try:
            await calling.functions.stop(values["execution"], *at)
        except FunctionAway:
            raise
        except BackendError:
            if (await state(values)).get("Status") not in ("SUCCEEDED", *_ENDED_BADLY):
                raise
        return _json(None)

    config = JobConfig(
        variables={"execution": "/execution"},
        every_s=durable.every_s,
        status="/status",
        succeeded=["SUCCEEDED"],
        failed=_ENDED_BADLY,
        error="/reason",
    )
    ends = stop if durable.cancel else None
    return AnsweredJob(config, "function", begin, look, result, ends, starts_once=True)


def _json(value: Any) -> ServiceAnswer:
    return ServiceAnswer(200, "OK", "application/json", json.encode(value))


def _reason(execution: Mapping[str, Any]) -> str:
    """Return the type and message of a failure, without the stack."""
    error = execution.get("Error") or {}
    parts = [str(error[name]) for name in ("ErrorType", "ErrorMessage") if error.get(name)]
    return messages.line(": ".join(parts))
