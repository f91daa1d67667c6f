"""Loading and validation of suite files. All problems are reported with line and remedy before any
case runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import ValidationError

from roundgate.errors import ConfigError, Problem
from roundgate.settings import Origin, yaml_file
from roundgate.settings.problems import problems_of
from roundgate_testing.suites import expecting, variables
from roundgate_testing.suites.models import ACTIONS, AnswerRule, Expect, Save, Suite, SuiteStep

MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_SEE: Final = "see `roundgate docs testing`"
_PATTERNS: Final = ("result", "text", "tool_error", "rounds", "asked")
_FIELDS: Final = frozenset().union(*ACTIONS.values())
_STEP_FIELDS: Final = frozenset(ACTIONS) | _FIELDS

Loc: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SuiteFile:
    """A valid suite and its origin in a file."""

    suite: Suite
    origin: Origin

    @property
    def path(self) -> Path:
        return self.origin.located.file

    @property
    def folder(self) -> Path:
        """The folder to which paths in the suite are relative."""
        return self.origin.base_dir

    @property
    def name(self) -> str:
        """The suite's name for reports; by default the name of the file."""
        return self.suite.name or self.path.name

    def line(self, *steps: str | int) -> int | None:
        """Return the line of a part of the suite, such as `line("cases", 0)`, or `None`."""
        return self.origin.located.line(steps)


def load(path: Path) -> SuiteFile:
    """Load and validate a suite.

    Raises:
        ConfigError: the file cannot be read, or the suite is invalid; the error lists all problems.
    """
    if path.is_file() and (size := path.stat().st_size) > MAX_FILE_BYTES:
        complaint = f"has {size} bytes, and the limit of a suite is {MAX_FILE_BYTES}"
        raise ConfigError([Problem(str(path), "(file)", complaint, "split the suite")])
    located = yaml_file.read(
        path,
        remedy="pass the path of a suite: roundgate test suite.yaml (`roundgate docs testing`)",
    )
    origin = Origin(located)
    problems = [
        origin.at(*loc).problem(complaint, "quote it if it is a text")
        for loc, complaint in yaml_file.not_json(located.value)
    ]
    if problems:  # the models would report the same values again
        raise ConfigError(problems)
    try:
        suite = Suite.model_validate(located.value)
    except ValidationError as error:
        raise ConfigError(problems_of(error, Suite, origin, _SEE)) from None
    if problems := _unique(_checked(suite, origin)):
        raise ConfigError(problems)
    return SuiteFile(suite, origin)


