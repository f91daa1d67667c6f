"""`roundgate deploy [STACK]`: the zips for the stack's architecture, and AWS SAM."""

from __future__ import annotations

import argparse

from roundgate.cli import package
from roundgate.cli.arguments import configuration_file
from roundgate.deployment import deploying, machine, options


def run(arguments: argparse.Namespace) -> int:
    """Package and deploy.

    Raises:
        ConfigError: something is wrong with the configuration, or with what would be packed.
        UsageError: the deployment is refused, or AWS does not answer.
    """
    asked = options.asked(arguments.stack, arguments.rest)
    path = configuration_file(asked.config)
    asked = options.completed(asked, path)
    asked, account = deploying.of_account(asked, path)
    stored = account.stored
    deploying.check(asked, path, stored, account.executions)
    planned = package.planned_from(path, deploying.parameters(asked, stored)["Architecture"])
    print(*planned.lines(), sep="\n")
    template = package.make(planned, path.parent / ".build")
    for remark in deploying.remarks(asked, path, stored):
        print(remark)
    commands = deploying.commands(asked, stored, template, machine.sam())
    return deploying.run(commands, lambda: deploying.is_made(asked))
