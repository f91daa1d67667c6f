"""`mcp-gateway worker`: a process that works on tasks and serves nothing.

With `--only` it takes one turn at one task, beside which nothing else runs: so does a process that has found a suspect
(`app/tasks/isolation.py`) begin it, and ends it by closing the socket between them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Final

from app import config, core, logs, settings
from app.clock import Clock
from app.storage.tasks import TaskRef
from app.tasks.isolation import run_alone

STOP_GRACE_S: Final = 25.0
"""What a platform leaves a process between SIGTERM and SIGKILL (Kubernetes: 30 s), less some time to end."""

log = logging.getLogger("app")


def run(arguments: argparse.Namespace) -> int:
    """Work until told to stop.

    Raises:
        ConfigError: before any task is taken.
    """
    if arguments.config is not None:
        os.environ["GATEWAY_CONFIG"] = str(arguments.config)
    if arguments.log_level is not None:
        os.environ["GATEWAY_LOG_LEVEL"] = arguments.log_level
    using = settings.from_environment(os.environ)
    logs.configure(using.log_level)
    file = config.load(using.config)
    parts = core.build_core(file, using, Clock())
    if arguments.only is None:
        asyncio.run(_work(parts, file.config))
    else:
        asyncio.run(_work_alone(parts, file.config, arguments.only, socket.socket(fileno=arguments.parent)))
    return 0


async def _work(parts: core.Core, using: config.GatewayConfig) -> None:
    stop = asyncio.Event()
    _on_signals(stop.set)
    pool = parts.pool(using, Clock(), stop_grace_s=STOP_GRACE_S, owns_process=True)
    pool.start()
    log.info("working on tasks, %d at once", using.tasks.concurrency)
    try:
        await stop.wait()
    finally:
        await pool.stop()
        await parts.aclose()


async def _work_alone(parts: core.Core, using: config.GatewayConfig, ref: TaskRef, parent: socket.socket) -> None:
    clock, stop = Clock(), asyncio.Event()
    _on_signals(stop.set)
    _on_end_of(parent, stop.set)
    worker = parts.worker(using, clock)
    watchdog = parts.watchdog(worker, using, clock)
    if watchdog is not None:
        watchdog.start()

    async def tell(fence: int) -> None:
        parent.sendall(b"%d\n" % fence)

    grace_s = STOP_GRACE_S if using.tasks.stop_grace_s is None else using.tasks.stop_grace_s
    try:
        await run_alone(worker, ref, stop, grace_s, tell)
    finally:
        await parts.aclose()
    if worker.has_abandoned:
        logging.shutdown()
        os._exit(0)  # its handler would keep the process


def _on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _on_end_of(parent: socket.socket, stop: Callable[[], None]) -> None:
    """Stop when the process that has begun this one is gone."""
    loop = asyncio.get_running_loop()

    def wait() -> None:
        parent.recv(1)  # it never sends anything
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=wait, name="parent", daemon=True).start()
