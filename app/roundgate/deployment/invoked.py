"""Which functions a configuration has tools invoke, and their ARNs: what both functions
of the template may do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from roundgate.errors import UsageError


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
