"""A terminal that a test types into and looks at, drawn by tmux."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "roundgate.cli"]

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed here")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """One for a test; what runs in it ends with the test."""
    terminal = Terminal(tmp_path / "tmux.socket")
    yield terminal
    terminal.tmux("kill-server", check=False)


class Terminal:
    """A terminal of 100 columns, drawn by tmux."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._runs = 0

    def tmux(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            ["tmux", "-S", str(self._socket), "-f", "/dev/null", *words],
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=60,
            check=check,
        )
        return done.stdout

    def start(self, *words: str, **environment: str) -> None:
        """Run a command in a new window; its exit status is shown when it has ended."""
        self._runs += 1
        script = self._socket.with_name(f"run{self._runs}.sh")
        quoted = shlex.join([*COMMAND, *words])
        exports = "".join(
            f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()
        )
        script.write_text(f"trap : INT\n{exports}{quoted}\necho status $?\nsleep 600\n")
        if self._runs == 1:
            self.tmux("new-session", "-d", "-x", "100", "-y", "40", f"sh {script}")
        else:
            self.tmux("respawn-pane", "-k", f"sh {script}")

    def types(self, *keys: str) -> None:
        for key in keys:
            self.tmux("send-keys", key)

    def sees(self, text: str, within_s: float = 60) -> str:
        """The screen, once a text is on it."""
        until = time.monotonic() + within_s
        while text not in (screen := self.tmux("capture-pane", "-p", "-J")):
            assert time.monotonic() < until, f"no {text!r} in\n{screen}"
            time.sleep(0.1)
        return screen
