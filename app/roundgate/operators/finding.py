"""Searches for tasks: a page of a list, all tasks of a search, and counts of the versions of open
tasks (`ctx.version`), for an operator who wants to delete old code.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from roundgate import json
from roundgate.errors import ParseError
from roundgate.operators.facts import STATUS_OF_NEED, Need, need_of
from roundgate.protocol import OPEN, Status
from roundgate.replay import VERSION, Remembered, from_row
from roundgate.storage import TaskRecord, TaskRef, Wanted, Work
from roundgate.tasks.stored import StoredTasks

PER_PAGE: Final = 100
"""The number of tasks on a page; a search for a text may show up to `BATCH` more."""
BATCH: Final = 500
"""The number of tasks that a search for a text reads in one call of the store."""
MAX_CALLS: Final = 4
"""The limit on the calls of the store for one page: 2,000 tasks in a search for a text. The next page
searches further."""
SURVEYED: Final = 1_000
"""The limit on the failed tasks, and on the open tasks, that a survey reads."""
SURVEY_CALLS: Final = 32
"""The limit on the calls of the store for each: DynamoDB reads the parts of an index one by one."""
READ_AT_ONCE: Final = 16
"""The number of tasks that are read concurrently."""


class SearchResult(Struct, frozen=True):
    """A page of a search."""

    records: Sequence[TaskRecord]
    """The tasks, the newest first."""
    cursor: str | None
    """The cursor of the next page; `None` after the last."""
    read: int
    """The number of tasks that were read."""
    calls: int = 1
    """The number of calls of the store."""


async def search(
    store: StoredTasks,
    wanted: Wanted,
    text: str = "",
    cursor: str | None = None,
    limit: int = PER_PAGE,
    max_calls: float = MAX_CALLS,
    need: tuple[Need, int] | None = None,
) -> SearchResult:
    """Return a page of the tasks that match the filters and have a text in their id, call, tool,
    message or failed steps. With `need`, they need a person for this reason at a time in milliseconds.

    Raises:
        ValueError: the cursor does not belong to this search.
        Unavailable: the store cannot be reached.
    """
    if cursor is None and (ref := _ref(text)) is not None:
        record = await store.head(ref)
        if record is not None:
            return SearchResult([record], None, 1)
    records, read, calls = list[TaskRecord](), 0, 0
    if need is not None:
        wanted = replace(wanted, statuses=frozenset({STATUS_OF_NEED[need[0]]}))
    while calls < max_calls:
        page = await store.find(wanted, BATCH if text or need else limit - len(records), cursor)
        records += [
            record
            for record in page.records
            if _has_text(record, text) and (need is None or need_of(record, need[1]) is need[0])
        ]
        calls, read, cursor = calls + 1, read + len(page.records), page.cursor
        if cursor is None or len(records) >= limit:
            break
    records.sort(key=lambda record: record.created_ms, reverse=True)
    return SearchResult(records, cursor, read, calls)


class Survey(Struct, frozen=True):
    """The tasks that need a person."""

    counts: Counter[Need]
    is_whole: bool
    """Whether all tasks were read; otherwise there are at least as many as were counted."""
    latest: Sequence[TaskRecord]
    """The tasks, the last changed first."""


async def survey(store: StoredTasks, now_ms: int) -> Survey:
    """Count the tasks that need a person, among up to `SURVEYED` failed and as many open tasks.

    Raises:
        Unavailable: the store cannot be reached.
    """
    counts, found, is_whole = Counter[Need](), list[TaskRecord](), True
    for statuses in (frozenset({Status.FAILED}), OPEN):
        page = await search(
            store, Wanted(statuses=statuses), limit=SURVEYED, max_calls=SURVEY_CALLS
        )
        is_whole = is_whole and page.cursor is None
        for record in page.records:
            if (need := need_of(record, now_ms)) is not None:
                counts[need] += 1
                found.append(record)
    found.sort(key=lambda record: record.updated_ms, reverse=True)
    return Survey(counts, is_whole, found)


def _ref(text: str) -> TaskRef | None:
    try:
        return TaskRef.parse(text)
    except ValueError:
        return None


def _has_text(record: TaskRecord, text: str) -> bool:
    texts = (
        str(record.ref),
        record.tool,
        record.call_id or "",
        record.status_message or "",
        *record.failed_steps,
    )
    return text.casefold() in "\n".join(texts).casefold()


async def pages(store: StoredTasks, wanted: Wanted) -> AsyncIterator[list[TaskRecord]]:
    """Yield all tasks of a search, each once, in pages."""
    seen: set[TaskRef] = set()
    cursor, is_begun = None, False
    while cursor is not None or not is_begun:
        page = await store.find(wanted, PER_PAGE, cursor)
        yield [record for record in page.records if record.ref not in seen]
        seen.update(record.ref for record in page.records)
        cursor, is_begun = page.cursor, True


async def tasks_with_work(
    store: StoredTasks, wanted: Wanted
) -> AsyncIterator[tuple[TaskRecord, Work | None]]:
    """Yield each task of a search with its work, or with `None` if the store no longer keeps the
    work."""
    async for records in pages(store, wanted):
        for start in range(0, len(records), READ_AT_ONCE):
            batch = records[start : start + READ_AT_ONCE]
            works = await asyncio.gather(*(store.read_work(record.ref) for record in batch))
            for record, (_, work) in zip(batch, works, strict=True):
                yield record, work


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
    """Count the open tasks of each version, of one tool or of all. This reads every journal."""
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
