"""The command `roundgate`: one module a subcommand, arguments read with the standard library."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from roundgate.cli.arguments import CommandParser
from roundgate.cli.deployment_options import with_stack
from roundgate.cli.remote_options import MODULES
from roundgate.errors import ConfigError, UsageError
from roundgate.garbage import kept
from roundgate.observability import escaped

_GROUPS: Final = (
    *("serving_options", "deployment_options"),
    *("task_options", "remote_options", "cassette_options"),
)
"""The modules that add commands, in the order in which `--help` shows them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status: 0, 1 for what the command found
    wrong, 2 for wrong usage."""
    if os.getpid() == 1:  # in a container, where a signal is lost until somebody handles it
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    arguments = parse(with_stack(sys.argv[1:] if argv is None else argv))
    try:
        module = MODULES.get(arguments.command, arguments.command)
        with kept():
            command = import_module(f"roundgate.cli.{module}")
        status: int = command.run(arguments)
        sys.stdout.flush()
    except ConfigError as error:
        print(f"{len(error.problems)} problem(s):", *error.problems, sep="\n", file=sys.stderr)
        return 1
    except UsageError as error:
        print(f"roundgate {arguments.command}: {escaped(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read has enough: `roundgate list URL | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


class _Version(argparse.Action):
    """Prints the version; looks for it only then."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002 — argparse's name
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        from importlib.metadata import version

        print(f"roundgate {version('roundgate')}")
        parser.exit()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read a command line; exit with a usage error if it is wrong."""
    return make_parser().parse_args(argv)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="roundgate", description="A stateless MCP gateway (revision 2026-07-28)."
    )
    parser.add_argument("--version", action=_Version, help="print the version, and end")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=CommandParser)
    for group in _GROUPS:
        import_module(f"roundgate.cli.{group}").add_commands(commands)
    return parser
