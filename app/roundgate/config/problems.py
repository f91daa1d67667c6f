"""The problems of a configuration that can be read: the place, the fact, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from roundgate.backends import registry
from roundgate.config.models import GatewayConfig
from roundgate.errors import Problem
from roundgate.settings.base import Origin
from roundgate.settings.secret import Deferred, found_in

_IS_PYDANTICS: Final = re.compile(r"<|(literal|dict|list|tuple|function-\w+)\[")
"""Steps that pydantic puts into a location for one of several types; the file has none."""

_ANYWHERE: Final = "see `roundgate docs configuration`, or `roundgate schema` for your editor"
_SPELLING: Final = "remove it, or correct its spelling"
_BY_TYPE: Final = {
    "missing": "add it",
    "union_tag_invalid": "use one of the kinds named",
    "own_kind": "correct the module, the class or `kind: module:Class`: see `roundgate docs own-kinds`",
    "string_pattern_mismatch": "see `roundgate docs configuration` for what it may be",
    "list_type": "write a list: each entry on a line of its own that begins with a hyphen, `- …`",
    "model_type": "write a mapping: `name: value`, each on a line of its own, indented",
    "dict_type": "write a mapping: `name: value`, each on a line of its own, indented",
    "credential": 'write it as a mapping: {bearer: "${TOKEN}"}',
}
_ELSEWHERE: Final = {
    "port": "take it out: the port is an option, `roundgate serve --port 8000`",
    "host": "take it out: the address is an option, `roundgate serve --host 0.0.0.0`",
    "log_level": "take it out: set GATEWAY_LOG_LEVEL, or `roundgate serve --log-level debug`",
    "store": "take it out: set GATEWAY_STORE",
    "mcpServers": "take it out: it is how clients are told of servers; a gateway has `backends`",
}
"""What people look for in the file, and where it is."""
_OF_PATTERNS: Final = (
    ("^https?://", "write the whole URL, such as https://api.example.com"),
    ("^/", "begin it with /"),
    ("^[A-Za-z0-9_.-]{1,", "use letters, digits, _ . and - alone, {most} at most"),
)
"""What a text has to be, by how its pattern begins."""
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}


def invalid(error: ValidationError, origin: Origin) -> list[Problem]:
    """What the models refuse, as problems with a place and a remedy."""
    found: list[Problem] = []
    for detail in error.errors(include_url=False):
        loc = [step for step in detail["loc"] if not _IS_PYDANTICS.match(str(step))]
        if isinstance(detail["input"], Deferred):
            found.append(detail["input"].problem or _misplaced(origin.at(*loc)))
            continue
        message = detail["msg"].removeprefix("Value error, ")
        remedy = _remedy_for(detail, loc, origin.located.value)
        found.append(origin.at(*loc).problem(message, remedy))
    return _once_a_place(found)


def _once_a_place(problems: Iterable[Problem]) -> list[Problem]:
    """What a setting may be instead, of several kinds, is one problem."""
    found: dict[tuple[str, int | None], Problem] = {}
    for problem in problems:
        key = (problem.path, problem.line)
        before = found.get(key)
        if before is not None and problem.message not in before.message:
            problem = replace(problem, message=f"{before.message}; or: {problem.message}")
        found[key] = problem
    return list(found.values())


def _misplaced(origin: Origin) -> Problem:
    return origin.problem(
        "cannot be kept at AWS",
        "use ${secret:…} and ${ssm:…} in `credential`, `credentials` and `headers` of a back end; elsewhere"
        " ${NAME} and ${file:path}",
    )


def misplaced(config: GatewayConfig, origin: Origin) -> list[Problem]:
    """References to what is kept at AWS, where that is not looked for."""
    # settings that may be anything take what is no text, too
    return [
        one.problem or _misplaced(origin.at(*loc))
        for loc, one in found_in(config)
        if isinstance(one, Deferred)
    ]


def cross_checks(value: Any, origin: Origin) -> list[Problem]:
    """What is wrong between parts of a file, whether they are right by themselves or not."""
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    entries = value.get("backends") if isinstance(value, dict) else None
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            continue
        if name in seen:
            where = f"backends[{seen[name]}]"
            problems.append(
                origin.at("backends", index, "name").problem(
                    f"is the name of {where} too", "choose another"
                )
            )
        seen.setdefault(name, index)
    return problems


def _remedy_for(detail: Mapping[str, Any], loc: Sequence[str | int], value: Any) -> str:
    """What to do.

    Args:
        detail: pydantic's, with what was given.
        loc: where it is in the file.
        value: the whole file.
    """
    kind, given = detail["type"], detail["input"]
    match kind:
        case "union_tag_not_found":
            return "add " + " or ".join(f"kind: {one}" for one in registry.kind_names())
        case "extra_forbidden":
            return _of_unknown(loc, value)
        case "string_type" if isinstance(given, int | float):
            return f'quote it: {_of_yaml(given)}, so write "…" around it'
        case "string_pattern_mismatch":
            return _of_pattern(detail["ctx"]["pattern"])
        case "literal_error" if tuple(loc) == ("auth",):
            return "write auth: {issuer: …, jwks_url: …}, or leave it out"
        case "literal_error" if isinstance(given, str) and f"'{given.upper()}'" in detail["msg"]:
            return f"write {given.upper()}"
        case "union_tag_invalid" if near := get_close_matches(
            str(detail["ctx"]["tag"]).lower(), registry.kind_names(), 1
        ):
            return f"use one of the kinds named: is {near[0]} meant?"
        case "int_parsing" | "float_parsing" if (seconds := _seconds(loc, given)) is not None:
            return f"write {seconds:g}: it is a number of seconds"
    return _BY_TYPE.get(kind, _ANYWHERE)


def _of_unknown(loc: Sequence[str | int], value: Any) -> str:
    name = str(loc[-1])
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip().lower()
    known = {one for model in _models_at(loc[:-1], value) for one in model.model_fields}
    near = get_close_matches(snake, known, 1, 0.7)
    if near and name != name.strip():
        return (
            f"write {near[0]} anew: there is a blank in front of it that is none of the keyboard's"
        )
    if near:
        return f"{_SPELLING}: is {near[0]} meant?"
    return _SPELLING


def _models_at(loc: Sequence[str | int], value: Any) -> Sequence[type[BaseModel]]:
    """The models that a place of the file may be."""
    models: Sequence[type[BaseModel]] = (GatewayConfig,)
    for depth, step in enumerate(loc):
        fields = [model.model_fields[step] for model in models if step in model.model_fields]
        if fields:
            models = [one for field in fields for one in _models_in(field.annotation)]
        elif tuple(loc[:depth]) == ("backends",):
            models = _of_entry(value, step)
    return models


def _of_entry(value: Any, index: Any) -> Sequence[type[BaseModel]]:
    return (registry.kind_named(value["backends"][index]["kind"]).model(),)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from _models_in(one)


def _of_pattern(pattern: str) -> str:
    for begins, remedy in _OF_PATTERNS:
        if pattern.startswith(begins):
            return remedy.format(most=pattern.removeprefix(begins).partition("}")[0])
    return _BY_TYPE["string_pattern_mismatch"]


def _of_yaml(given: float) -> str:
    """What YAML makes of a text without quotes."""
    if isinstance(given, bool):
        return "YAML takes yes, no, on, off, true and false for a truth value"
    return "YAML takes it for a number"


def _seconds(loc: Sequence[str | int], given: Any) -> float | None:
    """What `5m` is, for a setting in seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(ms|s|min|m|h|d)", str(given))
    if found is None or not str(loc[-1]).endswith("_s"):
        return None
    return float(found[1]) * _SECONDS[found[2]]
