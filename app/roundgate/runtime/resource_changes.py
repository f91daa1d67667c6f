"""Changes of the resources of servers behind the gateway, for the streams of this process.

    streams ──▶ Hub: the subscribed URIs ──▶ the server of each URI ──▶ its changes ──▶ streams

Each process subscribes to the URIs of its own streams, so it publishes a change only locally. URIs
are grouped once for all streams that begin or end within `SETTLE_S`.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Final

from roundgate.backends import Serving
from roundgate.backends.base import ChangeReporter
from roundgate.background import detached
from roundgate.errors import ResourceNotFound, Unavailable
from roundgate.methods.changes import Hub
from roundgate.protocol import notifications

MAX_URIS: Final = 5_000
"""The maximum number of URIs for which a process asks servers to report changes."""
SETTLE_S: Final = 0.05
"""Seconds for which changed subscriptions are collected before servers are notified."""


class ResourceChanges:
    """Subscribes to resources of the servers behind the gateway, for the streams of this process."""

    def __init__(self, hub: Hub, serving: Serving) -> None:
        self._hub = hub
        self._serving = serving
        self._timer: asyncio.TimerHandle | None = None
        self._reporters: dict[str, ChangeReporter | None] = {}
        """The reporter of each URI in the current catalog; `None` if its server reports no changes."""
        self._active: dict[int, ChangeReporter] = {}
        """The reporters with subscribed URIs, by identity."""
        hub.on_uris = self._schedule

    def renew(self) -> None:
        """Find the server of each URI again, because the catalog has changed."""
        self._reporters.clear()
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = detached(
                asyncio.get_running_loop().call_later, SETTLE_S, self._report_uris
            )

    def close(self) -> None:
        """Stop updating the subscriptions."""
        if self._timer is not None:
            self._timer.cancel()
        self._hub.on_uris = _ignore

    def _report_uris(self) -> None:
        self._timer = None
        wanted: dict[int, set[str]] = {key: set() for key in self._active}
        reporters = dict(self._active)
        uris = list(islice(self._hub.uris, MAX_URIS))
        self._reporters = {uri: self._find_reporter(uri) for uri in uris}
        for uri, reporter in self._reporters.items():
            if reporter is not None:
                reporters[id(reporter)] = reporter
                wanted.setdefault(id(reporter), set()).add(uri)
        for key, wanted_uris in wanted.items():
            reporters[key].report(frozenset(wanted_uris), self._publish)
        self._active = {key: reporters[key] for key, wanted_uris in wanted.items() if wanted_uris}

    def _publish(self, uri: str) -> None:
        self._hub.publish(notifications.RESOURCE_UPDATED, uri)

    def _find_reporter(self, uri: str) -> ChangeReporter | None:
        """Return the reporter of changes of a resource, or `None`."""
        if uri in self._reporters:
            return self._reporters[uri]
        try:
            return self._serving.catalog.resource(uri)[0].reporter
        except (ResourceNotFound, Unavailable):
            return None


def _ignore() -> None:
    """Do nothing."""
