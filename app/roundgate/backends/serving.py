"""The current catalog, and earlier catalogs that calls still use.

    swap:     old ───calls that have begun run to their end───▶ after the last call, its back ends are closed
                  └▶ new: every call that begins from now on

A `Snapshot` never changes. A call takes the current catalog once and keeps it to its end:

    with serving.use() as catalog:
        …
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from roundgate.backends.base import Backend, LiveBackend, NamedBackend, ServerState
from roundgate.backends.catalog import Catalog
from roundgate.backends.offers import Offers
from roundgate.backends.shaping import ConfiguredBackend
from roundgate.background import detached

log = logging.getLogger("roundgate.backends")


class CatalogSource(Protocol):
    """A provider of the catalog for a call. A `Catalog` provides itself."""

    def use(self) -> AbstractContextManager[Catalog]:
        """Return the current catalog; its back ends stay open until the block ends."""


class Snapshot:
    """A catalog and its back ends, with the number of calls that use them.

    Every call runs `with snapshot.use()`, so `use` avoids a generator, and only `unused` makes an
    event.
    """

    def __init__(
        self, catalog: Catalog, backends: Sequence[NamedBackend], offers: Offers | None = None
    ) -> None:
        self.catalog = catalog
        self.backends = backends
        self.offers = offers or Offers(backends)
        """The offers from which the catalog was made."""
        self._users = 0
        self._unused: asyncio.Event | None = None

    def limit_uses(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of running and waiting calls of each back end and tool with `limits`."""
        return {
            name: use
            for backend in self.backends
            if isinstance(backend, ConfiguredBackend) and backend.limiters is not None
            for name, use in backend.limiters.uses().items()
        }

    def use(self) -> AbstractContextManager[Catalog]:
        """Return a context manager that keeps the back ends open within its block."""
        return self

    def __enter__(self) -> Catalog:
        self._users += 1
        return self.catalog

    def __exit__(self, *exception: object) -> None:
        self._users -= 1
        if self._unused is not None and not self._users:
            self._unused.set()

    @property
    def users(self) -> int:
        """The number of requests and turns that use the snapshot now."""
        return self._users

    def servers(self) -> list[ServerState]:
        """Return the state of each server whose offer a back end follows."""
        cores = map(core_of, self.backends)
        return [core.state() for core in cores if isinstance(core, LiveBackend)]

    async def unused(self) -> None:
        """Wait until no call uses the snapshot."""
        while self._users:
            self._unused = asyncio.Event()
            await self._unused.wait()

    async def aclose(self, others: Sequence[Snapshot] = ()) -> None:
        """Close all back ends except those that other snapshots use. Log an error and continue."""
        shared_ids = {id(core_of(backend)) for snapshot in others for backend in snapshot.backends}
        for backend in self.backends:
            if id(core_of(backend)) in shared_ids:
                continue
            try:
                await backend.aclose()
            except Exception as error:
                log.error(
                    "a back end could not be closed",
                    exc_info=error,
                    extra={"fields": {"backend": backend.name}},
                )


class Serving:
    """The current snapshot, and earlier snapshots that calls still use."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        """The current snapshot; calls go through `use`."""
        self._retiring: dict[asyncio.Task[None], Snapshot] = {}
        self._closing: set[Snapshot] = set()
        """The retiring snapshots that are closing their back ends and so keep no back end open."""

    @property
    def catalog(self) -> Catalog:
        return self.now.catalog

    def use(self) -> AbstractContextManager[Catalog]:
        """Return the current catalog, kept open for a call."""
        return self.now.use()

    def swap(self, snapshot: Snapshot) -> None:
        """Serve another snapshot, and close the old one when its last call has ended."""
        old, self.now = self.now, snapshot
        closing = detached(asyncio.create_task, self._retire(old))
        self._retiring[closing] = old
        closing.add_done_callback(self._forget)

    async def aclose(self) -> None:
        """Close all snapshots, even if calls use them."""
        old = list(self._retiring.items())
        for closing, _ in old:
            closing.cancel()
        await asyncio.gather(*(closing for closing, _ in old), return_exceptions=True)
        for snapshot in [*(snapshot for _, snapshot in old), self.now]:
            await snapshot.aclose()

    async def _retire(self, old: Snapshot) -> None:
        await old.unused()
        self._closing.add(old)
        await old.aclose([self.now, *(set(self._retiring.values()) - self._closing)])

    def _forget(self, closing: asyncio.Task[None]) -> None:
        self._closing.discard(self._retiring.pop(closing))


class ViewSource:
    """The current catalog of one view (`CatalogSource`)."""

    def __init__(self, serving: Serving, view: str) -> None:
        self._serving = serving
        self._view = view

    @contextmanager
    def use(self) -> Iterator[Catalog]:
        with self._serving.use() as catalog:
            yield catalog.of_view(self._view)


class ToolScopes:
    """The scopes that the current tools of a view need."""

    def __init__(self, serving: Serving, view: str = "") -> None:
        self._serving = serving
        self._view = view

    def __iter__(self) -> Iterator[str]:
        return iter(self._serving.catalog.of_view(self._view).all_scopes())


def core_of(backend: NamedBackend) -> Backend:
    """Return the back end itself, which several snapshots may share under different settings."""
    core: Backend = getattr(backend, "core", backend)
    return core
