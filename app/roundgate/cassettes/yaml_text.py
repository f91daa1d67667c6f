"""JSON values as YAML that people read: the same value always gives the same text,
whatever Python or library runs.

Texts of several lines are blocks, what is short stands on one line, all else that
YAML could misread is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_WIDTH: Final = 96
_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_NAMED: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_BLOCK: Final = re.compile(r"[^\s](?:[\s\S]*[^\s])?\n?")
_HIDDEN: Final = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ud800-\\udfff\\ufeff\\ufff9-\\ufffb\\ufffe\\uffff\\U000e0000-\\U000e007f]"
)
"""Controls, and what hides or reorders text. Not `str.isprintable`, which differs from
one Python to another."""


def dump(value: Any, indent: int = 0) -> Iterator[str]:
    """The lines of a mapping or sequence, without line ends."""
    space = " " * indent
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{space}{_key(key)}:", item, indent + 2)
    else:
        for item in value:
            yield from _item(space, item, indent)


def _entry(head: str, value: Any, indent: int) -> Iterator[str]:
    if (short := _inline(value, _WIDTH - len(head))) is not None:
        yield f"{head} {short}"
    elif isinstance(value, str):
        chomp = "" if value.endswith("\n") else "-"
        yield f"{head} |{chomp}"
        for line in value.removesuffix("\n").split("\n"):
            yield f"{' ' * indent}{line}" if line else ""
    else:
        yield head
        yield from dump(value, indent)


def _item(space: str, value: Any, indent: int) -> Iterator[str]:
    if _inline(value, _WIDTH - indent) is None and not isinstance(value, str):
        lines = dump(value, indent + 2)
        yield f"{space}- {next(lines)[indent + 2 :]}"
        yield from lines
    else:
        yield from _entry(f"{space}-", value, indent + 2)


def _inline(value: Any, room: int) -> str | None:
    """A value on the line of its key, `None` if it is better below it."""
    if isinstance(value, str):
        return None if "\n" in value and _is_block(value) else scalar(value)
    if not isinstance(value, (Mapping, list, tuple)):
        return scalar(value)
    if not value:
        return "{}" if isinstance(value, Mapping) else "[]"
    if isinstance(value, Mapping):
        if len(value) > 8 or any(isinstance(one, (Mapping, list, tuple)) for one in value.values()):
            return None
        text = ", ".join(f"{_key(key)}: {scalar(one)}" for key, one in value.items())
        text = f"{{{text}}}"
    else:
        if len(value) > 12 or any(isinstance(one, (Mapping, list, tuple)) for one in value):
            return None
        text = f"[{', '.join(map(scalar, value))}]"
    return text if len(text) < room else None


def _is_block(text: str) -> bool:
    return (
        _BLOCK.fullmatch(text) is not None
        and all(not line or not line.isspace() for line in text.split("\n"))
        and _HIDDEN.search(text.replace("\n", "")) is None
        and not text.removesuffix("\n").endswith("\n")
    )


def _key(text: str) -> str:
    plain = _PLAIN_KEY.fullmatch(text) and text.lower() not in _WORDS and len(text) < 100
    return text if plain else _quoted(text)


def scalar(value: Any) -> str:
    """Text, a number, true, false or null on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _float(value)
    text = str(value)
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    return text if plain else _quoted(text)


def _float(value: float) -> str:
    """In the form that YAML 1.1 takes for a number: with a point, and a sign in the exponent."""
    digits, exponent, power = repr(value).partition("e")
    digits = digits if "." in digits else f"{digits}.0"
    return (
        f"{digits}e{power if power.startswith('-') else '+' + power.lstrip('+')}"
        if exponent
        else digits
    )


def visible(text: str) -> str:
    """A text for a comment, with what must not stand in a file as its escape."""
    return "".join(map(_char, text))


def _quoted(text: str) -> str:
    return f'"{"".join(map(_char, text))}"'


def _char(char: str) -> str:
    if char in _NAMED:
        return _NAMED[char]
    if _HIDDEN.match(char) is None:
        return char
    number = ord(char)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
