"""`roundgate compile`: what takes time at a start, done once and kept in
files beside gateway.yaml."""

from __future__ import annotations

import argparse

from roundgate import config
from roundgate.cli.arguments import configuration_file
from roundgate.deployment import packaging


def run(arguments: argparse.Namespace) -> int:
    """Compile every back end that can be, and print what came of it.

    Raises:
        ConfigError: a problem in the file, or in a document.
    """
    path = configuration_file(arguments.config)
    packaging.compile_documents(config.load(path, placeholder=packaging.PLACEHOLDER))
    return 0
