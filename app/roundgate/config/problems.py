"""What is wrong with a configuration that can be read: where, why, and what to do about it."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from roundgate.backends import registry
from roundgate.config.base import Origin
from roundgate.config.models import GatewayConfig
from roundgate.config.secret import Deferred, found_in
from roundgate.errors import Problem

_REMEDIES: Final = {
    "missing": "add it",
    "extra_forbidden": "remove it, or correct its spelling",
    "union_tag_invalid": "use one of the kinds named",
    "union_tag_not_found": "add " + " or ".join(f"kind: {kind}" for kind in registry.KINDS),
    "string_pattern_mismatch": "see docs/configuration.md for what it may be",
}


_RENAMED: Final = {"ask": "ask_for", "asks": "interactive"}
"""Settings of tools that have had another name."""


def invalid(error: ValidationError, origin: Origin) -> list[Problem]:
    """What the models refuse, as problems with a place and a remedy."""
    found: list[Problem] = []
    for detail in error.errors(include_url=False):
        # pydantic puts what it calls a model of several into the location; the file has no such step
        loc = [step for step in detail["loc"] if not str(step).startswith("<")]
        if isinstance(detail["input"], Deferred):
            found.append(detail["input"].problem or _misplaced(origin.at(*loc)))
            continue
        message = detail["msg"].removeprefix("Value error, ")
        remedy = _REMEDIES.get(
            detail["type"], "see docs/configuration.md, or `roundgate schema` for your editor"
        )
        if detail["type"] == "extra_forbidden" and "tools" in loc and loc[-1] in _RENAMED:
            remedy = f"write {_RENAMED[str(loc[-1])]}, which is what it is called now"
        found.append(origin.at(*loc).problem(message, remedy))
    return found


def _misplaced(origin: Origin) -> Problem:
    return origin.problem(
        "cannot be kept at AWS",
        "use ${secret:…} and ${ssm:…} in `credential`, `credentials` and `headers` of a back end; elsewhere"
        " ${NAME} and ${file:path}",
    )


def cross_checks(config: GatewayConfig, origin: Origin) -> list[Problem]:
    """What is wrong between parts that are right by themselves."""
    # settings that may be anything take what is no text, too
    problems = [
        one.problem or _misplaced(origin.at(*loc))
        for loc, one in found_in(config)
        if isinstance(one, Deferred)
    ]
    seen: dict[str, int] = {}
    for index, backend in enumerate(config.backends):
        if backend.name in seen:
            where = f"backends[{seen[backend.name]}]"
            problems.append(
                origin.at("backends", index, "name").problem(
                    f"is the name of {where} too", "choose another"
                )
            )
        seen.setdefault(backend.name, index)
    return problems
