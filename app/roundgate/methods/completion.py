"""completion/complete."""

from __future__ import annotations

from roundgate.backends import Catalog
from roundgate.clock import Clock
from roundgate.errors import InternalError
from roundgate.methods.calls import Calls
from roundgate.methods.request import RequestContext
from roundgate.methods.results import Reply, Results
from roundgate.protocol import CompleteParams, PromptReference
from roundgate.replay import Journal, Restarted, Run, Suspended, engine
from roundgate.tasks import log_failure


class CompletionMethods:
    """Completions of the arguments of prompts and resource templates."""

    def __init__(self, catalog: Catalog, calls: Calls, results: Results, clock: Clock) -> None:
        self._catalog = catalog
        self._calls = calls
        self._results = results
        self._clock = clock

    async def complete(self, context: RequestContext, asked: CompleteParams) -> Reply:
        """completion/complete"""
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
