"""Arguments that are more than text (`argparse` types), and those that are settings as well."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from roundgate.storage import TaskRef

_FILE: Final = "gateway.yaml"
MAX_PORT: Final = 65_535
MIN_WAIT_S: Final = 0.1
MAX_WAIT_S: Final = 3_600.0
_DIGITS: Final = 10
UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Commands(Protocol):
    """The return value of `ArgumentParser.add_subparsers`."""

    @property
    def choices(self) -> Mapping[str, argparse.ArgumentParser]:
        """The parsers by their commands."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """Add a command and return its parser."""


def task_ref(text: str) -> TaskRef:
    """A task, as `roundgate tasks list` prints it.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        return TaskRef.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            "give owner.id, as `roundgate tasks list` prints it"
        ) from None


def age_ms(text: str) -> int:
    """`90s`, `15m`, `2h` or `1d` in milliseconds.

    Raises:
        argparse.ArgumentTypeError: it is none of these.
    """
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError("give an age such as 90s, 15m, 2h or 1d")
    return int(found[1]) * UNITS_S[found[2]] * 1000


def count(text: str) -> int:
    """How many: a whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) < _DIGITS and int(text) > 0):
        raise argparse.ArgumentTypeError("give a whole number from 1 on")
    return int(text)


def seconds(text: str) -> float:
    """A time to wait: 0.1 to 3600.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not MIN_WAIT_S <= value <= MAX_WAIT_S:
        raise argparse.ArgumentTypeError("give seconds, 0.1 to 3600")
    return value


def port(text: str) -> int:
    """The number of a TCP port, 0 to 65535.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to {MAX_PORT}")
    return int(text)


def configuration_file(given: Path | None) -> Path:
    """Which gateway.yaml is meant: the one that was given, GATEWAY_CONFIG, or the nearest, here or
    in a directory above, as git finds its own."""
    if given is not None:
        return given
    if named := os.environ.get("GATEWAY_CONFIG"):
        return Path(named)
    here = Path.cwd()
    found = (directory / _FILE for directory in (here, *here.parents))
    nearest = next((file for file in found if file.is_file()), Path(_FILE))
    return nearest.relative_to(here) if nearest.is_relative_to(here) else nearest


def into_environment(arguments: argparse.Namespace) -> None:
    """Put what was said on the command line into the environment, for this process
    and those that it starts."""
    os.environ["GATEWAY_CONFIG"] = str(configuration_file(arguments.config))
    for name in ("log_level", "log_format"):
        if (said := getattr(arguments, name)) is not None:
            os.environ[f"GATEWAY_{name.upper()}"] = said
    for name in ("allow_anonymous", "reload"):
        if getattr(arguments, name, False):
            os.environ[f"GATEWAY_{name.upper()}"] = "true"


def add_examples(commands: Commands, examples: Mapping[str, Sequence[str]]) -> None:
    """Show under the help of each command that has some how it is typed."""
    for name, lines in examples.items():
        command = commands.choices[name]
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        command.epilog = "examples:\n" + "\n".join(f"  {line}" for line in lines)


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
