"""`roundgate serve`: the app of `roundgate.main` in uvicorn."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from math import ceil
from typing import Any, Final

import uvicorn
from msgspec.structs import replace
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from roundgate.cli.arguments import (
    PORT,
    Commands,
    add_config,
    add_log,
    bind,
    command,
    flag,
    into_environment,
)
from roundgate.errors import UsageError
from roundgate.http import ConnectionMiddleware
from roundgate.http.connections import Bounds, Connections
from roundgate.main import build_app, create_app
from roundgate.runtime import checks
from roundgate.runtime.startup import read_configuration
from roundgate.settings import HttpConfig, Settings
from roundgate.starting import kept, terminal_watch

STARTUP_FAILURE: Final = 3
"""The exit status of uvicorn if the app fails to start."""

LATE_S: Final = 5
"""Seconds that uvicorn waits after the end of `GATEWAY_DRAIN_S` before it cancels calls: by then they
have ended, and only clients that do not read are left."""
WORKER_ANSWER_S: Final = 30
"""Seconds that a server process has to answer its supervisor before it is replaced. A process that
starts does not answer while it imports the gateway, which takes a busy machine several seconds."""
JOIN_EVERY_S: Final = 0.1
"""Seconds between two checks whether the server processes have ended."""
ACCEPTS_AT_ONCE: Final = 16
"""The number of connections accepted in one iteration of the event loop."""
log = logging.getLogger("roundgate")


def declare(commands: Commands) -> None:
    serve = command(
        commands, "serve", "serve a configuration over HTTP", "roundgate serve --reload",
        "roundgate serve gateway.yaml --port 0 --log-level debug",
        "roundgate serve --host 0.0.0.0 --workers 4", run=run,
    )  # fmt: skip
    add_config(serve)
    about = "address to bind to (default: %(default)s)"
    serve.add_argument("--host", default="127.0.0.1", help=about)
    about = "port to bind to, 0 for any free port (default: %(default)s)"
    serve.add_argument("--port", type=PORT, default=8000, help=about)
    flag(serve, "--allow-anonymous", "bind to any address without authentication")
    about = "processes that share the port (default: %(default)s)"
    serve.add_argument("--workers", type=int, default=1, help=about)
    about = "watch gateway.yaml and the modules that it loads, and serve their changes (SIGHUP reloads once)"
    flag(serve, "--reload", about)
    add_log(serve)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops the process.

    Raises:
        ConfigError: the configuration or the environment is invalid.
        UsageError: the address or the port cannot be used.
        SystemExit: the app fails to start.
    """
    into_environment(arguments)
    with kept():
        using, file = read_configuration(os.environ)
        checks.require(checks.exposure(file, using, arguments.host))
        if file.config.http.metrics and arguments.workers > 1:
            raise UsageError(
                "http.metrics has the metrics of one process: serve with --workers 1 and start more "
                "gateways, or turn it off and send metrics with opentelemetry-instrument"
            )
        if (
            using.show_errors == "auto"
            and arguments.host in checks.LOOPBACK
            and checks.is_private(file, using)
        ):
            os.environ["GATEWAY_SHOW_ERRORS"] = "on"  # inherited by worker processes
            using = replace(using, show_errors="on")
        # with several workers, each builds its own app; this app reports problems once
        app = build_app(file, using)
    bound = bind(arguments.host, arguments.port)
    log.info("serving %s", url_of(bound, arguments.host, file.config.http.path))
    if file.config.console is not None and file.config.auth == "none":
        app.state.console.tell_link(url_of(bound, arguments.host, ""))
    # uvicorn raises the signal again after its shutdown, so exit with 0
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    options = _options(file.config.http, using, arguments)
    if arguments.workers > 1:
        factory, workers = "roundgate.cli.serve:create_worker_app", arguments.workers
        configured = uvicorn.Config(
            factory,
            factory=True,
            workers=workers,
            timeout_worker_healthcheck=WORKER_ANSWER_S,
            **options,
        )
        Supervisor(configured, sockets=[bound]).run()
    else:
        _serve(uvicorn.Config(ConnectionMiddleware(app, app.state.endpoints), **options), bound)
    return 0


