"""`roundgate tasks`: what its actions take."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from roundgate.cli.arguments import add_examples, age_ms, count, seconds, task_ref

if TYPE_CHECKING:
    from roundgate.cli.arguments import Commands

EXAMPLES: Final = {
    "list": (
        "roundgate tasks list --status working --older-than 1h",
        "roundgate tasks list --status failed --tool refund --json | jq -r .task",
        "roundgate tasks list --outcome step_failed",
    ),
    "count": ("roundgate tasks count",),
    "show": ("roundgate tasks show OWNER.ID",),
    "watch": ("roundgate tasks watch OWNER.ID",),
    "cancel": (
        "roundgate tasks cancel OWNER.ID",
        "roundgate tasks cancel --tool refund --older-than 1d --dry-run",
    ),
    "requeue": ("roundgate tasks requeue OWNER.ID",),
    "retry": (
        "roundgate tasks retry OWNER.ID",
        "roundgate tasks retry --tool refund --outcome step_failed --yes",
    ),
    "purge": (
        "roundgate tasks purge OWNER.ID",
        "roundgate tasks purge --owner OWNER --older-than 30d --yes",
    ),
}
"""What is shown under the help of an action."""

_STATUSES: Final = ("working", "input_required", "completed", "failed", "cancelled")
_OUTCOMES: Final = ("ok", "tool_error", "step_failed", "error", "cancelled")
_ACTS: Final = {
    "cancel": "end them",
    "requeue": "take them from whoever has them, and queue them again; of those that are found only what waits",
    "retry": "take tasks up again at the step that failed, and tasks that were parked",
    "purge": "delete tasks that ended, with all that is kept of them",
}


def add_commands(commands: Commands) -> None:
    """Add the command, with its actions."""
    _add_actions(commands.add_parser("tasks", help="see and mend tasks, as the operator"))


def _add_actions(tasks: argparse.ArgumentParser) -> None:
    actions = tasks.add_subparsers(dest="action", required=True)
    listed = actions.add_parser("list", help="tasks that are still kept")
    _add_filters(listed)
    listed.add_argument(
        "--limit", type=count, default=100, help="show at most so many (default: %(default)s)"
    )
    listed.add_argument("--cursor", help="go on where an earlier list ended, which says how")
    shown = actions.add_parser(
        "show", help="what is known of one, without its arguments, answers and result"
    )
    watched = actions.add_parser("watch", help="a line for each change of one, until it is over")
    watched.add_argument(
        "--interval",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="look so often (default: %(default)s)",
    )
    for parser in (shown, watched):
        parser.add_argument("task", type=task_ref, help=_AS_LISTED)
    counted = actions.add_parser(
        "count", help="how many tasks are open, and how old the oldest are"
    )
    acting = [_add_act(actions, action, does) for action, does in _ACTS.items()]
    for parser in (listed, shown, watched, counted, *acting):
        parser.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="the gateway.yaml whose tasks they are (default: as for serve)",
        )
        parser.add_argument("--json", action="store_true", help="objects of JSON, one a line")
    add_examples(actions, EXAMPLES)


_AS_LISTED: Final = "as `list` prints it"


def _add_act(actions: Commands, action: str, does: str) -> argparse.ArgumentParser:
    """An action on tasks that are named, or on those that are found."""
    parser = actions.add_parser(action, help=does)
    parser.add_argument("task", type=task_ref, nargs="*", help=_AS_LISTED)
    _add_filters(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="show which tasks it would be, and do nothing"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask first")
    return parser


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--owner", help="only those of this owner: what stands before the dot of a task"
    )
    parser.add_argument("--tool", help="only those of this tool")
    parser.add_argument(
        "--status",
        choices=_STATUSES,
        action="append",
        help="only these; may be repeated. A task that a failed step ended counts as failed",
    )
    parser.add_argument(
        "--outcome",
        choices=_OUTCOMES,
        action="append",
        help="only tasks that ended like this; may be repeated",
    )
    parser.add_argument(
        "--older-than",
        type=age_ms,
        metavar="AGE",
        help="only those created before: 90s, 15m, 2h, 1d",
    )
