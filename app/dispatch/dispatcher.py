"""From an inbound request to its result.

One function per method, and for those that run a handler one path: rungs 7 and 8 of the ladder, the engine, and the
translation of what came out. A tool's failure becomes a result with `isError`; what the caller must not see stays in
the log under a reference.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from app.auth.principal import Principal
from app.backends.catalog import Catalog, ServedTool
from app.clock import Clock
from app.config import CacheHint, GatewayConfig, ServerConfig
from app.dispatch.subscriptions import SUBSCRIPTION_ID, Hub, Subscription
from app.errors import CallTimeout, InternalError, InvalidParams, ProtocolError, ToolError
from app.protocol import params
from app.protocol.content import ToolResult, without_none
from app.protocol.inbound import Inbound
from app.protocol.jsonrpc import encode
from app.protocol.methods import SUPPORTED_VERSIONS
from app.protocol.pages import Pages
from app.replay import engine
from app.replay.context import Call, Context, Notify
from app.replay.engine import Completed, Failed, Handler

T = TypeVar("T")

SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"

log = logging.getLogger("app.dispatch")


@dataclass(frozen=True, slots=True)
class Reply:
    """A result, serialised; `is_error` for a tool's failure, so that the log can count it."""

    result: bytes
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Stream:
    """subscriptions/listen: the open subscription and the result that closes it."""

    subscription: Subscription
    closing_result: bytes


Answer: TypeAlias = Reply | Stream


