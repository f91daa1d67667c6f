"""Tasks in SQLite: a narrow row that every write touches, and values beside it that are written
once."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from roundgate.protocol import OPEN, Status
from roundgate.storage.sqlite.database import Database, expired_rows
from roundgate.storage.sqlite.writing import snapshot
from roundgate.storage.tasks import (
    ANY,
    FORGET_AFTER_MS,
    SHARD_AT_MOST_MS,
    UNHAPPY,
    Change,
    Drop,
    Ending,
    Found,
    Lost,
    OpenTask,
    Part,
    Put,
    TaskRecord,
    TaskRef,
    Wanted,
    Work,
)

if TYPE_CHECKING:
    import sqlite3

SHARDS: Final = 1
"""Parts of the index of due tasks. A file has one writer, so a second sweeper could only be
in the way of the first."""

_HEAD: Final = (
    "n, version, owner, id, tool, status, status_message, created_ms, updated_ms, expires_ms, revision,"
    " fence, lease_until_ms, wake_ms, due_ms, attempts, deaths, suspect, alone, declined_ms, journal_version,"
    " resends, noted, unsent, cleans_up, ending, failed_steps, retried_as, call_id, asked"
)
_FIELDS: Final = tuple(_HEAD.replace(" ", "").split(","))[4:]
"""The columns that are fields of a record, in the order of `_HEAD`."""
_FLAGS: Final = frozenset({"suspect", "alone", "unsent", "cleans_up"})
_LISTS: Final = frozenset({"failed_steps", "asked"})
_REPLACED: Final = frozenset({Part.CALL, Part.STATE})
"""The parts that every task has, of which a put replaces the value before."""
_ENDED: Final = frozenset({Status.FAILED, Status.CANCELLED})
"""The statuses in the index `tasks_ended`, as an operator sees them."""
_DEFAULTS: Final = (None, 0)
"""Values that a new row has without being told."""
_OF_ENDED: Final = "ending in ('step_failed', 'error', 'cancelled')"
"""The condition of the index `tasks_ended`, which queries must repeat word for word."""
_SHOWN: Final = "case ending when 'step_failed' then 'failed' else status end"
"""The SQL expression for `TaskRecord.shown_status`."""
_OPEN_TASK: Final = "owner, id, tool, status, created_ms, expires_ms, due_ms, resends, unsent"
_FOR_WORK: Final = ("answer", "call", "journal", "state")
_WORK: Final = f"select kind, name, value from payloads where task = ? and kind in {_FOR_WORK} order by kind, n"
_OPEN: Final = ", ".join(f"'{status.value}'" for status in sorted(OPEN))
_BY_REF: Final = f"select {_HEAD} from tasks where owner = ? and id = ?"


_IS_AS_SEEN: Final = "n = ? and version = ? and owner = ? and id = ?"
"""The condition of every write to a row: nothing was written to it since it was read, and its
number is not another task's by now."""


