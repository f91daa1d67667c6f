"""`roundgate compile`: what takes time at a start, done once and kept in
files beside gateway.yaml."""

from __future__ import annotations

import argparse
from typing import Final

from roundgate import config
from roundgate.backends import kind_of
from roundgate.cli.arguments import configuration_file

_PLACEHOLDER: Final = "unset-while-compiling"
"""Stands for what is not set: an index has no secret in it, and who compiles one need have none."""


def run(arguments: argparse.Namespace) -> int:
    """Compile every back end that can be, and print what came of it.

    Raises:
        ConfigError: a problem in the file, or in a document.
    """
    file = config.load(configuration_file(arguments.config), placeholder=_PLACEHOLDER)
    for index, backend in enumerate(file.config.backends):
        compile_with = kind_of(backend).compile_with()
        if compile_with is not None:
            print(compile_with(backend, file.backend_origin(index)))
    return 0
