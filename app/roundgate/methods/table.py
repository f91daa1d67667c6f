"""The table of the methods: who serves each, how its params look, what its client must have declared.

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


class Methods:
    """All methods over one catalog, answering in one revision's format.

    Args:
        config: of what is served.
        catalog: tools, prompts and resources, of one view.
        changes: what is told on streams.
        rounds: of this view.
        once: of this view.
        tasks: of this view.
        watch: looks for changes of tasks.
        clock: of the process.
        result_format: how results are written: in which revision.
        streams: whether the platform can hold a stream open.
        view: the name of the view; that of everything has none.
    """

    def __init__(
        self,
        config: GatewayConfig,
        catalog: Catalog,
        changes: Changes,
        rounds: Rounds,
        once: Once,
        tasks: NamedTasks,
        watch: Watch,
        clock: Clock,
        result_format: ResultFormat,
        *,
        sealer: StateSealer,
        rows: SessionStore,
        streams: bool,
        view: str = "",
        texts: Texts | None = None,
        shows_errors: bool = False,
    ) -> None:
        self.features = features_of(catalog, streams=streams)
        """What there is something to serve for."""
        self._hub = changes.hub
        self._catalog = catalog
        caching, results = config.caching, Results(result_format, clock)
        scopes = Scopes(catalog, are_checked=config.auth != "none")
        calls = Calls(
            rounds,
            changes.publish,
            clock,
            config.limits.call_timeout_s * 1000,
            texts,
            shows_errors=shows_errors,
        )
        tools: Tools = ToolMethods(
            catalog,
            scopes,
            calls,
            rounds,
            once,
            tasks,
            results,
            clock,
            cache=caching.tools,
            max_result_bytes=config.tasks.max_result_bytes,
            shows_errors=shows_errors,
        )
        fallback = Fallback.of(catalog, config.fallback)
        if fallback.is_on:
            from roundgate.methods.fallback import FallbackTools
            from roundgate.methods.in_words import InWords
            from roundgate.methods.waiting import Waiting

            waiting = Waiting(
                watch,
                sealer,
                clock,
                timeout_s=config.limits.call_timeout_s,
                max_rounds=config.state.max_rounds,
            )
            in_words = InWords(sealer, rows, clock, config.fallback.answer_tool)
            tools = FallbackTools(
                tools,
                fallback,
                scopes,
                tasks,
                in_words,
                waiting,
                results,
                caching.tools,
            )
        if catalog.call_tool is not None:
            from roundgate.methods.through_search import ThroughSearch

            tools = ThroughSearch(tools, catalog, catalog.call_tool, results)
        self._table = _table(
            DiscoveryMethods(self.features, config.server.instructions, caching.discover, results),
            tools,
            ResourceMethods(catalog, calls, rounds, results, caching),
            PromptMethods(catalog, calls, rounds, results, caching.prompts),
            CompletionMethods(catalog, calls, results, clock),
            SubscriptionMethods(
                changes, self.features, tasks, watch, scopes, results, clock, catalog, view
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
