"""The table of the methods: each method's function, its params, and the capabilities that it
requires; and the methods server/discover and subscriptions/listen.

The table of the revision has the params that `Mcp-Name` mirrors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from roundgate.auth import Principal
from roundgate.backends import Catalog, Fallback
from roundgate.config import GatewayConfig
from roundgate.errors import CallRefused, InsufficientScope, TaskNotFound
from roundgate.methods.access import Access
from roundgate.methods.changes import OpenSubscription
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
from roundgate.methods.rounds import Calls, Reply, RequestContext, Stream
from roundgate.methods.tools import ToolMethods
from roundgate.protocol import (
    REQUIRED,
    SUPPORTED_VERSIONS,
    CallToolParams,
    ListenParams,
    ListParams,
    ResultFormat,
    SubscriptionFilter,
    TaskView,
    notifications,
    params,
    without_none,
)
from roundgate.replay import LongTexts
from roundgate.settings import ServerConfig
from roundgate.tasks import Life, NamedTask


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


MAX_STREAM_S: Final = 30 * 86_400
"""The maximum life of a stream whose token expires later, in seconds."""


def served_filter(
    view: str, access: Access, principal: Principal, params: ListenParams
) -> SubscriptionFilter:
    """Return the client's filter, limited to the resources of the view that the caller may read."""
    requested = params.notifications
    uris = requested.resource_subscriptions
    own = [uri for uri in uris if access.may_subscribe(uri, principal, view)]
    return requested if own == uris else replace(requested, resource_subscriptions=own)


class SubscriptionMethods:
    """The method that opens streams of changes of lists, resources and the caller's tasks, at any
    replica."""

    def __init__(self, kit: Kit) -> None:
        self._changes = kit.parts.changes
        self._view = kit.parts.view
        self._features = kit.features
        self._tasks = kit.parts.tasks
        self._watch = kit.parts.watch
        self._access = kit.access
        self._results = kit.results
        self._clock = kit.parts.clock

    async def listen(self, context: RequestContext, params: ListenParams) -> Stream:
        """Serve subscriptions/listen.

        Raises:
            Unavailable: there are too many streams, or a store cannot be reached.
            MissingCapability: the client listens to tasks without the tasks extension.
        """
        inbound, principal = context.inbound, context.principal
        requested = served_filter(self._view, self._access, principal, params)
        closing = self._results.write({"_meta": {notifications.SUBSCRIPTION_ID: inbound.id}})
        known = await self._known(context, requested.task_ids)
        task_ids = [task.id for task, _ in known]
        await self._changes.ready()
        subscription = self._changes.hub.subscribe(
            inbound.id, principal, requested, self._features, task_ids, self._view
        )
        if any(method != notifications.TASK for method, _ in subscription.topics):
            self._changes.follow(subscription)
        for task, view in known:
            self._follow(subscription, task, view)
        self._end_with_token(subscription, principal)
        return Stream(subscription, closing)

    def _end_with_token(self, subscription: OpenSubscription, principal: Principal) -> None:
        """Close a stream when the token that opened it expires."""
        if principal.expires_at_s is None:
            return
        left_s = principal.expires_at_s - self._clock.now_ms() / 1000
        timer = asyncio.get_running_loop().call_later(
            min(max(0.0, left_s), MAX_STREAM_S), subscription.close
        )
        subscription.ends.append(timer.cancel)

    async def _known(
        self, context: RequestContext, task_ids: Sequence[str]
    ) -> list[tuple[NamedTask, TaskView | None]]:
        """Return the caller's tasks whose tools it may call, with their views. The task of a
        service has no view, because a stream does not wait for services."""
        if not task_ids:
            return []
        context.inbound.meta.capabilities.require(
            REQUIRED, "listening to tasks", has_substitute=False
        )
        if "tasks" not in self._features:
            return []
        known: list[tuple[NamedTask, TaskView | None]] = []
        for task_id in dict.fromkeys(task_ids):
            with suppress(TaskNotFound, InsufficientScope, CallRefused):
                task = self._tasks.find(context.principal, task_id)
                self._access.check(await task.tool(), context.principal)
                known.append((task, None if task.backend else await task.look()))
        return known

    def _follow(
        self, subscription: OpenSubscription, task: NamedTask, view: TaskView | None
    ) -> None:
        """Send the view of a task to a stream, now and after each change."""

        def tell(view: TaskView) -> None:
            subscription.offer((notifications.TASK, task.id), self._tasks.detailed(view))

        if view is not None:
            tell(view)  # so that no change since the client's last read is lost
        subscription.ends.append(self._watch.begin(task, view, tell))
