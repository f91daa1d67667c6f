"""Text on a terminal: what callers and services said must not move the cursor, hide a line or turn text around."""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import Final, TextIO

from roundgate.logs import escaped

_COLOURS: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}


def say(*values: object, to: TextIO | None = None) -> None:
    """Print one line, with every character that a terminal would act on written as its escape."""
    print(" ".join(escaped(str(value)) for value in values), file=to or sys.stdout)


def escaped_lines(text: str) -> str:
    """A text with everything but its line ends escaped that a terminal would act on."""
    return "\n".join(map(escaped, text.split("\n")))


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: wide characters take two, combining ones none."""
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


class Style:
    """Colours for a terminal, and for nothing else; `NO_COLOR` (no-color.org) and `TERM=dumb` turn them off."""

    def __init__(self, to: TextIO) -> None:
        self.is_on = (
            to.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )
        self._can_draw = (to.encoding or "").lower().replace("-", "") == "utf8"

    def __call__(self, text: str, *names: str) -> str:
        """A text in a colour; what was in it that a terminal acts on has to be escaped before."""
        if not self.is_on or not text:
            return text
        return f"\x1b[{';'.join(_COLOURS[name] for name in names)}m{text}\x1b[0m"

    def sign(self, drawn: str, plain: str) -> str:
        """A character that not every terminal has, or what stands for it."""
        return drawn if self._can_draw else plain
