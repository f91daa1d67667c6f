"""prompts/list and prompts/get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roundgate.backends import Catalog
from roundgate.errors import InvalidParams
from roundgate.methods.calls import Calls
from roundgate.methods.lists import Listing
from roundgate.methods.request import RequestContext
from roundgate.methods.results import Reply, Results
from roundgate.methods.rounds import InputRequired, Rounds, Target
from roundgate.protocol import GetPromptParams, ListParams, without_none
from roundgate.settings import CacheHint


class PromptMethods:
    """Prompts, as the catalog has them."""

    def __init__(
        self, catalog: Catalog, calls: Calls, rounds: Rounds, results: Results, cache: CacheHint
    ) -> None:
        self._catalog = catalog
        self._calls = calls
        self._rounds = rounds
        self._results = results
        self._list = Listing("prompts", cache, results)

    async def list(self, context: RequestContext, asked: ListParams) -> Reply:
        """prompts/list"""
        return self._list.reply(self._catalog.prompt_pages, asked.cursor)

    async def get(self, context: RequestContext, asked: GetPromptParams) -> Reply:
        """prompts/get"""
        prompt = self._catalog.prompt(asked.name)
        _check_arguments(prompt.definition.get("arguments", ()), asked.arguments)
        round_ = self._calls.begin(
            Target("prompts/get", asked.name, asked.arguments), asked, context
        )
        call = self._calls.call(context, round_)
        outcome = await self._rounds.run(round_, call, lambda ctx: prompt.get(ctx, asked.arguments))
        if isinstance(outcome, InputRequired):
            return self._results.input_required(outcome)
        messages = self._calls.value(outcome, f"prompt {asked.name}")
        described = without_none(description=prompt.definition.get("description"))
        return self._results.reply(
            {**described, "messages": [message.to_wire() for message in messages]}
        )


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
