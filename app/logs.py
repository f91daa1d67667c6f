"""Structured logs: one JSON object a line on standard error.

    {"ts": "2026-11-21T22:06:42.123Z", "level": "info", "msg": "request", "method": "tools/call", "name": "add", …}

A record's `extra={"fields": {…}}` becomes members of the object. Arguments, results, tokens and answers are never
among them.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from app.clock import iso
from app.protocol.jsonrpc import encode


class JsonFormatter(logging.Formatter):
    """One record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.name not in ("app.request", "root"):
            line["logger"] = record.name
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return encode(line).decode()


def configure(level: str, *, alone: bool = False) -> None:
    """Send everything at or above a level ("debug", "info", "warning", "error") to standard error, once.

    `alone` takes away what the runtime of AWS Lambda has set up, which would write each line a second time.
    """
    root = logging.getLogger()
    root.setLevel(level.upper())
    if alone:
        root.handlers.clear()
    if not any(isinstance(handler.formatter, JsonFormatter) for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        root.addHandler(handler)
    for noisy in ("httpx", "httpcore", "mangum"):  # a line a request each, with URLs in it
        logging.getLogger(noisy).setLevel("WARNING")
