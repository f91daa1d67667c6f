"""The command `roundgate`: one module a subcommand, arguments read with the standard library."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from roundgate.cli import cassette_options, deployment_options, remote_options
from roundgate.cli.arguments import age_ms, task_ref
from roundgate.errors import ConfigError, UsageError

_RELOAD: Final = "watch gateway.yaml and the modules it has loaded, and serve what changes (as SIGHUP does, once)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit status: 0, 1 for what the command found wrong, 2 for wrong usage."""
    if os.getpid() == 1:  # in a container, where a signal is lost until somebody handles it
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    arguments = _parser().parse_args(argv)
    try:
        module = remote_options.MODULES.get(arguments.command, arguments.command)
        status: int = import_module(f"roundgate.cli.{module}").run(arguments)
        sys.stdout.flush()
    except ConfigError as error:
        print(f"{len(error.problems)} problem(s):", *error.problems, sep="\n", file=sys.stderr)
        return 1
    except UsageError as error:
        print(f"roundgate {arguments.command}: {error}", file=sys.stderr)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="roundgate", description="A stateless MCP gateway (revision 2026-07-28)."
    )
    parser.add_argument("--version", action=_Version, help="print the version, and end")
    commands = parser.add_subparsers(dest="command", required=True)

    new = commands.add_parser("new", help="begin a repository with tools of your own")
    new.add_argument("directory", type=Path, help="where; its name is that of the repository")
    new.add_argument(
        "--from", dest="openapi", type=Path, metavar="FILE", help="serve this OpenAPI document, too"
    )

    serve = commands.add_parser("serve", help="serve a configuration over HTTP")
    serve.add_argument(
        "config",
        nargs="?",
        type=Path,
        help="gateway.yaml (default: GATEWAY_CONFIG, or the nearest one, here or in a directory above)",
    )
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to bind to (default: %(default)s)"
    )
    serve.add_argument(
        "--port", type=int, default=8000, help="port to bind to (default: %(default)s)"
    )
    serve.add_argument(
        "--allow-anonymous", action="store_true", help="bind to any address without authentication"
    )
    serve.add_argument(
        "--workers",
        type=int,
        default=1,
        help="processes that share the port (default: %(default)s)",
    )
    serve.add_argument("--reload", action="store_true", help=_RELOAD)
    serve.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="default: GATEWAY_LOG_LEVEL, or info",
    )

    check = commands.add_parser(
        "check", help="find every problem in a configuration, and list what it serves"
    )
    check.add_argument("config", nargs="?", type=Path, help="as for serve")

    compiled = commands.add_parser(
        "compile", help="compile the documents that back ends are described by"
    )
    compiled.add_argument("config", nargs="?", type=Path, help="as for serve")

    deployment_options.add_commands(commands)

    keys = commands.add_parser("keys", help="make keys that seal requestState, and rotate them")
    actions = keys.add_subparsers(dest="action", required=True)
    actions.add_parser("new", help="print a new key for GATEWAY_STATE_KEYS")
    rotate = actions.add_parser(
        "rotate", help="print GATEWAY_STATE_KEYS for the next stage of a rotation"
    )
    rotate.add_argument(
        "--stage",
        type=int,
        choices=(1, 2, 3),
        required=True,
        help="1 add a key, 2 seal with it, 3 drop the old ones",
    )

    worker = commands.add_parser("worker", help="work on tasks, in a process of its own")
    worker.add_argument("config", nargs="?", type=Path, help="as for serve")
    worker.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="as for serve"
    )
    worker.add_argument("--reload", action="store_true", help="as for serve")
    # for processes that this program begins
    worker.add_argument("--parent", type=int, help=argparse.SUPPRESS)

    _add_tasks(commands.add_parser("tasks", help="see and mend tasks, as the operator"))

    schema = commands.add_parser("schema", help="print a JSON Schema for editors")
    schema.add_argument(
        "--suite", action="store_true", help="that of suites (default: that of gateway.yaml)"
    )
    remote_options.add_commands(commands)
    cassette_options.add_actions(
        commands.add_parser("cassette", help="record conversations, and replay them as either side")
    )
    return parser


def _add_tasks(tasks: argparse.ArgumentParser) -> None:
    actions = tasks.add_subparsers(dest="action", required=True)
    listed = actions.add_parser("list", help="tasks that are still kept, oldest first")
    listed.add_argument(
        "--owner", help="only those of this owner: what stands before the dot of a task"
    )
    listed.add_argument(
        "--status", choices=("working", "input_required", "completed", "failed", "cancelled")
    )
    listed.add_argument(
        "--older-than",
        type=age_ms,
        metavar="AGE",
        help="only those created before: 90s, 15m, 2h, 1d",
    )
    listed.add_argument(
        "--limit", type=int, default=100, help="how many to look for (default: %(default)s)"
    )
    actions.add_parser("count", help="how many tasks are open, and how old the oldest are")
    for action, does in (
        ("show", "what is known of one, without its arguments, answers and result"),
        ("cancel", "end one"),
        ("requeue", "take one from whoever has it, and queue it again"),
        ("retry", "the same: for a task that was parked, once its tool is mended"),
    ):
        actions.add_parser(action, help=does).add_argument(
            "task", type=task_ref, help="as `list` prints it"
        )
