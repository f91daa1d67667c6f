"""Tasks in PostgreSQL: each is a narrow row that every write changes, and values beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from roundgate.protocol import Status
from roundgate.storage import columns as sql
from roundgate.storage import tasks
from roundgate.storage.postgres.database import PostgresDatabase, deletion

SHARDS: Final = 8
"""The number of parts of the index of due tasks, fixed by `tasks_by_due`."""
_ALWAYS_MS: Final = 2**63 - 1
_BY_REF: Final = "from roundgate.tasks {} where owner = $1 and id = $2"
_HEAD: Final = f"select {sql.HEAD} {_BY_REF.format('')}"
_VALUES: Final = """left join lateral (
    select array_agg(kind order by number), array_agg(name order by number), array_agg(value order by number)
    from roundgate.payloads where task = n and kind {}
) as beside (kinds, names, parts) on true"""
_SHOWN_KIND: Final = (
    "= case status when 'input_required' then 'request' when 'working' then '' else 'outcome' end"
)
_READ: Final = f"select {sql.HEAD}, kinds, names, parts {_BY_REF.format(_VALUES)}"
_PUT: Final = """, kept as (
    insert into roundgate.payloads (task, kind, name, value) select n, p.kind, p.name, p.value
    from written, unnest({}::text[], {}::bytea[], {}::bytea[]) with ordinality as p (kind, name, value, place)
    order by place
)"""
_DROP: Final = """, dropped as (
    delete from roundgate.payloads as p
    using written, unnest({}::text[], {}::bytea[]) as d (kind, name)
    where p.task = written.n and p.kind = d.kind and (d.name is null or p.name = d.name)
)"""
_SIZE: Final = (
    "coalesce((select sum(octet_length(value)) from roundgate.payloads where task = n), 0)"
)
_FORGET: Final = deletion("tasks", "n", "expires_ms", _SIZE)
_FORGET_HIDDEN: Final = deletion("tasks", "n", "expires_ms", _SIZE, sql.IS_HIDDEN)
_COLUMNS: Final = ("owner", "id", *sql.FIELDS)
_INSERT: Final = (
    f"with written as (insert into roundgate.tasks ({', '.join(_COLUMNS)})"
    f" values ({', '.join(f'${n + 1}' for n in range(len(_COLUMNS)))})"
    " on conflict (owner, id) do nothing returning n)"
)


class PostgresTasks:
    """A `TaskStore` in a PostgreSQL database."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    async def insert(self, record: tasks.TaskRecord, puts: Sequence[tasks.Put]) -> bool:
        facts = [record.ref.owner, record.ref.id]
        facts += [sql.column(getattr(record, name)) for name in sql.FIELDS]
        return await self._write(_INSERT, facts, puts, ())

    async def read(self, ref: tasks.TaskRef) -> tasks.TaskRecord | None:
        record, values = await self._read(ref, _SHOWN_KIND)
        if record is None or record.status is Status.INPUT_REQUIRED:
            return record and replace(record, requests={name: part for _, name, part in values})
        return replace(record, outcome=values[0][2]) if values else record

    async def head(self, ref: tasks.TaskRef) -> tasks.TaskRecord | None:
        rows = await self._database.fetch(_HEAD, ref.owner, ref.id)
        return sql.record_from_row(rows[0]) if rows else None

    async def heads(
        self, refs: Sequence[tasks.TaskRef], *, may_lag: bool = False
    ) -> Mapping[tasks.TaskRef, tasks.TaskRecord]:
        """Return many records, as `TaskStore.heads` does, always up to date."""
        pairs = "(select * from unnest($1::text[], $2::text[]))"
        select = f"select {sql.HEAD} from roundgate.tasks where (owner, id) in {pairs}"
        owners, ids = [ref.owner for ref in refs], [ref.id for ref in refs]
        records = map(sql.record_from_row, await self._database.fetch(select, owners, ids))
        return {record.ref: record for record in records}

    async def read_work(
        self, ref: tasks.TaskRef
    ) -> tuple[tasks.TaskRecord | None, tasks.Work | None]:
        """Return a record and its work, as `TaskStore.read_work` does. The database keeps the work
        of every task."""
        record, values = await self._read(ref, f"in {sql.FOR_WORK}")
        return record, None if record is None else sql.work_from_values(values)

    async def swap(self, change: tasks.RecordChange) -> tasks.TaskRecord | tasks.Lost:
        ref, version = change.before.ref, change.before.version
        columns = {name: sql.column(value) for name, value in change.changes.items()}
        changes = "".join(f", {name} = ${n}" for n, name in enumerate(columns, 4))
        update = (  # the first version is random, so a row that was deleted and created again differs
            f"with written as (update roundgate.tasks set version = version + 1{changes}"
            " where owner = $1 and id = $2 and version = $3 returning n)"
        )
        facts = [ref.owner, ref.id, version, *columns.values()]
        replaced = [tasks.Drop(put.part) for put in change.puts if put.part in sql.REPLACED]
        if await self._write(update, facts, change.puts, [*change.drops, *replaced]):
            return change.record(version=version + 1)
        return tasks.Lost(await self.head(ref))

    async def delete(self, record: tasks.TaskRecord) -> bool:
        delete = (
            "delete from roundgate.tasks where owner = $1 and id = $2 and version = $3 returning n"
        )
        facts = (record.ref.owner, record.ref.id, record.version)
        return bool(await self._database.fetch_once(delete, *facts))

    @property
    def shards(self) -> int:
        return SHARDS

    async def scan(
        self, until_ms: int | None, limit: int, shard: int | None = None
    ) -> Sequence[tasks.OpenTask]:
        """Return due tasks, as `TaskStore.scan` does. The result is exact."""
        select = (
            f"select {sql.OPEN_TASK} from generate_series($3::int, $4::int) as shard, lateral ("
            f"select {sql.OPEN_TASK} from roundgate.tasks where n & 7 = shard and due_ms <= $1"
            " order by due_ms limit $2) as due order by due_ms limit $2"
        )
        first, last = (0, SHARDS - 1) if shard is None else (shard, shard)
        facts = (_ALWAYS_MS if until_ms is None else until_ms, limit, first, last)
        return [sql.open_task_from_row(row) for row in await self._database.fetch(select, *facts)]

    async def count_open(self, owner: str, up_to: int) -> int:
        """Count open tasks, as `TaskStore.count_open` does. The result is exact."""
        of_owner = f"owner = $1 and {sql.IS_OPEN} and status in ({sql.OPEN_STATUSES})"
        select = f"select 1 from roundgate.tasks where {of_owner} limit $2"
        return len(await self._database.fetch(select, owner, up_to))

    async def find(
        self, wanted: tasks.Wanted = tasks.ANY, limit: int = 100, cursor: str | None = None
    ) -> tasks.Found:
        """Search tasks, as `TaskStore.find` does, the newest first. The cursor is the number of the
        last row."""
        conditions = {
            "n < ${}": sql.number_from_cursor(cursor),
            "owner = ${}": wanted.owner,
            "tool = ${}": wanted.tool,
            "created_ms < ${}": wanted.created_before_ms,
            f"{sql.SHOWN} = any(${{}})": sorted(wanted.statuses or ()) or None,
            "ending = any(${})": sorted(wanted.endings or ()) or None,
        }
        filters = {condition: value for condition, value in conditions.items() if value is not None}
        where = [condition.format(n) for n, condition in enumerate(filters, 2)]
        where += [condition] if (condition := sql.index_condition(wanted)) else []
        select = (
            f"select {sql.HEAD} from roundgate.tasks where {' and '.join(where) or 'true'}"
            " order by n desc limit $1"
        )
        rows = await self._database.fetch(select, limit, *filters.values())
        records = [sql.record_from_row(row) for row in rows]
        return tasks.Found(records, str(rows[-1][0]) if len(rows) == limit else None)

    async def forget(self, now_ms: int) -> int:
        old = await self._database.fetch_once(_FORGET, now_ms - tasks.FORGET_AFTER_MS + 1)
        return len(old or await self._database.fetch_once(_FORGET_HIDDEN, now_ms + 1))

    async def tell_time(self, report: bytes) -> bytes | None:
        statement = (
            "insert into roundgate.told values (1, $1) on conflict (only_row) do update"
            " set said = excluded.said returning (select said from roundgate.told)"
        )
        ((before,),) = await self._database.fetch_once(statement, report)
        return None if before is None else bytes(before)

    async def aclose(self) -> None:
        await self._database.aclose()

    async def _read(
        self, ref: tasks.TaskRef, kinds: str
    ) -> tuple[tasks.TaskRecord | None, list[tuple[str, str, bytes]]]:
        """Return a record and its values of some kinds (part, name and value), as of one moment."""
        rows = await self._database.fetch(_READ.format(kinds), ref.owner, ref.id)
        if not rows:
            return None, []
        *head, of_kinds, names, parts = rows[0]
        names = [name.decode() for name in names or ()]
        return sql.record_from_row(head), list(zip(of_kinds or (), names, parts or (), strict=True))

    async def _write(
        self,
        statement: str,
        facts: list[Any],
        puts: Sequence[tasks.Put],
        drops: Sequence[tasks.Drop],
    ) -> bool:
        """Run a statement whose `written` has the written row, and write the row's values too.
        Return whether there was a row."""
        arrays: list[list[Any]] = []
        if drops:
            names = [None if drop.name is None else drop.name.encode() for drop in drops]
            arrays += [[drop.part.value for drop in drops], names]
        if puts:
            arrays += [[put.part.value for put in puts], [put.name.encode() for put in puts]]
            arrays += [[put.value for put in puts]]
        places = [f"${n}" for n in range(len(facts) + 1, len(facts) + len(arrays) + 1)]
        if drops:
            statement += _DROP.format(*places[:2])
        if puts:
            statement += _PUT.format(*places[-3:])
        return bool(
            await self._database.fetch_once(f"{statement} select n from written", *facts, *arrays)
        )
