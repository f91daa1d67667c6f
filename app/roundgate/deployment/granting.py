"""`env` of gateway.yaml as parameters of the stack, and variables that nothing declares.

env: {SHOP_URL: https://…}                parameter EnvShopUrl, the variable SHOP_URL of both functions
env: {SHOP_KEY: "${secret:shop/key}"}     the same with the reference, which the functions read when they start
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from roundgate.errors import Problem
from roundgate.settings import KEPT

_VARIABLE: Final = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OF_AWS: Final = ("AWS_", "GATEWAY_", "LAMBDA_")


def parameter_name(variable: str) -> str:
    """The parameter of a variable: CloudFormation takes letters and digits alone."""
    return "Env" + "".join(part[:1].upper() + part[1:].lower() for part in variable.split("_"))


def parameters(env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The stack's parameters for the variables. One whose text refers to another
    variable has to be given."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in env.items():
        has_default = "${" not in text or KEPT.fullmatch(text)
        default = {"Default": text} if has_default else {}
        about = f"The variable {name} of both functions."
        found[parameter_name(name)] = {"Type": "String", **default, "Description": about}
    return found


def variables(env: Mapping[str, str]) -> dict[str, Any]:
    """The variables of both functions."""
    return {name: {"Ref": parameter_name(name)} for name in env}


def undeclared(source: Mapping[str, Any], file: str) -> Iterator[Problem]:
    """References to variables that the functions would not have, and variables that
    would be one parameter."""
    env = source.get("env") or {}
    rest = {name: one for name, one in source.items() if name != "env"}
    for name in sorted({name for text in _texts(rest) for name in _VARIABLE.findall(text)}):
        if name not in env and not name.startswith(_OF_AWS):
            message = f"the functions have no variable {name}, which ${{{name}}} refers to"
            remedy = f"declare it: `env: {{{name}: …}}` makes it a parameter of the stack"
            yield Problem(file, "env", message, remedy)
    seen: dict[str, str] = {}
    for name in env:
        if (other := seen.setdefault(parameter_name(name), name)) != name:
            message = f"would be the same parameter of the stack as {other}"
            yield Problem(file, f"env.{name}", message, "give it another name")


def _texts(value: Any) -> Iterator[str]:
    """Every string in a part of the configuration."""
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)
