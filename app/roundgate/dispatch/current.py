"""The dispatcher of what is served now: a swap makes another one, and requests that have begun stay with theirs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from roundgate.backends.catalog import Catalog
from roundgate.dispatch.dispatcher import Answer, CallContext, Dispatcher, Stream

Use: TypeAlias = Callable[[], AbstractContextManager[Catalog]]
"""Keeps the back ends behind a dispatcher's catalog open while a request runs."""


class CurrentDispatcher:
    """Has each request served by the dispatcher that is the current one when it comes."""

    def __init__(self, dispatcher: Dispatcher, use: Use) -> None:
        self._current = (dispatcher, use)

    @property
    def features(self) -> frozenset[str]:
        """What there is something to serve for."""
        return self._current[0].features

    async def dispatch(self, context: CallContext) -> Answer:
        """Serve one request, to its end, with what is served now.

        Raises: what `Dispatcher.dispatch` raises.
        """
        dispatcher, use = self._current
        with use():
            return await dispatcher.dispatch(context)

    def end(self, stream: Stream) -> None:
        """Forget a stream that has ended; all dispatchers have them in one hub."""
        self._current[0].end(stream)

    def swap(self, dispatcher: Dispatcher, use: Use) -> None:
        """Serve the requests that come from now on with another one."""
        self._current = (dispatcher, use)
