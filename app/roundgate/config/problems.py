"""What is wrong with a configuration that can be read: where, why, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from roundgate.config.models import GatewayConfig
from roundgate.errors import Problem
from roundgate.settings.base import Origin
from roundgate.settings.secret import Deferred, found_in

_IS_PYDANTICS: Final = re.compile(r"<|(literal|dict|list|tuple|function-\w+)\[")
"""Steps that pydantic puts into a location for one of several types; the file has none."""


def invalid(error: ValidationError, origin: Origin) -> list[Problem]:
    """What the models refuse, as problems with a place and a remedy."""
    from roundgate.config.remedies import remedy_for  # a start without problems goes without

    found: list[Problem] = []
    for detail in error.errors(include_url=False):
        loc = [step for step in detail["loc"] if not _IS_PYDANTICS.match(str(step))]
        if isinstance(detail["input"], Deferred):
            found.append(detail["input"].problem or _misplaced(origin.at(*loc)))
            continue
        message = detail["msg"].removeprefix("Value error, ")
        remedy = remedy_for(detail, loc, origin.located.value)
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
