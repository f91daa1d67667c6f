"""`roundgate tasks`: what its actions take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from roundgate.cli.arguments import add_examples, age_ms, task_ref

if TYPE_CHECKING:
    from roundgate.cli.arguments import Commands

EXAMPLES: Final = {
    "list": ("roundgate tasks list --status working --older-than 1h",),
    "count": ("roundgate tasks count",),
    "show": ("roundgate tasks show OWNER.ID",),
    "cancel": ("roundgate tasks cancel OWNER.ID",),
    "requeue": ("roundgate tasks requeue OWNER.ID",),
    "retry": ("roundgate tasks retry OWNER.ID",),
}
"""What is shown under the help of an action."""


def add_commands(commands: Commands) -> None:
    """Add the command, with its actions."""
    _add_actions(commands.add_parser("tasks", help="see and mend tasks, as the operator"))


def _add_actions(tasks: argparse.ArgumentParser) -> None:
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
    add_examples(actions, EXAMPLES)
