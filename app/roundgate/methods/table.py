"""The table of the methods: who serves each, how its params look, what its client must have
declared. A swap makes another table; requests that have begun keep theirs.

What `Mcp-Name` mirrors of a method is in the table of its revision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from roundgate.backends import Catalog, Fallback
from roundgate.config import GatewayConfig
from roundgate.methods.discovery import DiscoveryMethods, features_of
from roundgate.methods.extensions import EXTENSIONS
from roundgate.methods.parts import Kit, Method, Parts, Tools
from roundgate.methods.prompts_and_resources import (
    CompletionMethods,
    PromptMethods,
    ResourceMethods,
)
from roundgate.methods.results import Response, Results, Stream
from roundgate.methods.rounds import Calls, RequestContext
from roundgate.methods.scopes import Scopes
from roundgate.methods.subscriptions import SubscriptionMethods
from roundgate.methods.tools import ToolMethods
from roundgate.protocol import ResultFormat, params
from roundgate.replay import Texts

Use: TypeAlias = Callable[[], AbstractContextManager[Catalog]]
"""Keeps the back ends behind the methods' catalog open while a request runs."""


class Methods:
    """All methods over one catalog, answering in one revision's format.

    Args:
        config: the configuration of what is served.
        catalog: tools, prompts and resources of one view.
        parts: the parts of the endpoint.
        result_format: writes results as a revision has them.
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
        calls = Calls(
            parts.rounds,
            parts.changes.publish,
            parts.clock,
            config.limits.call_timeout_s * 1000,
            texts,
            catalog.read_resource,
            shows_errors=parts.shows_errors,
        )
        results = Results(result_format, parts.clock)
        scopes = Scopes(catalog, are_checked=config.auth != "none")
        self._table = _table(Kit(config, catalog, parts, self.features, results, scopes, calls))

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


class CurrentMethods:
    """Serves each request with the methods that are the current ones when it comes."""

    def __init__(self, methods: Methods, use: Use) -> None:
        self.now = methods
        self._use = use

    @property
    def features(self) -> frozenset[str]:
        """What there is something to serve for."""
        return self.now.features

    async def serve(self, context: RequestContext) -> Response:
        """Serve one request to its end with what is served now. Raises as `Methods.serve`."""
        methods = self.now
        with self._use():
            return await methods.serve(context)

    def swap(self, methods: Methods, use: Use) -> None:
        """Serve the requests that come from now on with others."""
        self.now, self._use = methods, use


def _table(kit: Kit) -> Mapping[str, Method[Any]]:
    discovery, tools = DiscoveryMethods(kit), _tools(kit)
    resources, prompts = ResourceMethods(kit), PromptMethods(kit)
    table: dict[str, Method[Any]] = {
        "server/discover": Method(discovery.discover, params.Params),
        "tools/list": Method(tools.list, params.ListParams),
        "tools/call": Method(tools.call, params.CallToolParams),
        "resources/list": Method(resources.list, params.ListParams),
        "resources/templates/list": Method(resources.list_templates, params.ListParams),
        "resources/read": Method(resources.read, params.ReadResourceParams),
        "prompts/list": Method(prompts.list, params.ListParams),
        "prompts/get": Method(prompts.get, params.GetPromptParams),
        "completion/complete": Method(CompletionMethods(kit).complete, params.CompleteParams),
        "subscriptions/listen": Method(SubscriptionMethods(kit).listen, params.ListenParams),
    }
    for extension in EXTENSIONS:
        table |= extension.methods(kit)
    return table


def _tools(kit: Kit) -> Tools:
    """Return what lists and calls tools, with the substitutes for clients that cannot be asked and
    with what extensions change."""
    tools: Tools = ToolMethods(kit)
    fallback = Fallback.of(kit.catalog, kit.config.fallback)
    if fallback.is_on:
        from roundgate.methods.fallback import FallbackTools

        tools = FallbackTools(tools, fallback, kit)
    for extension in EXTENSIONS:
        tools = extension.tools(tools, kit)
    return tools
