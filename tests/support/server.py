"""A gateway in a process of its own, on a real socket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from roundgate_aws.machine import reserved_port
from tests.support.forked import MEASURES, Forked

COMMAND = (sys.executable, "-c", "import sys; from roundgate.cli import main; sys.exit(main())")
_ROOT: Final = Path(__file__).parents[2]


@dataclass
class Server:
    """A running `roundgate serve`."""

    process: subprocess.Popen[bytes] | Forked
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lines(self) -> list[dict[str, Any]]:
        """Everything it has logged so far."""
        whole = (
            self.log.read_text().rpartition("\n")[0].splitlines()
        )  # the last one may still be being written
        return [json.loads(line) for line in whole if line.startswith("{")]  # tools may print, too

    def logged(self, timeout_s: float = 60, **fields: Any) -> dict[str, Any]:
        """The first line that has these fields, once there is one."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            for line in self.lines():
                if fields.items() <= line.items():
                    return line
            time.sleep(0.02)
        raise AssertionError(f"nothing with {fields} in {self.log.read_text()}")

    def stop(self, by: signal.Signals = signal.SIGTERM, timeout_s: float = 60) -> int:
        """Tell it to stop; returns the exit status."""
        self.process.send_signal(by)
        return self.process.wait(timeout_s)


@contextmanager
def running(
    config: Path, environment: dict[str, str] | None = None, *options: str
) -> Iterator[Server]:
    """Serve a configuration until the block ends; its processes end with it."""
    log = config.with_suffix(".log")
    with reserved_port() as port:
        arguments = ["serve", str(config), "--port", str(port), *options]
        server = Server(run(arguments, log, environment), port, log)
        try:
            wait_until_it_answers(server)
            yield server
        finally:
            end(server.process)


def run(
    arguments: list[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes] | Forked:
    """Run `roundgate` in a forked process.

    With several workers, another PYTHONPATH or while coverage is measured, a new process runs it.
    """
    given = environment or {}
    if MEASURES or "--workers" in arguments or "PYTHONPATH" in given:
        return start([*COMMAND, *arguments], log, environment)
    log.write_bytes(b"")
    return Forked(arguments, os.environ | given, _ROOT, log)


def start(
    command: list[str], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; its output goes to its log."""
    with log.open("wb") as out:
        return subprocess.Popen(
            command,
            cwd=_ROOT,
            stdout=out,
            stderr=out,
            env=os.environ | (environment or {}),
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes] | Forked) -> None:
    """Kill a process and its children. While coverage is measured, the process ends by itself to report its lines."""
    if MEASURES and process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # a forked process may not have its session yet
    process.wait()


def wait_until_it_answers(server: Server) -> None:
    """Wait until the server answers to a probe."""
    until = time.monotonic() + 120
    with httpx.Client(
        base_url=server.url, timeout=5, verify=False
    ) as http:  # to read certificates takes 40 ms
        while time.monotonic() < until and server.process.poll() is None:
            try:
                http.get("/healthz").raise_for_status()
            except httpx.TransportError:
                time.sleep(0.03)
            else:
                return
    raise AssertionError(f"the server did not start: {server.log.read_text()}")


def configured(folder: Path, tools: Path | str, **sections: Any) -> Path:
    """Write the configuration of a gateway that serves a module, or the text of one, under the
    names of its functions."""
    if isinstance(tools, str):
        (folder / "tools.py").write_text(tools)
        tools = folder / "tools.py"
    backend = {"kind": "python", "name": "own", "prefix": "", "path": str(tools)}
    config = folder / "gateway.json"
    config.write_text(json.dumps({"backends": [backend], **sections}))
    return config


@contextmanager
def serving(folder: Path, config: str, tools: Path) -> Iterator[Server]:
    """A gateway of a configuration and a module of tools, both copied to a folder, which its store is in, too."""
    (folder / "gateway.yaml").write_text(config)
    shutil.copy(tools, folder / tools.name)
    store = f"sqlite:///{folder / 'tasks.sqlite3'}"
    with running(folder / "gateway.yaml", {"GATEWAY_STORE": store}) as server:
        yield server
