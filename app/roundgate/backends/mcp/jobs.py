"""Jobs of an MCP server: several tools that start, poll, fetch and cancel, offered as one tool.

    call ──▶ the tool that starts ──▶ variables     poll: … (without a worker) … ──▶ ended     fetch ──▶ the result
                                                    └ the task ends early: cancel

The value of a tool's answer is its `structuredContent`, or else its text, parsed if it is JSON.
`exchange.follow` follows the job, as for services over HTTP and functions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from roundgate.backends.base import Returned
from roundgate.backends.dialogue import Kept
from roundgate.backends.exchange import NotNow, follow, is_in_doubt, is_passing
from roundgate.backends.http.bodies import BodyTemplate
from roundgate.backends.mcp.calls import refuse, with_meta
from roundgate.backends.mcp.config import JobToolConfig, McpBackendConfig, McpJobConfig
from roundgate.backends.mcp.server import McpServer
from roundgate.backends.mcp.tools import UsableTool, result_from_wire
from roundgate.backends.mcp.uris import Uris
from roundgate.client.messages import Listener, of_arguments
from roundgate.client.types import Json
from roundgate.errors import BackendError, NoAnswer, ParseError, UnexpectedAnswer
from roundgate.json import decode
from roundgate.replay import Context

_INTERNAL_ERROR: Final = "error -32603"
_REASON_CHARS: Final = 500
_DECODED: Final = frozenset({"integer", "number", "boolean"})
"""The types of arguments for which the text of a variable is decoded."""


def job_problems(
    jobs: Mapping[str, McpJobConfig], tools: Mapping[str, UsableTool]
) -> dict[str, str]:
    """Return the reasons why jobs cannot be followed, by the name of the tool that starts them."""
    problems = {name: _problem(name, job, tools) for name, job in jobs.items()}
    return {name: problem for name, problem in problems.items() if problem is not None}


def _problem(name: str, job: McpJobConfig, tools: Mapping[str, UsableTool]) -> str | None:
    if name not in tools:
        return "the server does not list this tool"
    available = job.variables.keys() | _properties(tools[name]).keys()
    for part, request in job.requests.items():
        if (tool := tools.get(request.tool)) is None:
            return f"{part} names the tool {request.tool!r}, which the server does not list"
        if unknown := sorted(BodyTemplate(request.arguments).names - available):
            return (
                f"{part} needs {', '.join(unknown)}, which neither job.variables nor the tool's "
                "arguments have"
            )
        required = tool.definition["inputSchema"].get("required", [])
        if missing := [each for each in required if each not in request.arguments]:
            return f"{part} lacks the argument {', '.join(missing)} of {request.tool}"
    return None


class JobCalls(Struct, frozen=True):
    """The calls of a tool that starts a job."""

    backend: McpBackendConfig
    config: McpJobConfig
    server: McpServer
    tool: UsableTool
    tools: Mapping[str, UsableTool]
    uris: Uris
    """The gateway's URIs for the server's resources."""
    require_accepted: Callable[[str], Awaitable[None]]
    """Raises `BackendError` if the server's definition of a tool is quarantined."""

    async def __call__(self, context: Context, arguments: dict[str, Any]) -> Returned:
        await context.continue_as_task()
        job = _ToolJob(self, context, arguments)
        # a worker that dies while the job starts must not start it again
        at_most_once = context.task_id is not None and not job.starts_once
        outcome = await follow(job, context, at_most_once=at_most_once)
        return result_from_wire(self.uris.in_result(outcome["result"]), self.backend.name)


