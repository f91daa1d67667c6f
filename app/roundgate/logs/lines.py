"""Structured logs: one JSON object a line on standard error; for a person at a terminal, text (`text`).

    {"ts": "2026-11-21T22:06:42.123Z", "level": "info", "msg": "request", "method": "tools/call", "name": "add", …}

A record's `extra={"fields": {…}}` becomes members of the object. Arguments, results, tokens and answers are never
among them. Characters that a terminal would act on, or that turn text around, are escaped.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, Literal, TextIO, TypeAlias

from roundgate.clock import iso
from roundgate.json import encode
from roundgate.logs.escaping import escaped
from roundgate.tracing import TRACE

LogFormat: TypeAlias = Literal["auto", "text", "json"]
"""How lines are written; `auto` is text on a terminal, JSON anywhere else."""

_REQUEST: Final = "roundgate.request"


class JsonFormatter(logging.Formatter):
    """One record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        members: dict[str, Any] = getattr(record, "fields", {})
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

    Where the handler of `configure` is the only one, no `LogRecord` is made. One finds out its file, function, thread
    and process, which nobody reads, and that takes longer than all the rest of a line. Each line is handed to the
    operating system at once, so none is lost when a process crashes or AWS Lambda freezes it.
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
        if handler is None or not handler.write(
            _line(time.time_ns() // 1_000_000, "info", "request", fields)
        ):
            self._logger.info("request", extra={"fields": fields})

    def _only_handler(self) -> _LineHandler | None:
        """The one of `configure`, if it would get the record as it is, and no other would."""
        if self._logger.filters:
            return None
        found: list[logging.Handler] = []
        logger: logging.Logger | None = self._logger
        while logger is not None:
            found += logger.handlers
            logger = logger.parent if logger.propagate else None
        handler = found[0] if len(found) == 1 else None
        return handler if isinstance(handler, _LineHandler) and handler.takes_every_line else None


class _LineHandler(logging.StreamHandler[TextIO]):
    """A stream handler that takes lines too, beside records."""

    @property
    def takes_every_line(self) -> bool:
        """Whether nobody has set it up to leave out some lines, or to write others."""
        return (
            not self.filters
            and self.level <= logging.INFO
            and type(self.formatter) is JsonFormatter
        )

    def write(self, line: str) -> bool:
        """Write one line; false if its stream does not take it."""
        self.acquire()
        try:
            self.stream.write(line + self.terminator)
            self.stream.flush()
        except (OSError, ValueError):
            return False
        finally:
            self.release()
        return True


def configure(level: str, form: LogFormat = "auto", *, alone: bool = False) -> None:
    """Send everything at or above a level ("debug", "info", "warning", "error") to standard error, once.

    `alone` takes away what the runtime of AWS Lambda has set up, which would write each line a second time.
    """
    root = logging.getLogger()
    root.setLevel(level.upper())
    if alone:
        root.handlers.clear()
    found = [one for one in root.handlers if isinstance(one, _LineHandler)]
    handler = found[0] if found else _LineHandler(sys.stderr)
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
    from roundgate.logs.text import TextFormatter  # a gateway whose log a program reads needs none

    return TextFormatter(to, whole=level == "debug")
