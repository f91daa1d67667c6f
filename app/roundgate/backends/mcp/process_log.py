"""The log of a process's standard error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from roundgate.clock import Clock

MAX_LINES: Final = 100
"""The maximum number of lines that are logged in `LINES_S` seconds; further lines are counted."""
LINES_S: Final = 10.0
MAX_CHARS: Final = 2_000
"""The maximum number of characters of a logged line."""

log = logging.getLogger("roundgate.backends")


class ProcessLog:
    """Logs the standard error of a process, at a limited rate."""

    def __init__(self, name: str, clock: Clock, redact: Callable[[bytes], bytes]) -> None:
        self._name = name
        self._clock = clock
        self._redact = redact
        self._since_ms = 0.0
        self._lines = 0

    def write(self, line: str) -> None:
        """Log a line, unless the rate is exceeded."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._since_ms > LINES_S * 1000:
            if self._lines > MAX_LINES:
                fields = {"backend": self._name, "n": self._lines - MAX_LINES}
                log.warning("lines of a server are left out", extra={"fields": fields})
            self._since_ms, self._lines = now_ms, 0
        self._lines += 1
        if self._lines <= MAX_LINES and line.strip():
            text = self._redact(line.encode()).decode("utf-8", "replace")[:MAX_CHARS]
            log.info(
                "standard error of a server",
                extra={"fields": {"backend": self._name, "line": text}},
            )
