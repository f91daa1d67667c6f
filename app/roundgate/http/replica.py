"""One replica of the gateway in a process: its endpoints, workers and reloads, the changes of
resources of servers for its streams, the signals that stop it, and a watch over its event loop.

It does not depend on FastAPI: `roundgate.main` puts it behind routes and layers.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
import time
import traceback
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from roundgate.backends import Catalog, Serving, Snapshot, ViewSource
from roundgate.backends.base import ChangeReporter
from roundgate.background import detached
from roundgate.clock import Clock, ticker
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.errors import ResourceNotFound, Unavailable
from roundgate.http.endpoint import Endpoint
from roundgate.http.older import OlderClients
from roundgate.http.routes import Readiness
from roundgate.methods.changes import Hub
from roundgate.methods.extensions import makes_tasks
from roundgate.methods.once import Once
from roundgate.methods.parts import CurrentMethods, Methods, Parts
from roundgate.methods.rates import Rates
from roundgate.methods.table import make_methods, server_info
from roundgate.protocol import NEWEST, ResultFormat, notifications
from roundgate.runtime.reload import Reloader
from roundgate.runtime.startup import Core, make_ring
from roundgate.settings import Settings
from roundgate.tasks import NamedTasks, Tasks, Watch
from roundgate.tokens import KeyRing, StateSealer, TaskIds

if TYPE_CHECKING:
    from roundgate.auth.jwks import KeySet
    from roundgate.tasks.pool import Pool


MAX_URIS: Final = 5_000
"""The maximum number of URIs for which a process asks servers to report changes."""
SETTLE_S: Final = 0.05
"""Seconds for which changed subscriptions are collected before servers are notified."""


class ResourceChanges:
    """Subscribes to resources of the servers behind the gateway, for the streams of this process.

        streams ──▶ Hub: the subscribed URIs ──▶ the server of each URI ──▶ its changes ──▶ streams

    Each process subscribes to the URIs of its own streams, so it publishes a change only locally.
    URIs are grouped once for all streams that begin or end within `SETTLE_S`.
    """

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


STALL_S: Final = 1.0
"""Seconds without a turn after which an event loop is reported as blocked."""
LOOK_EVERY_S: Final = 0.25
"""Seconds between two timestamps of the event loop, and between two checks of them."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_FRAMES_SHOWN: Final = 6
Handler: TypeAlias = Callable[[int, FrameType | None], None]
"""A handler of signals, as `signal.signal` takes it."""

stalls = logging.getLogger("roundgate.stalls")


