r"""Text of others as a person can see it: whatever is invisible, moves its neighbours or
covers them is written out.

A right-to-left override makes `gpj.exe` of `exe.jpg`, tag characters carry words that nobody sees,
a line separator begins a line that looks like ours. Such characters become JSON's escapes
(`\u202e`); all others stay as they are.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any, Final

MAX_MARKS: Final = 2
"""Combining marks on one letter; more of them are no spelling and cover what stands around."""

_INVISIBLE: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
)
"""Letters and marks that are drawn as nothing (Unicode's Default_Ignorable_Code_Point, and
the blank of Braille)."""


def visible(text: str) -> str:
    """The text with escapes for format, control, private and unassigned characters, odd
    blanks and piles of marks."""
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char)[0] == "M" else 0
        shown.append(_escaped(char) if marks > MAX_MARKS or _is_hidden(char) else char)
    return "".join(shown)


def visible_json(value: Any) -> str:
    """A JSON value on one line, with nothing hidden in its strings."""
    # what JSON itself escapes (quotes, backslashes, line ends) cannot be mistaken for our escapes,
    # nor ours for text
    return visible(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _is_hidden(char: str) -> bool:
    kind = unicodedata.category(char)[0]
    return kind == "C" or (kind == "Z" and char != " ") or char in _INVISIBLE


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if char.isascii() else json.dumps(char)[1:-1]
