"""The commands for a repository of one's own: what each takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from roundgate.cli.arguments import add_examples

if TYPE_CHECKING:
    from roundgate.cli.arguments import Commands

EXAMPLES: Final = {
    "new": (
        "roundgate new weather",
        "roundgate new shop --from openapi.json",
        "roundgate new shop --aws",
    ),
    "docs": ("roundgate docs", "roundgate docs configuration"),
}
"""What is shown under the help of a command."""


def add_commands(commands: Commands) -> None:
    """Add each command, in the order in which `--help` shows them."""
    new = commands.add_parser("new", help="begin a repository with tools of your own")
    new.add_argument("directory", type=Path, help="where; its name is that of the repository")
    new.add_argument(
        "--from", dest="openapi", type=Path, metavar="FILE", help="serve this OpenAPI document, too"
    )
    new.add_argument(
        "--aws", action="store_true", help="deploy it: parameters of the stack, and a workflow"
    )
    docs = commands.add_parser("docs", help="print a document of this version, or list all")
    docs.add_argument("page", nargs="?", metavar="PAGE", help="such as configuration; unset: list")
    add_examples(commands, EXAMPLES)
