"""FastMCP's client, in a virtual environment of its own: it needs forty packages
that are of no use to us."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

VERSION = "4.1.2"
CACHE = Path(__file__).parents[2] / ".cache" / "fastmcp-client"
DRIVER = Path(__file__).with_name("fastmcp_driver.py")


def python() -> Path:
    """The interpreter of that environment, which is made once; skips the test where it cannot be made."""
    CACHE.mkdir(parents=True, exist_ok=True)
    made = CACHE / f"fastmcp-{VERSION}"
    interpreter = CACHE / "venv" / "bin" / "python"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            subprocess.run(
                [sys.executable, "-m", "venv", "--clear", str(CACHE / "venv")], check=True
            )
            command = [str(interpreter), "-m", "pip", "install", "-q", f"fastmcp-tasks=={VERSION}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(
                    f"fastmcp-tasks {VERSION} cannot be installed: {done.stderr.strip().splitlines()[-1]}"
                )
            made.touch()
    return interpreter


def drive(url: str) -> subprocess.CompletedProcess[str]:
    """Have it call the tools of `tests/fleet`."""
    command = [str(python()), "-P", str(DRIVER), url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
