"""A YAML or JSON file as plain values with known places, so a problem can name its line.

An alias (`*name`) repeats a whole value, so a few lines can stand for any number of values.
`check_cost` limits this number before any value is made: PyYAML's parser reports events in time
proportional to the text, but composing and constructing are recursive and follow each alias.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from msgspec import Struct

from roundgate.errors import ConfigError, ParseError, Problem, YamlTooCostly

Loc: TypeAlias = tuple[str | int, ...]


class Located(Struct, frozen=True):
    """The content of a file. `lines` maps a location to its line; it is empty for JSON files."""

    file: Path
    value: Any
    lines: Mapping[Loc, int]

    def line(self, loc: Sequence[str | int]) -> int | None:
        """Return the line of a location, or of the nearest enclosing location that has one; `None`
        without lines."""
        around = (tuple(loc[:length]) for length in range(len(loc), -1, -1))
        return next((self.lines[place] for place in around if place in self.lines), None)


class Origin(Struct, frozen=True):
    """A place in a configuration file."""

    located: Located
    loc: Loc = ()

    @property
    def base_dir(self) -> Path:
        """The directory of the file, to which relative paths in the file refer."""
        return self.located.file.resolve().parent

    def at(self, *steps: str | int) -> Origin:
        """Return a place within this place."""
        return Origin(self.located, (*self.loc, *steps))

    def problem(self, message: str, remedy: str) -> Problem:
        """Return a problem at this place; `message` continues a sentence about the place."""
        file, line = str(self.located.file), self.located.line(self.loc)
        return Problem(file, dotted(self.loc) or "(file)", message, remedy, line)


_DATE: Final = "tag:yaml.org,2002:timestamp"
_REMEDY: Final = "give the path of a gateway.yaml: roundgate serve PATH, or GATEWAY_CONFIG"


MAX_BYTES: Final = 32 * 1024 * 1024
MAX_VALUES: Final = 5_000_000
MAX_ALIASED: Final = 50_000
"""The limit on the values that the aliases of one file may repeat."""


def read(
    path: Path,
    *,
    remedy: str = _REMEDY,
    repeated: list[Problem] | None = None,
    has_aliases: bool = True,
) -> Located:
    """Parse a file. Dates stay text, because JSON has no dates.

    Args:
        path: the file; JSON if it ends with `.json`, otherwise YAML.
        remedy: the remedy to report if the file cannot be opened.
        repeated: receives the problems of duplicate keys. They are then not errors; the last value
            counts.
        has_aliases: whether the file may repeat a value (`*name`).

    Raises:
        ConfigError: the file cannot be read, is too large, is not YAML or JSON, or repeats a key.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            [Problem(str(path), "(file)", error.strerror or "cannot be read", remedy)]
        ) from None
    if len(text) > MAX_BYTES:
        complaint = f"has more than {MAX_BYTES:,} bytes"
        raise ConfigError([Problem(str(path), "(file)", complaint, "give a smaller file")])
    if path.suffix == ".json":
        return _read_json(path, text)
    return _read_yaml(path, text, repeated, MAX_ALIASED if has_aliases else 0)


def _read_json(path: Path, text: bytes) -> Located:
    from roundgate import json

    try:
        return Located(path, json.decode(text), {})
    except ParseError as error:
        raise ConfigError([Problem(str(path), "(file)", str(error), "correct the JSON")]) from None


