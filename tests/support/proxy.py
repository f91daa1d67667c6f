"""A TCP proxy in front of a service, in a thread of its own: a network that takes its
time, falls silent or refuses.

client ──▶ proxy ── latency_s ──▶ service          OPEN
client ──▶ proxy    (nothing comes back)           SILENT: what was sent before may have been done
client ──▶ ✗ (reset)                               SHUT: connections end, and new ones are refused
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from enum import Enum, auto
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from roundgate_aws.machine import reserved_port
from tests.support.listening import listening


class Way(Enum):
    """What becomes of what is sent."""

    OPEN = auto()
    SILENT = auto()
    SHUT = auto()


class Proxy:
    """`with Proxy(url, latency_s=0.005) as proxy:` has `proxy.url` lead to `url`, each way `latency_s` seconds long."""

    def __init__(self, url: str, latency_s: float = 0.0) -> None:
        target = urlsplit(url)
        assert target.hostname is not None
        assert target.port is not None
        self._target = target.hostname, target.port
        self._latency_s = latency_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._way = Way.OPEN
        self._opened = asyncio.Event()
        self._listening: AsyncExitStack | None = None
        self._held = reserved_port()  # or another process gets it while nothing listens
        self._port = 0

    @property
    def url(self) -> str:
        """Where clients are to go."""
        return f"http://127.0.0.1:{self._port}"

    def turn(self, way: Way) -> None:
        """From now on it is so."""
        self._do(self._turn(way))

    def __enter__(self) -> Proxy:
        self._port = self._held.__enter__()
        self._thread.start()
        self._do(self._turn(Way.OPEN))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._do(self._turn(Way.SHUT))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._held.__exit__(kind, error, trace)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _turn(self, way: Way) -> None:
        if way is Way.SHUT:
            if self._listening is not None:
                await self._listening.aclose()
                self._listening = None
        elif self._listening is None:
            self._listening = AsyncExitStack()
            connections = listening(self._connected, port=self._port, backlog=1_000)
            await self._listening.enter_async_context(connections)
        self._opened.clear() if way is Way.SILENT else self._opened.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._opened.wait()
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        try:
            await _first_of(self._carry(reader, far_writer), self._carry(far_reader, writer))
        except asyncio.CancelledError:  # the connection ends, with what is still to be sent
            far_writer.transport.abort()
            raise
        finally:
            far_writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Each piece arrives `latency_s` after it was sent, however many are on their way."""
        now: Callable[[], float] = asyncio.get_running_loop().time
        sent: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while (piece := await sent.get())[1]:
                await asyncio.sleep(max(0.0, piece[0] - now()))
                await self._opened.wait()
                writer.write(piece[1])

        async def take() -> None:
            data = b"-"
            while data:
                data = await reader.read(65_536)
                sent.put_nowait((now() + self._latency_s, data))
            await asyncio.Event().wait()  # the other side has to have all of it first

        await _first_of(deliver(), take())


async def _first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends, or fails as connections do."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with suppress(OSError):
            await asyncio.gather(*tasks, return_exceptions=True)
