"""The methods of prompts and resources, and completions of their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roundgate.aio import crowded_room
from roundgate.backends.base import Resource
from roundgate.errors import MAX_URI, InternalError, InvalidParams
from roundgate.json import approximate_size
from roundgate.methods.parts import Kit, Listing, list_hint
from roundgate.methods.rounds import CallTarget, InputRequired, Reply, RequestContext
from roundgate.protocol import (
    CompleteParams,
    ForwardedPrompt,
    ForwardedRead,
    GetPromptParams,
    ListParams,
    PromptReference,
    ReadResourceParams,
    without_none,
)
from roundgate.replay import Journal, Restarted, Run, Suspended, engine
from roundgate.settings import CacheSection
from roundgate.tasks import log_failure

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
        self._clock = kit.parts.clock

    async def complete(self, context: RequestContext, params: CompleteParams) -> Reply:
        """Serve completion/complete. Raise InternalError if the completion asks a question."""
        name = params.ref.name if isinstance(params.ref, PromptReference) else params.ref.uri
        item = self._catalog.completed(params.ref)
        self._access.check_completion(name, item, context.principal)
        completer = item.complete.get(params.argument.name)
        if completer is None:
            return self._results.reply({"completion": {"values": []}})
        subject = f"completion of {name[:200]}"
        call = self._calls.call(context)
        outcome = await engine.run_handler(
            lambda: completer(call.principal, params.argument.value, params.context.arguments),
            Run(call, Journal()),
        )
        if isinstance(outcome, (Suspended, Restarted)):  # a completion has no context to ask with
            raise InternalError(
                log_failure(subject, RuntimeError("the completion asked a question"), self._clock)
            )
        completion = self._calls.value(outcome, subject)
        if isinstance(item, Resource):
            completion = self._access.allowed_values(
                *(completion, item, params.argument.name, params.context.arguments),
                context.principal,
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
