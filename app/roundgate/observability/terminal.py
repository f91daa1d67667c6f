"""Text for a terminal: escaped, so that the terminal does not act on it, in colour, and in ASCII where
a stream cannot encode it."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Mapping
from typing import Final, TextIO

_COLOURS: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}

_ACTING: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""The characters to escape: control characters (U+009B begins a command on some terminals), and
format characters that hide or reorder text."""

_IN_ASCII: Final[Mapping[str, str]] = {"→": "->", "…": "...", "–": "-", "—": "-", "·": "*"}
_ENCODABLE: Final = "roundgate.encodable"
"""The name of the error handler that `encodable` and `adapt` use."""


class Style:
    """The colours of a stream, if it is a terminal. `NO_COLOR` (no-color.org) and `TERM=dumb` turn
    them off."""

    def __init__(self, to: TextIO) -> None:
        self.is_on = (
            to.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )
        self._can_draw = (to.encoding or "").lower().replace("-", "") == "utf8"

    def __call__(self, text: str, *names: str) -> str:
        """Return an escaped text in the named colours, or unchanged if colours are off."""
        if not self.is_on or not text or not names:
            return text
        return f"\x1b[{';'.join(_COLOURS[name] for name in names)}m{text}\x1b[0m"

    def sign(self, drawn: str, plain: str) -> str:
        """Return `drawn` if the terminal can show it, otherwise `plain`."""
        return drawn if self._can_draw else plain


def escaped(text: str) -> str:
    """Return a text with each unsafe character escaped as `\\u….`, which is valid in JSON."""
    if text.isascii() and text.isprintable():
        return text
    return _ACTING.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def encodable(text: str, encoding: str = "ascii") -> str:
    """Return a text that the encoding can represent: signs of our messages are spelt in ASCII, other
    characters escaped."""
    return text.encode(encoding, _ENCODABLE).decode(encoding)


def adapt(stream: TextIO) -> None:
    """Let a stream write each text in its own encoding, as `encodable` returns it."""
    if reconfigure := getattr(stream, "reconfigure", None):
        reconfigure(errors=_ENCODABLE)


def _substitute(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    spelt = (
        _IN_ASCII.get(char) or char.encode("ascii", "backslashreplace").decode() for char in text
    )
    return "".join(spelt), error.end


codecs.register_error(_ENCODABLE, _substitute)
