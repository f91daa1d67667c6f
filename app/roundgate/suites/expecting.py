"""The expectations of a step, held to its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from roundgate.errors import ConfigError, Problem
from roundgate.protocol import Schema
from roundgate.settings import yaml_file
from roundgate.suites import paths
from roundgate.suites.checking import schema_of
from roundgate.suites.loading import SuiteFile
from roundgate.suites.models import Expect, ExpectedError, SnapshotOf
from roundgate.suites.patterns import Difference, described, differences, exact, shown
from roundgate.suites.variables import Secrets

Filled: TypeAlias = Callable[[Any], Any]
Unmet: TypeAlias = tuple[str, Sequence[Difference]]

_MEMBERS: Final = ("result", "text", "raw", "rounds", "progress", "logs")
"""Expectations that are patterns for the member of the same name."""
_MAX_MESSAGE: Final = 2_000


def unmet(
    expect: Expect,
    outcome: Mapping[str, Any],
    filled: Filled,
    file: SuiteFile,
    name: str,
    snapshots: Snapshots,
    secrets: Secrets,
) -> Unmet | None:
    """What is not as expected: a sentence, and differences; `None` if everything is.

    Args:
        filled: replaces references in what is expected.
        name: that of the snapshot, unless it has its own.

    Raises:
        ValueError: a reference leads to nothing, or an expression cannot be applied.
    """
    if (error := outcome.get("error")) is not None and expect.error is None:
        return _unexpected(error), []
    if error is None and expect.error is not None:
        return f"it was expected to end with an error, and answered {_answered(outcome)}", []
    if outcome.get("is_error") and not _wants_tool_error(expect):
        return f"the tool failed: {str(outcome.get('text', ''))[:_MAX_MESSAGE]}", []
    found = [
        *_members(expect, outcome, filled),
        *_error(expect, error, filled),
        *_questions(expect, outcome, filled),
        *_of_task(expect, outcome, filled),
        *_time(expect, outcome),
        *_paths(expect, outcome, filled),
        *_schema(expect, outcome, filled, file),
    ]
    if not found:
        found = _snapshot(expect, outcome, name, snapshots, secrets)
    return (_summary(found), found) if found else None


def _summary(found: Sequence[Difference]) -> str:
    places = list(dict.fromkeys(one.path for one in found))
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return f"not as expected: {', '.join(places[:3])}{more}"


def _unexpected(error: Mapping[str, Any]) -> str:
    code = f" ({error['code']})" if "code" in error else ""
    lines = [f"{error['kind']}{code}: {str(error['message'])[:_MAX_MESSAGE]}"]
    for question in error.get("questions", [])[:10]:
        schema = question["params"].get("requestedSchema") or {}
        fields = ", ".join(
            f"{name} ({one.get('type', 'any') if isinstance(one, Mapping) else 'any'})"
            for name, one in (schema.get("properties") or {}).items()
        )
        lines.append(
            f"  add to answers: {question['key']}: " + (f"{{{fields}}}" if fields else "…")
        )
    return "\n".join(lines)


def _answered(outcome: Mapping[str, Any]) -> str:
    return shown(outcome.get("result"))[:_MAX_MESSAGE]


def _wants_tool_error(expect: Expect) -> bool:
    return "tool_error" in expect.model_fields_set and expect.tool_error is not False


def _members(expect: Expect, outcome: Mapping[str, Any], filled: Filled) -> Iterator[Difference]:
    for name in _MEMBERS:
        if name in expect.model_fields_set:
            pattern = filled(getattr(expect, name))
            if name in outcome:
                yield from differences(pattern, outcome[name], name)
            else:
                yield Difference(name, described(pattern), "(nothing: the step has none)")
    if _wants_tool_error(expect):
        if not outcome.get("is_error"):
            yield Difference("tool_error", described(expect.tool_error), _answered(outcome))
        elif expect.tool_error is not True:
            yield from differences(filled(expect.tool_error), outcome.get("text"), "tool_error")


def _error(expect: Expect, error: Mapping[str, Any] | None, filled: Filled) -> Iterator[Difference]:
    if expect.error is None or error is None:
        return
    wanted = ExpectedError(code=expect.error) if isinstance(expect.error, int) else expect.error
    for name in ("kind", "code", "message", "data", "status"):
        if name not in wanted.model_fields_set:
            continue
        pattern = filled(getattr(wanted, name))
        if name in error:
            yield from differences(pattern, error[name], f"error.{name}")
        else:
            yield Difference(
                f"error.{name}",
                described(pattern),
                f"(nothing: {error['kind']}: {error['message']})",
            )


def _questions(expect: Expect, outcome: Mapping[str, Any], filled: Filled) -> Iterator[Difference]:
    if expect.asked is None:
        return
    asked = outcome["asked"]
    patterns = [{"key": one} if isinstance(one, str) else one for one in filled(expect.asked)]
    keys = [question["key"] for question in asked]
    if all(pattern.keys() == {"key"} for pattern in patterns if isinstance(pattern, Mapping)):
        yield from differences([pattern["key"] for pattern in patterns], keys, "asked")
    else:
        yield from differences(patterns, asked, "asked")


def _of_task(expect: Expect, outcome: Mapping[str, Any], filled: Filled) -> Iterator[Difference]:
    task = outcome.get("task")
    if expect.task is not None and expect.task is not (task is not None):
        words = {True: "a task", False: "no task"}
        yield Difference("task", words[expect.task], words[task is not None])
    if "statuses" in expect.model_fields_set:
        statuses = [] if task is None else task["statuses"]
        yield from differences(filled(expect.statuses), statuses, "statuses")


def _time(expect: Expect, outcome: Mapping[str, Any]) -> Iterator[Difference]:
    took_s = outcome["duration_ms"] / 1_000
    if expect.within_s is not None and took_s > expect.within_s:
        yield Difference("within_s", f"at most {expect.within_s:g} s", f"{took_s:.3f} s")


def _paths(expect: Expect, outcome: Mapping[str, Any], filled: Filled) -> Iterator[Difference]:
    for expression, pattern in expect.jmespath.items():
        value = paths.found(filled(expression), outcome)
        yield from differences(filled(pattern), value, expression)


def _schema(
    expect: Expect, outcome: Mapping[str, Any], filled: Filled, file: SuiteFile
) -> Iterator[Difference]:
    if expect.json_schema is None:
        return
    schema = (
        schema_of(filled(expect.json_schema), file.origin)
        if isinstance(expect.json_schema, str)
        else filled(expect.json_schema)
    )
    for problem in Schema.compile(schema).problems(outcome.get("result"), "result"):
        where, _, what = problem.partition(": ")
        yield Difference(where, "what the schema allows", what)


def _snapshot(
    expect: Expect,
    outcome: Mapping[str, Any],
    name: str,
    snapshots: Snapshots,
    secrets: Secrets,
) -> list[Difference]:
    if expect.snapshot is False:
        return []
    wanted = expect.snapshot if isinstance(expect.snapshot, SnapshotOf) else SnapshotOf()
    value = secrets.without(paths.found(wanted.of, outcome))
    return snapshots.compare(wanted.name or name, value)


_HEAD: Final = (
    "# Written by `roundgate test --update`; compared whole. Read the difference "
    "before you commit it.\n"
)


class Snapshots:
    """The stored values of one suite, by name."""

    def __init__(self, path: Path, stored: dict[str, Any], *, updates: bool) -> None:
        self._path = path
        self._stored = stored
        self._updates = updates
        self._changed = False
        self._used: set[str] = set()

    @classmethod
    def beside(cls, suite: Path, *, updates: bool = False) -> Snapshots:
        """Those of a suite.

        Raises:
            ConfigError: the file cannot be read.
        """
        path = suite.with_suffix(".snapshots.yaml")
        if not path.exists():
            return cls(path, {}, updates=updates)
        stored = yaml_file.read(path).value
        if not isinstance(stored, dict):
            remedy = "run `roundgate test --update`"
            raise ConfigError([Problem(str(path), "(file)", "is no mapping", remedy)])
        return cls(path, stored, updates=updates)

    def compare(self, name: str, value: Any) -> list[Difference]:
        """Where a value differs from what is stored; with `updates`, it is stored instead."""
        self._used.add(name)
        if self._updates:
            if name not in self._stored or exact(self._stored[name], value, "") != []:
                self._stored[name] = value
                self._changed = True
            return []
        if name not in self._stored:
            stored = f"a snapshot {name!r} in {self._path.name}; --update writes it"
            return [Difference("snapshot", stored, "(nothing)")]
        return exact(self._stored[name], value, "snapshot")

    @property
    def unused(self) -> list[str]:
        """Names that are stored and that no step has compared."""
        return sorted(self._stored.keys() - self._used)

    def save(self, *, drop_unused: bool) -> int:
        """Write what has changed, all of it or nothing; returns how many values are stored."""
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
        return len(self._stored)
