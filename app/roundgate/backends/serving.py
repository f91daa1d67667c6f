"""What is served now, and what was served before for as long as calls still use it.

    swap:     old ───calls that have begun run to their end───▶ last one over: its back ends are closed
                  └▶ new: every call that begins from now on

A `Snapshot` never changes. Whoever runs a call takes the one of now, once, and keeps it to the end:

    with serving.use() as catalog:
        …
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from roundgate.backends.base import NamedBackend
from roundgate.backends.catalog import Catalog

log = logging.getLogger("roundgate.backends")


class CatalogSource(Protocol):
    """Where a call gets the catalog from that it runs on; a `Catalog` is a source of itself."""

    def use(self) -> AbstractContextManager[Catalog]:
        """The catalog of now; what is behind it stays open until the block has ended."""


class Snapshot:
    """A catalog and the back ends behind it, with the number of calls that use them.

    `with snapshot.use()` costs every call: no generator, and no event before somebody
    waits for the last of them.
    """

    def __init__(self, catalog: Catalog, backends: Sequence[NamedBackend]) -> None:
        self.catalog = catalog
        self._backends = backends
        self._users = 0
        self._unused: asyncio.Event | None = None

    def use(self) -> AbstractContextManager[Catalog]:
        """Keeps the back ends open until the block has ended; many may use it at once."""
        return self

    def __enter__(self) -> Catalog:
        self._users += 1
        return self.catalog

    def __exit__(self, *exception: object) -> None:
        self._users -= 1
        if self._unused is not None and not self._users:
            self._unused.set()

    async def unused(self) -> None:
        """Return when nobody uses it."""
        while self._users:
            self._unused = asyncio.Event()
            await self._unused.wait()

    async def aclose(self) -> None:
        """Close the back ends; the trouble of one keeps no other open."""
        for backend in self._backends:
            try:
                await backend.aclose()
            except Exception as error:
                log.error(
                    "a back end could not be closed",
                    exc_info=error,
                    extra={"fields": {"backend": backend.name}},
                )


class Serving:
    """The snapshot of now, which can be swapped."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot
        """The current one; a call goes through `use`."""
        self._retiring: dict[asyncio.Task[None], Snapshot] = {}

    @property
    def catalog(self) -> Catalog:
        """That of now."""
        return self.now.catalog

    def use(self) -> AbstractContextManager[Catalog]:
        """The catalog of now, for a call."""
        return self.now.use()

    def swap(self, snapshot: Snapshot) -> None:
        """Serve another one from now on. The old one is closed when the last call
        that uses it has ended."""
        old, self.now = self.now, snapshot
        closing = asyncio.create_task(_retire(old))
        self._retiring[closing] = old
        closing.add_done_callback(self._retiring.pop)

    async def aclose(self) -> None:
        """Close everything, also what calls still use."""
        old = list(self._retiring.items())
        for closing, _ in old:
            closing.cancel()
        await asyncio.gather(*(closing for closing, _ in old), return_exceptions=True)
        for snapshot in [*(snapshot for _, snapshot in old), self.now]:
            await snapshot.aclose()


class ViewSource:
    """The catalog of now of one view (`CatalogSource`)."""

    def __init__(self, serving: Serving, view: str) -> None:
        self._serving = serving
        self._view = view

    @contextmanager
    def use(self) -> Iterator[Catalog]:
        """The view's part of the catalog of now, for a call."""
        with self._serving.use() as catalog:
            yield catalog.of_view(self._view)


class ToolScopes:
    """All scopes that the tools of now need: those of a view, if it is named."""

    def __init__(self, serving: Serving, view: str = "") -> None:
        self._serving = serving
        self._view = view

    def __iter__(self) -> Iterator[str]:
        return iter(self._serving.catalog.of_view(self._view).all_scopes())


async def _retire(old: Snapshot) -> None:
    await old.unused()
    await old.aclose()