class SqliteTasks:
    """The `TaskStore`, see there."""

    def __init__(self, database: Database, shards: int = SHARDS) -> None:
        self._database = database
        self._shards = shards

    async def insert(self, record: TaskRecord, puts: Sequence[Put]) -> bool:
        """See `TaskStore`."""
        columns = {name: _column(getattr(record, name)) for name in _FIELDS}
        values = {name: value for name, value in columns.items() if value not in _DEFAULTS}
        values |= {"owner": record.ref.owner, "id": record.ref.id}
        places = ", ".join("?" * len(values))
        insert = f"insert into tasks ({', '.join(values)}) values ({places}) on conflict do nothing"

        def write(db: sqlite3.Connection) -> bool:
            row = db.execute(insert, tuple(values.values()))
            if row.rowcount == 1:
                _put(db, row.lastrowid, puts)
            return row.rowcount == 1

        return await self._database.write(write)

    async def read(self, ref: TaskRef) -> TaskRecord | None:
        """See `TaskStore`."""

        def look(db: sqlite3.Connection) -> TaskRecord | None:
            with snapshot(db):  # the row and its values
                record = _record(db, ref)
                return None if record is None else _shown(db, record)

        return await self._database.read(look)

    async def head(self, ref: TaskRef) -> TaskRecord | None:
        """See `TaskStore`."""
        return await self._database.read(lambda db: _record(db, ref))

    async def heads(self, refs: Sequence[TaskRef]) -> Mapping[TaskRef, TaskRecord]:
        """See `TaskStore`."""

        def look(db: sqlite3.Connection) -> Mapping[TaskRef, TaskRecord]:
            return {ref: record for ref in refs if (record := _record(db, ref)) is not None}

        return await self._database.read(look)

    async def read_work(self, ref: TaskRef) -> tuple[TaskRecord | None, Work | None]:
        """See `TaskStore`. A file keeps every task whole."""

        def look(db: sqlite3.Connection) -> tuple[TaskRecord | None, Work | None]:
            with snapshot(db):
                record = _record(db, ref)
                return record, None if record is None else _work(db, record)

        return await self._database.read(look)

    async def swap(self, change: Change) -> TaskRecord | Lost:
        """See `TaskStore`."""
        before, version = change.before, change.before.version + 1
        columns = {name: _column(value) for name, value in change.changes.items()}
        assignments = "".join(f", {name} = ?" for name in columns)
        # the first version is drawn, so a row that was deleted and made again is another
        update = f"update tasks set version = ?{assignments} where {_IS_AS_SEEN}"
        facts = (version, *columns.values(), *_as_seen(before))

        def write(db: sqlite3.Connection) -> TaskRecord | Lost | None:
            if db.execute(update, facts).rowcount == 0:
                return Lost(_record(db, before.ref))
            _drop(db, before.notes, change.drops)
            _put(db, before.notes, change.puts, _REPLACED)
            return None

        return await self._database.write(write) or change.record(version=version)

    async def delete(self, record: TaskRecord) -> bool:
        """See `TaskStore`."""
        statement, facts = f"delete from tasks where {_IS_AS_SEEN}", _as_seen(record)
        return await self._database.write(lambda db: db.execute(statement, facts).rowcount == 1)

    @property
    def shards(self) -> int:
        """See `TaskStore`."""
        return self._shards

    async def scan(
        self, until_ms: int | None, limit: int, shard: int | None = None
    ) -> Sequence[OpenTask]:
        """See `TaskStore`. Exact."""
        due = "due_ms is not null" if until_ms is None else "due_ms <= ?"
        part = "" if shard is None else f" and n % {self._shards} = {shard}"
        select = f"select {_OPEN_TASK} from tasks where {due}{part} order by due_ms limit ?"
        facts = (limit,) if until_ms is None else (until_ms, limit)
        return await self._database.read(
            lambda db: [_open_task(row) for row in db.execute(select, facts)]
        )

    async def count_open(self, owner: str, up_to: int) -> int:
        """See `TaskStore`. Exact."""
        of_owner = (
            f"select 1 from tasks where owner = ? and due_ms is not null and status in ({_OPEN})"
        )
        select = f"select count(*) from ({of_owner} limit ?)"
        count: int = await self._database.read(
            lambda db: db.execute(select, (owner, up_to)).fetchone()[0]
        )
        return count

    async def find(
        self, wanted: Wanted = ANY, limit: int = 100, cursor: str | None = None
    ) -> Found:
        """See `TaskStore`. The newest first; the cursor is the number of the last row."""
        statuses, endings = sorted(wanted.statuses or ()), sorted(wanted.endings or ())
        conditions = {
            "n < ?": _number(cursor),
            "owner = ?": wanted.owner,
            "tool = ?": wanted.tool,
            "created_ms < ?": wanted.created_before_ms,
        }
        asked = {condition: value for condition, value in conditions.items() if value is not None}
        where = [*asked, *_among(_SHOWN, statuses), *_among("ending", endings)]
        index, of_index = _index_of(wanted)
        select = (
            f"select {_HEAD} from tasks {index} where {' and '.join([*where, *of_index]) or 'true'}"
            " order by n desc limit ?"
        )

        def look(db: sqlite3.Connection) -> Found:
            facts = (*asked.values(), *statuses, *endings, limit)
            rows = db.execute(select, facts).fetchall()
            records = [_to_record(row) for row in rows]
            return Found(records, str(rows[-1][0]) if len(rows) == limit else None)

        return await self._database.read(look)

    async def forget(self, now_ms: int) -> int:
        """See `TaskStore`."""
        size = "(select sum(length(value)) from payloads where task = tasks.n)"
        until_ms = now_ms - FORGET_AFTER_MS + 1
        rows = await self._database.read(
            lambda db: expired_rows(db, "tasks", size, "expires_ms", until_ms)
        )
        if rows:  # most of the time there is nothing, and no lock to be had for it
            await self._database.write(
                lambda db: db.executemany("delete from tasks where n = ?", rows)
            )
        return len(rows)

    async def take_shard(self, shard: int, sweeper: str, now_ms: int, until_ms: int) -> bool:
        """See `TaskStore`."""
        latest_ms = now_ms + SHARD_AT_MOST_MS
        held = (
            "select 1 from sweepers where shard = ? and sweeper <> ? and until_ms > ?"
            " and until_ms <= ?"
        )
        if await self._database.read(
            lambda db: db.execute(held, (shard, sweeper, now_ms, latest_ms)).fetchone()
        ):
            return False  # without a lock that whoever has it would have to wait for
        statement = (
            "insert into sweepers (shard, sweeper, until_ms) values (?, ?, ?) on conflict (shard) do update"
            " set sweeper = excluded.sweeper, until_ms = excluded.until_ms"
            " where sweepers.until_ms <= ? or sweepers.until_ms > ?"
            " or sweepers.sweeper = excluded.sweeper"
        )
        facts = (shard, sweeper, until_ms, now_ms, latest_ms)
        return await self._database.write(lambda db: db.execute(statement, facts).rowcount == 1)

    async def tell_time(self, report: bytes) -> bytes | None:
        """See `TaskStore`."""

        def write(db: sqlite3.Connection) -> bytes | None:
            before = db.execute("select said from told").fetchone()
            db.execute("insert or replace into told values (1, ?)", (report,))
            return None if before is None else before[0]

        return await self._database.write(write, durable=False)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._database.aclose()


