"""Programs in processes forked from one that has imported the gateway and the official SDK.

A start of `roundgate` costs 0.1 s of CPU instead of 0.7 s. The standard library's fork server does the forking, because
a process of pytest has threads. Programs whose start a test is about, or which depend on the interpreter's environment,
start as usual.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from runpy import run_path
from typing import Final

_PRELOADED = [
    "roundgate.cli.serve",
    "roundgate.cli.worker",
    "roundgate.backends.mcp.backend",
    "roundgate.backends.python.backend",
    "roundgate.storage.sqlite",
    "docstring_parser",
    "mcp.server.mcpserver",
    "pydantic.dataclasses",
    "pydantic.v1",
    "pytest",  # multiprocessing imports the main module of its parent
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "yaml",
]
MEASURES: Final = "COVERAGE_PROCESS_CONFIG" in os.environ
"""Whether coverage is measured, for which a process has to start from the beginning."""
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(_PRELOADED)


class Forked:
    """A running program, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        out: Path,
        err: Path | None = None,
        program: Path | None = None,
    ) -> None:
        """Start `roundgate`, or the Python file `program`, in a session of its own.

        Output is appended to `out`, that of standard error to `err` if given.
        """
        words = [str(program or "roundgate"), *arguments]
        given = (words, dict(environment), str(directory), str(out), str(err or out))
        self._process = _CONTEXT.Process(target=_run, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status.

        Raises:
            subprocess.TimeoutExpired: the process still runs.
        """
        self._process.join(timeout)
        if (status := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("roundgate", timeout or 0)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    words: list[str], environment: Mapping[str, str], directory: str, out: str, err: str
) -> None:
    os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, out), (2, err)):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.argv = words
    if words[0] != "roundgate":
        run_path(words[0], run_name="__main__")
        return
    from roundgate.cli import main

    sys.exit(main())
