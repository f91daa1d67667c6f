"""The command `roundgate` as a person runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    status: int
    out: str
    err: str


def roundgate(*arguments: str | Path, directory: Path | None = None, **environ: str) -> Ran:
    """Run the installed command to its end."""
    command = [str(Path(sys.executable).with_name("roundgate")), *map(str, arguments)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    done = subprocess.run(
        command,
        cwd=directory,
        env=kept | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
