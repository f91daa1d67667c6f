"""The table of the methods: who serves each, how its params look, what its
client must have declared.

What a revision calls a method, and which headers mirror it, is in that revision's own table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from roundgate.backends import Catalog, Fallback
from roundgate.clock import Clock
from roundgate.config import GatewayConfig
from roundgate.methods.calls import Calls
from roundgate.methods.changes import Changes
from roundgate.methods.completion import CompletionMethods
from roundgate.methods.discovery import DiscoveryMethods, features_of
from roundgate.methods.once import Once
from roundgate.methods.prompts import PromptMethods
from roundgate.methods.request import RequestContext
from roundgate.methods.resources import ResourceMethods
from roundgate.methods.results import Reply, Response, Results, Stream
from roundgate.methods.rounds import Rounds
from roundgate.methods.scopes import Scopes
from roundgate.methods.subscriptions import SubscriptionMethods
from roundgate.methods.tasks import TaskMethods
from roundgate.methods.tools import ToolMethods
from roundgate.protocol import REQUIRED as TASKS
from roundgate.protocol import Params, ResultFormat, params
from roundgate.replay import Texts
from roundgate.storage import SessionStore
from roundgate.tasks import NamedTasks, Watch
from roundgate.tokens import StateSealer

P = TypeVar("P", bound=Params)


class Tools(Protocol):
    """Who lists tools and calls them."""

    async def list(self, context: RequestContext, asked: params.ListParams) -> Reply:
        """tools/list"""

    async def call(self, context: RequestContext, asked: params.CallToolParams) -> Reply:
        """tools/call"""


@dataclass(frozen=True, slots=True)
class Method(Generic[P]):
    """One row."""

    serve: Callable[[RequestContext, P], Awaitable[Response]]
    params: type[P]
    requires: Mapping[str, Any] | None = None
    """What the client must have declared, shaped as `ClientCapabilities`."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the methods of one endpoint work with, whatever catalog they serve."""

    changes: Changes
    """What is told on streams."""
    rounds: Rounds
    once: Once
    tasks: NamedTasks
    watch: Watch
    """Looks for changes of tasks."""
    sealer: StateSealer
    rows: SessionStore
    clock: Clock
    streams: bool
    """Whether the platform can hold a stream open."""
    view: str = ""
    """The name of the view; that of everything has none."""
    shows_errors: bool = False
    """Whether callers see what unexpected exceptions say."""


class Methods:
    """All methods over one catalog, answering in one revision's format.

    Args:
        config: of what is served.
        catalog: tools, prompts and resources, of one view.
        parts: of the endpoint.
        result_format: how results are written: in which revision.
        texts: keeps the rest of long results.
    """

    def __init__(
        self,
        config: GatewayConfig,
        catalog: Catalog,
        parts: Parts,
        result_format: ResultFormat,
        texts: Texts | None = None,
    ) -> None:
        self.features = features_of(catalog, streams=parts.streams)
        """What there is something to serve for."""
        self._hub = parts.changes.hub
        self._catalog = catalog
        clock, rounds, tasks, caching = parts.clock, parts.rounds, parts.tasks, config.caching
        results = Results(result_format, clock)
        scopes = Scopes(catalog, are_checked=config.auth != "none")
        timeout_ms = config.limits.call_timeout_s * 1000
        publish, read = parts.changes.publish, catalog.read_resource
        calls = Calls(
            rounds, publish, clock, timeout_ms, texts, read, shows_errors=parts.shows_errors
        )
        self._table = _table(
            DiscoveryMethods(self.features, config.server.instructions, caching.discover, results),
            _tools(config, catalog, parts, scopes, calls, results),
            ResourceMethods(catalog, calls, rounds, results, caching),
            PromptMethods(catalog, calls, rounds, results, caching.prompts),
            CompletionMethods(catalog, calls, results, clock),
            SubscriptionMethods(
                parts.changes,
                self.features,
                tasks,
                parts.watch,
                scopes,
                results,
                clock,
                catalog,
                parts.view,
            ),
            TaskMethods(tasks, scopes, results),
        )

    def serve(self, context: RequestContext) -> Awaitable[Response]:
        """Serve one request.

        Raises:
            GatewayError: anything that is answered as a JSON-RPC error.
            AuthError: the caller may not do this.
        """
        inbound = context.inbound
        method = self._table[inbound.method]
        if method.requires is not None:
            inbound.meta.capabilities.require(method.requires, inbound.method)
        return method.serve(context, params.validate(method.params, inbound.params))

    def has_resource(self, uri: str) -> bool:
        """Whether there is something to read under a URI."""
        return self._catalog.has_resource(uri)

    def has_output_schema(self, tool: str) -> bool:
        """Whether clients expect a structured result of a tool."""
        served = self._catalog.tools.get(tool)
        return served is not None and "outputSchema" in served.tool.definition

    def end(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        self._hub.unsubscribe(stream.subscription)


def _tools(
    config: GatewayConfig,
    catalog: Catalog,
    parts: Parts,
    scopes: Scopes,
    calls: Calls,
    results: Results,
) -> Tools:
    """Who lists and calls tools, with what stands in for clients that cannot be
    asked, and for a long list."""
    cache, clock = config.caching.tools, parts.clock
    tools: Tools = ToolMethods(
        catalog,
        scopes,
        calls,
        parts.rounds,
        parts.once,
        parts.tasks,
        results,
        clock,
        cache=cache,
        max_result_bytes=config.tasks.max_result_bytes,
        shows_errors=parts.shows_errors,
    )
    fallback = Fallback.of(catalog, config.fallback)
    if fallback.is_on:
        from roundgate.methods.fallback import FallbackTools
        from roundgate.methods.in_words import InWords
        from roundgate.methods.waiting import Waiting

        waiting = Waiting(
            parts.watch,
            parts.sealer,
            clock,
            timeout_s=config.limits.call_timeout_s,
            max_rounds=config.state.max_rounds,
        )
        in_words = InWords(parts.sealer, parts.rows, clock, config.fallback.answer_tool)
        tools = FallbackTools(
            tools, fallback, scopes, parts.tasks, in_words, waiting, results, cache
        )
    if catalog.call_tool is not None:
        from roundgate.methods.through_search import ThroughSearch

        tools = ThroughSearch(tools, catalog, catalog.call_tool, results)
    return tools


def _table(
    discovery: DiscoveryMethods,
    tools: Tools,
    resources: ResourceMethods,
    prompts: PromptMethods,
    completion: CompletionMethods,
    subscriptions: SubscriptionMethods,
    tasks: TaskMethods,
) -> Mapping[str, Method[Any]]:
    return {
        "server/discover": Method(discovery.discover, params.Params),
        "tools/list": Method(tools.list, params.ListParams),
        "tools/call": Method(tools.call, params.CallToolParams),
        "resources/list": Method(resources.list, params.ListParams),
        "resources/templates/list": Method(resources.list_templates, params.ListParams),
        "resources/read": Method(resources.read, params.ReadResourceParams),
        "prompts/list": Method(prompts.list, params.ListParams),
        "prompts/get": Method(prompts.get, params.GetPromptParams),
        "completion/complete": Method(completion.complete, params.CompleteParams),
        "subscriptions/listen": Method(subscriptions.listen, params.ListenParams),
        "tasks/get": Method(tasks.get, params.TaskParams, requires=TASKS),
        "tasks/update": Method(tasks.update, params.UpdateTaskParams, requires=TASKS),
        "tasks/cancel": Method(tasks.cancel, params.TaskParams, requires=TASKS),
    }
