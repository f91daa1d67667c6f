"""Results on standard output: bare, so that another program can read them;
notes go to standard error."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import unicodedata
from types import TracebackType
from typing import Any, Final, TextIO

from roundgate.client import CallResult, Log, Progress, TaskState
from roundgate.clock import Clock
from roundgate.observability import Style, escaped

_INDENT: Final = 2


def show_json(value: Any) -> None:
    """A value as JSON: indented on a terminal, on one line in a pipe."""
    if sys.stdout.isatty():
        print(escaped_lines(json.dumps(value, indent=_INDENT, ensure_ascii=False)))
    else:
        print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def show_text(text: str) -> None:
    """Text as it is in a pipe; on a terminal, what would act on it is escaped."""
    print(escaped_lines(text) if sys.stdout.isatty() else text)


def show_result(result: CallResult) -> None:
    """What a tool answered: its structured content where there is some, else its text.

    Of images, sounds and resources only a note says that they are there: `--json` has them whole.
    """
    if "structuredContent" in result.raw:
        show_json(result.structured)
        return
    if result.text:
        show_text(result.text)
    for block in result.content:
        if block.get("type") != "text":
            kind = block.get("mimeType") or block.get("uri") or ""
            say(f"(a block of type {block.get('type')} {kind}: --json shows it)", to=sys.stderr)


def say(*values: object, to: TextIO | None = None) -> None:
    """Print one line, with every character that a terminal would act on written as its escape."""
    print(" ".join(escaped(str(value)) for value in values), file=to or sys.stdout)


def escaped_lines(text: str) -> str:
    """A text with everything but its line ends escaped that a terminal would act on."""
    return "\n".join(map(escaped, text.split("\n")))


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters take two, combining ones
    none."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


def cut(text: str, width: int) -> str:
    """As much of a text as fits into so many columns, with a mark where something is missing."""
    if columns(text) <= width:
        return text
    kept, taken = "", 0
    for one in text:
        taken += _width(one)
        if taken > width - 1:
            return f"{kept}…"
        kept += one
    return kept


def _width(one: str) -> int:
    if unicodedata.combining(one):
        return 0
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1


_CLEAR: Final = "\r\x1b[2K"
_BAR: Final = 20
_TICK_S: Final = 1.0
_SHOWN_AFTER_S: Final = 2
"""From when on the line says how long it has been."""


class Status:
    """Shows progress, log messages and the state of a task. Use it as a context: the
    line is gone afterwards."""

    def __init__(self, to: TextIO, clock: Clock | None = None) -> None:
        self._to = to
        self._is_live = to.isatty()
        self._style = Style(to)
        self._line = ""
        self._clock = clock or Clock()
        self._begun_ms = 0.0
        self._ticking: asyncio.TimerHandle | None = None

    def __enter__(self) -> Status:
        self._begun_ms = self._clock.monotonic_ms()
        if self._is_live:
            self._tick()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self.hide()

    def _tick(self) -> None:
        """Once a second, so that whoever waits sees that something is still waited for."""
        if self._line:
            self._draw()
        self._ticking = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def progressed(self, progress: Progress) -> None:
        """Take in how far a request is; a log has no use for it."""
        if not self._is_live:
            return
        message = progress.message or ""
        if not progress.total or progress.total <= 0:
            self._show(f"{progress.progress:g} {message}")
            return
        share = min(max(progress.progress / progress.total, 0.0), 1.0)
        full, empty = self._style.sign("█", "#"), self._style.sign("░", ".")
        done = round(share * _BAR)
        self._show(f"{full * done}{empty * (_BAR - done)} {share:4.0%} {message}")

    def logged(self, log: Log) -> None:
        """A log message of the server, on a line of its own."""
        text = log.data if isinstance(log.data, str) else json.dumps(log.data, ensure_ascii=False)
        line = self._line
        self.hide()
        say(f"{log.level}: {text}", to=self._to)
        self._show(line)

    def task(self, state: TaskState) -> None:
        """The state of a task, each time that it was looked at."""
        text = f"{state.status}: {state.message}" if state.message else state.status
        if self._is_live:
            self._show(text)
        elif text != self._line:
            self._line = text
            say(text, to=self._to)

    def says(self, text: str) -> None:
        """Whatever is going on; a log has no use for it."""
        self._show(text)

    def hide(self) -> None:
        """Take the line away, for something else to be written."""
        if self._is_live and self._line:
            self._to.write(_CLEAR)
            self._to.flush()
        self._line = ""

    def _show(self, text: str) -> None:
        if not self._is_live:
            return
        self._line = text
        self._draw()

    def _draw(self) -> None:
        width = max(shutil.get_terminal_size().columns - 1, 10)
        passed_s = int((self._clock.monotonic_ms() - self._begun_ms) / 1_000)
        passed = f" ({_time(passed_s)})" if passed_s >= _SHOWN_AFTER_S else ""
        line = cut(escaped(self._line), max(width - len(passed), 1))
        self._to.write(f"{_CLEAR}{line}{self._style(passed, 'dim')}")
        self._to.flush()


def _time(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes}:{rest:02d}" if minutes else f"{seconds} s"
