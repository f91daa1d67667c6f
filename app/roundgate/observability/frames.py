"""Short tracebacks for people: the lines of the user's own code, then the message.

    tools.py:14 in refund
        return order["total"] * share
    KeyError: 'total'

Frames of this package, of the standard library and of installed packages are omitted. An exception
without other frames is a fault of Roundgate, so its whole traceback is written.
"""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

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
