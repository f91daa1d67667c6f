"""`env` of gateway.yaml as parameters of the stack, and variables that nothing declares.

env: {SHOP_URL: https://…}                parameter EnvShopUrl, the variable SHOP_URL of both functions
env: {SHOP_KEY: "${secret:shop/key}"}     the same with the reference, which the functions read when they start

Also the ARNs of the secrets, parameters and functions that a configuration names: both functions of
the stack may read or invoke these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from roundgate.errors import Problem, UsageError
from roundgate.settings import Reference, expressions, is_kept_at_aws

_OF_AWS: Final = ("AWS_", "GATEWAY_", "LAMBDA_")


def parameter_name(variable: str) -> str:
    """The parameter of a variable: CloudFormation takes letters and digits alone."""
    return "Env" + "".join(part[:1].upper() + part[1:].lower() for part in variable.split("_"))


def parameters(env: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The stack's parameters for the variables. One whose text refers to another
    variable has to be given."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in env.items():
        has_default = "${" not in text or is_kept_at_aws(text)
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
    variables = [one for one in expressions(rest) if one.source in ("", "env")]
    for name in sorted({one.name for one in variables if one.default is None}):
        if name not in env and not name.startswith(_OF_AWS):
            message = f"the functions have no variable {name}, which ${{{name}}} refers to"
            remedy = f"declare it: `env: {{{name}: …}}` makes it a parameter of the stack"
            yield Problem(file, "env", message, remedy)
    seen: dict[str, str] = {}
    for name in env:
        if (other := seen.setdefault(parameter_name(name), name)) != name:
            message = f"would be the same parameter of the stack as {other}"
            yield Problem(file, f"env.{name}", message, "give it another name")


@dataclass(frozen=True)
class Named:
    """A function as a configuration names it."""

    function: str
    """Name, ARN, or an ARN without its first half; maybe with a qualifier at its end."""
    qualifier: str | None
    region: str | None
    may_be_durable: bool
    """Whether executions of it are followed."""


def functions_of(configuration: Mapping[str, Any]) -> list[Named]:
    """What `gateway.yaml` names, each once.

    Raises:
        UsageError: a name is a reference, which only the function knows.
    """
    found: list[Named] = []
    for entry in configuration.get("backends") or []:
        if isinstance(entry, dict) and entry.get("kind") == "lambda":
            found += _of_entry(entry)
    for one in found:
        if "${" in f"{one.function}{one.qualifier}{one.region}":
            raise UsageError(
                f"The function {one.function} is named by a reference, which is only known where the gateway runs.\n"
                "Name it, or pass FunctionArns and DurableFunctionArns yourself (--parameter-overrides)."
            )
    return list(dict.fromkeys(found))


def _of_entry(entry: Mapping[str, Any]) -> Iterator[Named]:
    general, qualifier, region = (entry.get(name) for name in ("function", "qualifier", "region"))
    if entry.get("describe") and general:
        # what it tells may be followed as a durable execution
        yield Named(general, qualifier, region, may_be_durable=True)
    for tool in entry.get("tools") or []:
        own = tool.get("function")
        chosen = tool.get("qualifier") or (None if own else qualifier)
        if function := own or general:
            yield Named(function, chosen, region, may_be_durable=tool.get("durable") is not None)
        if asked := (tool.get("job") or {}).get("function"):
            yield Named(asked, None, region, may_be_durable=False)


def arn_of(named: Named, partition: str, region: str, account: str) -> str:
    """The whole ARN, with the qualifier that the function is invoked with."""
    function = named.function
    if not function.startswith("arn:"):
        where = named.region or region
        own, _, name = function.rpartition(":function:")
        function = f"arn:{partition}:lambda:{where}:{own or account}:function:{name}"
    is_qualified = function.count(":") > 6
    return function if named.qualifier is None or is_qualified else f"{function}:{named.qualifier}"


def unqualified(arn: str) -> str:
    """An ARN of a function, without version or alias."""
    return ":".join(arn.split(":")[:7])


def resources_of(
    references: Sequence[Reference], partition: str, region: str, account: str
) -> dict[str, str]:
    """The parameters of the template for these references.

    The ARN of a secret ends with six characters that AWS makes up, so a name becomes a pattern; a
    whole ARN may be one without them.
    """
    here = f"{region}:{account}"
    secrets = [
        arn
        for one in references
        if one.kept == "secret"
        for arn in _of_secret(one.name, f"arn:{partition}:secretsmanager:{here}:secret:")
    ]
    parameters = [
        one.name
        if one.name.startswith("arn:")
        else f"arn:{partition}:ssm:{here}:parameter/{one.name.partition(':')[0].lstrip('/')}"
        for one in references
        if one.kept == "ssm"
    ]
    lists = {"SecretArns": secrets, "ParameterArns": parameters}
    return {name: ",".join(dict.fromkeys(found)) or "none" for name, found in lists.items()}


def _of_secret(name: str, prefix: str) -> Iterator[str]:
    if name.startswith("arn:"):
        yield name
        yield f"{name}-??????"
    else:
        yield f"{prefix}{name}-??????"
