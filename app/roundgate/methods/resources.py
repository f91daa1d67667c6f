"""resources/list, resources/templates/list and resources/read."""

from __future__ import annotations

from typing import Final

from roundgate.backends import Catalog
from roundgate.methods.calls import Calls
from roundgate.methods.lists import Listing
from roundgate.methods.request import RequestContext
from roundgate.methods.results import Reply, Results
from roundgate.methods.rounds import InputRequired, Rounds, Target
from roundgate.protocol import ListParams, ReadResourceParams
from roundgate.settings import CacheHint, CachingConfig

_UNCACHED: Final = CacheHint(ttl_ms=0, scope="private")


class ResourceMethods:
    """Resources and resource templates, as the catalog has them."""

    def __init__(
        self,
        catalog: Catalog,
        calls: Calls,
        rounds: Rounds,
        results: Results,
        caching: CachingConfig,
    ) -> None:
        self._catalog = catalog
        self._calls = calls
        self._rounds = rounds
        self._results = results
        self._cache = caching.read
        self._list = Listing("resources", caching.resources, results)
        self._templates = Listing("resourceTemplates", caching.resource_templates, results)

    async def list(self, context: RequestContext, asked: ListParams) -> Reply:
        """resources/list"""
        return self._list.reply(self._catalog.resource_pages, asked.cursor)

    async def list_templates(self, context: RequestContext, asked: ListParams) -> Reply:
        """resources/templates/list"""
        return self._templates.reply(self._catalog.template_pages, asked.cursor)

    async def read(self, context: RequestContext, asked: ReadResourceParams) -> Reply:
        """resources/read"""
        resource, values = self._catalog.resource(asked.uri)
        round_ = self._calls.begin(Target("resources/read", asked.uri), asked, context)
        call = self._calls.call(context, round_)
        outcome = await self._rounds.run(
            round_, call, lambda ctx: resource.read(ctx, asked.uri, values)
        )
        if isinstance(outcome, InputRequired):
            return self._results.input_required(outcome)
        contents = self._calls.value(outcome, f"resource {asked.uri[:200]}")
        # "requests carrying inputResponses or requestState MUST NOT be cached"
        # (server/utilities/caching)
        cache = _UNCACHED if asked.input_responses is not None or round_.opened else self._cache
        return self._results.reply({"contents": [one.to_wire() for one in contents]}, cache)
