"""Patterns: what is expected of a JSON value, and where a value differs from it.

A scalar is equal. An object has at least the members of the pattern, a list has just the items of
the pattern, in order. An object of which every key begins with `$` is made of matchers, all of
which have to hold; `$$` at the beginning of a key stands for a member that begins with `$`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from roundgate.protocol import Schema

MAX_SHOWN: Final = 2_000
MAX_DIFFERENCES: Final = 20
_NOTHING: Final = "(nothing)"


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where a value is not as it should be. `lines` is the difference of
    long texts, line by line."""

    path: str
    expected: str
    actual: str
    lines: tuple[str, ...] = ()


Found: TypeAlias = Iterator[Difference]


def differences(pattern: Any, value: Any, path: str) -> list[Difference]:
    """Where a value differs from a pattern, up to `MAX_DIFFERENCES` places; nothing if it fits."""
    found: list[Difference] = []
    for one in _compare(pattern, value, path):
        found.append(one)
        if len(found) == MAX_DIFFERENCES:
            break
    return found


def exact(expected: Any, value: Any, path: str) -> list[Difference]:
    """Where two values differ: as for patterns, but objects have no members beside."""
    return list(_exactly(expected, value, path))[:MAX_DIFFERENCES]


def problems(
    pattern: Any, loc: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], str]]:
    """What is wrong with a pattern itself: the place within it, and a sentence."""
    if isinstance(pattern, list):
        for index, item in enumerate(pattern):
            yield from problems(item, (*loc, index))
    if not isinstance(pattern, Mapping):
        return
    for name, item in pattern.items():
        if not isinstance(name, str) or not name.startswith("$") or name.startswith("$$"):
            yield from problems(item, (*loc, name))
    if not _is_matcher(pattern):
        if any(_is_word(name) for name in pattern):
            said = ", ".join(name for name in pattern if _is_word(name))
            yield loc, f"has members and matchers ({said}) side by side"
        return
    for name, operand in pattern.items():
        if (matcher := MATCHERS.get(name)) is None:
            near = difflib.get_close_matches(name, MATCHERS, 1)
            yield (*loc, name), f"is no matcher{f': {near[0]} is' if near else ''}"
        elif (what := matcher.check(operand)) is not None:
            yield (*loc, name), what
        elif matcher.has_patterns:
            yield from problems(operand, (*loc, name))


