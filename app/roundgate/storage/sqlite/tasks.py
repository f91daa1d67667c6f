"""Tasks in SQLite: each is a narrow row that every write changes, and values beside it that are
written once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from roundgate.protocol import Status
from roundgate.storage import columns as sql
from roundgate.storage import tasks
from roundgate.storage.sqlite.database import SqliteDatabase, expired_rows, snapshot

if TYPE_CHECKING:
    import sqlite3

SHARDS: Final = 1
"""The number of parts of the index of due tasks. A file has one writer, so a second sweeper would
only delay the first."""

_DEFAULTS: Final = (None, 0)
"""The default values of columns, omitted from an insert."""
_WORK: Final = f"select kind, name, value from payloads where task = ? and kind in {sql.FOR_WORK} order by kind, n"
_INDEX_OF: Final = {
    None: "",
    sql.IS_OPEN: "indexed by tasks_by_due",
    sql.HAS_ENDED: "indexed by tasks_ended",
}
"""The index to use for each condition."""
_BY_REF: Final = f"select {sql.HEAD} from tasks where owner = ? and id = ?"


_IS_AS_SEEN: Final = "n = ? and version = ? and owner = ? and id = ?"
"""The condition of every write to a row: the row is unchanged since it was read, and its number
still belongs to the same task."""


class SqliteTasks:
    """A `TaskStore` in a SQLite file."""

    def __init__(self, database: SqliteDatabase, shards: int = SHARDS) -> None:
        self._database = database
        self._shards = shards

    async def insert(self, record: tasks.TaskRecord, puts: Sequence[tasks.Put]) -> bool:
        columns = {name: sql.column(getattr(record, name)) for name in sql.FIELDS}
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

    async def read(self, ref: tasks.TaskRef) -> tasks.TaskRecord | None:
        def look(db: sqlite3.Connection) -> tasks.TaskRecord | None:
            with snapshot(db):  # the row and its values
                record = _record(db, ref)
                return None if record is None else _shown(db, record)

        return await self._database.read(look)

    async def head(self, ref: tasks.TaskRef) -> tasks.TaskRecord | None:
        return await self._database.read(lambda db: _record(db, ref))

    async def heads(
        self, refs: Sequence[tasks.TaskRef], *, may_lag: bool = False
    ) -> Mapping[tasks.TaskRef, tasks.TaskRecord]:
        """Return many records, as `TaskStore.heads` does, always up to date."""

        def look(db: sqlite3.Connection) -> Mapping[tasks.TaskRef, tasks.TaskRecord]:
            return {ref: record for ref in refs if (record := _record(db, ref)) is not None}

        return await self._database.read(look)

    async def read_work(
        self, ref: tasks.TaskRef
    ) -> tuple[tasks.TaskRecord | None, tasks.Work | None]:
        """Return a record and its work, as `TaskStore.read_work` does. A file keeps the work of
        every task."""

        def look(db: sqlite3.Connection) -> tuple[tasks.TaskRecord | None, tasks.Work | None]:
            with snapshot(db):
                record = _record(db, ref)
                return record, None if record is None else _work(db, record)

        return await self._database.read(look)

    async def swap(self, change: tasks.RecordChange) -> tasks.TaskRecord | tasks.Lost:
        before, version = change.before, change.before.version + 1
        columns = {name: sql.column(value) for name, value in change.changes.items()}
        assignments = "".join(f", {name} = ?" for name in columns)
        # the first version is random, so a row that was deleted and created again differs
        update = f"update tasks set version = ?{assignments} where {_IS_AS_SEEN}"
        facts = (version, *columns.values(), *_as_seen(before))

        def write(db: sqlite3.Connection) -> tasks.TaskRecord | tasks.Lost | None:
            if db.execute(update, facts).rowcount == 0:
                return tasks.Lost(_record(db, before.ref))
            _drop(db, before.notes, change.drops)
            _put(db, before.notes, change.puts, sql.REPLACED)
            return None

        return await self._database.write(write) or change.record(version=version)

    async def delete(self, record: tasks.TaskRecord) -> bool:
        statement, facts = f"delete from tasks where {_IS_AS_SEEN}", _as_seen(record)
        return await self._database.write(lambda db: db.execute(statement, facts).rowcount == 1)

    @property
    def shards(self) -> int:
        return self._shards

    async def scan(
        self, until_ms: int | None, limit: int, shard: int | None = None
    ) -> Sequence[tasks.OpenTask]:
        """Return due tasks, as `TaskStore.scan` does. The result is exact."""
        due = "due_ms is not null" if until_ms is None else "due_ms <= ?"
        part = "" if shard is None else f" and n % {self._shards} = {shard}"
        select = f"select {sql.OPEN_TASK} from tasks where {due}{part} order by due_ms limit ?"
        facts = (limit,) if until_ms is None else (until_ms, limit)
        return await self._database.read(
            lambda db: [sql.open_task_from_row(row) for row in db.execute(select, facts)]
        )

    async def count_open(self, owner: str, up_to: int) -> int:
        """Count open tasks, as `TaskStore.count_open` does. The result is exact."""
        of_owner = f"select 1 from tasks where owner = ? and due_ms is not null and status in ({sql.OPEN_STATUSES})"
        select = f"select count(*) from ({of_owner} limit ?)"
        count: int = await self._database.read(
            lambda db: db.execute(select, (owner, up_to)).fetchone()[0]
        )
        return count

    async def find(
        self, wanted: tasks.Wanted = tasks.ANY, limit: int = 100, cursor: str | None = None
    ) -> tasks.Found:
        """Search tasks, as `TaskStore.find` does, the newest first. The cursor is the number of the
        last row."""
        statuses, endings = sorted(wanted.statuses or ()), sorted(wanted.endings or ())
        conditions = {
            "n < ?": sql.number_from_cursor(cursor),
            "owner = ?": wanted.owner,
            "tool = ?": wanted.tool,
            "created_ms < ?": wanted.created_before_ms,
        }
        filters = {condition: value for condition, value in conditions.items() if value is not None}
        where = [*filters, *_among(sql.SHOWN, statuses), *_among("ending", endings)]
        of_index = sql.index_condition(wanted)
        where += [of_index] if of_index else []
        select = (
            f"select {sql.HEAD} from tasks {_INDEX_OF[of_index]} where {' and '.join(where) or 'true'}"
            " order by n desc limit ?"
        )

        def look(db: sqlite3.Connection) -> tasks.Found:
            facts = (*filters.values(), *statuses, *endings, limit)
            rows = db.execute(select, facts).fetchall()
            records = [sql.record_from_row(row) for row in rows]
            return tasks.Found(records, str(rows[-1][0]) if len(rows) == limit else None)

        return await self._database.read(look)

    async def forget(self, now_ms: int) -> int:
        size = "(select sum(length(value)) from payloads where task = tasks.n)"

        def look(db: sqlite3.Connection) -> list[tuple[int]]:
            until_ms = now_ms - tasks.FORGET_AFTER_MS + 1
            return expired_rows(db, "tasks", size, "expires_ms", until_ms) or expired_rows(
                db, "tasks indexed by tasks_hidden", size, "expires_ms", now_ms + 1, sql.IS_HIDDEN
            )

        rows = await self._database.read(look)
        if rows:  # usually there are none, and no lock is needed
            await self._database.write(
                lambda db: db.executemany("delete from tasks where n = ?", rows)
            )
        return len(rows)

    async def tell_time(self, report: bytes) -> bytes | None:
        def write(db: sqlite3.Connection) -> bytes | None:
            before = db.execute("select said from told").fetchone()
            db.execute("insert or replace into told values (1, ?)", (report,))
            return None if before is None else before[0]

        return await self._database.write(write, durable=False)

    async def aclose(self) -> None:
        await self._database.aclose()


def _among(what: str, values: Sequence[str]) -> list[str]:
    """Return the condition that an expression is one of `values`; no condition without values."""
    return [f"{what} in ({', '.join('?' * len(values))})"] if values else []


def _record(db: sqlite3.Connection, ref: tasks.TaskRef) -> tasks.TaskRecord | None:
    row = db.execute(_BY_REF, (ref.owner, ref.id)).fetchone()
    return None if row is None else sql.record_from_row(row)


def _as_seen(record: tasks.TaskRecord) -> tuple[Any, ...]:
    return record.notes, record.version, record.ref.owner, record.ref.id


def _shown(db: sqlite3.Connection, record: tasks.TaskRecord) -> tasks.TaskRecord:
    if record.status is Status.INPUT_REQUIRED:
        return replace(record, requests=dict(_values(db, record.notes, tasks.RecordPart.REQUEST)))
    if record.is_open:
        return record
    outcomes = [value for _, value in _values(db, record.notes, tasks.RecordPart.OUTCOME)]
    return replace(record, outcome=outcomes[0] if outcomes else None)


def _work(db: sqlite3.Connection, record: tasks.TaskRecord) -> tasks.Work:
    return sql.work_from_values(db.execute(_WORK, (record.notes,)))


def _values(db: sqlite3.Connection, task: int, part: tasks.RecordPart) -> list[tuple[str, bytes]]:
    """Return the names and values of a part, in the order in which they were put."""
    return db.execute(
        "select name, value from payloads where task = ? and kind = ? order by n",
        (task, part.value),
    ).fetchall()


def _put(
    db: sqlite3.Connection,
    task: int | None,
    puts: Sequence[tasks.Put],
    replaced: Collection[tasks.RecordPart] = (),
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


def _drop(db: sqlite3.Connection, task: int, drops: Sequence[tasks.Drop]) -> None:
    for drop in drops:
        named = "" if drop.name is None else " and name = ?"
        facts = (task, drop.part.value) if drop.name is None else (task, drop.part.value, drop.name)
        db.execute(f"delete from payloads where task = ? and kind = ?{named}", facts)
