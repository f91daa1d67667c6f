"""Comparison of a step's outcome with its expectations: patterns, schemas, snapshots.

A pattern is JSON. A scalar must be equal, an object must have at least the members of the pattern,
and a list must have exactly the items of the pattern, in order. If every key of an object begins
with `$`, the keys are matchers, and all must match; `$$ref` is a member called `$ref`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from roundgate import json
from roundgate.errors import ConfigError, ParseError, Problem
from roundgate.protocol import Schema
from roundgate.settings import yaml_file
from roundgate.settings.redacting import Secrets
from roundgate_testing.suites.models import Expect, ExpectedError
from roundgate_testing.suites.variables import as_json, search

MAX_SHOWN: Final = 2_000
MAX_DIFFERENCES: Final = 20
_NOTHING: Final = "(nothing)"

Differences: TypeAlias = Iterator["Mismatch"]
Fill: TypeAlias = Callable[[Any], Any]
"""A function that returns a value with its `${…}` references replaced."""
Unmet: TypeAlias = tuple[str, Sequence["Mismatch"]]
"""A failed expectation: a sentence and the differences."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One place where a value is not as expected."""

    path: str
    expected: str
    actual: str
    lines: tuple[str, ...] = ()
    """The line-by-line diff of two texts, if either has several lines."""


MATCHERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "$absent": "nothing (the member must be missing)",
        "$any": "anything",
        "$contains": "a text or list that contains {}",
        "$exactly": "exactly {}",
        "$max": "at most {}",
        "$min": "at least {}",
        "$regex": "text that matches /{}/",
        "$schema": "a value that the schema {} allows",
        "$type": "a value of the type {}",
    }
)
"""The matchers, each with its expectation in words; `{}` stands for the operand."""

_SCHEMAS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {
        "$max": lambda operand: {"type": "number", "maximum": operand},
        "$min": lambda operand: {"type": "number", "minimum": operand},
        "$regex": lambda operand: {"type": "string", "pattern": operand},
        "$schema": lambda operand: operand,
        "$type": lambda operand: {"type": operand},
    }
)
"""The matchers that are shorthand for a JSON Schema.

The schema engine limits the effort of a regular expression. Python's `re` could run almost forever
on a hostile pattern or text, and suites and servers may be untrusted.
"""


def differences(pattern: Any, value: Any, path: str) -> list[Mismatch]:
    """Return the differences of a value from a pattern, at most `MAX_DIFFERENCES`."""
    return list(_bounded(_compare(pattern, value, path)))


def exact(expected: Any, value: Any, path: str) -> list[Mismatch]:
    """Return the differences of two values, at most `MAX_DIFFERENCES`. `$` has no special meaning,
    and additional members of an object are differences."""
    return list(_bounded(_compare(expected, value, path, is_exact=True)))


def _bounded(differences: Differences) -> Differences:
    for _, difference in zip(range(MAX_DIFFERENCES), differences, strict=False):
        yield difference


