"""Parsing of the command line: the parser of a command, the types of arguments, the arguments that
several commands have, those that set environment variables, and the socket of --host and --port."""

from __future__ import annotations

import argparse
import os
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from roundgate.clock import UNITS_S
from roundgate.errors import UsageError
from roundgate.storage import TaskRef

_FILE: Final = "gateway.yaml"
Number = TypeVar("Number", int, float)
Run: TypeAlias = Callable[[argparse.Namespace], int]
"""Runs a command and returns its exit status."""


def task_ref(text: str) -> TaskRef:
    """Parse a task's `owner.id`, as `roundgate tasks list` prints it. Raise ArgumentTypeError if it
    is malformed."""
    try:
        return TaskRef.parse(text)
    except ValueError:
        message = "write owner.id, as `roundgate tasks list` prints it"
        raise argparse.ArgumentTypeError(message) from None


def age_ms(text: str) -> int:
    """Return an age such as `90s`, `15m`, `2h` or `1d` in milliseconds. Raise ArgumentTypeError if
    it is malformed."""
    age = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if age is None:
        raise argparse.ArgumentTypeError("write an age such as 90s, 15m, 2h or 1d")
    return int(age[1]) * UNITS_S[age[2]] * 1000


def number(kind: type[Number], least: Number, most: Number) -> Callable[[str], Number]:
    """Return a parser of numbers from `least` to `most`, inclusive."""

    def parse(text: str) -> Number:
        if re.fullmatch(r"[0-9]+" if kind is int else r"[0-9]*\.?[0-9]+", text):
            value = kind(text)
            if least <= value <= most:
                return value
        raise argparse.ArgumentTypeError(f"{text!r}: write a number from {least} to {most}")

    return parse


def configuration_file(path: Path | None) -> Path:
    """Return the path of gateway.yaml: `path`, GATEWAY_CONFIG, or the nearest file in the current
    directory or a directory above, in this order."""
    if path is not None:
        return path
    if named := os.environ.get("GATEWAY_CONFIG"):
        return Path(named)
    here = Path.cwd()
    files = (directory / _FILE for directory in (here, *here.parents))
    nearest = next((file for file in files if file.is_file()), Path(_FILE))
    return nearest.relative_to(here) if nearest.is_relative_to(here) else nearest


def into_environment(arguments: argparse.Namespace) -> None:
    """Set the environment variables for arguments that are settings, in this process and its
    children."""
    os.environ["GATEWAY_CONFIG"] = str(configuration_file(arguments.config))
    for name in ("log_level", "log_format"):
        if (value := getattr(arguments, name)) is not None:
            os.environ[f"GATEWAY_{name.upper()}"] = value
    for name in ("allow_anonymous", "reload"):
        if getattr(arguments, name, False):
            os.environ[f"GATEWAY_{name.upper()}"] = "true"


class CommandParser(argparse.ArgumentParser):
    """The parser of one command, or of a command with actions.

    `argparse` assigns all positional arguments when it meets the first of them, so
    `call URL TOOL --json a=1` would reject `a=1`. `parse_known_intermixed_args` allows this, but
    subparsers do not use it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._takes_the_rest = False
        """Whether an argument consumes all words after it, as a subcommand and REMAINDER do. Such a
        parser cannot intermix."""
        self._is_mixing = False
        self.complete: Callable[[Sequence[str]], Sequence[str]] = list
        """Returns the words of the command with those that may be left out."""
        super().__init__(*arguments, **options)  # adds --help

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        self._takes_the_rest |= options.get("nargs") == argparse.REMAINDER
        return super().add_argument(*names, **options)

    def add_subparsers(self, **options: Any) -> Any:
        self._takes_the_rest = True
        return super().add_subparsers(**options)

    def parse_known_args(  # type: ignore[override]  # argparse declares four overloads
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        args = self.complete(args or ())
        if self._takes_the_rest or self._is_mixing:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True  # before Python 3.13 the next line calls this method
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False


class Commands(Protocol):
    """The subparsers of a parser, as `CommandParser.add_subparsers` returns them."""

    def add_parser(self, name: str, **options: Any) -> CommandParser: ...


class Options(Protocol):
    """A parser or an argument group."""

    def add_argument(self, *names: Any, **options: Any) -> Any: ...


def command(
    commands: Commands,
    name: str,
    about: str,
    *examples: str,
    run: Run | None = None,
    **options: Any,
) -> CommandParser:
    """Add a command that `run` runs, or an action of a command."""
    if examples:
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        options["epilog"] = "\n  ".join(("examples:", *examples))
    parser = commands.add_parser(name, help=about, **options)
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def flag(parser: Options, name: str, about: str) -> None:
    parser.add_argument(name, action="store_true", help=about)


def repeated(parser: Options, name: str, metavar: str, about: str) -> None:
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=about)


def add_config(command: argparse.ArgumentParser) -> None:
    about = "gateway.yaml (default: GATEWAY_CONFIG, or the nearest, here or in a directory above)"
    command.add_argument("config", nargs="?", type=Path, help=about)


def add_config_option(action: argparse.ArgumentParser, content: str) -> None:
    about = f"gateway.yaml {content} (default: as for serve)"
    action.add_argument("--config", type=_existing, metavar="FILE", help=about)


def _existing(text: str) -> Path:
    path = Path(text)
    try:
        path.stat()
    except FileNotFoundError:
        raise argparse.ArgumentTypeError(f"{text} does not exist") from None
    except OSError as error:  # a directory that may not be searched, or too long a name
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


def add_log(command: argparse.ArgumentParser) -> None:
    about = "log level (default: GATEWAY_LOG_LEVEL, or info)"
    levels = ("debug", "info", "warning", "error")
    command.add_argument("--log-level", choices=levels, help=about)
    about = "log format (default: GATEWAY_LOG_FORMAT, or auto: text on a terminal, otherwise JSON)"
    command.add_argument("--log-format", choices=("auto", "text", "json"), help=about)


PORT: Final = number(int, 0, 65_535)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address, for this process and its children. Port 0 selects a free
    port.

    Raises:
        UsageError: the address or the port cannot be used.
    """
    # a text, even if it is ASCII, would load the tables of IDNA
    name = host.encode() if host.isascii() else host
    try:
        addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # prefer IPv4, which clients try first for names such as localhost with both kinds of address
        addresses.sort(key=lambda entry: entry[0] != socket.AF_INET)
        family, kind, protocol, _, address = addresses[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UsageError(
            f"--host {host}: this machine does not have this address ({error})"
        ) from None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise UsageError(
            f"--port {port}: it is not free at {host} ({error.strerror}); "
            "end the process that uses it, or choose another port (0: any free port)"
        ) from None
    bound.set_inheritable(True)
    return bound
