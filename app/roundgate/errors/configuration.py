"""What is wrong with gateway.yaml, the environment, or a command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundgate.errors.base import GatewayError


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the configuration: where, what, and how to mend it."""

    file: str
    path: str
    message: str
    remedy: str
    line: int | None = None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.path}: {self.message}\n    → {self.remedy}"


class ConfigError(GatewayError):
    """The configuration is wrong; `problems` has everything that was found, not just the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class VersionsConflict(ConfigError):
    """What a repository wants to be packed cannot be had together."""


class UsageError(GatewayError):
    """What was said on the command line, or in a file that it names, cannot be used."""