class Dispatcher:
    """The methods of the revision over one catalog."""

    def __init__(self, config: GatewayConfig, catalog: Catalog, hub: Hub, clock: Clock, streams: bool) -> None:
        self._catalog = catalog
        self._hub = hub
        self._clock = clock
        self._caching = config.caching
        self._call_timeout_ms = config.limits.call_timeout_s * 1000
        self._server_info = _server_info(config.server)
        self._instructions = config.server.instructions
        self.features = _features(catalog, streams)
        self._handlers: Mapping[str, Callable[[Inbound, Principal, Notify | None], Awaitable[Answer]]] = {
            "server/discover": self._discover,
            "tools/list": self._list("tools", catalog.tool_pages, self._caching.tools),
            "tools/call": self._call_tool,
            "resources/list": self._list("resources", catalog.resource_pages, self._caching.resources),
            "resources/templates/list": self._list(
                "resourceTemplates", catalog.template_pages, self._caching.resource_templates
            ),
            "resources/read": self._read_resource,
            "prompts/list": self._list("prompts", catalog.prompt_pages, self._caching.prompts),
            "prompts/get": self._get_prompt,
            "completion/complete": self._complete,
            "subscriptions/listen": self._listen,
        }

    async def dispatch(self, inbound: Inbound, principal: Principal, notify: Notify | None) -> Answer:
        """Serve one request. `notify` sends notifications on its stream, where the client wants and can have them.

        Raises:
            GatewayError: anything that is answered as a JSON-RPC error.
        """
        return await self._handlers[inbound.method.name](inbound, principal, notify)

    def end(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        self._hub.unsubscribe(stream.subscription)

    async def _discover(self, inbound: Inbound, principal: Principal, notify: Notify | None) -> Answer:
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
        return capabilities

    def _list(
        self, member: str, pages: Pages, hint: CacheHint
    ) -> Callable[[Inbound, Principal, Notify | None], Awaitable[Answer]]:
        """A list method. Nothing is serialised per request: a page and what stands around it are joined."""
        head, tail = b'{"%b":[' % member.encode(), self._stamp(_hint(hint))[1:]

        async def serve(inbound: Inbound, principal: Principal, notify: Notify | None) -> Answer:
            page = pages.page(params.validate(params.ListParams, inbound.params).cursor)
            more = b"" if page.next_cursor is None else b'"nextCursor":%b,' % encode(page.next_cursor)
            return Reply(b"%b%b],%b%b" % (head, page.entries, more, tail))

        return serve

    async def _call_tool(self, inbound: Inbound, principal: Principal, notify: Notify | None) -> Answer:
        asked = params.validate(params.CallToolParams, inbound.params)
        served = self._catalog.tool(asked.name)
        for header in served.param_headers:
            header.check(asked.arguments, inbound.headers.params)
        if served.tool.requires:
            inbound.meta.capabilities.require(served.tool.requires, f"tool {served.name}")
        if not served.arguments.is_valid(asked.arguments):
            result = _invalid_arguments(served, asked.arguments)
        else:
            call = served.tool.call
            outcome = await self._run(lambda context: call(context, asked.arguments), inbound, principal, notify)
            result = outcome.value if isinstance(outcome, Completed) else self._tool_failure(served, outcome.error)
        return Reply(self._stamp(result.to_wire()), result.is_error)

    def _tool_failure(self, served: ServedTool, error: Exception) -> ToolResult:
        if isinstance(error, ProtocolError):
            raise error
        if isinstance(error, ToolError):
            return ToolResult.error(str(error))
        reference = self._log_failure(f"tool {served.name}", error)
        return ToolResult.error(
            f"The tool failed unexpectedly; the server's log has the details under reference {reference}"
        )

    async def _get_prompt(self, inbound: Inbound, principal: Principal, notify: Notify | None) -> Answer:
        asked = params.validate(params.GetPromptParams, inbound.params)
        prompt = self._catalog.prompt(asked.name)
        _check_prompt_arguments(prompt.definition.get("arguments", ()), asked.arguments)
        messages = await self._value(
            lambda context: prompt.get(context, asked.arguments), f"prompt {asked.name}", inbound, principal, notify
        )
        described = without_none(description=prompt.definition.get("description"))
        return Reply(self._stamp({**described, "messages": [message.to_wire() for message in messages]}))

    async def _read_resource(self, inbound: Inbound, principal: Principal, notify: Notify | None) -> Answer:
        uri = params.validate(params.ReadResourceParams, inbound.params).uri
        resource, values = self._catalog.resource(uri)
        contents = await self._value(
            lambda context: resource.read(context, uri, values), f"resource {uri[:200]}", inbound, principal, notify
        )
        return Reply(self._stamp({"contents": [one.to_wire() for one in contents], **_hint(self._caching.read)}))

    async def _complete(self, inbound: Inbound, principal: Principal, notify: Notify | None) -> Answer:
        asked = params.validate(params.CompleteParams, inbound.params)
        name = asked.ref.name if isinstance(asked.ref, params.PromptReference) else asked.ref.uri
        completer = self._catalog.completers(asked.ref.type, name).get(asked.argument.name)
        if completer is None:
            return Reply(self._stamp({"completion": {"values": []}}))
        completion = await self._value(
            lambda _: completer(asked.argument.value), f"completion of {name[:200]}", inbound, principal, notify
        )
        return Reply(self._stamp({"completion": completion.to_wire()}))

    async def _listen(self, inbound: Inbound, principal: Principal, notify: Notify | None) -> Answer:
        wanted = params.validate(params.ListenParams, inbound.params).notifications
        closing = self._stamp({"_meta": {SUBSCRIPTION_ID: inbound.id}})
        return Stream(self._hub.subscribe(inbound.id, wanted, self.features), closing)

    async def _run(
        self, handler: Handler[T], inbound: Inbound, principal: Principal, notify: Notify | None
    ) -> Completed[T] | Failed:
        deadline = self._clock.deadline(self._call_timeout_ms)
        call = Call(principal, inbound.meta, deadline, notify, self._hub.publish)
        return await engine.run(handler, Context(call))

    async def _value(
        self, handler: Handler[T], what: str, inbound: Inbound, principal: Principal, notify: Notify | None
    ) -> T:
        """What a handler returned, where there is no tool error to answer with.

        Raises:
            ProtocolError: the handler's own, or -32602 for arguments that do not fit.
            InternalError: any other failure; its cause is in the log.
        """
        match await self._run(handler, inbound, principal, notify):
            case Completed(value):
                return value
            case Failed(ProtocolError() as error):
                raise error
            case Failed(ToolError() as error) if not isinstance(error, CallTimeout):
                raise InvalidParams(str(error))
            case Failed(error):
                raise InternalError(self._log_failure(what, error))

    def _log_failure(self, what: str, error: Exception) -> str:
        reference = self._clock.new_id()
        log.error("%s failed", what, exc_info=error, extra={"fields": {"reference": reference}})
        return reference

    def _stamp(self, result: dict[str, Any]) -> bytes:
        """Serialise a result with `resultType` and `serverInfo`, which every result carries (basic/index).

        Raises:
            InternalError: a handler put something into it that is not JSON.
        """
        meta = {**result.get("_meta", {}), SERVER_INFO: self._server_info}
        try:
            return encode({**result, "resultType": "complete", "_meta": meta})
        except (TypeError, ValueError, RecursionError) as error:
            raise InternalError(self._log_failure("writing the result", error)) from error


def _features(catalog: Catalog, streams: bool) -> frozenset[str]:
    """What there is something to serve for; the method table asks this before it lets a request in."""
    served = {
        "tools": bool(catalog.tools),
        "prompts": bool(catalog.prompts),
        "resources": bool(catalog.resources or catalog.templates),
        "completions": catalog.can_complete,
        "subscriptions": streams,
    }
    return frozenset(feature for feature, is_served in served.items() if is_served)


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
