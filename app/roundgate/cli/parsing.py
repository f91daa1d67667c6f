"""The parser of a command: options may stand anywhere among its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """The parser of one command, or of a command with actions.

    `argparse` gives positional arguments their values as soon as it meets the first of them, so
    `call URL TOOL --json a=1` would reject `a=1`. Subparsers never use
    `parse_known_intermixed_args`, which handles this.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._takes_the_rest = False
        """Whether an argument consumes every following word, as an action and REMAINDER do."""
        self._is_mixing = False
        super().__init__(*arguments, **options)  # adds --help

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        self._takes_the_rest |= options.get("nargs") == argparse.REMAINDER
        return super().add_argument(*names, **options)

    def add_subparsers(self, **options: Any) -> Any:
        self._takes_the_rest = True
        return super().add_subparsers(**options)

    def parse_known_args(  # type: ignore[override]  # as argparse declares it: four overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if self._takes_the_rest or self._is_mixing:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True  # before Python 3.13 the next line calls this method
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False
