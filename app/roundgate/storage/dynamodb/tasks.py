"""Tasks in DynamoDB: each task is one root item, changed by conditional writes.

`roundgate.storage.dynamodb.table` has the layout of the table, `….root_items` the attributes of a
root item. An operator's search reads parts in turn:

    working, input_required     each shard of the index `due`, or of one owner the index `owned`
    failed, cancelled           each shard of the index `ended`; ended by a failed step counts as failed
    completed                   the table itself, root item by root item

A cursor has the number of the part and the keys of the last row that was read.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from roundgate import json
from roundgate.errors import ParseError, Unavailable
from roundgate.protocol import OPEN, Status
from roundgate.storage.dynamodb import root_items
from roundgate.storage.dynamodb.table import (
    DUE,
    ENDED,
    OWNED,
    ROOT,
    Applied,
    ConditionFailed,
    Draft,
    Kept,
    Row,
    RowChange,
    RowPage,
    Table,
    row_names,
)
from roundgate.storage.tasks import (
    ANY,
    STATUS_OF,
    Found,
    Lost,
    OpenTask,
    Put,
    TaskRecord,
    TaskRef,
    Wanted,
    Work,
)
from roundgate.storage.tasks import RecordChange as TaskChange

EXACTLY: Final = 200
"""The maximum `limit` of a scan for which each part of the index is read up to `limit`, so that the
result is exact."""

_READ_TRIES: Final = 5
_TOLD: Final = "S#told"
"""The key of the row that holds the latest report of a sweeper's clock."""
_CHANGES_TOO_FAST: Final = "The task changes faster than it can be read"
_IS_AS_SEEN: Final = "#version = :seen"
"""The condition of every write to a root item: the item is unchanged since it was read."""


