"""Output of commands: results on standard output, notes and progress on standard error."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from roundgate.clock import Clock
from roundgate.observability import Style, escaped

if TYPE_CHECKING:  # `serve` and `check` print without a client
    from roundgate.client import CallResult, Log, Progress, TaskState


def show_json(value: Any) -> None:
    """Print a value as JSON: indented on a terminal, on one line in a pipe."""
    if sys.stdout.isatty():
        print(escaped_lines(json.dumps(value, indent=2, ensure_ascii=False)))
    else:
        print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def show_text(text: str) -> None:
    """Print a text. On a terminal, escape control and format characters, except line ends."""
    print(escaped_lines(text) if sys.stdout.isatty() else text)


def show_table(rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """Print rows in columns, with control and format characters escaped."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(columns, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell + " " * (width - columns(cell)) for cell, width in zip(row, widths, strict=True)
        )
        print(f"{indent}{'  '.join(cells)}".rstrip())


def show_result(result: CallResult) -> None:
    """Print the structured content of a tool's result, or its text if there is none.

    Mention images, sounds and resources beside a text on standard error; `--json` prints them.
    """
    if "structuredContent" in result.raw:
        show_json(result.structured)
        return
    if result.text:
        show_text(result.text)
    for block in result.content:
        if block.get("type") != "text":
            kind = block.get("mimeType") or block.get("uri") or ""
            say(
                f"(a block of type {block.get('type')} {kind}: use --json to print it)",
                to=sys.stderr,
            )


def say(*values: object, to: TextIO | None = None) -> None:
    """Print values on one line, with control and format characters escaped."""
    print(" ".join(escaped(str(value)) for value in values), file=to or sys.stdout)


def escaped_lines(text: str) -> str:
    """Return a text with control and format characters escaped, except line ends."""
    return "\n".join(map(escaped, text.split("\n")))


def columns(text: str) -> int:
    """Return the width of a text in terminal columns: two for a wide character, zero for a
    combining character."""
    return len(text) if text.isascii() else sum(map(_width, text))


def cut(text: str, width: int) -> str:
    """Return a text cut to a width in terminal columns. A cut text ends with `…`."""
    if columns(text) <= width:
        return text
    prefix, taken = "", 0
    for character in text:
        taken += _width(character)
        if taken > width - 1:
            break
        prefix += character
    return f"{prefix}…"


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


_CLEAR: Final = "\r\x1b[2K"
_BAR: Final = 20
_TICK_S: Final = 1.0
_SHOWN_AFTER_S: Final = 2
"""The seconds after which the status line shows the elapsed time."""


class OutputStatus:
    """A display of progress, log messages and a task's state until the block ends.

    On a terminal, progress and state share one line, which is cleared before other output and at
    the end.
    """

    def __init__(self, to: TextIO, clock: Clock | None = None) -> None:
        self._to = to
        self._is_live = to.isatty()
        self._style = Style(to)
        self._line = ""
        self._clock = clock or Clock()
        self._begun_ms = 0.0
        self._ticking: asyncio.TimerHandle | None = None

    def __enter__(self) -> OutputStatus:
        self._begun_ms = self._clock.monotonic_ms()
        if self._is_live:
            self._tick()
        return self

    def __exit__(self, *_: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        self.hide()

    def _tick(self) -> None:
        """Draw the line now and every second, so the elapsed time advances."""
        self._draw()
        self._ticking = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def progressed(self, progress: Progress) -> None:
        """Show the progress of a request, if the output is a terminal."""
        message = progress.message or ""
        if not progress.total or progress.total <= 0:
            self.show(f"{progress.progress:g} {message}")
            return
        share = min(max(progress.progress / progress.total, 0.0), 1.0)
        full, empty = self._style.sign("█", "#"), self._style.sign("░", ".")
        done = round(share * _BAR)
        self.show(f"{full * done}{empty * (_BAR - done)} {share:4.0%} {message}")

    def logged(self, log: Log) -> None:
        """Print a log message of the server above the status line."""
        text = log.data if isinstance(log.data, str) else json.dumps(log.data, ensure_ascii=False)
        line = self._line
        self.hide()
        say(f"{log.level}: {text}", to=self._to)
        self.show(line)

    def task(self, state: TaskState) -> None:
        """Show the state of a task. If the output is not a terminal, print a line only if the state
        has changed."""
        text = f"{state.status}: {state.message}" if state.message else state.status
        if self._is_live:
            self.show(text)
        elif text != self._line:
            self._line = text
            say(text, to=self._to)

    def show(self, text: str) -> None:
        """Replace the status line, if the output is a terminal."""
        if self._is_live:
            self._line = text
            self._draw()

    def hide(self) -> None:
        """Clear the status line, so other output can be printed."""
        if self._is_live and self._line:
            self._to.write(_CLEAR)
            self._to.flush()
            self._line = ""

    def _draw(self) -> None:
        if not self._line:
            return
        width = max(shutil.get_terminal_size().columns - 1, 10)
        minutes, seconds = divmod(int((self._clock.monotonic_ms() - self._begun_ms) / 1_000), 60)
        passed = f" ({minutes}:{seconds:02d})" if minutes else f" ({seconds} s)"
        passed = passed if minutes or seconds >= _SHOWN_AFTER_S else ""
        line = cut(escaped(self._line), max(width - len(passed), 1))
        self._to.write(f"{_CLEAR}{line}{self._style(passed, 'dim')}")
        self._to.flush()
