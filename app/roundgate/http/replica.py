"""One replica of the gateway: what answers at each view, who works on tasks, and what swaps all
that.

It knows nothing of FastAPI: `roundgate.main` puts it behind routes and layers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from roundgate.backends import Snapshot, ViewSource
from roundgate.clock import Clock
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.http import Endpoint, on_stop_signal, telling_of_stalls
from roundgate.http.older.serving import OlderClients
from roundgate.methods.discovery import server_info
from roundgate.methods.once import Once
from roundgate.methods.parts import Parts
from roundgate.methods.rounds import Rounds
from roundgate.methods.table import CurrentMethods, Methods, Use
from roundgate.methods.tasks import makes_tasks
from roundgate.protocol import NEWEST, ResultFormat, notifications
from roundgate.runtime.reload import Reloader
from roundgate.runtime.startup import Core, make_ring
from roundgate.settings import Settings
from roundgate.tasks import NamedTasks, Tasks, Watch
from roundgate.tokens import KeyRing, StateSealer, TaskIds

if TYPE_CHECKING:
    from roundgate.tasks.pool import Pool

STOP_GRACE_S: Final = 10.0
"""For how long steps of tasks may go on when the server is told to stop: as long as requests
may."""


class _View:
    """What answers at one endpoint."""

    methods: CurrentMethods
    older: OlderClients

    def __init__(self, parts: Parts) -> None:
        self.parts = parts


class Replica:
    """What the app is made around: what is served, who answers, who works on tasks,
    and what swaps all that."""

    def __init__(
        self, file: ConfigFile, using: Settings, clock: Clock, core: Core, *, owns_process: bool
    ) -> None:
        self.core = core
        self.config = file.config
        self._using = using
        self._clock = clock
        self._owns_process = owns_process
        ring = make_ring(file.config, using, clock)
        self._watch = Watch(file.config.tasks.poll_interval_ms / 1000)
        self._views = {
            view: self._make_view(view, ring.of_view(view))
            for view in file.config.endpoints.values()
        }
        self.endpoints = {
            view: Endpoint(one.methods, one.older.endpoint) for view, one in self._views.items()
        }
        """Who answers for each view."""
        self._reloader = Reloader(
            file, core.serving, core.modules, self._swap, watches=using.reload
        )
        self._pool = self._make_pool()

    def _make_view(self, view: str, ring: KeyRing) -> _View:
        """What answers at one endpoint. What it seals opens at no other."""
        stores, serving, clock, config = (
            self.core.stores,
            self.core.serving,
            self._clock,
            self.config,
        )
        sealer = StateSealer(ring, clock, config.state.lifetime_s, config.state.max_bytes)
        own_tasks = Tasks(stores.tasks, stores.queue, clock, config.tasks, view)
        source = ViewSource(serving, view) if view else serving
        made = _View(
            Parts(
                self.core.changes,
                Rounds(sealer, clock, config.state.max_rounds, view),
                Once(stores.once, sealer, clock),
                NamedTasks(own_tasks, TaskIds(sealer.ring), source, clock, config.tasks),
                self._watch,
                sealer,
                stores.sessions,
                clock,
                streams=self._using.streams,
                view=view,
                shows_errors=self.core.shows_errors,
            )
        )
        made.methods = CurrentMethods(*self._serves(made, config, serving.now))
        made.older = OlderClients(
            self.core,
            ring,
            clock,
            config,
            lambda results: self._serves(made, self.config, serving.now, results),
            lambda: self.config.server_of(view),
            streams=self._using.streams,
            view=view,
        )
        return made

    def _serves(
        self,
        view: _View,
        config: GatewayConfig,
        snapshot: Snapshot,
        results: ResultFormat | None = None,
    ) -> tuple[Methods, Use]:
        name = view.parts.view
        server = config.server_of(name)
        made = Methods(
            config.model_copy(update={"server": server}),
            snapshot.catalog.of_view(name),
            view.parts,
            results or NEWEST.result_format(server_info(server)),
            self.core.texts(config, self._clock, name),
        )
        return made, snapshot.use

    def troubles(self) -> list[str]:
        """Return the reasons why tasks are not processed, as far as this process knows without
        asking a store."""
        found = (self.core.stores.trouble(), None if self._pool is None else self._pool.trouble)
        return [one for one in found if one is not None]

    def _make_pool(self) -> Pool | None:
        """Workers, if this process is to work on tasks and there is a tool
        whose calls become some."""
        catalog = self.core.serving.catalog
        served = (catalog, *catalog.views.values())
        if not self._using.works or not any(makes_tasks(one) for one in served):
            return None
        return self.core.pool(
            self.config, self._clock, stop_grace_s=STOP_GRACE_S, owns_process=self._owns_process
        )

    def _swap(self, config: GatewayConfig, snapshot: Snapshot) -> None:
        """Serve something else from now on, and tell those who listen which lists have changed."""
        serves = {name: self._serves(view, config, snapshot) for name, view in self._views.items()}
        before = self.core.serving.catalog
        self.core.serving.swap(snapshot)
        self.config = config
        for name, view in self._views.items():
            view.methods.swap(*serves[name])
            view.older.swap()
        if self._pool is None and (pool := self._make_pool()) is not None:
            pool.start()
            self._pool = pool
        for name in self._views:
            was, now = before.of_view(name), snapshot.catalog.of_view(name)
            for changed in now.lists_that_differ(was):
                self.core.changes.hub.publish_list(notifications.LIST_CHANGED[changed], name)

    def _request_stop(self) -> None:
        self.core.changes.hub.close()
        for view in self._views.values():
            view.older.close()
        if self._pool is not None:
            self._pool.request_stop()

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Around the app's life in an event loop."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            # last to first
            for aclose in (
                self.core.aclose,
                self._watch.aclose,
                *(view.parts.once.aclose for view in self._views.values()),
            ):
                stack.push_async_callback(aclose)
            stack.push_async_callback(self._stop_pool)
            if self._pool is not None:
                self._pool.start()
            stack.enter_context(on_stop_signal(loop, self._request_stop))
            stack.enter_context(telling_of_stalls(loop))
            await stack.enter_async_context(self._reloader.running())
            yield

    async def _stop_pool(self) -> None:
        if self._pool is not None:
            await self._pool.stop()