class DynamoDbTasks:
    """A `TaskStore` in a DynamoDB table. New tasks are spread over `shards` parts of the index of
    due tasks."""

    def __init__(self, table: Table, shards: int = root_items.SHARDS) -> None:
        self._table = table
        self._shards = shards

    async def insert(self, record: TaskRecord, puts: Sequence[Put]) -> bool:
        pk = root_items.partition_key(record.ref)
        draft = self._table.draft(pk, root_items.value_ttl_seconds(record.expires_ms))
        row = root_items.new_root_item(record, puts, draft, self._shards)
        await self._table.put(draft)
        match await self._table.put_new(row):
            case ConditionFailed(row=root):
                await self._drop_draft(pk, draft, root)
                return False
        return True

    async def read(self, ref: TaskRef) -> TaskRecord | None:
        for _ in range(_READ_TRIES):
            rows = await self._table.read(root_items.partition_key(ref))
            root = rows.get(ROOT)
            if root is None:
                return None
            if all(
                name in rows for stored in root_items.refs_shown(root) for name in row_names(stored)
            ):
                return root_items.make_record(root, rows)
            # a question was answered and its rows were deleted during the read
        raise Unavailable(_CHANGES_TOO_FAST)

    async def head(self, ref: TaskRef) -> TaskRecord | None:
        root = await self._table.root(root_items.partition_key(ref))
        return None if root is None else root_items.make_record(root)

    async def heads(
        self, refs: Sequence[TaskRef], *, may_lag: bool = False
    ) -> Mapping[TaskRef, TaskRecord]:
        """Return many records, as `TaskStore.heads` does. Records that may lag cost half."""
        pks = [root_items.partition_key(ref) for ref in dict.fromkeys(refs)]
        roots = await self._table.roots(pks, consistent=not may_lag)
        return {record.ref: record for record in map(root_items.make_record, roots.values())}

    async def read_work(self, ref: TaskRef) -> tuple[TaskRecord | None, Work | None]:
        pk = root_items.partition_key(ref)
        for _ in range(_READ_TRIES):
            root = await self._table.root(pk)
            if root is None:
                return None, None
            refs = root_items.refs_for_work(root)
            rows = await self._table.named(pk, refs)
            if all(name in rows for stored in refs for name in row_names(stored)):
                notes = root_items.make_notes(root, rows)
                return root_items.make_record(root, before=notes), root_items.make_work(root, rows)
            # a worker has made progress, and the older rows were deleted
        raise Unavailable(_CHANGES_TOO_FAST)

    async def swap(self, change: TaskChange) -> TaskRecord | Lost:
        before, pk = change.before, root_items.partition_key(change.before.ref)
        ttl_s = root_items.value_ttl_seconds(change.after.expires_ms)
        draft = self._table.draft(pk, ttl_s)
        step = root_items.step(change, draft)
        await self._table.put(draft)
        if ttl_s > root_items.value_ttl_seconds(before.expires_ms):
            await self._table.prolong(pk, _live(step.notes.root) - {*draft.names}, ttl_s)
        write = RowChange(step.sets, [_IS_AS_SEEN], {":seen": before.version})
        match await self._table.update(pk, write):
            case ConditionFailed(row=root):
                await self._drop_draft(pk, draft, root)
                return Lost(
                    None if root is None else root_items.make_record(root, before=before.notes)
                )
            case Applied(version=version):
                await self._drop(pk, step.superseded)
        after = change.record(version=version, notes=step.notes)
        if after.fence > before.fence and before.lease_until_ms > 0:
            await self._tidy(pk, step.notes.root)
        return after

    async def _tidy(self, pk: str, root: Row) -> None:
        """Delete the rows of a worker that died before it wrote the root item. Otherwise each
        `tasks/get` would read them."""
        live = _row_names(root_items.refs_shown(root))
        names = [name for name in await self._table.names_shown(pk) if name not in live]
        if names:
            await self._table.drop(pk, names)

    async def _drop(self, pk: str, stored_values: Sequence[Kept]) -> None:
        names = [name for value in stored_values for name in row_names(value)]
        if names:
            await self._table.drop(pk, names)

    async def _drop_draft(self, pk: str, draft: Draft, root: Row | None) -> None:
        """Delete the rows of a write that did not happen. If botocore repeated a write that had
        happened, keep the rows that the root item refers to."""
        live = set() if root is None else _live(root)
        names = [name for name in draft.names if name not in live]
        if names:
            await self._table.drop(pk, names)

    async def delete(self, record: TaskRecord) -> bool:
        pk, values = root_items.partition_key(record.ref), {":seen": record.version}
        return await self._table.delete(pk, [_IS_AS_SEEN], values)

    # indexes

    @property
    def shards(self) -> int:
        """Return the number of shards, as `TaskStore.shards` does. A table may still have tasks
        from the time when it had the default number."""
        return max(self._shards, root_items.SHARDS)

    async def scan(
        self, until_ms: int | None, limit: int, shard: int | None = None
    ) -> Sequence[OpenTask]:
        if shard is not None:
            rows = await self._table.index(str(shard), until_ms, limit)
            return [root_items.make_open_task(row) for row in rows]
        if until_ms is None and limit > EXACTLY:
            return await self._sample(limit)
        # Exact for small limits. For large ones each part of the index returns twice its share, so
        # a result below the limit is complete unless the parts are very uneven.
        share = limit if limit <= EXACTLY else -(-2 * limit // self.shards)
        parts = (self._table.index(str(part), until_ms, share) for part in range(self.shards))
        rows = [row for rows in await asyncio.gather(*parts) for row in rows]
        return sorted(map(root_items.make_open_task, rows), key=lambda task: task.due_ms)[:limit]

    async def _sample(self, limit: int) -> Sequence[OpenTask]:
        """Return tasks from one part of the index after the other: all of them, or `limit`."""
        rows: list[Row] = []
        for part in range(self.shards):
            if len(rows) < limit:
                rows += await self._table.index(str(part), None, limit - len(rows))
        return sorted(map(root_items.make_open_task, rows), key=lambda task: task.due_ms)

    async def count_open(self, owner: str, up_to: int) -> int:
        return await self._table.count(owner, up_to)

    async def find(
        self, wanted: Wanted = ANY, limit: int = 100, cursor: str | None = None
    ) -> Found:
        parts = search_parts(self._table, wanted, self.shards)
        return await Search(self._table, parts, wanted, cursor).run(limit)

    async def forget(self, now_ms: int) -> int:
        """Return 0: DynamoDB deletes expired rows by itself (`ttl`)."""
        return 0

    # sweepers

    async def tell_time(self, report: bytes) -> bytes | None:
        change = RowChange({"said": report}, when=[], values={})
        match await self._table.update(_TOLD, change, returns="ALL_OLD"):
            case Applied(row=dict() as before):
                previous: bytes | None = before.get("said")
                return previous
        return None

    async def aclose(self) -> None:
        await self._table.aclose()


def _live(root: Row) -> set[str]:
    """Return the names of the rows that a root item refers to."""
    return _row_names([*root_items.refs_shown(root), *root_items.refs_for_work(root)])


def _row_names(stored_values: Sequence[Kept]) -> set[str]:
    return {name for stored in stored_values for name in row_names(stored)}


# an operator's search

LOOKS: Final = 1_000
"""The maximum number of rows that one call of `find` reads."""

_KEYS: Final = ("pk", "sk")
_UNKNOWN: Final = "unknown cursor; use the cursor of an earlier page"


class Part(Struct, frozen=True):
    """A part of the table that a search reads page by page."""

    page: Callable[[Row | None, int], Awaitable[RowPage]]
    keys: Sequence[str]
    """The attributes that identify a row of the part."""
    has_roots: bool = False
    """Whether the rows are root items themselves."""


Parts: TypeAlias = Sequence[Part]


def search_parts(table: Table, wanted: Wanted, shards: int) -> Parts:
    """Return the parts of the table that can have matching tasks."""
    statuses = frozenset(Status) if wanted.statuses is None else wanted.statuses
    if wanted.endings is not None:
        statuses &= frozenset(map(STATUS_OF.__getitem__, wanted.endings))
    if Status.COMPLETED in statuses:
        return [Part(table.page_of_roots, _KEYS, has_roots=True)]
    parts: list[Part] = []
    if statuses & OPEN and wanted.owner is not None:
        parts.append(_of_index(table, OWNED, ("owner",), wanted.owner))
    elif statuses & OPEN:
        parts += [_of_index(table, DUE, ("shard", "due_ms"), f"{n}") for n in range(shards)]
    if statuses & root_items.LOOKED_FOR:
        parts += [_of_index(table, ENDED, ("ended", "updated_ms"), f"{n}") for n in range(shards)]
    return parts


def _of_index(table: Table, index: str, keys: tuple[str, ...], value: str) -> Part:
    return Part(
        lambda start, limit: table.page_of_index(index, keys[0], value, start, limit),
        (*keys, *_KEYS),
    )


class Search:
    """One call of `find`.

    Args:
        table: the table to search.
        parts: the parts of the table, searched one after the other.
        wanted: the filter.
        cursor: the position after an earlier call, or `None`.

    Raises:
        ValueError: the cursor does not belong to this search.
    """

    def __init__(self, table: Table, parts: Parts, wanted: Wanted, cursor: str | None) -> None:
        self._table = table
        self._parts = parts
        self._wanted = wanted
        self._number, self._start = (0, None) if cursor is None else _place(cursor, parts)

    async def run(self, limit: int) -> Found:
        """Return up to `limit` matching records from a bounded number of rows."""
        records: list[TaskRecord] = []
        looks = LOOKS
        while self._number < len(self._parts) and len(records) < limit and looks > 0:
            part = self._parts[self._number]
            size = looks if part.has_roots else min(looks, limit - len(records))
            try:
                page = await part.page(self._start, size)
            except ValueError:
                raise ValueError(_UNKNOWN) from None
            looks -= max(size, 1)
            taken, last = self._taken(
                part, page, await self._roots(part, page), limit - len(records)
            )
            records += taken
            self._number, self._start = (self._number, last) if last else (self._number + 1, None)
        return Found(records, self._cursor())

    def _taken(
        self, part: Part, page: RowPage, roots: dict[str, Row], room: int
    ) -> tuple[list[TaskRecord], Row | None]:
        """Return up to `room` matching records of a page, and the keys after which to continue;
        `None` at the end."""
        taken: list[TaskRecord] = []
        for row in page.rows:
            root = roots.get(row["pk"])
            record = None if root is None else root_items.make_record(root)
            if record is not None and self._wanted.takes(record):
                taken.append(record)
            if len(taken) == room and row is not page.rows[-1]:
                return taken, {name: row[name] for name in part.keys}
        return taken, page.last

    async def _roots(self, part: Part, page: RowPage) -> dict[str, Row]:
        if part.has_roots:
            return {row["pk"]: row for row in page.rows}
        pks = [row["pk"] for row in page.rows if self._may_be_wanted(row["pk"])]
        return await self._table.roots(pks) if pks else {}

    def _may_be_wanted(self, pk: str) -> bool:
        owner = self._wanted.owner
        return owner is None or pk.startswith(root_items.partition_key(TaskRef(owner, "")))

    def _cursor(self) -> str | None:
        if self._number == len(self._parts):
            return None
        place = json.encode([self._number, self._start])
        return base64.urlsafe_b64encode(place).decode().rstrip("=")


def _place(cursor: str, parts: Parts) -> tuple[int, Row | None]:
    try:
        match json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))):
            case [int(number), None] if 0 <= number < len(parts):
                return number, None
            case [int(number), dict(start)] if 0 <= number < len(parts):
                is_typed = all(isinstance(value, str | int) for value in start.values())
                if start.keys() == set(parts[number].keys) and is_typed:
                    return number, start
    except (ValueError, ParseError):
        pass
    raise ValueError(_UNKNOWN)
