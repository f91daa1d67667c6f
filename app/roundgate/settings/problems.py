"""Conversion of a model's validation errors into problems of a file, each with a place, a fact and a
remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args

from msgspec.structs import replace
from pydantic import BaseModel, ValidationError

from roundgate.errors import Problem
from roundgate.settings.references import CallerReference, Deferred, misplaced, misplaced_caller
from roundgate.settings.yaml_file import Origin

_IS_PYDANTICS: Final = re.compile(r"<|(literal|dict|list|tuple|function-\w+)\[")
"""The steps that pydantic adds to a location for the alternatives of a type; the file has no such
steps."""
_ANYWHERE: Final = "see `roundgate docs configuration`, or `roundgate schema` for your editor"
_MAPPING: Final = "write a mapping: `name: value`, each on a line of its own, indented"
_BY_TYPE: Final = {
    "missing": "add it",
    "string_pattern_mismatch": "see `roundgate docs configuration` for the accepted values",
    "list_type": "write a list: each entry on a line of its own that begins with a hyphen, `- …`",
    "model_type": _MAPPING,
    "dict_type": _MAPPING,
    "credential": 'write it as a mapping: {bearer: "${TOKEN}"}',
}
_ELSEWHERE: Final = {
    "port": "remove it: the port is an option, `roundgate serve --port 8000`",
    "host": "remove it: the address is an option, `roundgate serve --host 0.0.0.0`",
    "log_level": "remove it: set GATEWAY_LOG_LEVEL, or `roundgate serve --log-level debug`",
    "store": "remove it: set GATEWAY_STORE",
    "mcpServers": "remove it: clients list servers there; a gateway has `backends`",
}
"""The remedies for settings that users expect in the file, but that the file does not have."""
_BY_PATTERN: Final = (
    ("^https?://", "write the whole URL, such as https://api.example.com"),
    ("^/", "begin the path with /"),
    ("^[A-Za-z0-9_.-]{1,", "use at most {most} letters, digits, _ . and -"),
)
"""The remedies by the beginning of a setting's pattern."""
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}


def problems_of(
    error: ValidationError, model: type[BaseModel], origin: Origin, see: str = _ANYWHERE
) -> list[Problem]:
    """Return the problems that `model` reported at `origin`, one for each place.

    A value that matches none of several alternatives gets one problem, with a message for each
    alternative. `see` is the remedy for problems without a better one; the default is for
    gateway.yaml.
    """
    problems: dict[tuple[str, int | None], Problem] = {}
    for detail in error.errors(include_url=False):
        loc = [step for step in detail["loc"] if not _IS_PYDANTICS.match(str(step))]
        place, message = origin.at(*loc), detail["msg"].removeprefix("Value error, ")
        if detail["type"].startswith("union_tag"):
            message = "has an unexpected type"
        if isinstance(detail["input"], Deferred):
            problem = detail["input"].problem or misplaced(place)
        elif isinstance(detail["input"], CallerReference):
            problem = misplaced_caller(place)
        else:
            problem = place.problem(message, _remedy(detail, loc, model, see))
        before = problems.get(key := (problem.path, problem.line))
        if before is not None and problem.message not in before.message:
            problem = replace(problem, message=f"{before.message}; or: {problem.message}")
        problems[key] = problem
    return list(problems.values())


def _remedy(
    detail: Mapping[str, Any], loc: Sequence[str | int], model: type[BaseModel], see: str
) -> str:
    kind, value = detail["type"], detail["input"]
    match kind:
        case "extra_forbidden":
            if see == _ANYWHERE and (name := str(loc[-1])) in _ELSEWHERE:
                return _ELSEWHERE[name]
            return _remedy_for_unknown(loc, model)
        case "string_type" if isinstance(value, bool):
            return (
                "quote it: YAML reads yes, no, on, off, true and false as booleans, so write"
                ' "…" around it'
            )
        case "string_type" if isinstance(value, int | float):
            return 'quote it: YAML reads it as a number, so write "…" around it'
        case "string_pattern_mismatch":
            return _remedy_for_pattern(detail["ctx"]["pattern"])
        case "literal_error" if tuple(loc) == ("auth",):
            return "write auth: {issuer: …, jwks_url: …}, or leave it out"
        case "literal_error" if isinstance(value, str) and f"'{value.upper()}'" in detail["msg"]:
            return f"write {value.upper()}"
        case "int_parsing" | "float_parsing" if (seconds := _seconds(loc, value)) is not None:
            return f"write {seconds:g}: it is a number of seconds"
    return _BY_TYPE.get(kind, see)


def _remedy_for_unknown(loc: Sequence[str | int], model: type[BaseModel]) -> str:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(loc[-1])).strip().lower()
    names = {
        model_here for place in _models_at(loc[:-1], model) for model_here in place.model_fields
    }
    near = get_close_matches(snake, names, 1, 0.7)
    return "remove it, or correct its spelling" + (f": did you mean {near[0]}?" if near else "")


def _models_at(loc: Sequence[str | int], model: type[BaseModel]) -> Sequence[type[BaseModel]]:
    models: Sequence[type[BaseModel]] = (model,)
    for step in loc:
        fields = [
            model_here.model_fields[str(step)]
            for model_here in models
            if step in model_here.model_fields
        ]
        if fields:
            models = [model_here for field in fields for model_here in _models_in(field.annotation)]
    return models


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _remedy_for_pattern(pattern: str) -> str:
    for begins, remedy in _BY_PATTERN:
        if pattern.startswith(begins):
            return remedy.format(most=pattern.removeprefix(begins).partition("}")[0])
    return _BY_TYPE["string_pattern_mismatch"]


def _seconds(loc: Sequence[str | int], value: Any) -> float | None:
    """Return the seconds in a text such as `5m`, or `None` if the setting is not in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(ms|s|min|m|h|d)", str(value))
    if match is None or not str(loc[-1]).endswith("_s"):
        return None
    return float(match[1]) * _SECONDS[match[2]]