class Replica:
    """The core of the app: the current catalog, the endpoints, the workers and the reloads."""

    def __init__(
        self,
        file: ConfigFile,
        using: Settings,
        clock: Clock,
        core: Core,
        keys: KeySet | None,
        *,
        owns_process: bool,
    ) -> None:
        self.core = core
        self.config = file.config
        self._using = using
        self._clock = clock
        self._owns_process = owns_process
        self.ring = ring = make_ring(file.config, using, clock)
        self._watch = Watch(
            file.config.tasks.poll_interval_ms / 1000,
            lambda refs: core.stores.tasks.glance(refs, clock.now_ms()),
        )
        trail = core.trail
        self._keys = keys
        self._hidden = core.hidden(file.config, clock)
        self.readiness = Readiness(
            core.stores.sessions if file.config.http.ready_needs_store else None,
            lambda: trail is not None and trail.refuses,
            keys,
        )
        self.rates = Rates(core.stores.sessions, clock, core.stores.metrics)
        """The limits on calls, and their present use."""
        self.endpoints = {
            view: self._make_endpoint(view, ring.of_view(view))
            for view in file.config.endpoints.values()
        }
        """The endpoint of each view."""
        self._resource_changes = ResourceChanges(core.changes.hub, core.serving)
        self._reloader = Reloader(
            file,
            core.serving,
            core.modules,
            self._swap,
            core.stores.sessions,
            watches=using.reload,
            trail=core.trail,
        )
        self._pool = self._make_pool()

    def _make_endpoint(self, view: str, ring: KeyRing) -> Endpoint:
        """Return the endpoint of a view. Values that it seals open at no other endpoint."""
        stores, serving = self.core.stores, self.core.serving
        clock, config = self._clock, self.config
        sealer = StateSealer(ring, clock, config.state.lifetime_s, config.state.max_bytes)
        own_tasks = Tasks(stores.tasks, clock, config.tasks, view, self.core.trail)
        hidden = partial(self._hidden, view)
        source = ViewSource(serving, view) if view else serving
        parts = Parts(
            self.core.changes,
            Once(stores.once, self.core.accounts, sealer, clock, view),
            NamedTasks(
                own_tasks, TaskIds(sealer.ring), source, clock, config.tasks, self.core.trail
            ),
            self._watch,
            self.rates,
            sealer,
            self.core.rows_of(view),
            hidden,
            clock,
            streams=self._using.streams,
            view=view,
            shows_errors=self.core.shows_errors,
            trail=self.core.trail,
        )
        older = OlderClients(
            self.core,
            hidden,
            ring,
            clock,
            config,
            lambda results: self._serves(parts, self.config, serving.catalog, results),
            lambda: self.config.server_of(view),
            streams=self._using.streams,
            view=view,
        )
        return Endpoint(parts, CurrentMethods(self._serves(parts, config, serving.catalog)), older)

    def _serves(
        self,
        parts: Parts,
        config: GatewayConfig,
        catalog: Catalog,
        results: ResultFormat | None = None,
    ) -> Methods:
        server = config.server_of(parts.view)
        return make_methods(
            config.model_copy(update={"server": server}),
            catalog.of_view(parts.view),
            parts,
            results or NEWEST.result_format(server_info(server)),
            self.core.texts(config, self._clock, parts.view),
        )

    def troubles(self) -> list[str]:
        """Return the reasons why calls or tasks are not processed, as far as this process knows
        without querying a store."""
        trail = self.core.trail
        troubles = (
            self.core.stores.facts.trouble(),
            None if self._pool is None else self._pool.trouble,
            None if trail is None else trail.trouble,
            None if self._keys is None else self._keys.trouble,
            self._reloader.trouble,
        )
        return [trouble for trouble in troubles if trouble is not None]

    def _make_pool(self) -> Pool | None:
        """Return the workers, or `None` if this process may not work on tasks or no tool makes
        tasks."""
        catalog = self.core.serving.catalog
        served = (catalog, *catalog.views.values())
        if not self._using.works or not any(map(makes_tasks, served)):
            return None
        return self.core.pool(
            self.config,
            self._clock,
            stop_grace_s=self._using.grace_s,
            owns_process=self._owns_process,
        )

    def _swap(self, config: GatewayConfig, snapshot: Snapshot) -> None:
        """Serve another snapshot, and notify clients of the lists that differ."""
        serves = {
            view: self._serves(endpoint.parts, config, snapshot.catalog)
            for view, endpoint in self.endpoints.items()
        }
        before = self.core.serving.catalog
        self.core.serving.swap(snapshot)
        self.config = config
        for view, endpoint in self.endpoints.items():
            endpoint.methods.now = serves[view]
            endpoint.older.swap()
        if self._pool is None and (pool := self._make_pool()) is not None:
            pool.start()
            self._pool = pool
        for view in self.endpoints:
            was, now = before.of_view(view), snapshot.catalog.of_view(view)
            for changed in now.lists_that_differ(was):
                self.core.changes.hub.publish_list(notifications.LIST_CHANGED[changed], view)

        self._resource_changes.renew()

    def _begin_to_drain(self) -> None:
        """Be no longer ready, and give calls and steps of tasks the whole grace."""
        self._drain(self._using.grace_s)

    def _request_stop(self) -> None:
        """End streams and waits, because the server accepts no more connections."""
        self._drain(self._using.grace_s - self._using.accepts_s)
        self.core.changes.hub.close()
        for endpoint in self.endpoints.values():
            endpoint.older.close()

    def _drain(self, within_s: float) -> None:
        self.readiness.is_draining = True
        ticker().drain(self._clock.monotonic_ms() + within_s * 1000)
        if self._pool is not None:
            self._pool.request_stop()

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Start and stop the replica around the app's life in an event loop."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            # called in reverse order
            for aclose in (
                self.core.aclose,
                self._watch.aclose,
                *(endpoint.parts.once.aclose for endpoint in self.endpoints.values()),
            ):
                stack.push_async_callback(aclose)
            stack.push_async_callback(self._stop_pool)
            if self.core.trail is not None:
                self.core.trail.open()
            if self._pool is not None:
                self._pool.start()
            stack.enter_context(
                on_stop_signal(
                    loop, self._request_stop, self._begin_to_drain, self._using.accepts_s
                )
            )
            stack.enter_context(reported_stalls(loop))
            await stack.enter_async_context(self._reloader.running())
            stack.callback(self._resource_changes.close)
            yield

    async def _stop_pool(self) -> None:
        if self._pool is not None:
            await self._pool.stop()


