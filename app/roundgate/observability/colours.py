"""Colours for a terminal, and for nothing else."""

from __future__ import annotations

import os
from typing import Final, TextIO

_COLOURS: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}


class Style:
    """Colours for a terminal, and for nothing else; `NO_COLOR` (no-color.org) and
    `TERM=dumb` turn them off."""

    def __init__(self, to: TextIO) -> None:
        self.is_on = (
            to.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )
        self._can_draw = (to.encoding or "").lower().replace("-", "") == "utf8"

    def __call__(self, text: str, *names: str) -> str:
        """A text in a colour; what was in it that a terminal acts on has to be escaped before."""
        if not self.is_on or not text or not names:
            return text
        return f"\x1b[{';'.join(_COLOURS[name] for name in names)}m{text}\x1b[0m"

    def sign(self, drawn: str, plain: str) -> str:
        """A character that not every terminal has, or what stands for it."""
        return drawn if self._can_draw else plain
