"""`mcp-gateway serve`: uvicorn around `app.main:create_app`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys

import uvicorn

from app import main

GRACEFUL_SHUTDOWN_S = 10


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop.

    Raises:
        ConfigError: before anything is bound.
    """
    if arguments.config is not None:
        os.environ["GATEWAY_CONFIG"] = str(arguments.config)
    if arguments.log_level is not None:
        os.environ["GATEWAY_LOG_LEVEL"] = arguments.log_level
    app = main.create_app()  # with several workers each makes its own; this one finds the problems, once
    logging.getLogger("app").info("serving http://%s:%d", arguments.host, arguments.port)
    several = arguments.workers > 1
    # uvicorn shuts down and then raises the signal again: who was told to stop and did exits with 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    uvicorn.run(
        "app.main:create_app" if several else app,
        factory=several,
        host=arguments.host,
        port=arguments.port,
        workers=arguments.workers,
        log_config=None,  # ours is configured
        log_level="warning",
        access_log=False,  # one structured line a request instead
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
    )
    return 0
