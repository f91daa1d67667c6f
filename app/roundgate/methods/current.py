"""The methods of what is served now: a swap makes others, and requests that have
begun stay with theirs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

from roundgate.backends import Catalog
from roundgate.methods.request import RequestContext
from roundgate.methods.results import Response, Stream
from roundgate.methods.table import Methods

Use: TypeAlias = Callable[[], AbstractContextManager[Catalog]]
"""Keeps the back ends behind the methods' catalog open while a request runs."""


class CurrentMethods:
    """Has each request served by the methods that are the current ones when it comes."""

    def __init__(self, methods: Methods, use: Use) -> None:
        self._current = (methods, use)

    @property
    def features(self) -> frozenset[str]:
        """What there is something to serve for."""
        return self._current[0].features

    def has_resource(self, uri: str) -> bool:
        """Whether there is something to read under a URI."""
        return self._current[0].has_resource(uri)

    def has_output_schema(self, tool: str) -> bool:
        """Whether clients expect a structured result of a tool."""
        return self._current[0].has_output_schema(tool)

    async def serve(self, context: RequestContext) -> Response:
        """Serve one request, to its end, with what is served now.

        Raises: what `Methods.serve` raises.
        """
        methods, use = self._current
        with use():
            return await methods.serve(context)

    def end(self, stream: Stream) -> None:
        """Forget a stream that has ended; all methods have them in one hub."""
        self._current[0].end(stream)

    def swap(self, methods: Methods, use: Use) -> None:
        """Serve the requests that come from now on with others."""
        self._current = (methods, use)
