"""Text on a terminal: what callers and services said must not move the cursor, hide a
line or turn text around."""

from __future__ import annotations

import sys
import unicodedata
from typing import TextIO

from roundgate.observability import escaped


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
