"""The command `roundgate`. `options` defines the arguments; a command's module is imported when the
command is chosen."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from roundgate.cli import options
from roundgate.cli.arguments import CommandParser, with_stack
from roundgate.errors import ConfigError, UsageError
from roundgate.garbage import kept
from roundgate.observability import escaped
from roundgate.observability.terminal import adapt
from roundgate.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    In addition to the command's own: 1 for an invalid configuration, 2 for wrong usage, 130 after
    Ctrl-C, 141 if the reader of standard output closed it.
    """
    if os.getpid() == 1:  # in a container, where the kernel drops unhandled signals to PID 1
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    arguments = parse(with_stack(sys.argv[1:] if argv is None else argv))
    for stream in (sys.stdout, sys.stderr):
        adapt(stream)
    try:
        with kept():
            command = import_module(f"roundgate.cli.{arguments.module}")
        status: int = command.run(arguments)
        sys.stdout.flush()
    except ConfigError as error:
        lines = "\n".join(map(str, error.problems)).split("\n")  # may quote a server
        print(f"{len(error.problems)} problem(s):", *map(escaped, lines), sep="\n", file=sys.stderr)
        return 1
    except UsageError as error:
        print(f"roundgate {arguments.command}: {escaped(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader closed the pipe, as in `roundgate list URL | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; exit with status 2 if it is invalid."""
    return make_parser().parse_args(argv)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="roundgate", description="A stateless MCP gateway (revision 2026-07-28)."
    )
    text = f"%(prog)s {VERSION}"
    parser.add_argument(
        "--version", action="version", version=text, help="print the version and exit"
    )
    options.add_commands(
        parser.add_subparsers(dest="command", required=True, parser_class=CommandParser)
    )
    return parser
