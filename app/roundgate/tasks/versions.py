"""Counts of the versions of open tasks (`ctx.version`), for an operator who wants to delete old
code.

The count reads every journal, so the work grows with the number of tasks.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Final

from msgspec import Struct

from roundgate import json
from roundgate.errors import ParseError
from roundgate.protocol import OPEN
from roundgate.replay import VERSION, Remembered, from_row
from roundgate.storage import TaskRecord, TaskRef, Wanted, Work
from roundgate.tasks.stored import StoredTasks

PAGE: Final = 100
READ_AT_ONCE: Final = 16
"""The number of tasks that are read concurrently."""


async def tasks_with_work(
    store: StoredTasks, wanted: Wanted
) -> AsyncIterator[tuple[TaskRecord, Work | None]]:
    """Yield each task of a search with its work, or with `None` if the store no longer keeps the
    work."""
    seen: set[TaskRef] = set()
    cursor, is_begun = None, False
    while cursor is not None or not is_begun:
        page = await store.find(wanted, PAGE, cursor)
        records = [record for record in page.records if record.ref not in seen]
        seen.update(record.ref for record in records)
        for start in range(0, len(records), READ_AT_ONCE):
            batch = records[start : start + READ_AT_ONCE]
            works = await asyncio.gather(*(store.read_work(record.ref) for record in batch))
            for record, (_, work) in zip(batch, works, strict=True):
                yield record, work
        cursor, is_begun = page.cursor, True


class VersionCount(Struct, frozen=True):
    """The number of open tasks of a tool with a version of a change."""

    tool: str
    name: str | None
    """The name of the change; `None` if no open task of the tool has a version."""
    version: int | None
    """The version; `None` for tasks that have not reached the change, or passed its place before it
    was made."""
    tasks: int
    oldest_ms: int
    """When the oldest of these tasks was created, in milliseconds since the epoch."""


async def count_versions(store: StoredTasks, tool: str | None, now_ms: int) -> list[VersionCount]:
    """Count the open tasks of each version, of one tool or of all."""
    versions: list[tuple[str, dict[str, int], int]] = []
    names: defaultdict[str, set[str | None]] = defaultdict(set)
    async for record, work in tasks_with_work(store, Wanted(tool=tool, statuses=OPEN)):
        if record.expires_ms > now_ms:
            of_task = {} if work is None else versions_from_work(work)
            versions.append((record.tool, of_task, record.created_ms))
            names[record.tool].update(of_task)
    created_ms: defaultdict[tuple[str, str | None, int | None], list[int]] = defaultdict(list)
    for tool_name, of_task, at_ms in versions:
        for name in names[tool_name] or {None}:
            version = None if name is None else of_task.get(name)
            created_ms[tool_name, name, version].append(at_ms)
    counts = [VersionCount(*key, len(times), min(times)) for key, times in created_ms.items()]
    return sorted(counts, key=lambda count: (count.tool, count.name or "", count.version or 0))


def versions_from_work(work: Work) -> dict[str, int]:
    """Return the versions of a task by name; none if a later version of Roundgate wrote its
    journal."""
    try:
        entries = [from_row(json.decode(row)) for row in work.journal]
    except (ParseError, ValueError, TypeError, KeyError):
        return {}
    return {
        entry.key.removeprefix(VERSION): entry.value
        for entry in entries
        if isinstance(entry, Remembered) and entry.key.startswith(VERSION)
    }
