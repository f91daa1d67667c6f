"""Changes of resources that servers behind the gateway have, for the streams of this process.

    streams ──▶ Hub: the URIs that they listen to ──▶ the server of each ──▶ its changes ──▶ streams

Each process asks for the URIs of its own streams, so a change is published here alone. URIs are
grouped once for all streams that begin or end within `SETTLE_S`.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from roundgate.backends import Serving
from roundgate.backends.base import ChangeReporter
from roundgate.errors import ResourceNotFound, Unavailable
from roundgate.methods.changes import Hub
from roundgate.protocol import notifications

MAX_URIS: Final = 5_000
"""The most URIs of one process for which servers are asked."""
SETTLE_S: Final = 0.05
"""Seconds for which streams may begin and end before servers are told."""


class ResourceChanges:
    """Tells the servers behind the gateway which of their resources streams listen to."""

    def __init__(self, hub: Hub, serving: Serving) -> None:
        self._hub = hub
        self._serving = serving
        self._timer: asyncio.TimerHandle | None = None
        self._known: dict[str, ChangeReporter | None] = {}
        """The server of each URI, as the current catalog has it."""
        self._asked: dict[int, ChangeReporter] = {}
        """The servers that report changes, by identity."""
        hub.on_uris = self._soon

    def renew(self) -> None:
        """Find the server of each URI anew: the catalog has changed."""
        self._known.clear()
        self._soon()

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._tell)

    def close(self) -> None:
        """Tell the servers nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._hub.on_uris = _nothing

    def _tell(self) -> None:
        self._timer = None
        wanted: dict[int, set[str]] = {key: set() for key in self._asked}
        reporters = dict(self._asked)
        uris = list(islice(self._hub.uris, MAX_URIS))
        self._known = {uri: self._reporter_of(uri) for uri in uris}
        for uri, reporter in self._known.items():
            if reporter is not None:
                reporters[id(reporter)] = reporter
                wanted.setdefault(id(reporter), set()).add(uri)
        for key, wanted_uris in wanted.items():
            reporters[key].report(frozenset(wanted_uris), self._changed)
        self._asked = {key: reporters[key] for key, some in wanted.items() if some}

    def _changed(self, uri: str) -> None:
        self._hub.publish(notifications.RESOURCE_UPDATED, uri)

    def _reporter_of(self, uri: str) -> ChangeReporter | None:
        """Return the reporter of changes of a resource, or `None`."""
        if uri in self._known:
            return self._known[uri]
        try:
            return self._serving.catalog.resource(uri)[0].reporter
        except (ResourceNotFound, Unavailable):
            return None


def _nothing() -> None:
    """Do nothing."""
