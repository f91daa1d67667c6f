"""Cassettes in files: YAML, or JSON if the name ends so. Reading is bounded, writing
replaces the file at once."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from roundgate.cassettes.document import interaction_document, of_document, to_document
from roundgate.cassettes.model import Cassette
from roundgate.cassettes.paths import dotted
from roundgate.cassettes.yaml_text import dump, visible
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
