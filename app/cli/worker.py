"""`mcp-gateway worker`: a process that works on tasks and serves nothing."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal

from app import config, core, logs, settings
from app.clock import Clock

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
    asyncio.run(_work(core.build_core(file, using, Clock()), file.config))
    return 0


async def _work(parts: core.Core, using: config.GatewayConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    pool = parts.pool(using, Clock())
    pool.start()
    log.info("working on tasks, %d at once", using.tasks.concurrency)
    try:
        await stop.wait()
    finally:
        await pool.stop()
        await parts.aclose()
