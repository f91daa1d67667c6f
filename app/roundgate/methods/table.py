"""The table of the methods: each method's function, its params, and the capabilities that it
requires; and all methods but those of tools and extensions.

The table of the revision has the params that `Mcp-Name` mirrors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from roundgate.aio import crowded_room
from roundgate.auth import Principal
from roundgate.backends import Catalog, Fallback
from roundgate.backends.base import Resource
from roundgate.config import GatewayConfig
from roundgate.errors import (
    MAX_URI,
    CallRefused,
    InsufficientScope,
    InvalidParams,
    TaskNotFound,
)
from roundgate.json import approximate_size
from roundgate.methods.access import Access
from roundgate.methods.changes import OpenSubscription
from roundgate.methods.extensions import EXTENSIONS
from roundgate.methods.parts import (
    Arguments,
    Kit,
    Listing,
    Method,
    Methods,
    Parts,
    Replies,
    Tools,
    list_hint,
)
from roundgate.methods.rates import ConfiguredLimits
from roundgate.methods.rounds import Calls, CallTarget, InputRequired, Reply, RequestContext, Stream
from roundgate.methods.tools import ToolMethods
from roundgate.protocol import (
    REQUIRED,
    SUPPORTED_VERSIONS,
    CallToolParams,
    CompleteParams,
    ForwardedPrompt,
    ForwardedRead,
    GetPromptParams,
    ListenParams,
    ListParams,
    PromptReference,
    ReadResourceParams,
    ResultFormat,
    SubscriptionFilter,
    TaskView,
    notifications,
    params,
    without_none,
)
from roundgate.replay import LongTexts
from roundgate.settings import CacheSection, ServerConfig
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
        task_ids = [task.id for task, *_ in known]
        await self._changes.ready()
        subscription = self._changes.hub.subscribe(
            inbound.id, principal, requested, self._features, task_ids, self._view
        )
        if any(method != notifications.TASK for method, _ in subscription.topics):
            self._changes.follow(subscription)
        for task, tool, view in known:
            subscription.tools[task.id] = tool
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
    ) -> list[tuple[NamedTask, str, TaskView | None]]:
        """Return the caller's tasks whose tools it may call, with their tools and views. The task of
        a service has no view, because a stream does not wait for services."""
        if not task_ids:
            return []
        context.inbound.meta.capabilities.require(
            REQUIRED, "listening to tasks", has_substitute=False
        )
        if "tasks" not in self._features:
            return []
        known: list[tuple[NamedTask, str, TaskView | None]] = []
        for task_id in dict.fromkeys(task_ids):
            with suppress(TaskNotFound, InsufficientScope, CallRefused):
                task = self._tasks.find(context.principal, task_id)
                tool = await task.tool()
                self._access.check(tool, context.principal)
                known.append((task, tool, None if task.backend else await task.look()))
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


_UNCACHED: Final = CacheSection(ttl_ms=0, scope="private")


class PromptMethods:
    """The methods of prompts."""

    def __init__(self, kit: Kit) -> None:
        self._catalog = kit.catalog
        self._calls = kit.calls
        self._results = kit.results
        self._access = kit.access
        hint = list_hint(kit.config.caching.prompts, kit.catalog, is_personal=kit.access.any_prompt)
        self._list = Listing("prompts", hint, kit.results)

    async def list(self, context: RequestContext, params: ListParams) -> Reply:
        """Serve prompts/list."""
        return self._list.reply(self._access.pages("prompts", context.principal), params.cursor)

    async def get(self, context: RequestContext, params: GetPromptParams) -> Reply:
        """Serve prompts/get."""
        prompt = self._catalog.prompt(params.name)
        self._access.check_prompt(params.name, prompt, context.principal)
        _check_arguments(prompt.definition.get("arguments", ()), params.arguments)
        round_ = self._calls.begin(
            CallTarget("prompts/get", params.name, params.arguments), params, context
        )
        call = self._calls.call(context, round_)
        outcome = await self._calls.run(round_, call, lambda ctx: prompt.get(ctx, params.arguments))
        if isinstance(outcome, InputRequired):
            return self._results.input_required(outcome)
        messages = self._calls.value(outcome, f"prompt {params.name}")
        if isinstance(messages, ForwardedPrompt):
            return self._results.reply(messages.wire)
        described = without_none(description=prompt.definition.get("description"))
        return self._results.reply(
            {**described, "messages": [message.to_wire() for message in messages]}
        )


class ResourceMethods:
    """The methods of resources and resource templates."""

    def __init__(self, kit: Kit) -> None:
        self._catalog = kit.catalog
        self._calls = kit.calls
        self._results = kit.results
        caching = kit.config.caching
        self._access = kit.access
        self._cache = caching.read
        if kit.access.any_resource:
            self._cache = caching.read.model_copy(update={"scope": "private"})
        self._list, self._templates = (
            Listing(
                name,
                list_hint(hint, kit.catalog, is_personal=kit.access.any_resource),
                kit.results,
            )
            for name, hint in (
                ("resources", caching.resources),
                ("resourceTemplates", caching.resource_templates),
            )
        )

    async def list(self, context: RequestContext, params: ListParams) -> Reply:
        """Serve resources/list."""
        return self._list.reply(self._access.pages("resources", context.principal), params.cursor)

    async def list_templates(self, context: RequestContext, params: ListParams) -> Reply:
        """Serve resources/templates/list."""
        pages = self._access.pages("templates", context.principal)
        return self._templates.reply(pages, params.cursor)

    async def read(self, context: RequestContext, params: ReadResourceParams) -> Reply:
        """Serve resources/read."""
        resource, values = self._catalog.resource(params.uri)
        self._access.check_resource(params.uri, resource, context.principal)
        round_ = self._calls.begin(CallTarget("resources/read", params.uri), params, context)
        call = self._calls.call(context, round_)
        outcome = await self._calls.run(
            round_, call, lambda ctx: resource.read(ctx, params.uri, values)
        )
        if isinstance(outcome, InputRequired):
            return self._results.input_required(outcome)
        value = self._calls.value(outcome, f"resource {params.uri[:MAX_URI]}")
        # "requests carrying inputResponses or requestState MUST NOT be cached"
        # (server/utilities/caching)
        cache = _UNCACHED if params.input_responses is not None or round_.opened else self._cache
        if isinstance(value, ForwardedRead):
            cache = _stricter(cache, value)
            others, value = value.others, value.contents
        else:
            others = {}
        contents = [content.to_wire() for content in value]
        if (room := crowded_room()) is not None:
            await room.keep(approximate_size(contents))
        return self._results.reply({**others, "contents": contents}, cache)


class CompletionMethods:
    """The method that completes arguments of prompts and resource templates."""

    def __init__(self, kit: Kit) -> None:
        self._catalog = kit.catalog
        self._calls = kit.calls
        self._results = kit.results
        self._access = kit.access

    async def complete(self, context: RequestContext, params: CompleteParams) -> Reply:
        """Serve completion/complete."""
        name = params.ref.name if isinstance(params.ref, PromptReference) else params.ref.uri
        item = self._catalog.completed(params.ref)
        self._access.check_completion(name, item, context.principal)
        completer = item.complete.get(params.argument.name)
        if completer is None:
            return self._results.reply({"completion": {"values": []}})
        principal, known = context.principal, params.context.arguments
        completion = await self._calls.ask(
            context,
            f"completion of {name[:200]}",
            lambda: completer(principal, params.argument.value, known),
        )
        if isinstance(item, Resource):
            completion = self._access.allowed_values(
                completion, item, params.argument.name, known, principal
            )
        return self._results.reply({"completion": completion.to_wire()})


def _stricter(cache: CacheSection, result: ForwardedRead) -> CacheSection:
    """Return the caching hint of the gateway, as far as the server allows it too."""
    if result.ttl_ms is not None and result.ttl_ms < cache.ttl_ms:
        cache = cache.model_copy(update={"ttl_ms": max(0, result.ttl_ms)})
    return cache.model_copy(update={"scope": "private"}) if result.is_private else cache


def _check_arguments(declared: Any, arguments: Mapping[str, Any]) -> None:
    names = [argument["name"] for argument in declared]
    missing = [
        argument["name"]
        for argument in declared
        if argument.get("required") and argument["name"] not in arguments
    ]
    if missing:
        raise InvalidParams(f"Invalid params: missing arguments: {', '.join(missing)}")
    if unknown := [name for name in arguments if name not in names]:
        raise InvalidParams(
            f"Invalid params: unknown arguments {', '.join(unknown)[:200]}; there are: "
            f"{', '.join(names)}"
        )
    if not_text := [name for name in names if not isinstance(arguments.get(name, ""), str)]:
        raise InvalidParams(f"Invalid params: arguments that are not text: {', '.join(not_text)}")
