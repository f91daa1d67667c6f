"""`roundgate tasks export`: recorded histories of tasks, one per line, for replays in tests.

Values are exported only with `--values`. Then members with a secret-looking name, and members that
the operator names, are redacted, and each of their values is redacted wherever it occurs in the
task.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from typing import Any, Final

from msgspec.structs import replace

from roundgate.backends.http.secrets import SECRET_NAME
from roundgate.cli.output import say, show_text
from roundgate.clock import Clock
from roundgate.errors import ParseError
from roundgate.json import encode
from roundgate.protocol import OPEN, Status
from roundgate.replay import Opened
from roundgate.storage import Wanted
from roundgate.suites.variables import SHOWN, Secrets
from roundgate.tasks.histories import History, history_from_record, make_outline, redacted
from roundgate.tasks.stored import StoredTasks
from roundgate.tasks.versions import tasks_with_work

WITH_JOURNAL: Final = OPEN | {Status.FAILED}
"""The statuses of tasks with a stored journal: open tasks, and tasks that a failed step ended."""
_OF_ANOTHER_VERSION: Final = (ParseError, ValueError, TypeError, KeyError)


async def export(
    arguments: argparse.Namespace, filters: Wanted, store: StoredTasks, clock: Clock
) -> int:
    """Write the histories of the tasks that a search selects to standard output; return 0. Report
    skipped tasks on standard error."""
    written, too_long, named, unknown = 0, 0, 0, 0
    filters = replace(filters, statuses=(filters.statuses or WITH_JOURNAL) & WITH_JOURNAL)
    if not filters.statuses:
        return 0
    async for record, work in tasks_with_work(store, filters):
        if work is None or record.expires_ms <= clock.now_ms():
            continue
        if written == arguments.limit:
            say(f"more tasks exist than --limit={arguments.limit}", to=sys.stderr)
            break
        try:
            history = history_from_record(record, work, clock.now_ms())
        except _OF_ANOTHER_VERSION:
            unknown += 1
            continue
        left = (
            without_secrets(history, arguments.redact)
            if arguments.values
            else make_outline(history)
        )
        if left is None:
            named += 1
            continue
        line = encode(left.to_json())
        if len(line) > arguments.max_bytes:
            too_long += 1
            continue
        show_text(line.decode())
        written += 1
    if too_long:
        say(f"skipped, longer than --max-bytes={arguments.max_bytes}: {too_long}", to=sys.stderr)
    if named:
        say(f"skipped, a key contains a redacted value: {named}", to=sys.stderr)
    if unknown:
        say(f"skipped, written by another version of Roundgate: {unknown}", to=sys.stderr)
    return 0


def without_secrets(history: History, names: Collection[str]) -> History | None:
    """Return a history without the values of members that look secret or have one of the names.
    Return `None` if a key contains such a value, as the key of an item of `ctx.map` can."""
    secrets = Secrets()

    def is_secret(name: str) -> bool:
        return name in names or SECRET_NAME.search(name) is not None

    def hide(name: str, value: Any) -> Any:
        if is_secret(name):
            return _hidden(value, secrets)
        match value:
            case dict():
                return {member: hide(member, item) for member, item in value.items()}
            case list():
                return [hide("", item) for item in value]
        return value

    for entry in history.entries():
        if isinstance(entry, Opened):
            secrets.add(entry.token)
    left = redacted(redacted(history, hide), lambda name, value: secrets.without(value))
    is_named = any(secrets.hidden(entry.key) != entry.key for entry in left.entries())
    return None if is_named else left


def _hidden(value: Any, secrets: Secrets) -> Any:
    """Return a value of the same shape without its content; add its parts to the secrets."""
    match value:
        case dict():
            return {name: _hidden(item, secrets) for name, item in value.items()}
        case list():
            return [_hidden(item, secrets) for item in value]
        case str():
            secrets.add(value)
            return SHOWN
        case int() | float() if not isinstance(value, bool):
            secrets.add(value)
            return 0
    return value
