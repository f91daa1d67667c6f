"""gateway.yaml → frozen models, or every problem in it with file, line, path and remedy.

`load` reads the file (YAML, or JSON, which starts faster), fills in `${…}`
references and validates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from roundgate.config.models import GatewayConfig
from roundgate.config.problems import cross_checks, invalid, misplaced
from roundgate.errors import ConfigError, Problem
from roundgate.settings import yaml_file
from roundgate.settings.base import Origin
from roundgate.settings.environment import declared
from roundgate.settings.references import fill_in


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A valid configuration and where it came from."""

    config: GatewayConfig
    origin: Origin
    references: frozenset[Path] = frozenset()
    """The files that `${file:…}` in it refers to."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables of its section `env`, with their values."""
    positions: Sequence[int] | None = None
    """Where each back end of `config` stands in the file, if some of the file are left out."""

    def backend_origin(self, index: int) -> Origin:
        """Where a back end of `config` stands in the file."""
        return self.origin.at("backends", self.positions[index] if self.positions else index)


@dataclass(frozen=True, slots=True)
class Inspected:
    """What is wrong with a file, and the rest of it."""

    problems: Sequence[Problem]
    file: ConfigFile | None
    """All of it if nothing is wrong; otherwise the back ends that are right, with the sections that
    are. `None` if nothing can be made of it."""


def load(
    path: Path, environ: Mapping[str, str] = os.environ, *, placeholder: str | None = None
) -> ConfigFile:
    """Read and validate a configuration file.

    Args:
        path: of the file.
        environ: what `${NAME}` refers to.
        placeholder: stands for references to what is not here, for commands that look at the rest
            of the file; without it they are problems.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    found = inspect(path, environ, placeholder=placeholder)
    if found.problems or found.file is None:
        raise ConfigError(found.problems)
    return found.file


def inspect(
    path: Path, environ: Mapping[str, str] = os.environ, *, placeholder: str | None = None
) -> Inspected:
    """What is wrong with a file, and what of it can be looked at all the same.
    Arguments are those of `load`."""
    problems: list[Problem] = []
    try:
        located = yaml_file.read(path, repeated=problems)
    except ConfigError as error:
        return Inspected(error.problems, None)
    origin = Origin(located)
    files: set[Path] = set()
    value, own = _filled_in(located.value, origin, environ, problems, files, placeholder)
    # what is wrong with the nothing in its place is no news
    told = {problem.path for problem in problems}
    unresolved: set[tuple[str | int, ...]] = {
        ("backends", int(found[1]))
        for path in told
        if (found := re.match(r"backends\[(\d+)\]", path))
    }
    try:
        config = GatewayConfig.model_validate(value, context={"base_dir": origin.base_dir})
    except ValidationError as error:
        problems += [one for one in invalid(error, origin) if one.path not in told]
        details = error.errors(include_input=False, include_url=False)
        wrong = unresolved.union(detail["loc"] for detail in details)
        return Inspected(
            [*problems, *cross_checks(value, origin)], _rest(value, wrong, origin, own)
        )
    problems += [*cross_checks(value, origin), *misplaced(config, origin)]
    if unresolved:
        return Inspected(problems, _rest(value, unresolved, origin, own))
    return Inspected(problems, ConfigFile(config, origin, frozenset(files), own))


def _filled_in(
    value: Any,
    origin: Origin,
    environ: Mapping[str, str],
    problems: list[Problem],
    files: set[Path],
    placeholder: str | None,
) -> tuple[Any, dict[str, str]]:
    """The value with its references filled in, and the variables of its section `env`,
    which others may refer to."""
    if not isinstance(value, dict) or "env" not in value:
        return fill_in(value, origin, environ, problems, files, placeholder), {}
    section = value["env"]
    own = declared(section, origin.at("env"), environ, problems, files, placeholder)
    rest = {name: one for name, one in value.items() if name != "env"}
    filled = fill_in(rest, origin, {**environ, **own}, problems, files, placeholder)
    return {**filled, "env": section}, own


def _rest(
    value: Any,
    wrong: Collection[tuple[str | int, ...]],
    origin: Origin,
    own: Mapping[str, str],
) -> ConfigFile | None:
    """The back ends in which nothing is wrong, with the sections in which nothing is; without views
    and search, which may be about the others."""
    entries = value.get("backends") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        return None
    left_out = {loc[1] for loc in wrong if loc[:1] == ("backends",) and len(loc) > 1}
    kept = [index for index in range(len(entries)) if index not in left_out]
    about_others = {"backends", "views", "search", "fallback", *(loc[0] for loc in wrong if loc)}
    sections = {name: part for name, part in value.items() if name not in about_others}
    try:
        config = GatewayConfig.model_validate(
            {**sections, "backends": [entries[index] for index in kept]},
            context={"base_dir": origin.base_dir},
        )
    except ValidationError:  # no back end is left, or parts do not go together
        return None
    return ConfigFile(config, origin, environment=own, positions=kept)
