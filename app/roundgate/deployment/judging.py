"""Parameters of the stack, judged as CloudFormation judges them: before
anything is packed or uploaded.

`sam deploy` passes over a name that the template does not have, and CloudFormation looks at values
and rules when the code has been uploaded already.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from roundgate.deployment import granting, places
from roundgate.deployment.stack.template import Template

Declared = Mapping[str, Mapping[str, Any]]
"""The parameters of a template, as it declares them."""
MAX_VALUE_BYTES: Final = 4_096
"""The limit on a parameter's value, in bytes (CloudFormation quotas)."""
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")


@cache
def template() -> Template:
    """The template of roundgate, read once; nobody changes what is in it."""
    return Template(places.TEMPLATE, {}, {})


def declared(env: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """The parameters of the template, and those of the variables of a configuration."""
    return {**template().source["Parameters"], **granting.parameters(env)}


def defaults(parameters: Declared) -> dict[str, str]:
    """What parameters are that nobody gives."""
    return {name: str(one["Default"]) for name, one in parameters.items() if "Default" in one}


def refused(given: Mapping[str, str], says: Mapping[str, str], parameters: Declared) -> list[str]:
    """Why CloudFormation would not take them, a sentence each.

    Args:
        given: the parameters that are passed.
        says: all that are known: those, and those that the stack has already.
        parameters: what there is.
    """
    wrong = [
        sentence
        for name, value in given.items()
        for sentence in _of_one(name, value, parameters.get(name), parameters)
    ]
    missing = parameters.keys() - says.keys() - defaults(parameters).keys()
    return [*wrong, *_without_value(missing, parameters), *_against_rules(says)]


def _of_one(
    name: str, value: str, one: Mapping[str, Any] | None, known: Collection[str]
) -> Iterator[str]:
    if one is None:
        alike = get_close_matches(name, known, n=1)
        yield f"There is no parameter {name}" + (f"; {alike[0]}?" if alike else ".")
    elif (size := len(value.encode())) > MAX_VALUE_BYTES:
        shorter = (
            "patterns, such as arn:…:secret:shop/*" if name.endswith("Arns") else "a shorter text"
        )
        yield (
            f"{name} has {size:,} bytes, and a parameter of CloudFormation takes {MAX_VALUE_BYTES:,}:"
            f" pass {name}=… with {shorter}."
        )
    elif wanted := _wanted(value, one):
        yield f"{name}={value} has to be {wanted}."


def _wanted(value: str, one: Mapping[str, Any]) -> str | None:
    """What a value has to be, if it is not."""
    allowed = [str(each) for each in one.get("AllowedValues", [])]
    if allowed and value not in allowed:
        return f"one of {', '.join(allowed)}"
    if (pattern := one.get("AllowedPattern")) and re.fullmatch(pattern, value) is None:
        return str(one.get("ConstraintDescription", f"like {pattern}"))
    return _wanted_number(value, one) if one["Type"] == "Number" else None


def _wanted_number(value: str, one: Mapping[str, Any]) -> str | None:
    """As `_wanted`. CloudFormation takes fractions as well, and then no
    resource of the stack does."""
    if not _WHOLE.fullmatch(value):
        return "a whole number"
    least, most = one.get("MinValue", 0), one.get("MaxValue")
    if least <= int(value) and (most is None or int(value) <= most):
        return None
    bounds = f"{least} at least" if most is None else f"from {least} to {most}"
    return str(one.get("ConstraintDescription", bounds))


def _without_value(missing: Collection[str], parameters: Declared) -> Iterator[str]:
    for name in parameters:
        if name in missing:
            yield f"{name} has no value yet: pass {name}=… ({parameters[name]['Description']})"


def _against_rules(says: Mapping[str, str]) -> Iterator[str]:
    source = template().source
    known = {name: value for name, value in says.items() if name in source["Parameters"]}
    filled = Template(places.TEMPLATE, known, {}, source)
    for rule in source["Rules"].values():
        for assertion in rule["Assertions"]:
            if not filled.holds(assertion["Assert"]):
                yield assertion["AssertDescription"]