class _ToolJob(Struct, frozen=True):
    calls: JobCalls
    context: Context
    arguments: Mapping[str, Any]

    @property
    def config(self) -> McpJobConfig:
        return self.calls.config

    @property
    def has_result(self) -> bool:
        return self.config.fetch is not None

    @property
    def is_cancellable(self) -> bool:
        return self.config.cancel is not None

    @property
    def starts_once(self) -> bool:
        return self.calls.tool.listed.may_be_repeated

    async def start(self) -> Any:
        for request in (self.config.poll, self.config.fetch, self.config.cancel):
            if request is not None:  # a job that cannot be followed must not start
                await self.calls.require_accepted(request.tool)
        try:
            raw = await self._call(self.calls.tool, dict(self.arguments))
        except BackendError as error:
            is_lost = isinstance(error, NoAnswer) and error.reached
            if is_lost or _is_status(error, is_in_doubt):
                raise NotNow(str(error)) from None
            raise
        return _value(_checked_result(raw, self.calls.tool.name))

    async def poll(self, values: Mapping[str, str]) -> tuple[Any, Kept]:
        raw = await self._ask(self.config.poll, values)
        return _value(_checked_result(raw, self.config.poll.tool)), {"result": raw}

    async def fetch(self, values: Mapping[str, str]) -> Kept:
        assert self.config.fetch is not None, "`follow` checks `has_result`"
        return {"result": await self._ask(self.config.fetch, values)}

    async def cancel(self, values: Mapping[str, str]) -> bool:
        assert self.config.cancel is not None, "`follow` checks `is_cancellable`"
        raw = await self._ask(self.config.cancel, values)
        # a tool has no error code for an unknown job; the next poll detects it
        return raw.get("isError") is not True

    async def _ask(self, request: JobToolConfig, values: Mapping[str, str]) -> Json:
        """Return a tool's result; raise NotNow if a later attempt may succeed."""
        tool = self.calls.tools[request.tool]
        arguments = BodyTemplate(request.arguments).filled({**self.arguments, **values})
        try:
            return await self._call(tool, _typed(arguments, tool))
        except UnexpectedAnswer:
            raise
        except NoAnswer as error:
            raise NotNow(str(error)) from None
        except BackendError as error:
            # without a reason, the request was not sent: the server is busy, or its breaker is open
            if error.reason in (None, _INTERNAL_ERROR) or _is_status(error, is_passing):
                raise NotNow(str(error)) from None
            raise

    async def _call(self, tool: UsableTool, arguments: Json) -> Json:
        """Return a tool's unchanged result; raise UnexpectedAnswer if it is no result. Declare no
        capability, so the server cannot ask."""
        await self.calls.require_accepted(tool.name)
        headers = of_arguments(tool.listed, arguments)
        own = self.calls.server.caller_headers(self.context.principal)
        raw = await self.calls.server.request(
            "tools/call",
            with_meta({"name": tool.name, "arguments": arguments}, self.context),
            Listener(None, refuse, None, headers, {}, own),
            self.context.deadline,
            is_repeatable=tool.listed.may_be_repeated,
        )
        if raw.get("resultType", "complete") != "complete":
            raise UnexpectedAnswer(
                f"{self.calls.backend.name} did not answer {tool.name} with a result; a tool of a job "
                "may neither ask nor become a task"
            )
        result_from_wire(raw, self.calls.backend.name)
        return raw


def _checked_result(raw: Json, tool: str) -> Json:
    """Return a result. Raise BackendError if it is a tool error."""
    if raw.get("isError") is True:
        raise BackendError(
            f"{tool} failed: {_text_from_result(raw)[:_REASON_CHARS]}", reason="tool error"
        )
    return raw


def _value(raw: Json) -> Any:
    if "structuredContent" in raw:
        return raw["structuredContent"]
    text = _text_from_result(raw)
    try:
        return decode(text.encode())
    except ParseError:
        return text


def _text_from_result(raw: Json) -> str:
    blocks = raw.get("content", [])
    texts = [block["text"] for block in blocks if isinstance(block.get("text"), str)]
    return "\n".join(texts)


def _typed(arguments: Json, tool: UsableTool) -> Json:
    """Return arguments with texts decoded where the tool's schema wants numbers or booleans, because
    the variables of a job are text."""
    properties = _properties(tool)
    typed = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, str) and _wants_decoded(properties.get(name)):
            try:
                typed[name] = decode(value.encode())
            except ParseError:
                continue  # the server reports the problem
    return typed


def _wants_decoded(schema: Any) -> bool:
    types = schema.get("type") if isinstance(schema, dict) else None
    listed = types if isinstance(types, list) else [types]
    return "string" not in listed and not _DECODED.isdisjoint(listed)


def _properties(tool: UsableTool) -> Mapping[str, Any]:
    properties = tool.definition["inputSchema"].get("properties")
    return properties if isinstance(properties, dict) else {}


def _is_status(error: BackendError, test: Any) -> bool:
    word, _, number = (error.reason or "").partition(" ")
    return word == "status" and number.isdigit() and bool(test(int(number)))
