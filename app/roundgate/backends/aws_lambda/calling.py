"""One call of a tool: its invocations, from the arguments to the result.

A function may ask for input, and receives its own state back (`roundgate docs rounds`):

    function → gateway   {"inputRequests": {"size": {"method": "elicitation/create", "params": {…}}}, "state": anything}
    gateway → function   {"payload": that of the first exchange, "inputResponses": {"size": {"action": …}}, "state": …}
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from roundgate import json
from roundgate.backends.aws_lambda.config import (
    LambdaBackendConfig,
    LambdaToolConfig,
)
from roundgate.backends.aws_lambda.invoking import (
    Functions,
    Invocation,
    Invoked,
    Target,
    target,
    target_of,
)
from roundgate.backends.aws_lambda.job import Execution, config_of, lambda_job
from roundgate.backends.aws_lambda.payload import (
    RESPONSES,
    bytes_of,
    encoded,
    endpoint_of,
    facts,
    http_event,
    payload_of,
    secrets_of,
)
from roundgate.backends.aws_lambda.results import answer_of, failure_of
from roundgate.backends.base import CallTool
from roundgate.backends.exchange import Answering, Exchange, Kept, asked, dialogue, follow
from roundgate.backends.http.endpoint import Endpoint
from roundgate.backends.http.messages import Answer, result_of
from roundgate.backends.http.secrets import Redactor
from roundgate.errors import ParseError, ToolError
from roundgate.protocol import Schema, TextContent, ToolResult
from roundgate.replay import Context, run_of

Say: TypeAlias = Callable[[Any, int], Awaitable[Answer]]
"""Invokes the function with a payload, as the nth exchange from 1."""


def exchange_of(say: Say, payload: Mapping[str, Any]) -> Exchange:
    """The exchanges that a call with this first payload consists of.

    Raises:
        ToolError: the payload looks like that of a later one: an argument must not pass
            for what the user answered.
    """
    if RESPONSES in payload:
        raise ToolError(f"{RESPONSES}: is the gateway's own; leave it out")

    async def exchange(number: int, answering: Answering | None) -> Kept:
        sent = payload if answering is None else _answering(payload, answering)
        answer = await say(sent, number)
        envelope = _envelope(answer)
        return answer.kept() if envelope is None else asked(envelope)

    return exchange


def _answering(payload: Mapping[str, Any], answering: Answering) -> dict[str, Any]:
    return {
        "payload": dict(payload),
        RESPONSES: dict(answering.responses),
        "state": answering.state,
    }


def _envelope(answer: Answer) -> Any:
    """What asks, if the answer does."""
    if b'"inputRequests"' not in answer.body:
        return None
    try:
        value = json.decode(answer.body)
    except ParseError:
        return None
    return value if isinstance(value, dict) and "inputRequests" in value else None


_LARGE: Final = 262_144
"""Answers of more bytes are read in a thread: they would keep everybody else waiting."""


@dataclass(frozen=True, slots=True)
class Calling:
    """What all calls of one tool have in common."""

    functions: Functions
    tool: LambdaToolConfig
    backend: LambdaBackendConfig
    target: Target
    timeout_s: float
    redacted: Redactor
    endpoint: Endpoint | None
    """Where arguments go, if the function gets events of an HTTP API."""
    output: Schema | None

    @classmethod
    def of(
        cls, functions: Functions, tool: LambdaToolConfig, backend: LambdaBackendConfig
    ) -> Calling:
        """Of one tool.

        Raises:
            ValueError: a schema is not usable, or does not fit the path.
        """
        fixed = tool.payload if tool.http is None else tool.http
        return cls(
            functions,
            tool,
            backend,
            target_of(tool, backend),
            tool.timeout_s or backend.timeout_s,
            Redactor.of_secrets(secrets_of(fixed)),
            None if tool.http is None else endpoint_of(tool, tool.http),
            None if tool.output_schema is None else Schema.compile(tool.output_schema),
        )

    def result(self, answer: Answer) -> ToolResult:
        """The tool's result for an answer.

        Raises:
            BackendError: the answer is an error, or not what was declared.
        """
        return result_of(self.tool.name, answer, self.tool.result, self.output)

    def cleaned(self, data: bytes) -> bytes:
        """What a function says, without secrets of the configuration."""
        return self.redacted(Answer(200, "", "", data)).body


@dataclass(frozen=True, slots=True)
class OneCall:
    """One call."""

    calling: Calling
    context: Context
    arguments: Mapping[str, Any]
    key: str
    """The same in every run of this call."""

    def told(self, exchange: int = 1, *, looks: bool = False) -> dict[str, Any]:
        """What the function is told of an invocation; one that only looks has no key."""
        key = self.key if exchange == 1 else f"{self.key}-{exchange}"
        run = run_of(self.context)
        name = self.calling.backend.effective_prefix + self.calling.tool.name
        return facts(
            name, self.context.principal, None if looks else key, exchange, run.call.meta.raw
        )

    def payload(self) -> Any:
        """What the first invocation has.

        Raises:
            ToolError: an argument cannot stand where it has to go.
        """
        if self.calling.endpoint is not None:
            outgoing = self.calling.endpoint.request(self.arguments)
            told = self.told() if self.calling.backend.client_context else {}
            return http_event(outgoing, self.key, told)
        return payload_of(self.calling.tool.payload, self.arguments, self.told())

    async def invoke(self, invocation: Invocation, told: Mapping[str, Any]) -> Invoked:
        """Invoke a function; it is told of the call where it can be."""
        if self.calling.backend.client_context and not invocation.is_event:
            invocation = replace(invocation, client_context=encoded(told))
        timeout_s = self.calling.timeout_s
        return await self.calling.functions.invoke(invocation, timeout_s, self.context.principal)

    async def say(self, payload: Any, exchange: int = 1) -> Answer:
        """What the tool's function answers to a payload.

        Raises:
            BackendError: it cannot be invoked, or has failed.
        """
        invocation = Invocation(
            self.calling.target,
            bytes_of(payload, is_event=False),
            is_repeatable=self.calling.tool.idempotent is True,
        )
        return self._answer(await self.invoke(invocation, self.told(exchange)), invocation.target)

    async def look(self, where: Target, payload: Any) -> Answer:
        """What a function answers that is asked about a job."""
        invocation = Invocation(where, bytes_of(payload, is_event=False), is_repeatable=True)
        return self._answer(await self.invoke(invocation, self.told(looks=True)), where)

    async def hand_over(self, execution_name: str | None = None) -> Invoked:
        """Have AWS Lambda take the call, or start an execution under a name."""
        invocation = Invocation(
            self.calling.target,
            bytes_of(self.payload(), is_event=True),
            is_event=True,
            execution_name=execution_name,
            is_repeatable=self.calling.tool.idempotent is True,
        )
        return await self.invoke(invocation, {})

    def _answer(self, invoked: Invoked, where: Target) -> Answer:
        payload = self.calling.cleaned(invoked.payload)
        if invoked.has_failed:
            raise failure_of(payload, where)
        return self.calling.redacted(answer_of(payload))


def caller_of(calling: Calling) -> CallTool:
    """What calls the tool."""

    async def call(context: Context, arguments: dict[str, Any]) -> ToolResult:
        await context.continue_as_task()
        one = OneCall(calling, context, arguments, await context.idempotency_key("invocation"))
        if calling.tool.asynchronous:
            return _accepted(await one.hand_over(), calling.target)
        answer = await _answered(one, context)
        if len(answer.body) > _LARGE:
            return await asyncio.to_thread(calling.result, answer)
        return calling.result(answer)

    return call


async def _answered(one: OneCall, context: Context) -> Answer:
    calling, tool = one.calling, one.calling.tool
    if tool.interactive:
        return Answer.revived(await dialogue(exchange_of(one.say, one.payload()), context))
    if tool.job is not None:
        payload, known = one.payload(), tool.job.function
        asked = calling.target
        if known is not None:
            asked = target(known, None, calling.backend.region)
        begin, look = partial(one.say, payload), partial(one.look, asked)
        once = tool.idempotent is True
        job = lambda_job(tool.job, begin, look, one.arguments, starts_once=once)
        return Answer.revived(await follow(job, context))
    if tool.durable is not None:
        return Answer.revived(await follow(_execution(one), context))
    answer = await one.say(one.payload())
    await context.log("debug", {"upstream": calling.backend.name, "status": answer.status})
    return answer


def _execution(one: OneCall) -> Execution:
    calling = one.calling
    assert calling.tool.durable is not None

    async def look(arn: str) -> Mapping[str, Any]:
        functions, caller = calling.functions, one.context.principal
        return await functions.execution(arn, calling.target, calling.timeout_s, caller)

    async def end(arn: str) -> None:
        functions, caller = calling.functions, one.context.principal
        await functions.stop(arn, calling.target, calling.timeout_s, caller)

    durable, begin = calling.tool.durable, partial(one.hand_over, one.key)
    stops = end if durable.cancel else None
    return Execution(config_of(durable), begin, look, calling.cleaned, stops)


def _accepted(invoked: Invoked, taken_by: Target) -> ToolResult:
    said = (
        f"Accepted: AWS Lambda has taken the call for the function {taken_by.name}, which works on it later."
        " Nobody tells here how it ends."
    )
    told = {"accepted": True, "requestId": invoked.request_id}
    return ToolResult((TextContent(said),), structured_content=told)
