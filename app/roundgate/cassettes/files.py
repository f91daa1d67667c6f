"""Cassettes in files: YAML, or JSON if the name ends so. Reading is bounded, writing
replaces the file at once."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from roundgate.cassettes.document import interaction_document, of_document, to_document
from roundgate.cassettes.model import Cassette
from roundgate.cassettes.paths import dotted
from roundgate.errors import ConfigError, Problem, UsageError
from roundgate.observability import escaped
from roundgate.settings import yaml_file

MAX_BYTES: Final = 32 * 1024 * 1024
"""How large a cassette may be."""


def read(path: Path) -> Cassette:
    """Read a cassette.

    Raises:
        ConfigError: it cannot be read or is none, with every problem: line, what, remedy.
    """
    _check_size(path)
    located = yaml_file.read(path, has_aliases=False)
    cassette, found = of_document(located.value)
    if found:
        raise ConfigError([_problem(located, at, what, remedy) for at, what, remedy in found])
    return cassette


def _problem(
    located: yaml_file.Located, at: tuple[str | int, ...], what: str, remedy: str
) -> Problem:
    where = escaped(dotted(at)) or "(file)"
    return Problem(str(located.file), where, escaped(what), escaped(remedy), located.line(at))


def _check_size(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        what, remedy = error.strerror or "cannot be read", "give the path of a cassette"
    else:
        if not stat.S_ISREG(found.st_mode):
            what, remedy = "is no file", "give the path of a cassette"
        elif found.st_size > MAX_BYTES:
            what = f"has {found.st_size} bytes, and a cassette has at most {MAX_BYTES}"
            remedy = "record less in one cassette"
        else:
            return
    raise ConfigError([Problem(str(path), "(file)", what, remedy)])


def write(cassette: Cassette, path: Path) -> None:
    """Write a cassette atomically, as a file that only its owner can read. A symbolic link in its
    place is replaced, not followed.

    A link at its place is replaced, not followed.

    Raises:
        UsageError: the file cannot be written, or the cassette is too large.
    """
    text = as_text(cassette, is_json=path.suffix == ".json").encode()
    if len(text) > MAX_BYTES:
        raise UsageError(
            f"{path}: the conversation takes {len(text)} bytes, and a cassette has at most "
            f"{MAX_BYTES}"
        )
    beside: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
        beside = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
        beside.replace(path)
    except OSError as error:
        if beside is not None:
            beside.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def as_text(cassette: Cassette, *, is_json: bool = False) -> str:
    """What stands in the file."""
    if is_json:
        text = json.dumps(to_document(cassette), indent=2, ensure_ascii=False)
        return "".join(f"{escaped(line)}\n" for line in text.split("\n"))
    return "\n".join(_lines(cassette)) + "\n"


def _lines(cassette: Cassette) -> Iterator[str]:
    document = to_document(cassette)
    del document["interactions"]
    yield from dump(document)
    if not cassette.interactions:
        yield "interactions: []"
        return
    yield "interactions:"
    for number, one in enumerate(cassette.interactions, 1):
        yield ""
        yield f"  # {number}: {visible(one.title[:80])}"
        yield from dump([interaction_document(one)], 2)


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
