"""`roundgate compile`: what takes time at a start, done once and kept in files beside gateway.yaml."""

from __future__ import annotations

import argparse

from roundgate import config
from roundgate.backends.registry import kind_of


def run(arguments: argparse.Namespace) -> int:
    """Compile every back end that can be, and print what came of it.

    Raises:
        ConfigError: a problem in the file, or in a document.
    """
    file = config.load(arguments.config)
    for index, backend in enumerate(file.config.backends):
        compile_with = kind_of(backend).compile_with()
        if compile_with is not None:
            print(compile_with(backend, file.origin.at("backends", index)))
    return 0
