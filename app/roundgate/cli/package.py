"""`roundgate package`: what the AWS Lambda functions are made of, shown and then made."""

from __future__ import annotations

import argparse
from pathlib import Path

from roundgate import config
from roundgate.backends import loading
from roundgate.cli.arguments import configuration_file
from roundgate.deployment import packaging, placing


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
    """What would be packed of a configuration that `roundgate check` finds no problem in.

    Raises:
        ConfigError: as `run`.
    """
    file = config.load(path, placeholder=packaging.PLACEHOLDER)
    packaging.compile_documents(file)
    loading.load(file, fetches=True)
    return packaging.plan(file, path, arch, anew=anew)


def make(planned: packaging.Plan, out: Path) -> Path:
    """The zips and the template in a folder; returns the template.

    Raises:
        ConfigError: as `run`.
    """
    packaging.package(planned, out)
    template = placing.write(planned, out)
    print(template)
    return template
