"""The table of the methods: each method's function, its params, and the capabilities that it
requires. The table of the revision has the params that `Mcp-Name` mirrors."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from roundgate.backends import Catalog, Fallback
from roundgate.config import GatewayConfig
from roundgate.methods.access import Access
from roundgate.methods.extensions import EXTENSIONS
from roundgate.methods.parts import (
    Arguments,
    Kit,
    Method,
    Methods,
    Parts,
    Replies,
    Tools,
)
from roundgate.methods.prompts_and_resources import (
    CompletionMethods,
    PromptMethods,
    ResourceMethods,
)
from roundgate.methods.rates import ConfiguredLimits
from roundgate.methods.rounds import Calls, Reply, RequestContext
from roundgate.methods.subscriptions import SubscriptionMethods
from roundgate.methods.tools import ToolMethods
from roundgate.protocol import (
    SUPPORTED_VERSIONS,
    CallToolParams,
    ListParams,
    ResultFormat,
    params,
    without_none,
)
from roundgate.replay import LongTexts
from roundgate.settings import ServerConfig
from roundgate.tasks import Life


def make_methods(
    config: GatewayConfig,
    catalog: Catalog,
    parts: Parts,
    result_format: ResultFormat,
    texts: LongTexts | None = None,
) -> Methods:
    """Return all methods over one catalog.

    Args:
        config: the configuration of the server.
        catalog: tools, prompts and resources of one view.
        parts: the parts of the endpoint.
        result_format: the format of results in a revision.
        texts: the store for the rest of long results.
    """
    kit = Kit(
        config,
        catalog,
        parts,
        catalog_features(catalog, streams=parts.streams),
        Replies(result_format, parts.clock),
        Access(catalog, parts.rates.metrics),
        Arguments(config.arguments, parts.rates.metrics),
        Calls(
            sealer=parts.sealer,
            clock=parts.clock,
            view=parts.view,
            max_rounds=config.state.max_rounds,
            publish=parts.changes.publish,
            texts=texts,
            hidden=parts.hidden,
            read=catalog.read_resource,
            shows_errors=parts.shows_errors,
            life=Life.from_config(config.tasks),
            trail=parts.trail,
        ),
        parts.rates.limits(config.rate),
    )
    return Methods(_table(kit), kit)


def _table(kit: Kit) -> Mapping[str, Method[Any]]:
    discovery, tools = DiscoveryMethods(kit), _tools(kit)
    resources, prompts = ResourceMethods(kit), PromptMethods(kit)
    table: dict[str, Method[Any]] = {
        "server/discover": Method(discovery.discover, params.Params),
        "tools/list": Method(tools.list, params.ListParams),
        "tools/call": Method(tools.call, params.CallToolParams),
        "resources/list": Method(resources.list, params.ListParams),
        "resources/templates/list": Method(resources.list_templates, params.ListParams),
        "resources/read": Method(resources.read, params.ReadResourceParams, counts=True),
        "prompts/list": Method(prompts.list, params.ListParams),
        "prompts/get": Method(prompts.get, params.GetPromptParams, counts=True),
        "completion/complete": Method(
            CompletionMethods(kit).complete, params.CompleteParams, counts=True
        ),
        "subscriptions/listen": Method(SubscriptionMethods(kit).listen, params.ListenParams),
    }
    for extension in EXTENSIONS:
        table |= extension.methods(kit)
    return _limited_methods(table, kit)


def _tools(kit: Kit) -> Tools:
    """Return the methods of tools, with substitutes for clients that lack capabilities, and with
    the changes of extensions."""
    tools = _limited_tools(ToolMethods(kit), kit)
    fallback = Fallback.of(kit.catalog, kit.config.fallback)
    if fallback.is_on:
        from roundgate.methods.fallback import FallbackTools

        tools = FallbackTools(tools, fallback, kit)
    for extension in EXTENSIONS:
        tools = extension.tools(tools, kit)
    return tools


class DiscoveryMethods:
    """The method server/discover: the same answer for every caller until the catalog changes."""

    def __init__(self, kit: Kit) -> None:
        members = {
            "supportedVersions": list(SUPPORTED_VERSIONS),
            "capabilities": capabilities(kit.features),
            **without_none(instructions=kit.config.server.instructions),
        }
        self._reply = kit.results.reply(members, kit.config.caching.discover)

    async def discover(self, context: RequestContext, _params: params.Params) -> Reply:
        """Serve server/discover."""
        return self._reply


def catalog_features(catalog: Catalog, *, streams: bool) -> frozenset[str]:
    """Return the features for which a catalog has anything to serve; a revision accepts requests
    accordingly. A missing back end may have tools, and a client that was offered no tools would not
    list them later."""
    is_incomplete = any(missing.heals_itself for missing in catalog.missing.values())
    served = {
        "tools": bool(catalog.tools or catalog.missing or catalog.is_tolerant),
        "prompts": bool(catalog.prompts or is_incomplete or "prompts" in catalog.may_list),
        "resources": bool(
            catalog.resources
            or catalog.templates
            or catalog.unlisted
            or is_incomplete
            or "resources" in catalog.may_list
        ),
        "completions": catalog.can_complete,
        "subscriptions": streams,
        **{extension.feature: extension.is_served(catalog) for extension in EXTENSIONS},
    }
    return frozenset(feature for feature, is_served in served.items() if is_served)


def capabilities(features: frozenset[str]) -> dict[str, Any]:
    """Return the schema's `ServerCapabilities` for the features."""
    changes = {"listChanged": True} if "subscriptions" in features else {}
    members: dict[str, Any] = {
        name: dict(changes) for name in ("tools", "prompts", "resources") if name in features
    }
    if "resources" in members and changes:
        members["resources"]["subscribe"] = True
    if "completions" in features:
        members["completions"] = {}
    if members:
        members["logging"] = {}  # any handler may log to a client that requests log messages
    extensions = {
        extension.name: settings
        for extension in EXTENSIONS
        if extension.feature in features and (settings := extension.settings()) is not None
    }
    if extensions:
        members["extensions"] = extensions
    return members


