"""gateway.yaml → frozen models, or every problem in it with file, line, path and remedy.

`load` reads the file (YAML, or JSON, which starts faster), fills in `${…}` references and validates.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from roundgate.config import yaml_file
from roundgate.config.base import Origin
from roundgate.config.environment import declared
from roundgate.config.models import GatewayConfig
from roundgate.config.problems import cross_checks, invalid
from roundgate.config.references import fill_in
from roundgate.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A valid configuration and where it came from."""

    config: GatewayConfig
    origin: Origin
    references: frozenset[Path] = frozenset()
    """The files that `${file:…}` in it refers to."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables of its section `env`, with their values."""


def load(
    path: Path, environ: Mapping[str, str] = os.environ, *, placeholder: str | None = None
) -> ConfigFile:
    """Read and validate a configuration file.

    Args:
        path: of the file.
        environ: what `${NAME}` refers to.
        placeholder: stands for references to what is not here, for commands that look at the rest of the file;
            without it they are problems.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    located = yaml_file.read(path)
    origin = Origin(located)
    unresolved: list[Problem] = []
    files: set[Path] = set()
    value, own = located.value, dict[str, str]()
    if isinstance(value, dict) and "env" in value:
        section = value["env"]
        own = declared(section, origin.at("env"), environ, unresolved, files, placeholder)
        rest = {name: one for name, one in value.items() if name != "env"}
        environ = {**environ, **own}
        value = {**fill_in(rest, origin, environ, unresolved, files, placeholder), "env": section}
    else:
        value = fill_in(value, origin, environ, unresolved, files, placeholder)
    try:
        config = GatewayConfig.model_validate(value)
    except ValidationError as error:
        # what is wrong with the nothing in its place is no news
        told = {problem.path for problem in unresolved}
        raise ConfigError(
            [*unresolved, *(one for one in invalid(error, origin) if one.path not in told)]
        ) from None
    problems = [*unresolved, *cross_checks(config, origin)]
    if problems:
        raise ConfigError(problems)
    return ConfigFile(config, origin, frozenset(files), own)
