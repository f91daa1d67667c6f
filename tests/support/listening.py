"""Servers on sockets of this machine: of bytes that a test writes itself, and of an app in a thread."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

Converse = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def listening(
    converse: Converse, tls: ssl.SSLContext | None = None, *, port: int = 0, backlog: int = 100
) -> AsyncGenerator[int]:
    """Yield a port of 127.0.0.1 at which `converse` treats each connection; all end at the exit.

    `converse` may leave its writer open, and need not expect that a client hangs up.
    `asyncio.start_server` would leave a connection open that it accepts while it closes.
    """
    loop = asyncio.get_running_loop()
    connections: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def connection(accepted: socket.socket) -> None:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=tls)
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            writers.append(writer)
            try:
                await converse(reader, writer)
            finally:
                writer.close()

    def accept(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connections.add(asyncio.create_task(connection(accepted)))

    with socket.create_server(("127.0.0.1", port), backlog=backlog) as listener:
        listener.setblocking(False)
        loop.add_reader(listener, accept, listener)
        try:
            yield listener.getsockname()[1]
        finally:
            loop.remove_reader(listener)
            listener.close()
            await asyncio.sleep(0)  # a task that is cancelled earlier would not close its socket
            for each in connections:
                each.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
            for writer in writers:
                writer.transport.abort()
            await asyncio.sleep(0)  # transports close their sockets in the next turn


@contextmanager
def served_in_a_thread(app: ASGIApp, **config: Any) -> Iterator[str]:
    """Yield the URL of an app; uvicorn answers requests that arrive before it has started."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, **config))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
