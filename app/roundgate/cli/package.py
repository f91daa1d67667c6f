"""`roundgate package`: what the AWS Lambda functions are made of, shown and then made."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roundgate import config
from roundgate.cli.arguments import configuration_file
from roundgate.deployment import packaging, template
from roundgate.errors import ConfigError
from roundgate.runtime import loading


def run(arguments: argparse.Namespace) -> int:
    """Check, say what goes in, and make it.

    Raises:
        ConfigError: something is wrong with the configuration, or with what would be packed.
    """
    path = configuration_file(arguments.config)
    planned = planned_from(path, arguments.arch, anew=arguments.lock)
    print(*planned.lines(), sep="\n")
    if not arguments.list:
        make(planned, arguments.out or path.parent / ".build")
    return 0


def planned_from(path: Path, arch: str, *, anew: bool = False) -> packaging.Plan:
    """Return the package plan of a configuration that has passed `roundgate check`.

    Args:
        path: the configuration.
        arch: the architecture of the functions.
        anew: whether to resolve package versions again.

    Raises:
        ConfigError: as `run`.
    """
    file = config.load(path, placeholder=packaging.PLACEHOLDER)
    with _environment_as_before():
        packaging.compile_documents(file)
        try:
            loading.load(file, fetches=True)
        except ConfigError as error:
            raise ConfigError([*error.problems, *packaging.stood_for(file)]) from None
    return packaging.plan(file, path, arch, anew=anew)


@contextmanager
def _environment_as_before() -> Iterator[None]:
    """The variables of the functions, and what stands for them here, are for the modules that are
    imported within: what is run after that, such as `sam`, has those of this machine."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def make(planned: packaging.Plan, out: Path) -> Path:
    """The zips and the template in a folder; returns the template.

    Raises:
        ConfigError: as `run`.
    """
    packaging.package(planned, out)
    written = template.write(planned.file, planned.arch, out)
    print(written)
    return written
