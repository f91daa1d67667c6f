"""Structured logs: one JSON object a line on standard error.

    {"ts": "2026-11-21T22:06:42.123Z", "level": "info", "msg": "request", "method": "tools/call", "name": "add", …}

A record's `extra={"fields": {…}}` becomes members of the object. Arguments, results, tokens and answers are never
among them. Characters that a terminal would act on, or that turn text around, are escaped.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, Final

from roundgate.clock import iso
from roundgate.json import encode

_ACTING: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Controls (a terminal takes U+009B for the beginning of a command), and format characters that hide or reorder."""


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
        line: dict[str, Any] = {
            "ts": iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.name not in ("roundgate.request", "root"):
            line["logger"] = record.name
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return escaped(encode(line).decode())


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