def server_info(server: ServerConfig) -> dict[str, Any]:
    """Return the schema's `Implementation`."""
    optional = without_none(
        title=server.title, description=server.description, websiteUrl=server.website_url
    )
    return {"name": server.name, "version": server.version, **optional}


class _LimitedTools:
    """Tools whose calls count."""

    def __init__(self, tools: Tools, limits: ConfiguredLimits, catalog: Catalog) -> None:
        self._tools = tools
        self._limits = limits
        self._served = catalog.tools
        self._limits_of_tools = limits.of_tools(catalog)

    async def list(self, context: RequestContext, params: ListParams) -> Reply:
        """Serve tools/list."""
        return await self._tools.list(context, params)

    def call(self, context: RequestContext, params: CallToolParams) -> Awaitable[Reply]:
        """Serve tools/call."""
        if params.name in self._served:  # any other name would make the metrics grow
            context.correlation.tool = params.name
        limits_of_tool = self._limits_of_tools.get(params.name, ())
        return self._limits.serve(context, params, self._tools.call, limits_of_tool, params.name)


def _limited_tools(tools: Tools, kit: Kit) -> Tools:
    """Return the tools, with calls that count if the configuration limits any."""
    return tools if kit.limits is None else _LimitedTools(tools, kit.limits, kit.catalog)


def _limited_methods(table: Mapping[str, Method[Any]], kit: Kit) -> Mapping[str, Method[Any]]:
    """Return the table of methods, with requests that count if the configuration limits any."""
    if kit.limits is None:
        return table
    limited = {
        name: replace(method, serve=partial(kit.limits.serve, serve=method.serve))
        for name, method in table.items()
        if method.counts
    }
    return {**table, **limited}
