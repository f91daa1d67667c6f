"""`roundgate compile`: the indexes of OpenAPI documents, and the lock files of MCP servers."""

from __future__ import annotations

import argparse
from typing import Final

from roundgate import config
from roundgate.cli.arguments import Commands, add_config, command, configuration_file
from roundgate.runtime import loading

PLACEHOLDER: Final = "unset-while-compiling"
"""The value of variables that are not set on this machine, because an index needs no secrets."""


def declare(commands: Commands) -> None:
    """Add `roundgate compile`."""
    about = "compile the documents of back ends into indexes, and pin the definitions of servers"
    add_config(command(commands, "compile", about, "roundgate compile gateway.yaml", run=run))


def run(arguments: argparse.Namespace) -> int:
    """Write the files; return 0.

    Raises:
        ConfigError: the configuration is invalid, a server is unavailable, or a file cannot be
            written.
    """
    file = config.load(configuration_file(arguments.config), placeholder=PLACEHOLDER)
    loading.compile_documents(file, print)
    loading.pin_definitions(file, print)
    return 0