def _unique(problems: Iterable[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


def _checked(suite: Suite, origin: Origin) -> Iterator[Problem]:
    """Yield the problems of a suite that the models cannot detect: in patterns, expressions,
    references, and contradictions between parts."""
    yield from _server(suite, origin)
    yield from _answers(suite.answers, origin.at("answers"))
    suite_variables: set[str] = set()
    for name, value in suite.variables.items():
        at = origin.at("variables", name)
        yield from _name(name, at)
        yield from _references(value, suite_variables, at)
        suite_variables.add(name)
    yield from _references(_raw(origin, "answers"), suite_variables, origin.at("answers"))
    names: dict[str, int] = {}
    for index, case in enumerate(suite.cases):
        at = origin.at("cases", index)
        if case.name in names:
            message = f"is also the name of cases[{names[case.name]}]"
            yield at.at("name").problem(message, "choose another name")
        names.setdefault(case.name, index)
        inline = sorted(_fields_set(case) & _STEP_FIELDS)
        if case.steps and inline:
            message = f"has steps, and also {', '.join(inline)}"
            yield at.problem(message, f"move {', '.join(inline)} into a step")
            continue
        known_names = set(suite_variables)
        started: set[str] = set()
        if not case.steps:
            yield from _step(case, at, known_names, started)
        for number, step in enumerate(case.steps):
            yield from _step(step, at.at("steps", number), known_names, started)
            known_names |= set(step.save)
            started |= {step.as_ or step.start} if step.start else set()


def _server(suite: Suite, origin: Origin) -> Iterator[Problem]:
    if suite.server is None:
        return
    at = origin.at("server")
    yield from _references(_raw(origin, "server"), {*suite.variables, "port"}, at)
    ways = [name for name in ("url", "gateway", "command") if getattr(suite.server, name)]
    if ways == ["command"]:
        remedy = "add url: http://127.0.0.1:${port}/mcp"
        yield at.problem("has a command, but no url of the server", remedy)
    elif len(ways) > 1 and ways != ["url", "command"]:
        remedy = "use one of url, gateway, or command with url"
        yield at.problem(f"has {' and '.join(ways)}", remedy)


def _step(step: SuiteStep, at: Origin, known: set[str], started: set[str]) -> Iterator[Problem]:
    actions = step.actions
    if len(actions) != 1:
        complaint = f"has the actions {' and '.join(actions)}" if actions else "has no action"
        yield at.problem(complaint, f"use one of {', '.join(ACTIONS)}")
        return
    (action,) = actions
    for name in sorted((_fields_set(step) & _FIELDS) - ACTIONS[action]):
        yield at.at(name).problem(f"cannot be used with {action}", "remove it")
    if action in ("wait", "cancel") and getattr(step, action) not in started:
        near = difflib.get_close_matches(getattr(step, action), started, 1) or sorted(started)
        available = f"; started are {', '.join(near)}" if near else ""
        message = f"no earlier step starts {getattr(step, action)!r}{available}"
        yield at.at(action).problem(message, "add a step before: start: TOOL, as: NAME")
    if action == "complete" and not step.argument:
        yield at.problem("has no argument to complete", "add argument: NAME")
    if step.until is not None and step.answers:
        yield at.at("answers").problem("cannot be used with until", "remove answers or until")
    yield from _answers(step.answers, at.at("answers"))
    yield from _expect(step.expect, at.at("expect"))
    for name, save in step.save.items():
        place = at.at("save", name)
        yield from _name(name, place)
        yield from _expression(save.of if isinstance(save, Save) else save, place)
    for name in _STEP_FIELDS - {"save"}:
        if (value := _raw(at, name)) is not None:
            yield from _references(value, known, at.at(name))


def _name(name: str, at: Origin) -> Iterator[Problem]:
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or name in variables.BUILT_IN:
        yield at.problem("cannot be the name of a variable", "use letters, digits and _")


def _expect(expect: Expect, at: Origin) -> Iterator[Problem]:
    for name in _PATTERNS:
        yield from _pattern(getattr(expect, name), at.at(name))
    for name, pattern in expect.jmespath.items():
        yield from _expression(name, at.at("jmespath", name))
        yield from _pattern(pattern, at.at("jmespath", name))
    if expect.json_schema is not None and "${" not in str(expect.json_schema):
        try:
            expecting.read_schema(expect.json_schema, at.base_dir)
        except ValueError as error:
            remedy = "write a JSON Schema, or the path of its file"
            yield at.at("schema").problem(str(error), remedy)
    if expect.error is not None and not isinstance(expect.error, int):
        for name in ("code", "message", "data", "status"):
            yield from _pattern(getattr(expect.error, name), at.at("error", name))
    if expect.error is not None and expect.tool_error:
        yield at.problem(
            "expects both a protocol error and a tool error", "keep `error` or `tool_error`"
        )
    if isinstance(expect.snapshot, str):
        yield from _expression(expect.snapshot, at.at("snapshot"))


def _answers(answers: Mapping[str, Any] | list[AnswerRule], at: Origin) -> Iterator[Problem]:
    for index, rule in enumerate(answers if isinstance(answers, list) else ()):
        place = at.at(index)
        if len(rule.model_fields_set & {"answer", "defaults"}) != 1:
            yield place.problem("needs either an answer or defaults", "set answer or defaults")
        if rule.message is not None:
            for _, problem in expecting.problems({"$regex": rule.message}):
                yield place.at("message").problem(problem, "correct the expression")


def _pattern(pattern: Any, at: Origin) -> Iterator[Problem]:
    for loc, complaint in expecting.problems(pattern):
        remedy = "see the matchers in `roundgate docs testing`; write $$ for a literal $"
        yield at.at(*loc).problem(complaint, remedy)


def _expression(expression: str, at: Origin) -> Iterator[Problem]:
    try:
        variables.compile_path(expression)
    except ValueError as error:
        yield at.problem(str(error), _SEE)


def _references(value: Any, known: set[str], at: Origin) -> Iterator[Problem]:
    for loc, complaint in variables.problems(value, known):
        yield at.at(*loc).problem(
            complaint, "define it in variables, or save it in an earlier step"
        )


def _fields_set(step: SuiteStep) -> set[str]:
    """Return the names of the fields that the file sets, as spelt in the file."""
    fields = type(step).model_fields
    return {fields[name].alias or name for name in step.model_fields_set}


def _raw(origin: Origin, name: str) -> Any:
    """Return a part as written in the file, with its references, or `None` if it is missing."""
    value = origin.located.value
    for step in (*origin.loc, name):
        is_there = isinstance(value, list) or (isinstance(value, Mapping) and step in value)
        if not is_there:
            return None
        value = value[step]
    return value
