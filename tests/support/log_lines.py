"""Lines of the log as a program reads them: JSON, with the ids of the call they were logged in."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from roundgate.observability import JsonFormatter


class LogLines(logging.Handler):
    """Keeps every line, formatted where it was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.text.append(self.format(record))

    def all(self) -> list[dict[str, Any]]:
        """Every line."""
        return [json.loads(line) for line in self.text]

    def of(self, message: str) -> list[dict[str, Any]]:
        """The lines with this message."""
        return [line for line in self.all() if line["msg"] == message]


@contextmanager
def log_lines() -> Iterator[LogLines]:
    """Keep what is logged within the block, from the level `info` on."""
    logger, lines = logging.getLogger("roundgate"), LogLines()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
