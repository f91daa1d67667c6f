"""Text on which no terminal acts, and which no reader's eye is misled by."""

from __future__ import annotations

import re
from typing import Final

_ACTING: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Controls (a terminal takes U+009B for the beginning of a command), and format
characters that hide or reorder."""


def escaped(text: str) -> str:
    """A text with every character that a terminal or a reader's eye would be misled by as
    `\\u….`, valid in JSON."""
    if text.isascii() and text.isprintable():
        return text
    return _ACTING.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
