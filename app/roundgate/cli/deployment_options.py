"""What `package`, `deploy` and `stack` may be told."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roundgate.cli.arguments import add_examples

if TYPE_CHECKING:
    from roundgate.cli.arguments import Commands

_ARCHITECTURES: Final = ("arm64", "x86_64")
EXAMPLES: Final = {
    "package": ("roundgate package --list", "roundgate package --arch x86_64"),
    "deploy": (
        "roundgate deploy",
        "roundgate deploy --config-env staging",
        "roundgate deploy shop gateway.yaml --parameter-overrides LogLevel=debug",
    ),
    "stack": ("roundgate stack --demo", "roundgate stack --port 9000 --directory logs"),
}
"""What is shown under the help of a command."""


def add_commands(commands: Commands) -> None:
    """The three that carry a repository to AWS Lambda."""
    package = commands.add_parser("package", help="make the zips of the AWS Lambda functions")
    _add_config(package)
    package.add_argument(
        "--arch", choices=_ARCHITECTURES, default="arm64", help="of the functions (default: arm64)"
    )
    package.add_argument(
        "--out", type=Path, help="folder of what is made (default: .build beside gateway.yaml)"
    )
    package.add_argument(
        "--lock", action="store_true", help="look for the newest versions of packages"
    )
    package.add_argument("--list", action="store_true", help="only say what would go in")

    deploy = commands.add_parser(
        "deploy",
        help="package, and deploy the stack with AWS SAM",
        usage="roundgate deploy [STACK] [CONFIG] [options of sam deploy]",
    )
    deploy.add_argument(
        "stack", metavar="STACK", help="name of the stack (default: that of samconfig.toml)"
    )
    deploy.add_argument(
        "rest",
        nargs=argparse.REMAINDER,
        metavar="…",
        help="gateway.yaml (default: as for serve), then what sam deploy takes, such as"
        " --parameter-overrides LogLevel=debug WorkerConcurrency=50",
    )

    stack = commands.add_parser("stack", help="run the deployed stack on this machine")
    _add_config(stack)
    stack.add_argument(
        "--demo", action="store_true", help="show a call with rounds and a task, replica by replica"
    )
    _add_sizes(stack)
    add_examples(commands, EXAMPLES)


def with_stack(words: Sequence[str]) -> Sequence[str]:
    """A command line, with an empty name where `deploy` is given none: it is in samconfig.toml
    then. argparse would take the value of an option of `sam` for it."""
    match words:
        case ["deploy"]:
            return ["deploy", ""]
        case ["deploy", str(word), *_] if word not in ("-h", "--help"):
            is_none = word.startswith("-") or "." in word or "/" in word
            return ["deploy", "", *words[1:]] if is_none else words
    return words


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("config", nargs="?", type=Path, help="as for serve")


def _add_sizes(stack: argparse.ArgumentParser) -> None:
    for name, default, what in (
        ("--gateways", 3, "gateway functions at once"),
        ("--workers", 2, "worker functions at once"),
        ("--executions", 10, "functions at once in all, 10 in a new account"),
    ):
        stack.add_argument(name, type=int, default=default, help=f"{what} (default: %(default)s)")
    stack.add_argument(
        "--functions",
        type=Path,
        help="functions that back ends of the kind lambda invoke, such as functions.yaml",
    )
    stack.add_argument("--port", type=int, help="of the API (default: any free one)")
    stack.add_argument(
        "--directory", type=Path, help="for the functions and their logs (default: temporary)"
    )
