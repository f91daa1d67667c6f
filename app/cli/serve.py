"""`mcp-gateway serve`: uvicorn around `app.main:create_app`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys

import uvicorn

from app import config, main, settings
from app.errors import ConfigError

GRACEFUL_SHUTDOWN_S = 10
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop.

    Raises:
        ConfigError: before anything is bound.
    """
    if arguments.config is not None:
        os.environ["GATEWAY_CONFIG"] = str(arguments.config)
    if arguments.log_level is not None:
        os.environ["GATEWAY_LOG_LEVEL"] = arguments.log_level
    _check_exposure(arguments)
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


def _check_exposure(arguments: argparse.Namespace) -> None:
    """Without authentication everybody who reaches the gateway is its one local subject: not on a public address.

    Raises:
        ConfigError: nobody said that this is meant.
    """
    if arguments.host in LOOPBACK or arguments.allow_anonymous:
        return
    file = config.load(settings.from_environment(os.environ).config)
    if file.config.auth == "none":
        remedy = "configure auth, bind to 127.0.0.1, or say --allow-anonymous if something in front authenticates"
        message = f"there is no authentication, but --host {arguments.host} can be reached from outside"
        raise ConfigError([file.origin.at("auth").problem(message, remedy)])
