"""Which function is meant, and where: names, ARNs, qualifiers, regions (API `Invoke`,
`FunctionName`)."""

from __future__ import annotations

from dataclasses import dataclass

from roundgate.backends.aws_lambda.config import (
    LambdaBackendConfig,
    LambdaToolConfig,
    is_qualified,
)


@dataclass(frozen=True, slots=True)
class Target:
    """A function."""

    function: str
    """Name or ARN, with the qualifier at its end if there is one."""
    region: str | None
    """`None`: that of the environment."""

    @property
    def name(self) -> str:
        """As people know it: without account and region."""
        return self.function.rpartition(":function:")[2]


def target(function: str, qualifier: str | None, region: str | None) -> Target:
    """A function by what the configuration says; an ARN knows its region itself."""
    parts = function.split(":")
    own = parts[3] if function.startswith("arn:") else region
    if qualifier is None or is_qualified(function):
        return Target(function, own)
    return Target(f"{function}:{qualifier}", own)


def target_of(tool: LambdaToolConfig, backend: LambdaBackendConfig) -> Target:
    """The function of a tool: its own, or else the back end's."""
    if tool.function is not None:
        return target(tool.function, tool.qualifier, backend.region)
    return target(str(backend.function), tool.qualifier or backend.qualifier, backend.region)
