"""The arguments of a call as the person who approves it is shown them: all of them, or an error.

    - path: "/home/ada/thesis.txt"
    - note: "Dear …" … "…, Ada" (6,001 characters, SHA-256 3b0c44298fc1c149)
    - to.city: "Oslo"

Each member has a line of its own, so none can hide behind another. A long text is shortened by
itself; a list or an object that is long is shown member by member. What is too much for a person to
read is not shown in part, but refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from roundgate.errors import ToolError
from roundgate.protocol import visible_json

MAX_LINES: Final = 100
MAX_CHARS: Final = 10_000
MAX_NAME: Final = 200
MAX_TEXT: Final = 400
"""Characters of a text that is shown whole; of a longer one its beginning and its end."""
_BEGINNING: Final = 200
_END: Final = 100
_ONE_LINE: Final = 200
"""Characters, about, of a list or object that is shown as it stands."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")


def shown(arguments: Mapping[str, Any]) -> str:
    """A line for each member.

    Raises:
        ToolError: they are too many, or together too long.
    """
    lines: list[str] = []
    size = 0
    for line in _lines_of_object("", arguments):
        lines.append(line)
        size += len(line)
        if len(lines) > MAX_LINES or size > MAX_CHARS:
            raise ToolError(
                "The arguments are too many to be shown to the user, who has to approve them: "
                f"more than {MAX_LINES} values or {MAX_CHARS:,} characters. Nothing was done; "
                "split the call into smaller ones"
            )
    return "\n".join(lines)


def shown_in_line(value: Any) -> str:
    """A value within a sentence: a text in quotes, what is long shortened, a long list
    or object by its size."""
    if isinstance(value, str) and len(value) > _ONE_LINE:
        return _shortened(value)
    if isinstance(value, (dict, list)) and _room_after(value, _ONE_LINE) < 0:
        kind = "members" if isinstance(value, dict) else "items"
        return f"({len(value):,} {kind}, see below)"
    return visible_json(value)


def _lines(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(value) > MAX_TEXT:
        yield f"- {path}: {_shortened(value)}"
    elif not isinstance(value, (dict, list)) or _room_after(value, _ONE_LINE) >= 0:
        yield f"- {path}: {visible_json(value)}"
    elif isinstance(value, dict):
        yield from _lines_of_object(path, value)
    else:
        for index, item in enumerate(value):
            yield from _lines(f"{path}[{index}]", item)


def _lines_of_object(path: str, value: Mapping[str, Any]) -> Iterator[str]:
    for name, item in value.items():
        yield from _lines(_member(path, name), item)


def _member(path: str, name: str) -> str:
    if len(name) > MAX_NAME:
        raise ToolError(
            f"An argument has a name of {len(name):,} characters, which cannot be shown to the "
            f"user, who has to approve it. Nothing was done; use names of at most {MAX_NAME}"
        )
    if not _PLAIN_NAME.fullmatch(name):
        return f"{path}[{visible_json(name)}]" if path else visible_json(name)
    return f"{path}.{name}" if path else name


def _shortened(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    beginning, end = visible_json(text[:_BEGINNING]), visible_json(text[-_END:])
    return f"{beginning} … {end} ({len(text):,} characters, SHA-256 {digest})"


def _room_after(value: Any, room: int) -> int:
    """What a value leaves of that many characters; looked at no further than it takes to
    know that it is too much."""
    match value:
        case str():
            return room - len(value) - 2
        case dict():
            for name, item in value.items():
                if (room := _room_after(item, room - len(name) - 4)) < 0:
                    break
            return room
        case list():
            for item in value:
                if (room := _room_after(item, room - 1)) < 0:
                    break
            return room
    return room - len(str(value))
