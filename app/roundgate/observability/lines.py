"""Structured logs: one JSON object a line on standard error, or readable text at a terminal
(`text`).

    {"ts": "2026-11-21T22:06:42.123Z", "level": "info", "msg": "request", "method":
    "tools/call", "name": "add", …}

A record's `extra={"fields": {…}}` becomes members of the object, after the ids of the call being
processed (`roundgate.observability.tracing`). Arguments, results, tokens and answers are never
logged. Control characters, and characters that hide or reorder text, are escaped.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO, TypeAlias

from roundgate.clock import iso
from roundgate.json import encode
from roundgate.observability.terminal import escaped
from roundgate.observability.tracing import TRACE, members_here

LogFormat: TypeAlias = Literal["auto", "text", "json"]
"""The format of log lines; `auto` is text on a terminal and JSON elsewhere."""

REQUESTS: Final = "roundgate.request"
"""The logger that writes one line for each request."""
GATEWAY: Final = "roundgate"
"""The logger above all loggers of the gateway."""


class JsonFormatter(logging.Formatter):
    """A formatter that writes each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            **members_here(),
            **getattr(record, "fields", {}),
        }
        if record.name not in (REQUESTS, "root"):
            line["logger"] = record.name
        trace = TRACE.get()
        if trace is not None:
            line.setdefault("trace", trace)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        data = encode(line)
        # JSON has the control characters of ASCII as escapes, except for DEL
        is_plain = data.isascii() and b"\x7f" not in data
        return data.decode() if is_plain else escaped(data.decode())


class _Handler(logging.StreamHandler[TextIO]):
    """The handler of `configure`. A second call finds it by its type."""


def configure(level: str, form: LogFormat = "auto", *, alone: bool = False) -> None:
    """Log all records at or above a level ("debug", "info", "warning", "error") to standard error.
    A second call changes the settings of the same handler.

    `alone` removes all other handlers, because the handler of the AWS Lambda runtime would write
    each line a second time.
    """
    root = logging.getLogger()
    root.setLevel(level.upper())
    if alone:
        root.handlers.clear()
    handler = next((h for h in root.handlers if isinstance(h, _Handler)), None)
    if handler is None:
        handler = _Handler(sys.stderr)
        root.addHandler(handler)
    if handler.stream.closed:  # a process that runs several commands may replace standard error
        handler.stream = sys.stderr
    handler.setFormatter(_formatter(form, level, handler.stream, alone=alone))
    # a line per request with its URL, or for debugging whole requests and answers, with secrets
    for noisy in ("boto3", "botocore", "httpcore", "httpx", "mangum", "urllib3"):
        logging.getLogger(noisy).setLevel("WARNING")


def observe(observer: logging.Handler) -> Callable[[], None]:
    """Give a handler every record of the gateway, also below the log level, because records for
    debugging name the steps, questions and upstream calls of a call. Other handlers get the same
    records as before. Return a function that removes the handler.
    """
    logger, others = logging.getLogger(GATEWAY), logging.getLogger().handlers
    before, least = logger.level, logger.getEffectiveLevel()

    def is_for_others(record: logging.LogRecord) -> bool:
        decides_itself = record.name != GATEWAY and logging.getLogger(record.name).level
        is_ours = record.name.startswith(GATEWAY)
        return record.levelno >= least or not is_ours or bool(decides_itself)

    filtered = list(others)
    for handler in filtered:
        handler.addFilter(is_for_others)
    logger.addHandler(observer)
    logger.setLevel("DEBUG")

    def end() -> None:
        logger.setLevel(before)
        logger.removeHandler(observer)
        for handler in filtered:
            handler.removeFilter(is_for_others)

    return end


def _formatter(form: LogFormat, level: str, to: TextIO, *, alone: bool) -> logging.Formatter:
    if form == "json" or (form == "auto" and (alone or not to.isatty())):
        return JsonFormatter()
    from roundgate.observability.text import TextFormatter  # imported only for people at a terminal

    return TextFormatter(to, whole=level == "debug")
