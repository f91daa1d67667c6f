"""Structured logs: one JSON object a line on standard error.

    {"ts": "2026-11-21T22:06:42.123Z", "level": "info", "msg": "request", "method": "tools/call", "name": "add", …}

A record's `extra={"fields": {…}}` becomes members of the object. Arguments, results, tokens and answers are never
among them. Characters that a terminal would act on, or that turn text around, are escaped.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, TextIO

from roundgate.clock import iso
from roundgate.json import encode

_ACTING: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Controls (a terminal takes U+009B for the beginning of a command), and format characters that hide or reorder."""


_REQUEST: Final = "roundgate.request"


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


def configure(level: str, *, alone: bool = False) -> None:
    """Send everything at or above a level ("debug", "info", "warning", "error") to standard error, once.

    `alone` takes away what the runtime of AWS Lambda has set up, which would write each line a second time.
    """
    root = logging.getLogger()
    root.setLevel(level.upper())
    if alone:
        root.handlers.clear()
    if not any(isinstance(handler.formatter, JsonFormatter) for handler in root.handlers):
        handler = _LineHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        root.addHandler(handler)
    for noisy in ("httpx", "httpcore", "mangum"):  # a line a request each, with URLs in it
        logging.getLogger(noisy).setLevel("WARNING")
