"""The columns of a task in stores that keep rows, and the conversion of their values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Final

from roundgate.protocol import OPEN, Status
from roundgate.storage import tasks

HEAD: Final = (
    "n, version, owner, id, tool, status, status_message, created_ms, updated_ms, expires_ms, revision,"
    " fence, lease_until_ms, wake_ms, due_ms, attempts, deaths, suspect, alone, declined_ms, journal_version,"
    " resends, noted, unsent, cleans_up, ending, failed_steps, retried_as, call_id, events, asked"
)
FIELDS: Final = tuple(HEAD.replace(" ", "").split(","))[4:]
"""The columns that are fields of a record, in the order of `HEAD`."""
OPEN_TASK: Final = "owner, id, tool, status, created_ms, expires_ms, due_ms, resends, unsent"
REPLACED: Final = frozenset({tasks.RecordPart.CALL, tasks.RecordPart.STATE})
"""The parts with a single value, which a put replaces."""
FOR_WORK: Final = ("answer", "call", "journal", "state")
"""The parts that a worker needs."""
OPEN_STATUSES: Final = ", ".join(f"'{status.value}'" for status in sorted(OPEN))
SHOWN: Final = "case ending when 'step_failed' then 'failed' else status end"
"""The SQL expression for `TaskRecord.shown_status`."""
IS_OPEN: Final = "due_ms is not null"
"""The condition of the index of open tasks, which queries repeat word for word."""
HAS_ENDED: Final = "ending in ('step_failed', 'error', 'cancelled')"
"""The condition of the index of failed and cancelled tasks, which queries repeat word for word."""
IS_HIDDEN: Final = f"id >= '{tasks.HIDDEN}'"
"""The condition of the index of hidden tasks, which queries repeat word for word. Other ids begin
with a smaller character."""
_FLAGS: Final = frozenset({"suspect", "alone", "unsent", "cleans_up"})
_LISTS: Final = frozenset({"failed_steps", "events", "asked"})
_ENDED: Final = frozenset({Status.FAILED, Status.CANCELLED})
"""The statuses of tasks that match `HAS_ENDED`, as an operator sees them."""


def column(value: Any) -> Any:
    """Return the value of a field as its column stores it."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return json.dumps(list(map(str, value))) if value else None
    return value


def record_from_row(row: Sequence[Any]) -> tasks.TaskRecord:
    """Return the record in a row of `HEAD`."""
    n, version, owner, task_id, *rest = row
    values = dict(zip(FIELDS, rest, strict=True))
    for name in _FLAGS:
        values[name] = bool(values[name])
    for name in _LISTS:
        values[name] = tuple(json.loads(values[name])) if values[name] else ()
    values["events"] = tuple(map(tasks.Mark.parse, values["events"]))
    values["status"] = Status(values["status"])
    values["ending"] = None if values["ending"] is None else tasks.Ending(values["ending"])
    return tasks.TaskRecord(ref=tasks.TaskRef(owner, task_id), version=version, notes=n, **values)


def open_task_from_row(row: Sequence[Any]) -> tasks.OpenTask:
    """Return the task in a row of `OPEN_TASK`."""
    owner, task_id, tool, status, created_ms, expires_ms, due_ms, resends, unsent = row
    ref = tasks.TaskRef(owner, task_id)
    return tasks.OpenTask(
        ref, tool, Status(status), created_ms, expires_ms, due_ms, resends, bool(unsent)
    )


def work_from_values(values: Iterable[tuple[str, str, bytes]]) -> tasks.Work:
    """Return the work in the values of a task: part, name and value of each, in the order in which
    they were put."""
    by_kind: dict[str, list[tuple[str, bytes]]] = {kind: [] for kind in FOR_WORK}
    for kind, name, value in values:
        by_kind[kind].append((name, value))
    ((_, call),), ((_, state),) = by_kind["call"], by_kind["state"]
    return tasks.Work(
        call, [entry for _, entry in by_kind["journal"]], state, dict(by_kind["answer"])
    )


def index_condition(wanted: tasks.Wanted) -> str | None:
    """Return the condition of the index that serves a search, or `None`.

    A search by owner has another index. Searches by tool or for completed tasks have none, because
    these tasks are most of the table.
    """
    if wanted.owner is not None:
        return None
    if wanted.statuses and wanted.statuses <= OPEN:
        return IS_OPEN
    if (wanted.statuses and wanted.statuses <= _ENDED) or (
        wanted.endings and wanted.endings <= tasks.UNHAPPY
    ):
        return HAS_ENDED
    return None


def number_from_cursor(cursor: str | None) -> int | None:
    """Return the number of the last row of a page; `None` without a cursor.

    Raises:
        ValueError: the cursor is malformed.
    """
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):  # a signed 64-bit integer
        raise ValueError("unknown cursor; use the cursor of an earlier page")
    return int(cursor)