def create_worker_app() -> ConnectionMiddleware:
    """Return the app of one of several server processes."""
    app = create_app()
    return ConnectionMiddleware(app, app.state.endpoints)


def url_of(bound: socket.socket, host: str, path: str) -> str:
    """Return the URL of a path at a socket, for a client on this machine."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{bound.getsockname()[1]}{path}"


class Supervisor(Multiprocess):
    """A supervisor of several server processes on one port, which replaces processes that die."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        # before uvicorn installs its handlers, which hide whether SIGHUP was ignored (`nohup`)
        self._is_terminal_gone = terminal_watch() if hasattr(signal, "SIGHUP") else lambda: False
        super().__init__(config, sockets)
        self._to_reload: list[Process] = []
        """The processes that have not got the last SIGHUP, which would end a process that starts."""

    def keep_subprocess_alive(self) -> None:
        """Replace processes that have died or hang, and log each replacement. Let processes reload
        that have started."""
        before = list(self.processes)
        super().keep_subprocess_alive()
        for process in before:
            if process not in self.processes:
                fields = {"pid": process.pid, "ended_by": _ended_by(process.exitcode)}
                log.error("a server process died; another was started", extra={"fields": fields})
        ready = [process for process in self._to_reload if process.is_ready()]
        _send(signal.SIGHUP, ready)
        self._to_reload = [
            process
            for process in self._to_reload
            if process in self.processes and process not in ready
        ]

    def handle_int(self) -> None:
        """Stop without the time to accept connections. The second signal is SIGTERM, because a
        terminal sends SIGINT to the processes itself, and a second SIGINT would cut calls."""
        super().handle_int()
        self.signal_queue.append(signal.SIGTERM)

    def join_all(self) -> None:
        """Wait for the processes, and forward later signals: they end the time to accept
        connections."""
        while running := [process for process in self.processes if process.exitcode is None]:
            running[0].process.join(JOIN_EVERY_S)
            while self.signal_queue:
                number = self.signal_queue.pop(0)
                if number in (signal.SIGINT, signal.SIGTERM):
                    _send(number, running)

    def handle_hup(self) -> None:
        """Let each process reload, or stop if the terminal was closed. uvicorn itself would replace
        the processes and end calls that outlast a graceful shutdown."""
        if self._is_terminal_gone():  # the terminal has also signalled the other processes
            self.should_exit.set()
        else:
            self._to_reload = list(self.processes)


def _send(number: int, processes: Iterable[Process]) -> None:
    for process in processes:
        if process.exitcode is None and process.pid is not None:
            os.kill(process.pid, number)


def _ended_by(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        with suppress(ValueError):
            return signal.Signals(-exit_code).name
    return f"status {exit_code}"


def _options(http: HttpConfig, using: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "host": arguments.host,
        "port": arguments.port,
        "http": Connections(Bounds.from_config(http)),
        "ws": "none",
        "log_config": None,  # the gateway configures logging
        "log_level": "warning",
        "access_log": False,  # the gateway logs each request itself
        "server_header": False,
        "proxy_headers": bool(http.trusted_proxies),
        "forwarded_allow_ips": [str(network) for network in http.trusted_proxies],
        "timeout_graceful_shutdown": ceil(using.grace_s - using.accepts_s) + LATE_S,
        "timeout_keep_alive": http.idle_timeout_s,
    }


def _serve(configured: uvicorn.Config, bound: socket.socket) -> None:
    """Serve until a signal stops the server; exit with `STARTUP_FAILURE` if it does not start.

    uvloop accepts one connection per socket in each iteration of the loop. Duplicates of the socket
    let it accept more, so one client that opens many connections does not delay others.
    """
    running = uvicorn.Server(configured)
    with suppress(KeyboardInterrupt):
        running.run(sockets=[bound, *(bound.dup() for _ in range(ACCEPTS_AT_ONCE - 1))])
    if not running.started:
        sys.exit(STARTUP_FAILURE)