def problems(
    pattern: Any, loc: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the problems of a pattern, each as a location in the pattern and the end of a
    sentence."""
    if isinstance(pattern, list):
        for index, item in enumerate(pattern):
            yield from problems(item, (*loc, index))
    if not isinstance(pattern, Mapping):
        return
    words = [name for name in pattern if _is_word(name)]
    for name, item in pattern.items():
        if name not in words:
            yield from problems(item, (*loc, name))
        elif len(words) < len(pattern):
            yield loc, f"has both members and matchers ({', '.join(words)}): use one kind"
            return
        elif (problem := _matcher_problem(name, item)) is not None:
            yield (*loc, name), problem
        elif name == "$contains":
            yield from problems(item, (*loc, name))


def _matcher_problem(name: str, operand: Any) -> str | None:
    if name not in MATCHERS:
        near = difflib.get_close_matches(name, MATCHERS, 1)
        return f"is not a matcher{f': did you mean {near[0]}?' if near else ''}"
    if name in ("$any", "$absent"):
        return None if operand is True else "must be true"
    if name in _SCHEMAS:
        try:
            Schema.compile(_SCHEMAS[name](operand))
        except ValueError as error:
            is_regex = name == "$regex" and isinstance(operand, str)
            return f"is not a valid regular expression: {operand!r}" if is_regex else str(error)
    return None


def described(pattern: Any) -> str:
    """Return a description of a pattern for reports."""
    if not _is_matcher(pattern):
        return _shown(pattern)
    return " and ".join(
        MATCHERS[name].format(operand if isinstance(operand, str) else described(operand))
        for name, operand in pattern.items()
    )


def _shown(value: Any) -> str:
    text = as_json(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text)} characters)"


def _is_word(name: str) -> bool:
    return name.startswith("$") and not name.startswith("$$")


def _is_matcher(pattern: Any) -> bool:
    return isinstance(pattern, Mapping) and bool(pattern) and all(map(_is_word, pattern))


def _compare(pattern: Any, value: Any, path: str, *, is_exact: bool = False) -> Differences:
    words = _shown if is_exact else described
    if not is_exact and _is_matcher(pattern):
        for name, operand in pattern.items():
            yield from _match(name, operand, value, path)
    elif isinstance(pattern, Mapping) and isinstance(value, Mapping):
        yield from _members(pattern, value, path, is_exact=is_exact)
    elif isinstance(pattern, list) and isinstance(value, list):
        for index in range(max(len(pattern), len(value))):
            at = f"{path}[{index}]"
            if index >= len(value):
                yield Mismatch(at, words(pattern[index]), _NOTHING)
            elif index >= len(pattern):
                yield Mismatch(at, _NOTHING, _shown(value[index]))
            else:
                yield from _compare(pattern[index], value[index], at, is_exact=is_exact)
    elif not _is_equal(pattern, value):
        yield Mismatch(path, words(pattern), _shown(value), _by_line(pattern, value))


def _members(
    pattern: Mapping[str, Any], value: Mapping[str, Any], path: str, *, is_exact: bool
) -> Differences:
    for name, member in pattern.items():
        name = name[1:] if name.startswith("$$") and not is_exact else name
        at = f"{path}.{name}"
        if name in value:
            yield from _compare(member, value[name], at, is_exact=is_exact)
        elif is_exact or not (_is_matcher(member) and "$absent" in member):
            yield Mismatch(at, _shown(member) if is_exact else described(member), _NOTHING)
    if is_exact:
        for name in value:
            if name not in pattern:
                yield Mismatch(f"{path}.{name}", _NOTHING, _shown(value[name]))


def _match(name: str, operand: Any, value: Any, path: str) -> Differences:
    match name:
        case "$exactly":
            yield from _compare(operand, value, path, is_exact=True)
            return
        case "$schema":
            yield from _schema(Schema.compile(operand), value, path)
            return
        case "$any" | "$absent":  # only reached if there is a value
            fits = name == "$any"
        case "$contains" if isinstance(value, str):
            fits = isinstance(operand, str) and operand in value
        case "$contains":
            items = value if isinstance(value, list) else ()
            fits = any(not differences(operand, item, "") for item in items)
        case _:
            fits = Schema.compile(_SCHEMAS[name](operand)).is_valid(value)
    if not fits:
        yield Mismatch(path, described({name: operand}), _shown(value))


def _schema(schema: Schema, value: Any, path: str) -> Differences:
    for problem in schema.problems(value, path):
        where, _, complaint = problem.partition(": ")
        yield Mismatch(where, "a value that the schema allows", complaint)


def _is_equal(expected: Any, value: Any) -> bool:
    """Return whether two scalars are the same JSON value: 1 equals 1.0, but a boolean is not a
    number."""
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


def read_schema(schema: Mapping[str, Any] | str, folder: Path) -> Schema:
    """Compile a JSON Schema, or the schema in a file relative to `folder`.

    Raises:
        ValueError: the file cannot be read, or the schema is invalid.
    """
    if isinstance(schema, Mapping):
        return Schema.compile(schema)
    try:
        content = json.decode((folder / schema).read_bytes())
    except (OSError, ParseError) as error:
        raise ValueError(f"{schema}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{schema}: is not an object")
    return Schema.compile(content)


def unmet(expect: Expect, outcome: Mapping[str, Any], fill: Fill, folder: Path) -> Unmet | None:
    """Return the failed expectations, or `None` if the outcome is as expected. For snapshots, see
    `Snapshots.unmet`.

    Raises:
        ValueError: a reference cannot be resolved, an expression cannot be applied, or a schema is
            invalid.
    """
    error = outcome.get("error")
    if error is not None and expect.error is None:
        return _unexpected(error), []
    if error is None and expect.error is not None:
        result = _shown(outcome.get("result"))
        return f"an error was expected, but the server answered {result}", []
    expects_tool_error = expect.tool_error not in (None, False)
    if outcome.get("is_error") and not expects_tool_error:
        return f"the tool failed: {_cut(str(outcome.get('text', '')))}", []
    differences = [*_result(expect, outcome, fill), *_questions(expect, outcome, fill)]
    if expects_tool_error:
        differences += _tool_error(fill(expect.tool_error), outcome)
    if error is not None and expect.error is not None:
        differences += _error(expect.error, error, fill)
    if expect.json_schema is not None:
        schema = read_schema(fill(expect.json_schema), folder)
        differences += _schema(schema, outcome.get("result"), "result")
    return (summary(differences), differences) if differences else None


def summary(differences: Sequence[Mismatch]) -> str:
    """Return one line that names the first three differing places."""
    places = list(dict.fromkeys(difference.path for difference in differences))
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"not as expected: {', '.join(places[:3])}{more}"


def _unexpected(error: Mapping[str, Any]) -> str:
    code = f" ({error['code']})" if "code" in error else ""
    lines = [f"{error['kind']}{code}: {_cut(str(error['message']))}"]
    for question in error.get("questions", [])[:10]:
        schema = question["params"].get("requestedSchema") or {}
        fields = ", ".join(
            f"{name} ({field.get('type', 'any') if isinstance(field, Mapping) else 'any'})"
            for name, field in (schema.get("properties") or {}).items()
        )
        answer = f"{{{fields}}}" if fields else "…"
        lines.append(f"  add to answers: {question['key']}: {answer}")
    return "\n".join(lines)


def _result(expect: Expect, outcome: Mapping[str, Any], fill: Fill) -> Differences:
    for name in ("result", "text", "rounds"):
        if name in expect.model_fields_set:
            pattern = fill(getattr(expect, name))
            if name in outcome:
                yield from differences(pattern, outcome[name], name)
            else:
                yield Mismatch(name, described(pattern), "(nothing: the step has none)")
    for expression, pattern in expect.jmespath.items():
        yield from differences(fill(pattern), search(fill(expression), outcome), expression)
    task = outcome.get("task")
    if expect.task is not None and expect.task is not (task is not None):
        words = {True: "a task", False: "no task"}
        yield Mismatch("task", words[expect.task], words[task is not None])
    took_s = outcome["duration_ms"] / 1_000
    if expect.within_s is not None and took_s > expect.within_s:
        yield Mismatch("within_s", f"at most {expect.within_s:g} s", f"{took_s:.3f} s")


def _tool_error(pattern: Any, outcome: Mapping[str, Any]) -> Differences:
    if not outcome.get("is_error"):
        yield Mismatch("tool_error", described(pattern), _shown(outcome.get("result")))
    elif pattern is not True:
        yield from differences(pattern, outcome.get("text"), "tool_error")


def _error(expected: ExpectedError | int, error: Mapping[str, Any], fill: Fill) -> Differences:
    if isinstance(expected, int):
        expected = ExpectedError(code=expected)
    for name in ("kind", "code", "message", "data", "status"):
        if name not in expected.model_fields_set:
            continue
        pattern, path = fill(getattr(expected, name)), f"error.{name}"
        if name in error:
            yield from differences(pattern, error[name], path)
        else:
            actual = f"(nothing: {error['kind']}: {error['message']})"
            yield Mismatch(path, described(pattern), actual)


def _questions(expect: Expect, outcome: Mapping[str, Any], fill: Fill) -> Differences:
    if expect.asked is None:
        return
    patterns = fill(expect.asked)
    if all(isinstance(pattern, str) for pattern in patterns):
        keys = [question["key"] for question in outcome["asked"]]
        yield from differences(patterns, keys, "asked")
    else:
        patterns = [{"key": entry} if isinstance(entry, str) else entry for entry in patterns]
        yield from differences(patterns, outcome["asked"], "asked")


_HEAD: Final = (
    "# Written by `roundgate test --update`, and compared completely. Read the difference "
    "before you commit it.\n"
)


class Snapshots:
    """The stored values with which a suite's results are compared, by name."""

    def __init__(self, path: Path, stored: dict[str, Any], *, updates: bool) -> None:
        self._path = path
        self._stored = stored
        self._updates = updates
        self._changed = False
        self._used: set[str] = set()

    @classmethod
    def beside(cls, suite: Path, *, updates: bool = False) -> Snapshots:
        """Read the snapshots of a suite. With `updates`, differing values are stored, not
        reported.

        Raises:
            ConfigError: the file cannot be read, or is not a mapping.
        """
        path = suite.with_suffix(".snapshots.yaml")
        if not path.exists():
            return cls(path, {}, updates=updates)
        stored = yaml_file.read(path).value
        if not isinstance(stored, dict):
            remedy = "run `roundgate test --update`"
            raise ConfigError([Problem(str(path), "(file)", "is not a mapping", remedy)])
        return cls(path, stored, updates=updates)

    def unmet(
        self, name: str, expected: bool | str, outcome: Mapping[str, Any], secrets: Secrets
    ) -> Unmet | None:
        """Return the differences between the outcome and a snapshot, or `None`.

        `expected` is True for the result, or a JMESPath expression for a part of the outcome.

        Raises:
            ValueError: the expression cannot be applied.
        """
        if expected is False:
            return None
        path = "result" if expected is True else expected
        differences = self.compare(name, secrets.without(search(path, outcome)))
        return (summary(differences), differences) if differences else None

    def compare(self, name: str, value: Any) -> list[Mismatch]:
        """Return the differences of a value from the stored value. With `updates`, store the value
        instead."""
        self._used.add(name)
        if name in self._stored and not (
            differences := exact(self._stored[name], value, "snapshot")
        ):
            return []
        if self._updates:
            self._stored[name] = value
            self._changed = True
            return []
        if name not in self._stored:
            stored = f"a snapshot {name!r} in {self._path.name}; --update writes it"
            return [Mismatch("snapshot", stored, _NOTHING)]
        return differences

    @property
    def unused(self) -> list[str]:
        """The names of snapshots that no step compared."""
        return sorted(self._stored.keys() - self._used)

    def save(self, *, drop_unused: bool) -> None:
        """With `updates`, replace the file if values have changed. `drop_unused` removes the
        snapshots that no step compared."""
        if self._updates and drop_unused and self.unused:
            self._stored = {name: self._stored[name] for name in self._stored if name in self._used}
            self._changed = True
        if self._updates and self._changed:
            import yaml

            text = yaml.safe_dump(
                dict(sorted(self._stored.items())), allow_unicode=True, sort_keys=True, width=100
            )
            written = self._path.with_suffix(".tmp")
            written.write_text(_HEAD + text, encoding="utf-8")
            written.replace(self._path)
