"""What is wrong between the parts of a suite that are right by themselves: found
before anything is run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from roundgate.errors import ParseError, Problem
from roundgate.protocol import Schema
from roundgate.settings import Origin
from roundgate.suites import paths, patterns, variables
from roundgate.suites.models import ACTIONS, AnswerRule, Expect, Save, SnapshotOf, Step, Suite

_PATTERNS: Final = (
    "result", "text", "raw", "tool_error", "rounds", "statuses", "progress", "logs", "asked",
)  # fmt: skip
_FIELDS: Final = frozenset().union(*ACTIONS.values())
_OF_STEPS: Final = frozenset(ACTIONS) | _FIELDS
_SEE: Final = "see `roundgate docs testing`"


def checked(suite: Suite, origin: Origin) -> Iterator[Problem]:
    """Everything that is wrong."""
    yield from _server(suite, origin)
    yield from _answers(suite.answers, origin.at("answers"))
    beginning: set[str] = set()
    for name, value in suite.variables.items():
        yield from _name(name, origin.at("variables", name))
        yield from _references(value, beginning, origin.at("variables", name))
        beginning.add(name)
    yield from _references(_raw(origin, "answers"), beginning, origin.at("answers"))
    names: dict[str, int] = {}
    for index, case in enumerate(suite.cases):
        at = origin.at("cases", index)
        if case.name in names:
            yield at.at("name").problem(
                f"is the name of cases[{names[case.name]}] too", "choose another"
            )
        names.setdefault(case.name, index)
        inline = sorted(name for name in _given(case) if name in _OF_STEPS)
        if case.steps and inline:
            yield at.problem(
                f"has steps, and {', '.join(inline)} beside them",
                "put what stands beside into a step",
            )
            continue
        known = set(beginning)
        started: set[str] = set()
        if not case.steps:
            yield from _step(case, at, known, started)
        for number, step in enumerate(case.steps):
            yield from _step(step, at.at("steps", number), known, started)
            known |= set(step.save)
            started |= {step.as_ or step.start} if step.start else set()


def _server(suite: Suite, origin: Origin) -> Iterator[Problem]:
    if suite.server is None:
        return
    at = origin.at("server")
    yield from _references(_raw(origin, "server"), set(suite.variables), at)
    ways = [name for name in ("url", "gateway", "command") if getattr(suite.server, name)]
    if ways == ["url", "command"]:
        return
    if ways == ["command"]:
        yield at.problem(
            "has a command, and no url that it serves", "add url: http://127.0.0.1:${port}/mcp"
        )
    elif len(ways) > 1:
        yield at.problem(
            f"has {' and '.join(ways)}", "say one of url, gateway, and command with url"
        )


def _step(step: Step, at: Origin, known: set[str], started: set[str]) -> Iterator[Problem]:
    actions = step.actions
    if len(actions) != 1:
        what = f"does {' and '.join(actions)}" if actions else "does nothing"
        yield at.problem(what, f"say one of {', '.join(ACTIONS)}")
        return
    (action,) = actions
    for name in sorted(_given(step)):
        if name in _FIELDS and name not in ACTIONS[action]:
            yield at.at(name).problem(f"goes with no {action}", "remove it")
    if action in ("wait", "cancel") and getattr(step, action) not in started:
        near = difflib.get_close_matches(getattr(step, action), started, 1) or sorted(started)
        there = f"; there is {', '.join(near)}" if near else ""
        yield at.at(action).problem(
            f"no step before it starts {getattr(step, action)!r}{there}",
            "start it: start: TOOL, as: NAME",
        )
    if action == "complete" and not step.argument:
        yield at.problem("completes no argument", "add argument: NAME")
    if step.until is not None and step.answers:
        yield at.at("answers").problem("answers nothing while it waits for a status", "remove one")
    yield from _answers(step.answers, at.at("answers"))
    yield from _expect(step.expect, at.at("expect"))
    for name, save in step.save.items():
        place = at.at("save", name)
        yield from _name(name, place)
        yield from _expression(save.of if isinstance(save, Save) else save, place)
    for name in _OF_STEPS - {"save"}:
        if (value := _raw(at, name)) is not None:
            yield from _references(value, known, at.at(name))


def _name(name: str, at: Origin) -> Iterator[Problem]:
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or name in variables.GIVEN:
        yield at.problem("cannot be the name of a variable", "use letters, digits and _")


def _expect(expect: Expect, at: Origin) -> Iterator[Problem]:
    given = expect.model_fields_set
    for name in _PATTERNS:
        if name in given:
            yield from _pattern(getattr(expect, name), at.at(name))
    for name, pattern in expect.jmespath.items():
        place = at.at("jmespath", name)
        yield from _expression(name, place)
        yield from _pattern(pattern, place)
    if isinstance(expect.json_schema, Mapping) and "${" not in str(expect.json_schema):
        yield from _schema(expect.json_schema, at.at("schema"))
    if isinstance(expect.json_schema, str) and "${" not in expect.json_schema:
        try:
            schema_of(expect.json_schema, at)
        except ValueError as error:
            yield at.at("schema").problem(str(error), "give a JSON Schema, or the path of one")
    if expect.error is not None and not isinstance(expect.error, int):
        for name in ("code", "message", "data", "status"):
            yield from _pattern(getattr(expect.error, name), at.at("error", name))
    if {"error", "tool_error"} <= given and expect.tool_error:
        yield at.problem("expects an error of the protocol and of the tool", "say one of them")
    if isinstance(expect.snapshot, SnapshotOf):
        yield from _expression(expect.snapshot.of, at.at("snapshot", "of"))


def schema_of(path: str, at: Origin) -> Mapping[str, Any]:
    """The JSON Schema in a file beside the suite.

    Raises:
        ValueError: there is none.
    """
    from roundgate import json

    try:
        found = json.decode((at.base_dir / path).read_bytes())
    except (OSError, ParseError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: is no object")
    Schema.compile(found)
    return found


def _schema(schema: Mapping[str, Any], at: Origin) -> Iterator[Problem]:
    try:
        Schema.compile(schema)
    except ValueError as error:
        yield at.problem(str(error), "correct the schema")


def _answers(given: Any, at: Origin) -> Iterator[Problem]:
    if not isinstance(given, list):
        return
    for index, rule in enumerate(given):
        place = at.at(index)
        said = rule.model_fields_set
        if len(said & {"answer", "defaults", "value"}) != 1:
            yield place.problem("has no answer, or more than one", "say answer, value or defaults")
        if ("field" in said) != ("value" in said):
            yield place.problem("has only one of field and value", "say both")
        if rule.message is not None:
            yield from _regex(rule, place)


def _regex(rule: AnswerRule, at: Origin) -> Iterator[Problem]:
    if (problem := patterns.regex_problem(rule.message or "")) is not None:
        yield at.at("message").problem(problem, "correct it")


def _pattern(pattern: Any, at: Origin) -> Iterator[Problem]:
    for loc, what in patterns.problems(pattern):
        yield at.at(*loc).problem(
            what, "the matchers are in `roundgate docs testing`; $$ is a plain $"
        )


def _expression(expression: str, at: Origin) -> Iterator[Problem]:
    try:
        paths.compiled(expression)
    except ValueError as error:
        yield at.problem(str(error), _SEE)


def _references(value: Any, known: set[str], at: Origin) -> Iterator[Problem]:
    for loc, what in variables.problems(value, known):
        yield at.at(*loc).problem(what, "define it in variables, or save it in a step before")


def _given(step: Step) -> set[str]:
    """What stands in the file, by the words of the file."""
    fields = type(step).model_fields
    return {fields[name].alias or name for name in step.model_fields_set}


def _raw(origin: Origin, name: str) -> Any:
    """A part as it stands in the file, with its references."""
    value = origin.located.value
    for step in (*origin.loc, name):
        if not isinstance(value, Mapping | list):
            return None
        try:
            value = value[step]  # type: ignore[index]
        except (KeyError, IndexError):
            return None
    return value
