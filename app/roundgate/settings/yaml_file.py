"""A YAML (or JSON) file as plain values that remember their lines, so that a
problem can say where it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from roundgate.errors import ConfigError, ParseError, Problem, YamlTooCostly
from roundgate.settings import yaml_budget

Loc: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Located:
    """What a file holds. `lines` maps a location in it to a line; JSON files have none."""

    file: Path
    value: Any
    lines: Mapping[Loc, int]

    def line(self, loc: Sequence[str | int]) -> int | None:
        """The line of a location, or of the nearest thing around it that has one."""
        return next(
            (
                self.lines[tuple(loc[:n])]
                for n in range(len(loc), -1, -1)
                if tuple(loc[:n]) in self.lines
            ),
            None,
        )


_DATE: Final = "tag:yaml.org,2002:timestamp"
_REMEDY: Final = "give the path of a gateway.yaml: roundgate serve PATH, or GATEWAY_CONFIG"


MAX_BYTES: Final = 32 * 1024 * 1024
MAX_VALUES: Final = 5_000_000
MAX_ALIASED: Final = 50_000
"""Values that the aliases of one file may repeat."""


def read(
    path: Path,
    *,
    remedy: str = _REMEDY,
    repeated: list[Problem] | None = None,
    has_aliases: bool = True,
) -> Located:
    """Parse a file. Dates stay text, because JSON has no dates.

    Args:
        remedy: the remedy to report if there is no such file.
        has_aliases: whether the file may use a value twice (`*name`).
        repeated: receives duplicate keys, which are then no error; the last value counts.

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
        what = f"has more than {MAX_BYTES:,} bytes"
        raise ConfigError([Problem(str(path), "(file)", what, "give a smaller file")])
    if path.suffix == ".json":
        return _read_json(path, text)
    return _read_yaml(path, text, repeated, MAX_ALIASED if has_aliases else 0)


def _read_json(path: Path, text: bytes) -> Located:
    from roundgate import json

    try:
        return Located(path, json.decode(text), {})
    except ParseError as error:
        raise ConfigError([Problem(str(path), "(file)", str(error), "mend the JSON")]) from None


def _read_yaml(path: Path, text: bytes, noted: list[Problem] | None, max_aliased: int) -> Located:
    import yaml  # a JSON file needs no PyYAML

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar = {
            first: [one for one in resolvers if one[0] != _DATE]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    loader = Loader(b"")
    try:
        yaml_budget.check(text, max_values=MAX_VALUES, max_aliased=max_aliased)
        loader = Loader(text)
        node = loader.get_single_node()
        # before the values are made, which writes what `<<` refers to into the nodes
        places = list(_places((), node, 1)) if node is not None else []
        value = {} if node is None else loader.construct_document(node)
    except YamlTooCostly as error:
        remedy = "write the value out where it is used" if "alias" in str(error) else "write less"
        raise ConfigError([Problem(str(path), "(file)", str(error), remedy, error.line)]) from None
    except (ValueError, OverflowError):  # a date or number that Python cannot represent
        problem = Problem(str(path), "(file)", "has a value that cannot be read", "mend the syntax")
        raise ConfigError([problem]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        line, remedy = mark and mark.line + 1, _mending(text, what, mark)
        problem = Problem(str(path), "(file)", f"is not YAML: {what}", remedy, line)
        raise ConfigError([problem]) from None
    finally:
        loader.dispose()
    lines: dict[Loc, int] = {}
    repeated: list[Problem] = []
    for loc, line in places:
        if loc in lines:
            what = f"the key {str(loc[-1])!r} is there twice (first on line {lines[loc]})"
            repeated.append(Problem(str(path), dotted(loc), what, "remove one of them", line))
        lines.setdefault(loc, line)
    if repeated and noted is None:
        raise ConfigError(repeated)
    if noted is not None:
        noted += repeated
    return Located(path, value, lines)


def _mending(text: bytes, what: str, mark: Any) -> str:
    """What to do about a text that is no YAML, by what the parser says and where."""
    if "cannot start any token" in what:
        lines = text.decode("utf-8", "replace").splitlines()
        sign = lines[mark.line][mark.column : mark.column + 1] if mark.line < len(lines) else ""
        if sign == "\t":
            return "indent with blanks: YAML takes no tabs"
        return f'put the text that begins with {sign} in quotes: "{sign}…"'
    return next((remedy for words, remedy in _SYNTAX.items() if words in what), "mend the syntax")


_SYNTAX: Final = {
    "mapping values are not allowed": 'put the text that has a colon in it in quotes: "My shop: the best"',
    "another document": "keep one document: take out the line `---` and what follows it",
    "constructor for the tag": "take out the word with !",
    "unacceptable character": "save the file as UTF-8",
    "unexpected end of stream": "close the quotes, or the bracket, that begin a text and do not end it",
}
"""What to do, by words of the parser."""


def _places(loc: Loc, node: Any, line: int) -> Iterator[tuple[Loc, int]]:
    yield loc, line
    if node.id == "mapping":
        for key, value in node.value:
            yield from _places((*loc, str(key.value)), value, key.start_mark.line + 1)
    elif node.id == "sequence":
        for index, item in enumerate(node.value):
            yield from _places((*loc, index), item, item.start_mark.line + 1)


def dotted(loc: Sequence[str | int]) -> str:
    """`("backends", 0, "tools", 2)` → `backends[0].tools[2]`."""
    return reduce(
        lambda path, step: (
            f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}".lstrip(".")
        ),
        loc,
        "",
    )
