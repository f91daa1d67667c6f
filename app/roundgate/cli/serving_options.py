"""The commands that begin, serve, check and prepare a configuration: what each takes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roundgate.cli.arguments import add_examples, port, task_ref

if TYPE_CHECKING:
    from roundgate.cli.arguments import Commands

_RELOAD: Final = (
    "watch gateway.yaml and the modules it has loaded, and serve what changes (as "
    "SIGHUP does, once)"
)

EXAMPLES: Final = {
    "new": (
        "roundgate new weather",
        "roundgate new shop --from openapi.json",
        "roundgate new shop --aws",
    ),
    "docs": ("roundgate docs", "roundgate docs configuration"),
    "serve": (
        "roundgate serve --reload",
        "roundgate serve gateway.yaml --port 0 --log-level debug",
        "roundgate serve --host 0.0.0.0 --workers 4",
    ),
    "check": ("roundgate check", "roundgate check --file-only deployments/prod.yaml"),
    "compile": ("roundgate compile gateway.yaml",),
    "keys": ("roundgate keys new", "roundgate keys rotate --stage 1"),
    "worker": ("roundgate worker gateway.yaml",),
    "schema": ("roundgate schema > gateway.schema.json", "roundgate schema --suite"),
}
"""What is shown under the help of a command."""


def add_commands(commands: Commands) -> None:
    """Add each command, in the order in which `--help` shows them."""
    for add in (
        _add_new,
        _add_docs,
        _add_serve,
        _add_check,
        _add_compile,
        _add_keys,
        _add_worker,
        _add_schema,
    ):
        add(commands)
    add_examples(commands, EXAMPLES)


def _add_new(commands: Commands) -> None:
    new = commands.add_parser("new", help="begin a repository with tools of your own")
    new.add_argument("directory", type=Path, help="where; its name is that of the repository")
    new.add_argument(
        "--from", dest="openapi", type=Path, metavar="FILE", help="serve this OpenAPI document, too"
    )
    new.add_argument(
        "--aws", action="store_true", help="deploy it: parameters of the stack, and a workflow"
    )


def _add_docs(commands: Commands) -> None:
    docs = commands.add_parser("docs", help="print a document of this version, or list all")
    docs.add_argument("page", nargs="?", metavar="PAGE", help="such as configuration; unset: list")


def _add_serve(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="serve a configuration over HTTP")
    serve.add_argument(
        "config",
        nargs="?",
        type=Path,
        help="gateway.yaml (default: GATEWAY_CONFIG, or the nearest one, here or in a directory "
        "above)",
    )
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to bind to (default: %(default)s)"
    )
    serve.add_argument(
        "--port",
        type=port,
        default=8000,
        help="port to bind to, 0 for any that is free (default: %(default)s)",
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
    _add_log(serve)


def _add_log(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        help="default: GATEWAY_LOG_LEVEL, or info",
    )
    command.add_argument(
        "--log-format",
        choices=("auto", "text", "json"),
        help="default: GATEWAY_LOG_FORMAT, or auto: text on a terminal, JSON anywhere else",
    )


def _add_check(commands: Commands) -> None:
    check = commands.add_parser(
        "check", help="find every problem in a configuration, and list what it serves"
    )
    check.add_argument("config", nargs="?", type=Path, help="as for serve")
    check.add_argument(
        "--file-only",
        action="store_true",
        help="do not look at this environment: the file is served somewhere else",
    )
    check.add_argument("--host", default="127.0.0.1", help="as for serve")
    check.add_argument("--port", type=port, help="find out whether this port can be had, too")


def _add_compile(commands: Commands) -> None:
    compiled = commands.add_parser(
        "compile", help="compile the documents that back ends are described by"
    )
    compiled.add_argument("config", nargs="?", type=Path, help="as for serve")


def _add_keys(commands: Commands) -> None:
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


def _add_worker(commands: Commands) -> None:
    worker = commands.add_parser("worker", help="work on tasks, in a process of its own")
    worker.add_argument("config", nargs="?", type=Path, help="as for serve")
    _add_log(worker)
    worker.add_argument("--reload", action="store_true", help="as for serve")
    # for processes that this program begins
    worker.add_argument("--suspect", type=task_ref, help=argparse.SUPPRESS)


def _add_schema(commands: Commands) -> None:
    schema = commands.add_parser("schema", help="print a JSON Schema for editors")
    schema.add_argument(
        "--suite", action="store_true", help="that of suites (default: that of gateway.yaml)"
    )