def _among(what: str, values: Sequence[str]) -> list[str]:
    """Return the condition that an expression is one of `values`; empty without values."""
    return [f"{what} in ({', '.join('?' * len(values))})"] if values else []


def _index_of(wanted: Wanted) -> tuple[str, Sequence[str]]:
    """Which index has the tasks that are looked for, and its condition. Those of one owner
    have one anyway; of all that are completed, and of all of a tool, there is none: they
    are most of the table."""
    if wanted.owner is not None:
        return "", ()
    if wanted.statuses and wanted.statuses <= OPEN:
        return "indexed by tasks_by_due", ("due_ms is not null",)
    if (wanted.statuses and wanted.statuses <= _ENDED) or (
        wanted.endings and wanted.endings <= UNHAPPY
    ):
        return "indexed by tasks_ended", (_OF_ENDED,)
    return "", ()


def _number(cursor: str | None) -> int | None:
    """Raises:
    ValueError: it is no cursor.
    """
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):  # SQLite's integers
        raise ValueError("it is not one that a list has shown")
    return int(cursor)


def _record(db: sqlite3.Connection, ref: TaskRef) -> TaskRecord | None:
    row = db.execute(_BY_REF, (ref.owner, ref.id)).fetchone()
    return None if row is None else _to_record(row)


def _to_record(row: tuple[Any, ...]) -> TaskRecord:
    n, version, owner, task_id, *rest = row
    values = dict(zip(_FIELDS, rest, strict=True))
    for name in _FLAGS:
        values[name] = bool(values[name])
    for name in _LISTS:
        values[name] = tuple(json.loads(values[name])) if values[name] else ()
    values["status"] = Status(values["status"])
    values["ending"] = None if values["ending"] is None else Ending(values["ending"])
    return TaskRecord(ref=TaskRef(owner, task_id), version=version, notes=n, **values)


def _as_seen(record: TaskRecord) -> tuple[Any, ...]:
    return record.notes, record.version, record.ref.owner, record.ref.id


def _column(value: Any) -> Any:
    """Return the value of a field as its column has it."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return json.dumps(value) if value else None
    return value


def _shown(db: sqlite3.Connection, record: TaskRecord) -> TaskRecord:
    """Return a record with the values that its client is shown."""
    if record.status is Status.INPUT_REQUIRED:
        return replace(record, requests=dict(_values(db, record.notes, Part.REQUEST)))
    if record.is_open:
        return record
    outcomes = [value for _, value in _values(db, record.notes, Part.OUTCOME)]
    return replace(record, outcome=outcomes[0] if outcomes else None)


def _work(db: sqlite3.Connection, record: TaskRecord) -> Work:
    kept: dict[str, list[tuple[str, bytes]]] = {kind: [] for kind in _FOR_WORK}
    for kind, name, value in db.execute(_WORK, (record.notes,)):
        kept[kind].append((name, value))
    ((_, call),), ((_, state),) = kept["call"], kept["state"]
    return Work(call, [entry for _, entry in kept["journal"]], state, dict(kept["answer"]))


def _values(db: sqlite3.Connection, task: int, part: Part) -> list[tuple[str, bytes]]:
    """Return the name and the value of each, in the order in which they were put."""
    return db.execute(
        "select name, value from payloads where task = ? and kind = ? order by n",
        (task, part.value),
    ).fetchall()


def _put(
    db: sqlite3.Connection,
    task: int | None,
    puts: Sequence[Put],
    replaced: Collection[Part] = (),
) -> None:
    rows = []
    for put in puts:
        if put.part in replaced:
            statement = "update payloads set value = ? where task = ? and kind = ?"
            db.execute(statement, (put.value, task, put.part.value))
        else:
            rows.append((task, put.part.value, put.name, put.value))
    if rows:
        db.executemany("insert into payloads (task, kind, name, value) values (?, ?, ?, ?)", rows)


def _drop(db: sqlite3.Connection, task: int, drops: Sequence[Drop]) -> None:
    for drop in drops:
        named = "" if drop.name is None else " and name = ?"
        facts = (task, drop.part.value) if drop.name is None else (task, drop.part.value, drop.name)
        db.execute(f"delete from payloads where task = ? and kind = ?{named}", facts)


def _open_task(row: tuple[Any, ...]) -> OpenTask:
    owner, task_id, tool, status, created_ms, expires_ms, due_ms, resends, unsent = row
    ref = TaskRef(owner, task_id)
    return OpenTask(
        ref, tool, Status(status), created_ms, expires_ms, due_ms, resends, bool(unsent)
    )
