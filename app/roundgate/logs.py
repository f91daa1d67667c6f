"""Structured logs: one JSON object a line on standard error.

    {"ts": "2026-11-21T22:06:42.123Z", "level": "info", "msg": "request", "method": "tools/call", "name": "add", …}

A record's `extra={"fields": {…}}` becomes members of the object. Arguments, results, tokens and answers are never
among them. Characters that a terminal would act on, or that turn text around, are escaped.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final, TextIO

from roundgate.clock import iso
from roundgate.json import encode

_ACTING: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Controls (a terminal takes U+009B for the beginning of a command), and format characters that hide or reorder."""


_REQUEST: Final = "roundgate.request"
FLUSH_S: Final = 0.05
"""For how long the line of a request may wait to be written together with others, in seconds."""
MAX_WAITING: Final = 1_000
"""So many lines are written at once, whenever that is."""


def escaped(text: str) -> str:
    """A text with every character that a terminal or a reader's eye would be misled by as `\\u….`, valid in JSON."""
    if text.isascii() and text.isprintable():
        return text
    return _ACTING.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class JsonFormatter(logging.Formatter):
    """One record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        members: dict[str, Any] = getattr(record, "fields", {})
        if record.name not in (_REQUEST, "root"):
            members = {**members, "logger": record.name}
        if record.exc_info:
            members = {**members, "traceback": self.formatException(record.exc_info)}
        return _line(
            int(record.created * 1000), record.levelname.lower(), record.getMessage(), members
        )


def _line(at_ms: int, level: str, message: str, members: Mapping[str, Any]) -> str:
    return escaped(encode({"ts": iso(at_ms), "level": level, "msg": message, **members}).decode())


class RequestLog:
    """Writes the line of each request: what its logger would write, and where.

    Where the handler of `configure` is the only one, no `LogRecord` is made. One finds out its file, function, thread
    and process, which nobody reads, and that takes longer than all the rest of a line.
    """

    def __init__(self) -> None:
        self._logger = logging.getLogger(_REQUEST)

    @property
    def is_on(self) -> bool:
        """Whether somebody wants the lines."""
        return self._logger.isEnabledFor(logging.INFO)

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write a line with these members."""
        handler = self._only_handler()
        if handler is None:
            self._logger.info("request", extra={"fields": fields})
        else:
            handler.write(_line(time.time_ns() // 1_000_000, "info", "request", fields))

    def _only_handler(self) -> _LineHandler | None:
        """The one of `configure`, if it would get the record as it is, and no other would."""
        if self._logger.filters:
            return None
        found: logging.Handler | None = None
        logger: logging.Logger | None = self._logger
        while logger is not None:
            for handler in logger.handlers:
                if found is not None:
                    return None
                found = handler
            logger = logger.parent if logger.propagate else None
        return found if isinstance(found, _LineHandler) and found.takes_every_line else None


class _LineHandler(logging.StreamHandler[TextIO]):
    """A stream handler that takes lines too, beside records.

        line ─▶ waiting ─▶ written    after `FLUSH_S`, with the next record, or when the process ends

    To hand each line to the operating system at once costs as much as to make it. A record is written at once, and so
    are the lines before it. What waits is lost only where a process is ended without a chance to write: by SIGKILL, by
    a crash of the interpreter. AWS Lambda stops a process between two events, so there nothing waits.
    """

    def __init__(self, stream: TextIO, *, keeps: bool) -> None:
        super().__init__(stream)
        self._keeps = keeps
        self._waiting: list[str] = []
        self._flushed_by: asyncio.AbstractEventLoop | None = None
        """The loop that is about to write what waits."""

    @property
    def takes_every_line(self) -> bool:
        """Whether nobody has set it up to leave out some lines, or to write others."""
        return (
            not self.filters
            and self.level <= logging.INFO
            and type(self.formatter) is JsonFormatter
        )

    def write(self, line: str) -> None:
        """Write one line, soon."""
        loop = asyncio._get_running_loop() if self._keeps else None
        with self.lock or nullcontext():
            self._waiting.append(line)
        if loop is None or len(self._waiting) >= MAX_WAITING:
            self.flush()
        elif self._flushed_by is not loop:
            self._flushed_by = loop
            loop.call_later(FLUSH_S, self.flush)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, behind the lines that came before it."""
        self._write_waiting()
        super().emit(record)

    def flush(self) -> None:
        """Write what waits. `logging` calls this when the process ends, too."""
        self._flushed_by = None
        self._write_waiting()
        super().flush()

    def _write_waiting(self) -> None:
        with self.lock or nullcontext():
            lines, self._waiting = self._waiting, []
            try:
                if lines:
                    self.stream.write(self.terminator.join([*lines, ""]))
            except (OSError, ValueError):
                self.handleError(logging.makeLogRecord({"name": _REQUEST, "msg": "request"}))


def flush() -> None:
    """Write the lines that wait: the app is about to end, or its process to be stopped for a while."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LineHandler):
            handler.flush()


def configure(level: str, *, alone: bool = False) -> None:
    """Send everything at or above a level ("debug", "info", "warning", "error") to standard error, once.

    `alone` takes away what the runtime of AWS Lambda has set up, which would write each line a second time.
    """
    root = logging.getLogger()
    root.setLevel(level.upper())
    if alone:
        root.handlers.clear()
    if not any(isinstance(handler.formatter, JsonFormatter) for handler in root.handlers):
        handler = _LineHandler(sys.stderr, keeps=not alone)
        handler.setFormatter(JsonFormatter())
        root.addHandler(handler)
    for noisy in ("httpx", "httpcore", "mangum"):  # a line a request each, with URLs in it
        logging.getLogger(noisy).setLevel("WARNING")
