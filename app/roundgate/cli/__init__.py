"""The command `roundgate`.

A module of a command has `declare(commands)`, which adds its commands with their options, beside the
function that runs them. It is in `COMMANDS`, or an installed package registers it as an entry point
of the group `roundgate.commands`. Only the module of the chosen command is imported.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from roundgate.cli.arguments import CommandParser
from roundgate.errors import ConfigError, UsageError
from roundgate.extensions import entries
from roundgate.observability import escaped
from roundgate.observability.terminal import adapt
from roundgate.starting import hold_hangups, kept
from roundgate.version import VERSION


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    In addition to the command's own: 1 for an invalid configuration or a file that cannot be read or
    written, 2 for wrong usage, 130 after Ctrl-C, 141 if the reader of standard output closed it.
    """
    if os.getpid() == 1:  # in a container, where the kernel drops unhandled signals to PID 1
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["serve"], ["worker"]):
        hold_hangups()
    with kept():
        arguments = parse(argv)
    for stream in (sys.stdout, sys.stderr):
        adapt(stream)
    try:
        status: int = arguments.run(arguments)
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
    except OSError as error:  # of a file, or of standard output on a full disk
        text = escaped(str(error) or type(error).__name__)
        print(f"roundgate {arguments.command}: {text}", file=sys.stderr)
        return 1
    return status


COMMANDS: Final = {
    **dict.fromkeys(("new", "docs", "keys", "schema"), "roundgate.cli.repository"),
    **{
        name: f"roundgate.cli.{name}"
        for name in ("serve", "check", "compile", "upstreams", "worker", "tasks", "audit", "policy")
    },
    **dict.fromkeys(("call", "wait"), "roundgate.cli.call"),
    **dict.fromkeys(
        ("list", "describe", "read", "prompt", "complete", "listen", "ping"),
        "roundgate.cli.reading",
    ),
}
"""The module of each command of the gateway, in the order of `roundgate --help`."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; exit with status 2 if it is invalid."""
    return make_parser(argv[0] if argv else None).parse_args(argv)


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line. It has only the commands of the same module as
    `command`, or all commands if there is no such command."""
    parser = argparse.ArgumentParser(
        prog="roundgate", description="A stateless MCP gateway (revision 2026-07-28)."
    )
    text = f"%(prog)s {VERSION}"
    parser.add_argument(
        "--version", action="version", version=text, help="print the version and exit"
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=CommandParser)
    added = {} if command in COMMANDS else entries("roundgate.commands")
    others = {name: entry.module for name, entry in added.items() if name not in COMMANDS}
    modules = COMMANDS | others
    chosen = [modules[command]] if command in modules else modules.values()
    for module in dict.fromkeys([] if command == "--version" else chosen):
        try:
            import_module(module).declare(commands)
        except Exception as error:
            if command in modules or module in COMMANDS.values():
                raise
            print(f"roundgate: {module} adds no command: {escaped(str(error))}", file=sys.stderr)
    return parser