@contextmanager
def on_stop_signal(
    loop: AbstractEventLoop,
    action: Callable[[], None],
    begin_to_drain: Callable[[], None] = lambda: None,
    accepts_s: float = 0,
) -> Iterator[None]:
    """Run `action` in the loop when the process receives a stop signal, before the server's own
    handler.

    With `accepts_s`, SIGTERM calls `begin_to_drain` at once, and `action` and the server's handler
    after `accepts_s` seconds. A second signal, or SIGINT, does not wait.

    An ASGI server waits for open responses before it ends the lifespan, and a stream of changes
    never ends by itself. So the signal has to end the streams.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # a test's server thread, or an application that owns the signals
        return
    before: dict[signal.Signals, Any] = {}
    for number in SIGNALS:
        before[number] = signal.getsignal(number)
        handler = _chain(loop, action, before[number])
        if accepts_s and number == signal.SIGTERM:
            handler = _postponed(loop, handler, begin_to_drain, accepts_s)
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _chain(loop: AbstractEventLoop, action: Callable[[], None], then: Any) -> Handler:
    def handle(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(action)
        if callable(then):
            then(number, frame)
        elif then == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return handle


def _postponed(
    loop: AbstractEventLoop, handler: Handler, begin_to_drain: Callable[[], None], accepts_s: float
) -> Handler:
    timers: list[TimerHandle] = []
    signals = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals > 1 or loop.is_closed():
            for timer in timers:
                timer.cancel()
            handler(number, frame)
            return
        loop.call_soon_threadsafe(begin_to_drain)
        loop.call_soon_threadsafe(
            lambda: timers.append(loop.call_later(accepts_s, handler, number, None))
        )

    return handle


@contextmanager
def reported_stalls(loop: AbstractEventLoop) -> Iterator[None]:
    """Log when the event loop of this thread is blocked for longer than `STALL_S` seconds.

    A blocking call in an `async` handler stops every call, deadline and health check of its
    process. A thread watches the loop and logs the place in the code that blocks it:

        {"msg": "the event loop is blocked", "seconds": 1.2, "at": "reports.py:41 in build", …}
    """
    watch = _StallWatch(loop)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


class _StallWatch:
    """A timer that timestamps an event loop, and a thread that checks the timestamps."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._beat_s = time.monotonic()
        self._timer: TimerHandle | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="stalls", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join()

    def _beat(self) -> None:
        self._beat_s = time.monotonic()
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._beat)

    def _listen(self) -> None:
        reported_s: float | None = None
        looked_s = resumed_s = time.monotonic()
        while not self._is_over.wait(LOOK_EVERY_S):
            now_s, beat_s = time.monotonic(), self._beat_s
            if now_s - looked_s > 2 * LOOK_EVERY_S:
                # this thread was late as well, so the whole process was stopped, as by SIGSTOP
                resumed_s = now_s
            looked_s = now_s
            if reported_s is not None and beat_s > reported_s:
                fields = {"seconds": round(beat_s - reported_s, 1)}
                stalls.warning("the event loop runs again", extra={"fields": fields})
                reported_s = None
            blocked_s = now_s - max(beat_s, resumed_s)
            if reported_s is None and blocked_s > STALL_S:
                reported_s = beat_s
                self._report(blocked_s)

    def _report(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        stack = traceback.extract_stack(frame, limit=50) if frame is not None else []
        shown = [f"{Path(call.filename).name}:{call.lineno} in {call.name}" for call in stack][
            -_FRAMES_SHOWN:
        ]
        fields = {"seconds": round(seconds, 1), "at": shown[-1] if shown else None, "stack": shown}
        stalls.warning("the event loop is blocked", extra={"fields": fields})
