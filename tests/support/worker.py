"""A worker in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.server import Server, end

_COMMAND = "import sys; from roundgate.cli import main; sys.exit(main())"


@contextmanager
def working(config: Path, log: Path, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """Run `roundgate worker` until the block ends; it has no port."""
    command = [sys.executable, "-c", _COMMAND, "worker", str(config)]
    root = Path(__file__).parents[2]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=root,
            stdout=out,
            stderr=out,
            env=os.environ | (environment or {}),
            start_new_session=True,
        )
    worker = Server(process, 0, log)
    try:
        worker.logged(60, logger="roundgate")
        yield worker
    finally:
        end(process)