def shown(value: Any) -> str:
    """A value as people read it in a report: JSON, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text)} characters)"


def described(pattern: Any) -> str:
    """A pattern as people read it."""
    if not isinstance(pattern, Mapping) or not _is_matcher(pattern):
        return shown(pattern)
    return " and ".join(
        MATCHERS[name].words.format(_plain(operand)) if name in MATCHERS else name
        for name, operand in pattern.items()
    )


def _plain(operand: Any) -> str:
    return operand if isinstance(operand, str) else described(operand)


def _is_word(name: Any) -> bool:
    return isinstance(name, str) and name.startswith("$") and not name.startswith("$$")


def _is_matcher(pattern: Mapping[Any, Any]) -> bool:
    return bool(pattern) and all(map(_is_word, pattern))


def _compare(pattern: Any, value: Any, path: str) -> Found:
    if isinstance(pattern, Mapping):
        if _is_matcher(pattern):
            for name, operand in pattern.items():
                yield from MATCHERS[name].compare(operand, value, path)
        elif not isinstance(value, Mapping):
            yield Difference(path, f"an object: {described(pattern)}", shown(value))
        else:
            yield from _members(pattern, value, path)
    elif isinstance(pattern, list):
        yield from _items(pattern, value, path)
    elif not _equal(pattern, value):
        yield Difference(path, shown(pattern), shown(value), _by_line(pattern, value))


def _members(pattern: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Found:
    for name, member in pattern.items():
        name = name[1:] if name.startswith("$$") else name
        at = f"{path}.{name}"
        if name in value:
            yield from _compare(member, value[name], at)
        elif not _may_be_absent(member):
            yield Difference(at, described(member), _NOTHING)


def _may_be_absent(pattern: Any) -> bool:
    if not isinstance(pattern, Mapping) or not _is_matcher(pattern):
        return False
    return bool(pattern.get("$absent")) or any(map(_may_be_absent, pattern.get("$in", ())))


def _items(pattern: list[Any], value: Any, path: str) -> Found:
    if not isinstance(value, list):
        yield Difference(path, f"a list: {described(pattern)}", shown(value))
        return
    for index, (item, actual) in enumerate(zip(pattern, value, strict=False)):
        yield from _compare(item, actual, f"{path}[{index}]")
    for index in range(len(value), len(pattern)):
        yield Difference(f"{path}[{index}]", described(pattern[index]), _NOTHING)
    for index in range(len(pattern), len(value)):
        yield Difference(f"{path}[{index}]", _NOTHING, shown(value[index]))


def _exactly(expected: Any, value: Any, path: str) -> Found:
    if isinstance(expected, Mapping) and isinstance(value, Mapping):
        for name in {**expected, **value}:
            at = f"{path}.{name}"
            if name not in value:
                yield Difference(at, shown(expected[name]), _NOTHING)
            elif name not in expected:
                yield Difference(at, _NOTHING, shown(value[name]))
            else:
                yield from _exactly(expected[name], value[name], at)
    elif isinstance(expected, list) and isinstance(value, list):
        for index in range(max(len(expected), len(value))):
            at = f"{path}[{index}]"
            if index >= len(value):
                yield Difference(at, shown(expected[index]), _NOTHING)
            elif index >= len(expected):
                yield Difference(at, _NOTHING, shown(value[index]))
            else:
                yield from _exactly(expected[index], value[index], at)
    elif not _equal(expected, value):
        yield Difference(path, shown(expected), shown(value), _by_line(expected, value))


def _equal(expected: Any, value: Any) -> bool:
    """Whether two scalars are one JSON value: 1 is 1.0, and no boolean is a number."""
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    return bool(expected == value)


def _by_line(expected: Any, value: Any) -> tuple[str, ...]:
    if not isinstance(expected, str) or not isinstance(value, str):
        return ()
    if "\n" not in expected and "\n" not in value:
        return ()
    compared = difflib.unified_diff(
        _cut(expected).splitlines(), _cut(value).splitlines(), lineterm="", n=2
    )
    return tuple(line for line in compared if not line.startswith(("---", "+++", "@@")))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = MappingProxyType(
    {
        "array": lambda value: isinstance(value, list),
        "boolean": lambda value: isinstance(value, bool),
        "integer": lambda value: (
            not isinstance(value, bool)
            and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
        ),
        "null": lambda value: value is None,
        "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
        "object": lambda value: isinstance(value, Mapping),
        "string": lambda value: isinstance(value, str),
    }
)


@dataclass(frozen=True, slots=True)
class Matcher:
    """One `$word`.

    Attributes:
        words: what is expected, with `{}` for the operand.
        compare: where a value differs.
        check: what is wrong with an operand, `None` if nothing is.
        has_patterns: whether the operand is a pattern itself, or a list of them.
    """

    words: str
    compare: Callable[[Any, Any, str], Found]
    check: Callable[[Any], str | None] = lambda operand: None
    has_patterns: bool = False


def _holds(words: str, test: Callable[[Any, Any], bool]) -> Callable[[Any, Any, str], Found]:
    def compare(operand: Any, value: Any, path: str) -> Found:
        if not test(operand, value):
            yield Difference(path, words.format(_plain(operand)), shown(value))

    return compare


def _simple(
    words: str, test: Callable[[Any, Any], bool], check: Callable[[Any], str | None]
) -> Matcher:
    return Matcher(words, _holds(words, test), check)


def _ordered(value: Any, operand: Any) -> bool:
    """Whether two values can be compared by size: two numbers, or two texts."""
    return (_TYPES["number"](value) and _TYPES["number"](operand)) or (
        isinstance(value, str) and isinstance(operand, str)
    )


def _contains(operand: Any, value: Any) -> bool:
    if isinstance(value, str):
        return isinstance(operand, str) and operand in value
    return isinstance(value, list) and any(not differences(operand, item, "") for item in value)


def _every(operand: Any, value: Any, path: str) -> Found:
    if not isinstance(value, list):
        yield Difference(path, "a list", shown(value))
        return
    for index, item in enumerate(value):
        yield from _compare(operand, item, f"{path}[{index}]")


def _length(operand: Any, value: Any, path: str) -> Found:
    if isinstance(value, str | list | Mapping):
        yield from _compare(operand, len(value), f"length({path})")
    else:
        yield Difference(path, "something with a length", shown(value))


def _unordered(operand: list[Any], value: Any, path: str) -> Found:
    """Each pattern has an item of its own, and no item is left. A greedy choice
    could miss one that exists."""
    if not isinstance(value, list):
        yield Difference(path, "a list", shown(value))
        return
    fits = [
        [index for index, item in enumerate(value) if not differences(pattern, item, "")]
        for pattern in operand
    ]
    taken: dict[int, int] = {}

    def place(at: int, tried: set[int]) -> bool:
        for index in fits[at]:
            if index in tried:
                continue
            tried.add(index)
            if index not in taken or place(taken[index], tried):
                taken[index] = at
                return True
        return False

    for at, pattern in enumerate(operand):
        if not place(at, set()):
            yield Difference(path, f"an item {described(pattern)}", shown(value))
    if len(value) > len(operand):
        left = [item for index, item in enumerate(value) if index not in taken]
        yield Difference(path, f"{len(operand)} items", f"{len(value)}, with {shown(left)} beside")


def _schema(operand: Any, value: Any, path: str) -> Found:
    for problem in Schema.compile(operand).problems(value, path):
        where, _, what = problem.partition(": ")
        yield Difference(where, f"what the schema allows: {what}", shown(value))


def _all_of(operand: list[Any], value: Any, path: str) -> Found:
    for pattern in operand:
        yield from _compare(pattern, value, path)


def _want(kind: str, words: str) -> Callable[[Any], str | None]:
    return lambda operand: None if _TYPES[kind](operand) else f"needs {words}"


def _regex(operand: Any) -> str | None:
    if not isinstance(operand, str):
        return "needs a regular expression as text"
    return regex_problem(operand)


def _size(operand: Any) -> str | None:
    return None if _TYPES["number"](operand) or isinstance(operand, str) else "needs a number"


def _types(operand: Any) -> str | None:
    named = operand if isinstance(operand, list) else [operand]
    wrong = [str(one) for one in named if one not in _TYPES]
    return f"is one of {', '.join(_TYPES)}, not {', '.join(wrong)}" if wrong else None


def _usable(operand: Any) -> str | None:
    if not isinstance(operand, Mapping):
        return "needs a JSON Schema as an object"
    try:
        Schema.compile(operand)
    except ValueError as error:
        return str(error)
    return None


def _near(operand: Any) -> str | None:
    is_pair = isinstance(operand, list) and len(operand) == 2
    return None if is_pair and all(map(_TYPES["number"], operand)) else "needs [value, tolerance]"


def _is_near(operand: Any, value: Any) -> bool:
    return _TYPES["number"](value) and abs(value - operand[0]) <= operand[1]


MATCHERS: Final[Mapping[str, Matcher]] = MappingProxyType(
    {
        "$absent": Matcher(
            "nothing (the member is not there)",
            _holds("nothing (the member is not there)", lambda operand, value: not operand),
            _want("boolean", "true or false"),
        ),
        "$all": Matcher("all of {}", _all_of, _want("array", "a list of patterns"), True),
        "$any": Matcher(
            "anything", lambda operand, value, path: iter(()), _want("boolean", "true")
        ),
        "$contains": Matcher(
            "something that contains {}",
            _holds("something that contains {}", _contains),
            has_patterns=True,
        ),
        "$every": Matcher("a list of {}", _every, has_patterns=True),
        "$exactly": Matcher("exactly {}", _exactly),
        "$in": Matcher(
            "one of {}",
            _holds(
                "one of {}",
                lambda operand, value: any(not differences(one, value, "") for one in operand),
            ),
            _want("array", "a list of patterns"),
            True,
        ),
        "$length": Matcher("a length of {}", _length, has_patterns=True),
        "$max": _simple(
            "at most {}",
            lambda operand, value: _ordered(value, operand) and value <= operand,
            _size,
        ),
        "$min": _simple(
            "at least {}",
            lambda operand, value: _ordered(value, operand) and value >= operand,
            _size,
        ),
        "$near": _simple("{} (value, tolerance)", _is_near, _near),
        "$not": Matcher(
            "anything but {}",
            _holds("anything but {}", lambda operand, value: bool(differences(operand, value, ""))),
            has_patterns=True,
        ),
        "$regex": _simple(
            "text that matches /{}/",
            lambda operand, value: isinstance(value, str) and regex_matches(operand, value),
            _regex,
        ),
        "$schema": Matcher("what the schema {} allows", _schema, _usable),
        "$type": _simple(
            "{} as its type",
            lambda operand, value: any(
                _TYPES[one](value) for one in (operand if isinstance(operand, list) else [operand])
            ),
            _types,
        ),
        "$unordered": Matcher(
            "in any order {}", _unordered, _want("array", "a list of patterns"), True
        ),
    }
)
"""What a `$word` in a pattern asks for."""


def regex_problem(pattern: str) -> str | None:
    """Return the problem of a regular expression, `None` if it can be used.

    Expressions are those of JSON Schema's `pattern` (ECMA 262). The engine bounds its effort, where
    Python's own can take years for `(a+)+$`: a suite may be a stranger's, and a server sends the
    text.
    """
    try:
        _compiled(pattern)
    except ValueError:
        return f"is no regular expression: {pattern!r}"
    return None


def regex_matches(pattern: str, text: str) -> bool:
    """Return whether a usable expression matches anywhere in a text; not if the engine gives up."""
    return _compiled(pattern).is_valid(text)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Schema:
    return Schema.compile({"type": "string", "pattern": pattern})
