"""The log for people at a terminal: one line per record, in colour, with short tracebacks
(`frames`).

    14:05:09.221  tools/call refund                 200 ok  3.1 ms
    14:05:11.014  error    tool refund failed  reference=8f2c…
        tools.py:14 in refund
            return order["total"] * share
        KeyError: 'total'

The records are the same as in JSON (`lines`), but a request's line omits some members.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, TextIO

from roundgate.json import encode
from roundgate.observability.terminal import Style, escaped, framed
from roundgate.observability.tracing import TRACE, members_here

WHAT_CHARS: Final = 36
"""The width of the column for the method and name of a request, in characters."""
_GOOD: Final = frozenset({"ok", "task", "input_required", "finished", "asked", "released"})
_LEVELS: Final = {
    "debug": ("dim",),
    "warning": ("yellow",),
    "error": ("red",),
    "critical": ("red",),
}
_SHOWN_BEFORE: Final = frozenset(
    {"method", "name", "status", "outcome", "ms", "bytes", "trace", "address"}
)
"""Members of a request that have a fixed place in the request's line, or are omitted."""


class TextFormatter(logging.Formatter):
    """A formatter that writes each record as a line for people, with lists and exceptions indented
    below.

    Args:
        to: the output stream; a terminal gets colours.
        whole: whether to add the whole traceback below the short one.
    """

    def __init__(self, to: TextIO, *, whole: bool) -> None:
        super().__init__()
        self._paint = Style(to)
        self._whole = whole

    def format(self, record: logging.LogRecord) -> str:
        fields: Mapping[str, Any] = {**members_here(), **getattr(record, "fields", {})}
        at = self._paint(_time_of_day(record.created), "dim")
        message = record.getMessage()
        if message in ("request", "task") and "outcome" in fields:
            text = self._answered(message, fields)
        else:
            text = self._noted(record, message, fields)
        return "\n".join([f"{at}  {text}", *self._below(record, fields)])

    def _answered(self, message: str, fields: Mapping[str, Any]) -> str:
        outcome = str(fields["outcome"])
        subject = " ".join(str(fields.get(key, "")) for key in ("method", "name")).strip()
        subject = escaped(f"task {subject}" if message == "task" else subject or "request")
        status = f"{fields['status']} " if "status" in fields else ""
        colour = "green" if outcome in _GOOD else "yellow" if "error" not in outcome else "red"
        took = f"{fields['ms']:.1f} ms" if "ms" in fields else ""
        shown = f"{subject:<{WHAT_CHARS}}  {self._paint(escaped(status + outcome), colour)}  {took}"
        return "  ".join([shown, *self._members(fields, _SHOWN_BEFORE)])

    def _noted(self, record: logging.LogRecord, message: str, fields: Mapping[str, Any]) -> str:
        level = record.levelname.lower()
        names = _LEVELS.get(level, ())
        shown = self._paint(f"{level:<7}", *names)
        text = self._paint(escaped(message), *(() if level == "debug" else names))
        return "  ".join([shown, text, *self._members(fields, frozenset({"trace"}))])

    def _members(self, fields: Mapping[str, Any], without: frozenset[str]) -> Iterator[str]:
        for name, value in fields.items():
            if name not in without and not _is_list_of_texts(value) and value is not None:
                yield self._paint(f"{name}=", "dim") + escaped(_plain(value))
        trace = fields.get("trace") or TRACE.get()
        if trace:
            yield self._paint("trace=", "dim") + escaped(_trace_id(str(trace)))

    def _below(self, record: logging.LogRecord, fields: Mapping[str, Any]) -> Iterator[str]:
        for value in fields.values():
            if _is_list_of_texts(value):
                for line in "\n".join(value).splitlines():
                    yield f"    {escaped(line)}"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            for line in framed(error):
                yield f"    {self._paint(escaped(line), 'red')}"
        if record.exc_info and error is not None and self._whole:
            for line in self.formatException(record.exc_info).splitlines():
                yield self._paint(f"    {escaped(line)}", "dim")


def _is_list_of_texts(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(item, str) for item in value)
    )


def _plain(value: Any) -> str:
    """Return a printable text without spaces unchanged, and any other value as JSON."""
    if isinstance(value, str) and value and value.isprintable() and " " not in value:
        return value
    return encode(value).decode()


def _trace_id(trace: str) -> str:
    """Return the trace id within a `traceparent` (W3C Trace Context), which people search for."""
    parts = trace.split("-")
    return parts[1] if len(parts) >= 4 else trace


def _time_of_day(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}"
