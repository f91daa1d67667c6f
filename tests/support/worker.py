"""A worker in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.server import Server, end, run


@contextmanager
def working(config: Path, log: Path, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """Run `roundgate worker` until the block ends; it has no port."""
    worker = Server(run(["worker", str(config)], log, environment), 0, log)
    try:
        worker.logged(60, logger="roundgate")
        yield worker
    finally:
        end(worker.process)
