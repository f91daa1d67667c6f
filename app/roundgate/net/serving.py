"""An HTTP server in a process that also does something else, such as recording a conversation."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

SHUTDOWN_S: Final = 1
"""The seconds that requests have to end after the block."""


@asynccontextmanager
async def served(
    app: Any, host: str = "127.0.0.1", port: int = 0, **options: Any
) -> AsyncGenerator[int, None]:
    """Serve an ASGI app until the block ends; yield the port. Port 0 selects a free port. Pass
    `options` to `uvicorn.Config`.

    Raises:
        OSError: the address cannot be bound.
    """
    import uvicorn

    class QuietServer(uvicorn.Server):
        """A server that leaves signals to its process."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family)
    usual = {"lifespan": "off", "ws": "none", "log_config": None, "log_level": "warning"}
    more = {"access_log": False, "timeout_graceful_shutdown": SHUTDOWN_S}
    server = QuietServer(uvicorn.Config(app, **{**usual, **more, **options}))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        while not (server.started or serving.done()):  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(0.01)
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await serving
