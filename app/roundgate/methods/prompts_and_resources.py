"""The methods of prompts and resources, and completions of their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from roundgate.errors import InternalError, InvalidParams
from roundgate.methods.parts import Kit, Listing
from roundgate.methods.rounds import InputRequired, Reply, RequestContext, Target
from roundgate.protocol import (
    CompleteParams,
    GetPromptParams,
    ListParams,
    PromptReference,
    ReadResourceParams,
    without_none,
)
from roundgate.replay import Journal, Restarted, Run, Suspended, engine
from roundgate.settings import CacheHint
from roundgate.tasks import log_failure

_UNCACHED: Final = CacheHint(ttl_ms=0, scope="private")


class PromptMethods:
    """The methods of prompts."""

    def __init__(self, kit: Kit) -> None:
        self._catalog = kit.catalog
        self._calls = kit.calls
        self._results = kit.results
        self._list = Listing("prompts", kit.config.caching.prompts, kit.results)

    async def list(self, context: RequestContext, asked: ListParams) -> Reply:
        """Serve prompts/list."""
        return self._list.reply(self._catalog.prompt_pages, asked.cursor)

    async def get(self, context: RequestContext, asked: GetPromptParams) -> Reply:
        """Serve prompts/get."""
        prompt = self._catalog.prompt(asked.name)
        _check_arguments(prompt.definition.get("arguments", ()), asked.arguments)
        round_ = self._calls.begin(
            Target("prompts/get", asked.name, asked.arguments), asked, context
        )
        call = self._calls.call(context, round_)
        outcome = await self._calls.run(round_, call, lambda ctx: prompt.get(ctx, asked.arguments))
        if isinstance(outcome, InputRequired):
            return self._results.input_required(outcome)
        messages = self._calls.value(outcome, f"prompt {asked.name}")
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
        self._cache = caching.read
        self._list = Listing("resources", caching.resources, kit.results)
        self._templates = Listing("resourceTemplates", caching.resource_templates, kit.results)

    async def list(self, context: RequestContext, asked: ListParams) -> Reply:
        """Serve resources/list."""
        return self._list.reply(self._catalog.resource_pages, asked.cursor)

    async def list_templates(self, context: RequestContext, asked: ListParams) -> Reply:
        """Serve resources/templates/list."""
        return self._templates.reply(self._catalog.template_pages, asked.cursor)

    async def read(self, context: RequestContext, asked: ReadResourceParams) -> Reply:
        """Serve resources/read."""
        resource, values = self._catalog.resource(asked.uri)
        round_ = self._calls.begin(Target("resources/read", asked.uri), asked, context)
        call = self._calls.call(context, round_)
        outcome = await self._calls.run(
            round_, call, lambda ctx: resource.read(ctx, asked.uri, values)
        )
        if isinstance(outcome, InputRequired):
            return self._results.input_required(outcome)
        contents = self._calls.value(outcome, f"resource {asked.uri[:200]}")
        # "requests carrying inputResponses or requestState MUST NOT be cached"
        # (server/utilities/caching)
        cache = _UNCACHED if asked.input_responses is not None or round_.opened else self._cache
        return self._results.reply({"contents": [content.to_wire() for content in contents]}, cache)


class CompletionMethods:
    """The method that completes arguments of prompts and resource templates."""

    def __init__(self, kit: Kit) -> None:
        self._catalog = kit.catalog
        self._calls = kit.calls
        self._results = kit.results
        self._clock = kit.parts.clock

    async def complete(self, context: RequestContext, asked: CompleteParams) -> Reply:
        """Serve completion/complete."""
        name = asked.ref.name if isinstance(asked.ref, PromptReference) else asked.ref.uri
        completer = self._catalog.completers(asked.ref.type, name).get(asked.argument.name)
        if completer is None:
            return self._results.reply({"completion": {"values": []}})
        what = f"completion of {name[:200]}"
        call = self._calls.call(context)
        outcome = await engine.run_handler(
            lambda: completer(call.principal, asked.argument.value), Run(call, Journal())
        )
        if isinstance(outcome, (Suspended, Restarted)):  # a completion has no context to ask with
            raise InternalError(log_failure(what, RuntimeError("it asked something"), self._clock))
        return self._results.reply({"completion": self._calls.value(outcome, what).to_wire()})


def _check_arguments(declared: Any, given: Mapping[str, str]) -> None:
    names = [argument["name"] for argument in declared]
    missing = [
        argument["name"]
        for argument in declared
        if argument.get("required") and argument["name"] not in given
    ]
    if missing:
        raise InvalidParams(f"Invalid params: missing arguments: {', '.join(missing)}")
    if unknown := [name for name in given if name not in names]:
        raise InvalidParams(
            f"Invalid params: unknown arguments {', '.join(unknown)[:200]}; there are: "
            f"{', '.join(names)}"
        )
