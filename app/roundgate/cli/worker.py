"""`roundgate worker`: a process that runs tasks and serves no requests.

With `--suspect`, the process runs one turn of one task, on behalf of another worker process
(`roundgate.tasks.pool`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

from roundgate.backends import Snapshot
from roundgate.cli.arguments import (
    Commands,
    add_config,
    add_log,
    command,
    flag,
    into_environment,
    task_ref,
)
from roundgate.clock import Clock
from roundgate.config import ConfigFile, GatewayConfig
from roundgate.observability.metrics import ForwardedMetrics
from roundgate.runtime import startup
from roundgate.runtime.reload import Reloader
from roundgate.settings import Settings
from roundgate.storage import TaskRef
from roundgate.tasks.pool import end_soon, run_suspect

STOP_GRACE_S: Final = 25.0
"""The seconds that handlers get to end after SIGTERM. Platforms wait longer before SIGKILL (30 s in
Kubernetes)."""

log = logging.getLogger("roundgate")


def declare(commands: Commands) -> None:
    """Add `roundgate worker`."""
    about = "run tasks in a separate process"
    worker = command(commands, "worker", about, "roundgate worker gateway.yaml", run=run)
    add_config(worker)
    add_log(worker)
    flag(worker, "--reload", "watch gateway.yaml and its modules, and use their changes")
    # passed by a worker to the process that it starts for a suspect task
    worker.add_argument("--suspect", type=task_ref, help=argparse.SUPPRESS)
    worker.add_argument("--counts", type=int, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """Run tasks until a signal stops the process; with `--suspect`, run one turn of one task.

    Raises:
        ConfigError: the configuration or the environment is invalid.
    """
    into_environment(arguments)
    using, file = startup.read_configuration(os.environ)
    metrics = None if arguments.counts is None else ForwardedMetrics(arguments.counts)
    parts = startup.build_core(file, using, Clock(), role="worker", metrics=metrics)
    if parts.trail is not None:
        parts.trail.open()
    if arguments.suspect is None:
        asyncio.run(_work(parts, file, using))
    else:
        try:
            asyncio.run(_work_alone(parts, file.config, using, arguments.suspect))
        except Exception as error:  # a line of the log instead of a raw traceback
            log.error("the process of a suspect failed", exc_info=error)
            return 1
    return 0


async def _work(parts: startup.Core, file: ConfigFile, using: Settings) -> None:
    stop = asyncio.Event()
    _on_signals(stop.set)
    pool = parts.pool(file.config, Clock(), stop_grace_s=_grace_s(using), owns_process=True)

    def swap(_: GatewayConfig, snapshot: Snapshot) -> None:
        parts.serving.swap(snapshot)

    pool.start()
    log.info("working on tasks, %d at once", file.config.tasks.concurrency)
    try:
        async with Reloader(
            file,
            parts.serving,
            parts.modules,
            swap,
            parts.stores.sessions,
            watches=using.reload,
            trail=parts.trail,
        ).running():
            await stop.wait()
    finally:
        await pool.stop()
        await parts.aclose()


async def _work_alone(
    parts: startup.Core, config: GatewayConfig, using: Settings, ref: TaskRef
) -> None:
    clock, stop, loop = Clock(), asyncio.Event(), asyncio.get_running_loop()
    _on_signals(stop.set)
    # SIGHUP may go to the whole process group, but only the parent reloads
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def parent_ended() -> None:
        loop.remove_reader(sys.stdin)
        stop.set()

    loop.add_reader(sys.stdin, parent_ended)
    worker = parts.worker(config, clock)
    watchdog = parts.watchdog(worker, config, clock)
    if watchdog is not None:
        watchdog.start()
    grace_s = _grace_s(using) if config.tasks.stop_grace_s is None else config.tasks.stop_grace_s
    try:
        await run_suspect(worker, ref, stop, grace_s)
    finally:
        end_soon()  # always, because a handler that ignores cancellation would keep the process alive
        await parts.aclose()


def _grace_s(using: Settings) -> float:
    return STOP_GRACE_S if using.drain_s is None else using.drain_s


def _on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
