"""A suite's file → models, or everything that is wrong with it, with line and remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from roundgate.errors import ConfigError, Problem
from roundgate.settings import Origin, yaml_file
from roundgate.suites.checking import checked
from roundgate.suites.models import Suite

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_SEE: Final = "see `roundgate docs testing`, or `roundgate schema --suite` for your editor"
_REMEDIES: Final = {
    "missing": "add it",
    "extra_forbidden": "remove it, or correct its spelling",
    "union_tag_not_found": "give one of the shapes that `roundgate docs testing` has for it",
    "union_tag_invalid": "give one of the shapes that `roundgate docs testing` has for it",
}


@dataclass(frozen=True, slots=True)
class SuiteFile:
    """A valid suite, where it came from, and what it is called in reports."""

    suite: Suite
    origin: Origin

    @property
    def path(self) -> Path:
        return self.origin.located.file

    @property
    def folder(self) -> Path:
        """What relative paths in it start from."""
        return self.origin.base_dir

    @property
    def name(self) -> str:
        return self.suite.name or self.path.name

    def line(self, *steps: str | int) -> int | None:
        """The line of a part of it."""
        return self.origin.located.line(steps)


def load(path: Path) -> SuiteFile:
    """Read and check a suite.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    _check_size(path)
    located = yaml_file.read(
        path,
        remedy="give the path of a suite: roundgate test suite.yaml (`roundgate docs testing`)",
    )
    origin = Origin(located)
    problems = [
        origin.at(*loc).problem(what, "quote it, if it is meant as text")
        for loc, what in _not_json(located.value, ())
    ]
    if problems:  # models would say the same again, in other words
        raise ConfigError(problems)
    try:
        suite = Suite.model_validate(located.value)
    except ValidationError as error:
        raise ConfigError(_unique(_invalid(error, origin))) from None
    if found := _unique(checked(suite, origin)):
        raise ConfigError(found)
    return SuiteFile(suite, origin)


def _check_size(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        return  # whoever reads it says what is wrong
    if size > MAX_FILE_BYTES:
        what = f"has {size} bytes, and a suite at most {MAX_FILE_BYTES}"
        raise ConfigError([Problem(str(path), "(file)", what, "split it")])


def _not_json(
    value: Any, loc: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What YAML can say and JSON cannot: the place, and what it is."""
    match value:
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    yield (*loc, str(key)), f"the key {_shown(key)} is no text"
                yield from _not_json(item, (*loc, str(key)))
        case list():
            for index, item in enumerate(value):
                yield from _not_json(item, (*loc, index))
        case float() if not math.isfinite(value):
            yield loc, f"is {value}, which JSON does not have"
        case None | bool() | int() | float() | str():
            return
        case _:
            yield loc, f"is a {type(value).__name__}, which JSON does not have"


def _shown(key: object) -> str:
    read = f"{str(key).lower()} (so YAML reads yes, no, on and off)"
    return read if isinstance(key, bool) else repr(key)


def _invalid(error: ValidationError, origin: Origin) -> Iterator[Problem]:
    for detail in error.errors(include_input=False, include_url=False):
        place = origin.at(*_in_the_file(detail["loc"], origin.located.value))
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"].startswith("union_tag"):
            message = "has another shape than it may have"
        yield place.problem(message, _REMEDIES.get(detail["type"], _SEE))


def _in_the_file(loc: tuple[str | int, ...], value: Any) -> Iterator[str | int]:
    """The steps of a location that the file has: pydantic puts the tags of unions in between."""
    for index, step in enumerate(loc):
        is_there = (isinstance(value, Mapping) and step in value) or (
            isinstance(value, list) and isinstance(step, int) and step < len(value)
        )
        if is_there:
            value = value[step]
        elif index < len(loc) - 1 or str(step).startswith("<"):
            continue
        yield step


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))
