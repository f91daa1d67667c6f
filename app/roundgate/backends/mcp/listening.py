"""Changes of a server's resources, while clients of the gateway subscribe to them.

    2026-07-28   one stream of subscriptions/listen with all URIs; a new stream replaces it when the URIs change
    older        resources/subscribe and resources/unsubscribe for each URI, and the stream of the session

Without subscribers, nothing is sent. After an interruption, every URI is reported once, because
changes may have been missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from roundgate.backends.mcp.server import McpServer, pause_s
from roundgate.backends.mcp.uris import Uris
from roundgate.background import cancelled, detached
from roundgate.client import ServerInfo
from roundgate.client.connection import Connection
from roundgate.client.following import Subscription
from roundgate.client.types import Json
from roundgate.clock import Clock
from roundgate.errors import BadAnswer, GatewayError
from roundgate.protocol import notifications

MAX_URIS: Final = 1_000
"""The maximum number of URIs to which the gateway subscribes at one server."""
MAX_WAITING: Final = 1_000
"""The maximum number of unreported changes of an older server; further changes are dropped."""
ACKNOWLEDGE_S: Final = 30.0
"""Seconds within which a server must acknowledge a stream; otherwise the gateway opens another."""
SESSION_CHECK_S: Final = 1.0
"""Seconds between two checks whether the session of an older server is still the same."""

log = logging.getLogger("roundgate.backends")


class Listening:
    """Listens to changes of one server's resources (`ChangeReporter`)."""

    def __init__(self, server: McpServer, uris: Uris, clock: Clock) -> None:
        self._server = server
        self._uris = uris
        self._clock = clock
        self._wanted: frozenset[str] = frozenset()
        self._changed: Callable[[str], None] = _ignore
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def report(self, uris: frozenset[str], changed: Callable[[str], None]) -> None:
        """See `ChangeReporter`."""
        self._changed = changed
        if len(uris) > MAX_URIS:
            fields = {"backend": self._server.name, "n": len(uris) - MAX_URIS}
            log.warning("subscriptions beyond the limit are ignored", extra={"fields": fields})
        wanted = frozenset(self._uris.theirs(uri) for uri in sorted(uris)[:MAX_URIS])
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self._wake.set()
        if self._running is None or self._running.done():
            self._running = detached(asyncio.create_task, self._run())

    async def aclose(self) -> None:
        """Unsubscribe from all resources."""
        self._wanted = frozenset()
        await cancelled(self._running)

    def _report(self, method: Any, params: Any) -> None:
        """Report a change of a resource. The URI of the notification may name a sub-resource."""
        uri = params.get("uri") if isinstance(params, dict) else None
        if method != notifications.RESOURCE_UPDATED or not isinstance(uri, str):
            return
        for wanted in self._wanted:
            if uri == wanted or uri.startswith(wanted.removesuffix("/") + "/"):
                self._changed(self._uris.ours(wanted))

    def _report_all(self) -> None:
        for uri in self._wanted:
            self._changed(self._uris.ours(uri))

    async def _run(self) -> None:
        failures = 0
        while self._wanted:
            began_ms = self._clock.monotonic_ms()
            try:
                connection = await self._server.connection()
                info = await connection.connect()
                if failures:
                    self._report_all()
                if not _reports(info):
                    await self._wait()
                elif info.is_modern:
                    await self._listen(connection)
                else:
                    await self._subscribe(connection, info)
            except GatewayError as error:
                log.debug("a server's changes of resources are not reported", exc_info=error)
            if self._wanted:
                is_steady = self._clock.monotonic_ms() - began_ms > 60_000
                failures = 1 if is_steady else failures + 1
                await self._wait(pause_s(failures, self._clock))

    async def _wait(self, seconds: float | None = None) -> None:
        """Wait until the wanted URIs change, at most for `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    # -- servers of 2026-07-28 ---------------------------------------------------------------------

    async def _listen(self, connection: Connection) -> None:
        """Keep one stream open for the wanted URIs. Return when no URI is wanted, or the server has
        ended the stream. Raise BadAnswer if the server does not acknowledge a stream."""
        reading: asyncio.Task[None] | None = None
        try:
            while wanted := self._wanted:
                self._wake.clear()
                opened = asyncio.Event()
                previous, reading = (
                    reading,
                    asyncio.create_task(self._read(connection, wanted, opened)),
                )
                try:
                    async with asyncio.timeout(ACKNOWLEDGE_S):
                        await _wait_for_first(reading, opened)
                except TimeoutError:
                    raise BadAnswer("The server did not acknowledge subscriptions/listen") from None
                finally:
                    await cancelled(previous)
                await _wait_for_first(reading, self._wake)
                if reading.done():
                    reading.result()
                    return
        finally:
            await cancelled(reading)

    async def _read(
        self, connection: Connection, wanted: frozenset[str], opened: asyncio.Event
    ) -> None:
        params = {"resourceSubscriptions": sorted(wanted)}
        async with Subscription(connection, params, on_reopened=self._report_all) as changes:
            opened.set()
            async for change in changes:
                self._report(change.method, change.params)

    # -- older servers -----------------------------------------------------------------------------

    async def _subscribe(self, connection: Connection, info: ServerInfo) -> None:
        """Subscribe to the wanted URIs and report changes, until no URI is wanted or the session
        ends."""
        tap: asyncio.Queue[Json] = asyncio.Queue(MAX_WAITING)
        stream = connection.link.session_stream
        stream.taps.add(tap)
        subscribed: set[str] = set()
        try:
            while stream.is_open and connection.server is info:
                self._wake.clear()
                await self._resubscribe(connection, subscribed)
                if not self._wanted:
                    return
                if (message := await self._next(tap)) is not None:
                    self._report(message.get("method"), message.get("params"))
        finally:
            stream.taps.discard(tap)

    async def _resubscribe(self, connection: Connection, subscribed: set[str]) -> None:
        """Send the requests that make `subscribed` equal to the wanted URIs, and update it. Ignore
        refusals."""
        for uri in sorted(self._wanted ^ subscribed):
            method = "unsubscribe" if uri in subscribed else "subscribe"
            with suppress(GatewayError):
                await connection.request(f"resources/{method}", {"uri": uri})
            subscribed ^= {uri}

    async def _next(self, tap: asyncio.Queue[Json]) -> Json | None:
        """Return the next message; `None` if the wanted URIs changed or `SESSION_CHECK_S` passed."""
        getting = asyncio.create_task(tap.get())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SESSION_CHECK_S):
                    await _wait_for_first(getting, self._wake)
            return getting.result() if getting.done() else None
        finally:
            getting.cancel()


def _reports(info: ServerInfo) -> bool:
    resources = info.capabilities.get("resources")
    return isinstance(resources, dict) and resources.get("subscribe") is True


async def _wait_for_first(task: asyncio.Task[Any], event: asyncio.Event) -> None:
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def _ignore(uri: str) -> None:
    """Do nothing."""
