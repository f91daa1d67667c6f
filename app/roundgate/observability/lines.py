"""Structured logs: one JSON object a line on standard error, or readable text at a terminal
(`text`).

    {"ts": "2026-11-21T22:06:42.123Z", "level": "info", "msg": "request", "method":
    "tools/call", "name": "add", …}

A record's `extra={"fields": {…}}` becomes members of the object, after the ids of the call being
processed (`roundgate.observability.correlation`). Arguments, results, tokens and answers are never logged.
Control characters and characters that reverse text direction are escaped.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, Final, Literal, TextIO, TypeAlias

from roundgate.clock import iso
from roundgate.json import encode
from roundgate.observability.correlation import members_here
from roundgate.observability.terminal import escaped
from roundgate.observability.tracing import TRACE

LogFormat: TypeAlias = Literal["auto", "text", "json"]
"""How lines are written; `auto` is text on a terminal, JSON anywhere else."""

_REQUEST: Final = "roundgate.request"
FLUSH_S: Final = 0.05
"""For how long the line of a request may wait to be written together with others, in seconds."""
AT_ONCE: Final = 4_096
"""Bytes that a pipe takes as a whole or not at all (`PIPE_BUF` of Linux)."""
MAX_WAITING: Final = 1_000
"""So many lines are written at once, whenever that is."""


class JsonFormatter(logging.Formatter):
    """One record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        members: dict[str, Any] = {**members_here(), **getattr(record, "fields", {})}
        if record.name not in (_REQUEST, "root"):
            members = {**members, "logger": record.name}
        trace = TRACE.get()
        if trace is not None and "trace" not in members:
            members = {**members, "trace": trace}
        if record.exc_info:
            members = {**members, "traceback": self.formatException(record.exc_info)}
        return _line(
            int(record.created * 1000), record.levelname.lower(), record.getMessage(), members
        )


def _line(at_ms: int, level: str, message: str, members: Mapping[str, Any]) -> str:
    return escaped(encode({"ts": iso(at_ms), "level": level, "msg": message, **members}).decode())


class RequestLog:
    """Writes the line of each request: what its logger would write, and where.

    Where the handler of `configure` is the only one, no `LogRecord` is made. One finds
    out its file, function, thread and process, which nobody reads, and that takes longer
    than all the rest of a line.
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

    To hand each line to the operating system at once costs as much as to make it. A record is
    written at once, and so are the lines before it. What waits is lost only where a process is
    ended without a chance to write: by SIGKILL, by a crash of the interpreter. AWS Lambda stops a
    process between two events, so there nothing waits.
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
        loop = _running_loop() if self._keeps else None
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
        if not self.stream.closed:
            super().flush()

    def _write_waiting(self) -> None:
        with self.lock or nullcontext():
            lines, self._waiting = self._waiting, []
            try:
                for piece in _pieces([line + self.terminator for line in lines]):
                    self.stream.write(piece)
                    self.stream.flush()
            except (OSError, ValueError):
                self.handleError(logging.makeLogRecord({"name": _REQUEST, "msg": "request"}))


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Lines in pieces of as many as a pipe takes at once: of a longer piece, other processes that
    write to the same one (`--workers`) may come in between."""
    piece, size = "", 0
    for line in lines:
        more = len(line) if line.isascii() else len(line.encode("utf-8", "replace"))
        if size + more > AT_ONCE and piece:
            yield piece
            piece, size = "", 0
        piece, size = piece + line, size + more
    if piece:
        yield piece


def flush() -> None:
    """Write the lines that wait: the app is about to end, or its process to
    be stopped for a while."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LineHandler):
            handler.flush()


def configure(level: str, form: LogFormat = "auto", *, alone: bool = False) -> None:
    """Send everything at or above a level ("debug", "info", "warning",
    "error") to standard error, once.

    `alone` takes away what the runtime of AWS Lambda has set up, which would
    write each line a second time.
    """
    root = logging.getLogger()
    root.setLevel(level.upper())
    if alone:
        root.handlers.clear()
    found = [one for one in root.handlers if isinstance(one, _LineHandler)]
    handler = found[0] if found else _LineHandler(sys.stderr, keeps=not alone)
    if handler.stream.closed:  # whoever runs several commands in one process may have replaced it
        handler.stream = sys.stderr
    handler.setFormatter(_formatter(form, level, handler.stream, alone=alone))
    if not found:
        root.addHandler(handler)
    for noisy in ("httpx", "httpcore", "mangum"):  # a line a request each, with URLs in it
        logging.getLogger(noisy).setLevel("WARNING")


def _formatter(form: LogFormat, level: str, to: TextIO, *, alone: bool) -> logging.Formatter:
    if form == "json" or (form == "auto" and (alone or not to.isatty())):
        return JsonFormatter()
    from roundgate.observability.text import (
        TextFormatter,  # a gateway whose log a program reads needs none
    )

    return TextFormatter(to, whole=level == "debug")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
