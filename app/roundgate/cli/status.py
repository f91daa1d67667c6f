"""What a call is doing, while it does it: one line at the bottom of a terminal, or a line
for each change in a log."""

from __future__ import annotations

import asyncio
import json
import shutil
from types import TracebackType
from typing import Final, TextIO

from roundgate.cli.terminal import cut, say
from roundgate.client import Log, Progress, TaskState
from roundgate.clock import Clock
from roundgate.observability import Style, escaped

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
