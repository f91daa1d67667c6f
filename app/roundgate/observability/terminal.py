"""Text for people at a terminal: escaped, so that the terminal does not act on it, in colour, and in
ASCII where a stream cannot encode it; and short tracebacks: the lines of the user's own code, then the
message.

    tools.py:14 in refund
        return order["total"] * share
    KeyError: 'total'

Frames of this package, of the standard library and of installed packages are omitted. An exception
without other frames is a fault of Roundgate, so its whole traceback is written.
"""

from __future__ import annotations

import codecs
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
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


MOST_FRAMES: Final = 3
"""The maximum number of written frames of the user's code for one exception."""
MOST_EXCEPTIONS: Final = 5
"""The maximum number of written exceptions of a chain or a group."""

_OURS: Final = str(Path(__file__).resolve().parents[1])
"""The package's folder. Folders of the distribution's other packages begin with it and `_`."""
_LIBRARIES: Final = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def framed(error: BaseException) -> list[str]:
    """Return the lines that describe an exception and its causes. Characters that control terminals
    are not escaped."""
    lines = list(_chain(error, set(), ""))
    if any(line.startswith(_AT) for line in lines):
        return [line.removeprefix(_AT) for line in lines]
    return "".join(traceback.format_exception(error)).splitlines()


_AT: Final = "\x00"
"""The prefix that marks a line with a place in the user's code."""


def place_of(error: BaseException) -> str | None:
    """Return the innermost line of the user's own code that an exception passed, such as
    `tools.py:14`; `None` if it passed none."""
    frame = innermost(error)
    return f"{shown(frame[0])}:{frame[1]}" if frame else None


def innermost(error: BaseException) -> tuple[str, int] | None:
    """Return the file and the line number of `place_of`; for a syntax error in the user's code, the
    place of the error. Return `None` if the exception passed no line of the user."""
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename):
        return error.filename, error.lineno or 1
    own = [place for place in _places(error.__traceback__) if _is_own(place[0])]
    return own[-1][:2] if own else None


def _chain(error: BaseException, seen: set[int], indent: str) -> Iterator[str]:
    seen.add(id(error))
    yield from (_indented(line, indent) for line in _exception_lines(error))
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions[:MOST_EXCEPTIONS]:
            if len(seen) < MOST_EXCEPTIONS and id(member) not in seen:
                yield from _chain(member, seen, indent + "  | ")
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen and len(seen) < MOST_EXCEPTIONS:
        yield f"{indent}because of:" if error.__cause__ else f"{indent}while handling:"
        yield from _chain(before, seen, indent)


def _indented(line: str, indent: str) -> str:
    return f"{_AT}{indent}{line[1:]}" if line.startswith(_AT) else indent + line


def _exception_lines(error: BaseException) -> Iterator[str]:
    frames = list(_places(error.__traceback__))
    own = [place for place in frames if _is_own(place[0])]
    for file, line, function in own[-MOST_FRAMES:]:
        yield f"{_AT}{shown(file)}:{line} in {function}"
        if source := linecache.getline(file, line).strip():
            yield f"    {source}"
    if isinstance(error, SyntaxError) and error.filename and _is_own(error.filename):
        yield f"{_AT}{shown(error.filename)}:{error.lineno}"
    yield from traceback.format_exception_only(error)[-1].rstrip("\n").split("\n")
    if own and frames[-1] is not own[-1]:
        file, line, function = frames[-1]
        yield f"(raised in {shown(file)}:{line}, {function})"


def _places(trace: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    for frame, line in traceback.walk_tb(trace):
        yield frame.f_code.co_filename, line, frame.f_code.co_name


def _is_own(file: str) -> bool:
    """Return whether a file belongs to the user: neither to this package nor to a library."""
    if file.startswith("<"):
        return False
    path = str(Path(file).resolve())
    ours = path.startswith((f"{_OURS}/", f"{_OURS}_"))
    if ours or "/site-packages/" in path or "/dist-packages/" in path:
        return False
    return not any(library and path.startswith(library + "/") for library in _LIBRARIES)


def shown(file: str) -> str:
    """Return the path of a file, relative to the working directory if it is below."""
    path = Path(file)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file