def _read_yaml(path: Path, text: bytes, noted: list[Problem] | None, max_aliased: int) -> Located:
    import yaml  # here, because a JSON file needs no PyYAML

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar = {
            first: [resolver for resolver in resolvers if resolver[0] != _DATE]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    loader = Loader(b"")
    try:
        check_cost(text, max_values=MAX_VALUES, max_aliased=max_aliased)
        loader = Loader(text)
        node = loader.get_single_node()
        # before construct_document, which copies the mappings of `<<` into the nodes
        places = list(_places((), node, 1)) if node is not None else []
        value = {} if node is None else loader.construct_document(node)
    except YamlTooCostly as error:
        remedy = "replace the alias with the value" if "alias" in str(error) else "shorten the file"
        raise ConfigError([Problem(str(path), "(file)", str(error), remedy, error.line)]) from None
    except (ValueError, OverflowError):  # a date or number that Python cannot represent
        problem = Problem(
            str(path),
            "(file)",
            "has a date or number that Python cannot represent",
            "put it in quotes",
        )
        raise ConfigError([problem]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        complaint = getattr(error, "problem", None) or str(error).splitlines()[0]
        line, remedy = mark and mark.line + 1, _mending(text, complaint, mark)
        problem = Problem(str(path), "(file)", f"is not YAML: {complaint}", remedy, line)
        raise ConfigError([problem]) from None
    finally:
        loader.dispose()
    lines: dict[Loc, int] = {}
    repeated: list[Problem] = []
    for loc, line in places:
        if loc in lines:
            complaint = f"the key {str(loc[-1])!r} appears twice (first on line {lines[loc]})"
            repeated.append(Problem(str(path), dotted(loc), complaint, "remove one of them", line))
        lines.setdefault(loc, line)
    if repeated and noted is None:
        raise ConfigError(repeated)
    if noted is not None:
        noted += repeated
    return Located(path, value, lines)


def _mending(text: bytes, complaint: str, mark: Any) -> str:
    if "cannot start any token" in complaint:
        lines = text.decode("utf-8", "replace").splitlines()
        sign = lines[mark.line][mark.column : mark.column + 1] if mark.line < len(lines) else ""
        if sign == "\t":
            return "indent with spaces: YAML does not allow tabs"
        return f'put the text that begins with {sign} in quotes: "{sign}…"'
    return next(
        (remedy for words, remedy in _SYNTAX.items() if words in complaint), "correct the syntax"
    )


_SYNTAX: Final = {
    "mapping values are not allowed": 'quote the text with the colon: "My shop: the best"',
    "another document": "keep one document: remove the line `---` and the text below it",
    "constructor for the tag": "remove the word that begins with !",
    "unacceptable character": "save the file as UTF-8",
    "unexpected end of stream": "close the open quotes or bracket",
}
"""Remedies by words in the parser's message."""


def _places(loc: Loc, node: Any, line: int) -> Iterator[tuple[Loc, int]]:
    yield loc, line
    if node.id == "mapping":
        for key, value in node.value:
            yield from _places((*loc, str(key.value)), value, key.start_mark.line + 1)
    elif node.id == "sequence":
        for index, item in enumerate(node.value):
            yield from _places((*loc, index), item, item.start_mark.line + 1)


def dotted(loc: Sequence[str | int]) -> str:
    """Return a location as text: `("backends", 0, "tools", 2)` → `backends[0].tools[2]`."""
    return reduce(
        lambda path, step: (
            f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}".lstrip(".")
        ),
        loc,
        "",
    )


def not_json(value: Any, loc: Loc = ()) -> Iterator[tuple[Loc, str]]:
    """Yield the location of each key or value in a file that JSON does not have, with the end of a
    sentence about it."""
    match value:
        case dict():
            for key, item in value.items():
                if isinstance(key, bool):
                    text = f"{str(key).lower()} (YAML's reading of yes, no, on or off)"
                    yield (*loc, str(key)), f"the key {text} is not text"
                elif not isinstance(key, str):
                    yield (*loc, str(key)), f"the key {key!r} is not text"
                yield from not_json(item, (*loc, str(key)))
        case list():
            for index, item in enumerate(value):
                yield from not_json(item, (*loc, index))
        case float() if not isfinite(value):
            yield loc, f"is {value}, which JSON does not have"
        case None | bool() | int() | float() | str():
            return
        case _:
            yield loc, f"is a {type(value).__name__}, which JSON does not have"


MAX_DEPTH: Final = 200
MAX_NUMBER: Final = 400
"""The limit on the characters of a number: the time to parse it grows with the square of its
length."""
_NUMBER: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F_]+|[0-9_.:eE+-]+)")


def check_cost(text: bytes, *, max_values: int, max_aliased: int) -> None:
    """Check that a YAML text can be read at an acceptable cost.

    Args:
        max_values: the limit on values and keys, including those that aliases repeat.
        max_aliased: the limit on values and keys that aliases repeat; 0 forbids aliases.

    Raises:
        YamlTooCostly: the text exceeds a limit, contains itself, or has a number that is too long.
        yaml.YAMLError: the text is not YAML.
    """
    import yaml

    counter = _Counter(max_values, max_aliased)
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        counter.take(event, yaml)


class _Counter:
    """A counter of a text's values, fed with the parser's events."""

    def __init__(self, max_values: int, max_aliased: int) -> None:
        self._max_values = max_values
        self._max_aliased = max_aliased
        self._values = 0
        self._aliased = 0
        self._open: list[tuple[str | None, int]] = []
        """The anchor of each open list and mapping, and the number of values before it."""
        self._sizes: dict[str, int] = {}
        """The number of values under each anchor."""

    def take(self, event: Any, yaml: Any) -> None:
        line = event.start_mark.line + 1
        match event:
            case yaml.AliasEvent():
                self._take_alias(event.anchor, line)
            case yaml.ScalarEvent():
                _check_number(event, line)
                self._values += 1
                self._close(event.anchor, self._values - 1)
            case yaml.CollectionStartEvent():
                self._open.append((event.anchor, self._values))
                self._values += 1
                if len(self._open) > MAX_DEPTH:
                    raise YamlTooCostly(f"is nested too deeply: {MAX_DEPTH} levels at most", line)
            case yaml.CollectionEndEvent():
                self._close(*self._open.pop())
        if self._values > self._max_values:
            raise YamlTooCostly(f"has more than {self._max_values:,} values", line)

    def _take_alias(self, anchor: str, line: int) -> None:
        if not self._max_aliased:
            raise YamlTooCostly("has an alias (*name), which is not allowed here", line)
        if any(anchor == open_anchor for open_anchor, _ in self._open):
            raise YamlTooCostly(f"contains itself: *{anchor} is within &{anchor}", line)
        size = self._sizes.get(anchor, 0)  # the composer reports an undefined anchor
        self._values += size
        self._aliased += size
        if self._aliased > self._max_aliased:
            raise YamlTooCostly(
                f"has aliases (*{anchor}) that repeat more than {self._max_aliased:,} values", line
            )

    def _close(self, anchor: str | None, before: int) -> None:
        if anchor is not None:
            self._sizes[anchor] = self._values - before


def _check_number(event: Any, line: int) -> None:
    if len(event.value) <= MAX_NUMBER:
        return
    is_tagged = (event.tag or "").endswith((":int", ":float"))
    if is_tagged or (not event.style and _NUMBER.fullmatch(event.value)):
        raise YamlTooCostly(
            f"has a number of more than {MAX_NUMBER} characters; put it in quotes", line
        )
