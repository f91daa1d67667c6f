"""`roundgate compile`: what takes time at a start, done once and kept in files beside gateway.yaml."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping

from roundgate import config
from roundgate.backends.registry import kind_of


class _WithoutSecrets(Mapping[str, str]):
    """The environment, with something in the place of every variable that is not set: an index has no secret in it,
    and who compiles one need have none."""

    def __getitem__(self, name: str) -> str:
        return os.environ.get(name) or f"unset-{name}"

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def run(arguments: argparse.Namespace) -> int:
    """Compile every back end that can be, and print what came of it.

    Raises:
        ConfigError: a problem in the file, or in a document.
    """
    file = config.load(arguments.config, _WithoutSecrets())
    for index, backend in enumerate(file.config.backends):
        compile_with = kind_of(backend).compile_with()
        if compile_with is not None:
            print(compile_with(backend, file.origin.at("backends", index)))
    return 0
