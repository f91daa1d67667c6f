"""`roundgate deploy [STACK]`: the zips for the stack's architecture, and AWS SAM."""

from __future__ import annotations

import argparse

from roundgate.cli import package
from roundgate.cli.arguments import configuration_file
from roundgate.deployment import deploying, foreseeing, samconfig, tools


def run(arguments: argparse.Namespace) -> int:
    """Package and deploy.

    Raises:
        ConfigError: something is wrong with the configuration, or with what would be packed.
        UsageError: the deployment is refused, or AWS does not answer.
    """
    asked = deploying.asked(arguments.stack, arguments.rest)
    path = configuration_file(asked.config)
    asked = samconfig.completed(asked, path)
    asked, found = deploying.of_account(asked, path)
    stored = found.stored
    foreseeing.check(asked, path, stored, found.quota, found.region)
    planned = package.planned_from(path, deploying.parameters(asked, stored)["Architecture"])
    print(*planned.lines(), sep="\n")
    template = package.make(planned, path.parent / ".build")
    for remark in deploying.remarks(asked, path, stored):
        print(remark)
    commands = deploying.commands(asked, stored, template, tools.sam())
    return deploying.run(commands, lambda: deploying.is_made(asked))
