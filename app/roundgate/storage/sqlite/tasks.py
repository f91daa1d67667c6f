"""Tasks in SQLite: a narrow row that every write touches, and payloads beside it
that are written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from roundgate.errors import LeaseLost
from roundgate.protocol import OPEN, TERMINAL, Event, Status, sources, target
from roundgate.storage.noted import Noted
from roundgate.storage.sqlite.database import Database
from roundgate.storage.sqlite.writing import snapshot
from roundgate.storage.tasks import (
    ANY,
    ENDING_OF,
    NOTHING,
    SHARD_AT_MOST_MS,
    UNHAPPY,
    Added,
    Answered,
    Cancelled,
    Claimed,
    Ending,
    Found,
    Lease,
    Move,
    NewTask,
    NotClaimed,
    OpenTask,
    Postponed,
    TaskRecord,
    TaskRef,
    Wanted,
    Work,
    is_for_a_sweep,
)

if TYPE_CHECKING:
    import sqlite3

FORGET_AFTER_MS: Final = 2 * 86_400_000
"""How long an expired task stays in the file, for its operator."""
_FORGET_AT_ONCE: Final = 500

SHARDS: Final = 1
"""Parts of the index of due tasks. A file has one writer, so a second sweeper could only be
in the way of the first."""

_HEAD: Final = (
    "n, owner, id, tool, status, status_message, created_ms, updated_ms, expires_ms, revision,"
    " fence, lease_until_ms, wake_ms, due_ms, attempts, deaths, suspect, alone, declined_ms, journal_version,"
    " resends, noted, cleans_up, ending, failed_steps, retried_as, call_id"
)
_COLUMNS: Final = tuple(_HEAD.replace(" ", "").split(","))
_ENDED: Final = frozenset({Status.FAILED, Status.CANCELLED})
"""The statuses in the index `tasks_ended`, as an operator sees them."""
_OF_ENDED: Final = "ending in ('step_failed', 'error', 'cancelled')"
"""The condition of the index `tasks_ended`, which queries must repeat word for word."""
_SHOWN: Final = "case ending when 'step_failed' then 'failed' else status end"
"""The SQL expression for `shown_status`."""
_NO_FIELDS: Final = frozenset(
    {"n", "owner", "id", "status", "noted", "unsent", "ending", "failed_steps"}
)
"""Columns that are no fields of a record under their names."""
_OPEN_TASK: Final = "owner, id, tool, status, created_ms, expires_ms, due_ms, resends, unsent"
_FOR_WORK: Final = ("answer", "call", "journal", "state")
_WORK: Final = f"select kind, name, value from payloads where task = ? and kind in {_FOR_WORK} order by kind, n"
_CLEARED: Final[Mapping[str, Any]] = {"deaths": 0, "suspect": 0}
_PROGRESS: Final[Mapping[str, Any]] = {**_CLEARED, "attempts": 0, "declined_ms": 0}
_TO_CLEAN_UP: Final[Mapping[str, Any]] = {
    "cleans_up": 1,
    "attempts": 0,
    "resends": 0,
    "unsent": 0,
}
_OPEN: Final = ", ".join(f"'{status.value}'" for status in sorted(OPEN))

_Also: TypeAlias = "Callable[[sqlite3.Connection, int], None]"
"""What else happens in a transaction, to the row of this number."""


class SqliteTasks:
    """The `TaskStore`, see there."""

    def __init__(self, database: Database, shards: int = SHARDS) -> None:
        self._database = database
        self._shards = shards

    async def create(self, task: NewTask) -> bool:
        """See `TaskStore`."""
        head: dict[str, Any] = {
            "owner": task.ref.owner,
            "id": task.ref.id,
            **task.first_row(),
            "due_ms": None if task.status.is_terminal else task.due_ms,
            "journal_version": task.journal_version,
            "cleans_up": task.cleans_up,
        }
        places = ", ".join("?" * len(head))
        insert = f"insert into tasks ({', '.join(head)}) values ({places}) on conflict do nothing"

        def write(db: sqlite3.Connection) -> bool:
            row = db.execute(insert, tuple(head.values()))
            if row.rowcount == 0:
                return False
            n = row.lastrowid
            _put(db, n, "call", [("", task.call)])
            _put(db, n, "state", [("", task.state)])
            _put(db, n, "journal", (("", entry) for entry in task.journal))
            if task.outcome is not None:
                _put(db, n, "outcome", [("", task.outcome)])
            return True

        return await self._database.write(write)

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

    async def read(self, ref: TaskRef, now_ms: int) -> TaskRecord | None:
        """See `TaskStore`."""

        def look(db: sqlite3.Connection) -> TaskRecord | None:
            with snapshot(db):  # the row and its payloads
                row = _row(db, ref)
                return None if row is None or row["expires_ms"] <= now_ms else _record(db, row)

        return await self._database.read(look)

    async def answer(
        self, ref: TaskRef, answers: Mapping[str, bytes], now_ms: int, due_ms: int
    ) -> Answered:
        """See `TaskStore`."""

        to_go_on_ms = due_ms

        def write(db: sqlite3.Connection) -> Answered:
            row = _row(db, ref)
            if row is None or row["expires_ms"] <= now_ms:
                return Answered.UNKNOWN_TASK
            outstanding = {name for name, _ in _payloads(db, row["n"], "request")}
            taken = outstanding & answers.keys()
            if not taken:
                return Answered.NOT_NEEDED
            if row["status"] not in sources(Event.ANSWER_ALL):
                return Answered.LATER
            for name in taken:
                db.execute(
                    "delete from payloads where task = ? and kind = 'request' and name = ?",
                    (row["n"], name),
                )
            _put(db, row["n"], "answer", ((name, answers[name]) for name in taken))
            fully = taken == outstanding
            event = Event.ANSWER_ALL if fully else Event.ANSWER_SOME
            due_ms, wake_ms = (to_go_on_ms, 0) if fully else (row["due_ms"], row["wake_ms"])
            db.execute(
                "update tasks set status = ?, due_ms = ?, wake_ms = ?, updated_ms = ?, revision = revision + 1"
                " where n = ?",
                (target(event).value, due_ms, wake_ms, now_ms, row["n"]),
            )
            return Answered.FULLY if fully else Answered.PARTLY

        return await self._database.write(write)

    async def cancel(
        self, ref: TaskRef, status_message: str, now_ms: int, due_ms: int | None = None
    ) -> Cancelled:
        """See `TaskStore`."""

        def write(db: sqlite3.Connection) -> Cancelled:
            row = _row(db, ref)
            if row is None or row["expires_ms"] <= now_ms:
                return Cancelled.UNKNOWN_TASK
            if row["status"] not in sources(Event.CANCEL):
                return Cancelled.OVER
            return _end_early(db, row, Event.CANCEL, status_message, now_ms, due_ms)

        return await self._database.write(write)

    async def claim(
        self,
        ref: TaskRef,
        now_ms: int,
        until_ms: int,
        *,
        due_ms: int | None = None,
        lapsed_ms: int | None = None,
        alone: bool = False,
    ) -> Claimed | NotClaimed:
        """See `TaskStore`."""

        def write(db: sqlite3.Connection) -> Claimed | NotClaimed:
            row = _row(db, ref)
            refused = _why_not(row, now_ms, now_ms if lapsed_ms is None else lapsed_ms, alone)
            if row is None or refused is not None:
                return refused or NotClaimed.GONE
            has_lapsed = row["lease_until_ms"] > 0
            changes = {
                "fence": row["fence"] + 1,
                "lease_until_ms": until_ms,
                "wake_ms": 0,
                "suspect": row["suspect"] or has_lapsed,
                "deaths": row["deaths"] + (has_lapsed and row["alone"]),
                "alone": alone,
                "resends": 0,
                "noted": 0,
            }
            latest_ms = until_ms if due_ms is None else due_ms
            changes |= _moved(latest_ms) if row["due_ms"] > latest_ms else {}
            _set(db, row["n"], changes)
            return _claimed(db, ref, row | changes)

        return await self._database.write(write)

    async def checkpoint(
        self,
        lease: Lease,
        added: Added,
        now_ms: int,
        until_ms: int | None = None,
        due_ms: int | None = None,
    ) -> None:
        """See `TaskStore`."""
        changes: dict[str, Any] = dict(_PROGRESS) if added.entries else {}
        if until_ms is not None:
            changes["lease_until_ms"] = until_ms
        if due_ms is not None:
            changes |= _moved(due_ms)
        await self._under_lease(lease, added, changes, now_ms)

    async def suspend(
        self,
        lease: Lease,
        added: Added,
        requests: Mapping[str, bytes],
        now_ms: int,
        *,
        wake_ms: int = 0,
    ) -> None:
        """See `TaskStore`."""

        def ask(db: sqlite3.Connection, n: int) -> None:
            _forget_requests(db, n)
            _put(db, n, "request", requests.items())
            db.execute(
                "update tasks set status = ?, due_ms = min(expires_ms, coalesce(nullif(?, 0), expires_ms)),"
                " wake_ms = ?, unsent = 0, updated_ms = ?, revision = revision + 1 where n = ?",
                (target(Event.ASK).value, wake_ms, wake_ms, now_ms, n),
            )

        await self._under_lease(lease, added, {"lease_until_ms": 0, **_PROGRESS}, now_ms, ask)

    async def release(
        self,
        lease: Lease,
        added: Added,
        now_ms: int,
        *,
        wake_ms: int,
        due_ms: int,
        attempts: int = 0,
        declined_ms: int = 0,
        keeps_blame: bool = False,
    ) -> None:
        """See `TaskStore`."""
        changes = {
            "lease_until_ms": 0,
            "wake_ms": wake_ms,
            "due_ms": due_ms,
            "unsent": is_for_a_sweep(wake_ms, due_ms),
        }
        told = {"attempts": attempts, "declined_ms": declined_ms}
        blame = {} if keeps_blame else _CLEARED
        # after a fault, the next turn may still ask the previous questions
        forget = None if keeps_blame else _forget_requests
        await self._under_lease(lease, added, {**changes, **told, **blame}, now_ms, forget)

    async def restart(
        self,
        lease: Lease,
        call: bytes,
        journal: Sequence[bytes],
        state: bytes,
        journal_version: int,
        now_ms: int,
        due_ms: int,
    ) -> None:
        """See `TaskStore`."""

        def replace(db: sqlite3.Connection, n: int) -> None:
            db.execute("delete from payloads where task = ?", (n,))
            _put(db, n, "call", [("", call)])
            _put(db, n, "state", [("", state)])
            _put(db, n, "journal", (("", entry) for entry in journal))

        changes = {
            "lease_until_ms": 0,
            "wake_ms": 0,
            "due_ms": due_ms,
            "journal_version": journal_version,
        }
        changes |= {"unsent": 0}
        await self._under_lease(lease, NOTHING, {**changes, **_PROGRESS}, now_ms, replace)

    async def park(self, lease: Lease, status_message: str, now_ms: int) -> None:
        """See `TaskStore`."""

        def put_aside(db: sqlite3.Connection, n: int) -> None:
            db.execute(
                "update tasks set wake_ms = expires_ms, due_ms = expires_ms where n = ?", (n,)
            )

        message = Added(status_message=status_message)
        await self._under_lease(lease, message, {"lease_until_ms": 0}, now_ms, put_aside)

    async def let_go(
        self, ref: TaskRef, fence: int, now_ms: int, due_ms: int, *, blame: bool
    ) -> bool:
        """See `TaskStore`."""
        (working,) = sources(Event.RUN)
        statement = (
            "update tasks set lease_until_ms = 0, wake_ms = 0, due_ms = ?, unsent = 1,"
            " suspect = suspect or ?, deaths = deaths + (? and alone)"
            " where owner = ? and id = ? and fence = ? and status = ? and lease_until_ms > 0 and expires_ms > ?"
        )
        facts = (due_ms, blame, blame, ref.owner, ref.id, fence, working.value, now_ms)
        return await self._database.write(lambda db: db.execute(statement, facts).rowcount == 1)

    async def finish(
        self,
        lease: Lease,
        status: Status,
        outcome: bytes | None,
        status_message: str | None,
        now_ms: int,
        *,
        cleanup_due_ms: int | None = None,
        ending: Ending | None = None,
        failed_steps: Sequence[str] = (),
    ) -> None:
        """See `TaskStore`."""

        def end(db: sqlite3.Connection, n: int) -> None:
            _end(db, n, status, status_message, now_ms)
            _set(db, n, {"ending": (ending or ENDING_OF[status]).value})
            _set(db, n, {"failed_steps": " ".join(failed_steps) or None})
            if outcome is not None:
                _put(db, n, "outcome", [("", outcome)])
            if cleanup_due_ms is not None:
                _set(db, n, {**_TO_CLEAN_UP, "due_ms": cleanup_due_ms})

        await self._under_lease(lease, NOTHING, {}, now_ms, end)

    async def claim_cleanup(
        self,
        ref: TaskRef,
        now_ms: int,
        until_ms: int,
        *,
        due_ms: int,
        lapsed_ms: int,
        fence: int | None = None,
        journal: Sequence[bytes] | None = None,
    ) -> Claimed | None:
        """See `TaskStore`."""

        def write(db: sqlite3.Connection) -> Claimed | None:
            row = _row(db, ref)
            if row is None or not _is_to_clean_up(row) or row["wake_ms"] > now_ms:
                return None
            if row["lease_until_ms"] > lapsed_ms and row["fence"] != fence:
                return None
            changes = {
                "fence": row["fence"] + 1,
                "lease_until_ms": until_ms,
                "due_ms": due_ms,
                "wake_ms": 0,
                "attempts": row["attempts"] + 1,
                "resends": 0,
                "unsent": 1,
            }
            _set(db, row["n"], changes)
            if journal is not None:
                kept = "delete from payloads where task = ? and kind = 'journal'"
                db.execute(kept, (row["n"],))
                _put(db, row["n"], "journal", (("", entry) for entry in journal))
            return _claimed(db, ref, row | changes)

        return await self._database.write(write)

    async def postpone_cleanup(self, lease: Lease, *, wake_ms: int, due_ms: int) -> bool:
        """See `TaskStore`."""
        unsent = is_for_a_sweep(wake_ms, due_ms)
        times = {"lease_until_ms": 0, "wake_ms": wake_ms, "due_ms": due_ms, "unsent": unsent}
        return await self._cleaning(lease, times)

    async def end_cleanup(self, lease: Lease) -> bool:
        """See `TaskStore`."""
        over = {"lease_until_ms": 0, "wake_ms": 0, "due_ms": None, "cleans_up": 0}
        return await self._cleaning(lease, over)

    async def _cleaning(self, lease: Lease, changes: Mapping[str, Any]) -> bool:
        def write(db: sqlite3.Connection) -> bool:
            row = _row(db, lease.ref)
            if row is None or not _is_to_clean_up(row) or row["fence"] != lease.fence:
                return False
            _set(db, row["n"], changes)
            return True

        return await self._database.write(write)

    @property
    def shards(self) -> int:
        """See `TaskStore`."""
        return self._shards

    async def due(self, now_ms: int, limit: int, shard: int | None = None) -> Sequence[OpenTask]:
        """See `TaskStore`."""
        part = "" if shard is None else f" and n % {self._shards} = {shard}"
        select = f"select {_OPEN_TASK} from tasks where due_ms <= ?{part} order by due_ms limit ?"
        return await self._database.read(
            lambda db: [_open_task(row) for row in db.execute(select, (now_ms, limit))]
        )

    async def late_shards(self, now_ms: int) -> Sequence[int]:
        """See `TaskStore`."""
        late = f"select 1 from tasks where due_ms <= ? and n % {self._shards} = ? limit 1"
        return await self._database.read(
            lambda db: [
                shard
                for shard in range(self._shards)
                if db.execute(late, (now_ms, shard)).fetchone()
            ]
        )

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

    async def tell_time(self, said: bytes) -> bytes | None:
        """See `TaskStore`."""

        def write(db: sqlite3.Connection) -> bytes | None:
            before = db.execute("select said from told").fetchone()
            db.execute("insert or replace into told values (1, ?)", (said,))
            return None if before is None else before[0]

        return await self._database.write(write, durable=False)

    async def postpone_many(
        self, moves: Sequence[Move], now_ms: int, skew_ms: int = 0
    ) -> Sequence[Postponed]:
        """See `TaskStore`. One transaction."""

        def write(db: sqlite3.Connection) -> list[Postponed]:
            return [_postponed(db, move, now_ms, skew_ms) for move in moves]

        return await self._database.write(write) if moves else []

    async def expire(self, ref: TaskRef, now_ms: int, due_ms: int | None = None) -> bool:
        """See `TaskStore`."""

        def write(db: sqlite3.Connection) -> bool:
            row = _row(db, ref)
            is_past = row is not None and row["expires_ms"] <= now_ms
            if row is None or not is_past or row["status"] not in sources(Event.EXPIRE):
                return False
            ended = _end_early(db, row, Event.EXPIRE, "expired", now_ms, due_ms)
            return ended is Cancelled.CLEAN_UP

        return await self._database.write(write)

    async def forget(self, now_ms: int) -> int:
        """See `TaskStore`."""
        before_ms = now_ms - FORGET_AFTER_MS

        select = "select n from tasks where expires_ms <= ? limit ?"  # in bites
        facts = (before_ms, _FORGET_AT_ONCE)
        rows = await self._database.read(lambda db: db.execute(select, facts).fetchall())
        if rows:  # most of the time there is nothing, and no lock to be had for it
            await self._database.write(
                lambda db: db.executemany("delete from tasks where n = ?", rows)
            )
        return len(rows)

    async def open_tasks(self, limit: int) -> Sequence[OpenTask]:
        """See `TaskStore`."""
        select = (
            f"select {_OPEN_TASK} from tasks where due_ms is not null and status in ({_OPEN})"
            " order by due_ms limit ?"
        )
        return await self._database.read(
            lambda db: [_open_task(row) for row in db.execute(select, (limit,))]
        )

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
            records = [_to_record(_named(row), {}, None) for row in rows]
            return Found(records, str(rows[-1][0]) if len(rows) == limit else None)

        return await self._database.read(look)

    async def read_work(self, ref: TaskRef) -> Work | None:
        """See `TaskStore`. A file keeps every task whole."""

        def look(db: sqlite3.Connection) -> Work | None:
            with snapshot(db):
                row = _row(db, ref)
                if row is None:
                    return None
                claimed = _claimed(db, ref, row)
            return Work(claimed.call, claimed.journal, claimed.state, claimed.answers)

        return await self._database.read(look)

    async def note_retry(self, ref: TaskRef, as_id: str) -> bool:
        """See `TaskStore`."""
        statement = (
            "update tasks set retried_as = ?"
            " where owner = ? and id = ? and ending = ? and retried_as is null"
        )
        facts = (as_id, ref.owner, ref.id, Ending.STEP_FAILED.value)
        return await self._database.write(lambda db: db.execute(statement, facts).rowcount == 1)

    async def purge(self, ref: TaskRef, now_ms: int) -> bool:
        """See `TaskStore`."""
        ended = ", ".join(f"'{status.value}'" for status in sorted(TERMINAL))
        statement = (
            "delete from tasks where owner = ? and id = ?"
            f" and (status in ({ended}) or expires_ms <= ?)"
        )
        facts = (ref.owner, ref.id, now_ms)
        return await self._database.write(lambda db: db.execute(statement, facts).rowcount == 1)

    async def go_on(self, ref: TaskRef, now_ms: int, due_ms: int) -> bool:
        """See `TaskStore`."""
        (asking,) = sources(Event.GO_ON)
        statement = (
            "update tasks set status = ?, wake_ms = 0, due_ms = ?, unsent = 0, updated_ms = ?, revision = revision + 1"
            " where owner = ? and id = ? and status = ? and wake_ms > 0 and wake_ms <= ? and expires_ms > ?"
        )
        working = target(Event.GO_ON).value
        facts = (working, due_ms, now_ms, ref.owner, ref.id, asking.value, now_ms, now_ms)

        return await self._database.write(lambda db: db.execute(statement, facts).rowcount > 0)

    async def requeue(
        self, ref: TaskRef, now_ms: int, due_ms: int, *, fence: int | None = None
    ) -> bool:
        """See `TaskStore`."""
        (working,) = sources(Event.RUN)
        statement = (
            "update tasks set fence = fence + 1, lease_until_ms = 0, wake_ms = 0, attempts = 0, due_ms = ?,"
            " deaths = 0, suspect = 0, declined_ms = 0, resends = 0, unsent = 0"
            " where owner = ? and id = ? and status = ? and expires_ms > ? and fence = coalesce(?, fence)"
        )
        facts = (due_ms, ref.owner, ref.id, working.value, now_ms, fence)
        return await self._database.write(lambda db: db.execute(statement, facts).rowcount == 1)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._database.aclose()

    async def _under_lease(
        self,
        lease: Lease,
        added: Added,
        changes: Mapping[str, Any],
        now_ms: int,
        also: _Also | None = None,
    ) -> None:
        """One transaction that holds only while the lease does.

        Raises:
            LeaseLost
        """
        noted: Noted[None] = lease.notes

        def write(db: sqlite3.Connection) -> int | None:
            row = _row(db, lease.ref)
            if row is None or not _holds(lease, row):
                raise LeaseLost(str(lease.ref))
            number = _attempt(row, noted, added) if added.entries else None
            if added.entries and number is None:
                return None
            _set(db, row["n"], changes if number is None else {**changes, "noted": number})
            _add(db, row, added, now_ms)
            if also is not None:
                also(db, row["n"])
            return number

        async with noted.writing:
            number = await self._database.write(write)
            if number is not None:
                noted.settle(number)


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


def _attempt(row: Mapping[str, Any], noted: Noted[None], added: Added) -> int | None:
    """The number of this write of entries; `None` if it has happened already."""
    noted.settle(row["noted"])
    return None if noted.has_happened_last(added.entries) else noted.attempt(added.entries, None)


def _add(db: sqlite3.Connection, row: Mapping[str, Any], added: Added, now_ms: int) -> None:
    _put(db, row["n"], "journal", (("", entry) for entry in added.entries))
    if added.state is not None:
        statement = "update payloads set value = ? where task = ? and kind = 'state'"
        db.execute(statement, (added.state, row["n"]))
    if added.status_message is not None and added.status_message != row["status_message"]:
        seen = {
            "status_message": added.status_message,
            "updated_ms": now_ms,
            "revision": row["revision"] + 1,
        }
        _set(db, row["n"], seen)


def _holds(lease: Lease, row: dict[str, Any]) -> bool:
    """Whether nobody has claimed the task since, nor taken it away, and the lease
    has not been given back."""
    is_the_last_claim = row["fence"] == lease.fence
    return is_the_last_claim and row["status"] in sources(Event.RUN) and row["lease_until_ms"] > 0


def _why_not(
    row: dict[str, Any] | None, now_ms: int, lapsed_ms: int, alone: bool
) -> NotClaimed | None:
    """Why a task cannot be claimed, if it cannot."""
    if row is not None and _is_to_clean_up(row):
        return NotClaimed.CLEAN_UP
    if row is None or row["expires_ms"] <= now_ms:
        return NotClaimed.GONE
    if row["status"] not in sources(Event.RUN):
        return NotClaimed.WAITING if row["status"] in OPEN else NotClaimed.OVER
    if row["lease_until_ms"] > lapsed_ms:
        return NotClaimed.LEASED
    if row["wake_ms"] > now_ms:
        return NotClaimed.ASLEEP
    has_lapsed = row["lease_until_ms"] > 0
    return NotClaimed.SUSPECT if (has_lapsed or row["suspect"]) and not alone else None


def _claimed(db: sqlite3.Connection, ref: TaskRef, row: dict[str, Any]) -> Claimed:
    kept: dict[str, list[tuple[str, bytes]]] = {kind: [] for kind in _FOR_WORK}
    for kind, name, value in db.execute(_WORK, (row["n"],)):
        kept[kind].append((name, value))
    ((_, call),), ((_, state),) = kept["call"], kept["state"]
    return Claimed(
        lease=Lease(ref, row["fence"], Noted()),
        record=_to_record(row, {}, None),
        call=call,
        journal=[entry for _, entry in kept["journal"]],
        state=state,
        answers=dict(kept["answer"]),
    )


def _row(db: sqlite3.Connection, ref: TaskRef) -> dict[str, Any] | None:
    found = db.execute(
        f"select {_HEAD} from tasks where owner = ? and id = ?", (ref.owner, ref.id)
    ).fetchone()
    return None if found is None else _named(found)


def _named(row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(_COLUMNS, row, strict=True))


def _record(db: sqlite3.Connection, row: dict[str, Any]) -> TaskRecord:
    outcome = [value for _, value in _payloads(db, row["n"], "outcome")]
    asks = row["status"] in sources(Event.ANSWER_ALL)
    requests = dict(_payloads(db, row["n"], "request")) if asks else {}
    return _to_record(row, requests, outcome[0] if outcome else None)


def _to_record(
    row: dict[str, Any], requests: Mapping[str, bytes], outcome: bytes | None
) -> TaskRecord:
    facts = {name: value for name, value in row.items() if name not in _NO_FIELDS}
    facts |= {name: bool(row[name]) for name in ("suspect", "alone", "cleans_up")}
    return TaskRecord(
        ref=TaskRef(row["owner"], row["id"]),
        status=Status(row["status"]),
        requests=requests,
        outcome=outcome,
        ending=None if row["ending"] is None else Ending(row["ending"]),
        failed_steps=tuple((row["failed_steps"] or "").split()),
        **facts,
    )


def _open_task(row: tuple[Any, ...]) -> OpenTask:
    owner, task_id, tool, status, created_ms, expires_ms, due_ms, resends, unsent = row
    ref = TaskRef(owner, task_id)
    return OpenTask(
        ref, tool, Status(status), created_ms, expires_ms, due_ms, resends, bool(unsent)
    )


def _moved(due_ms: int) -> dict[str, Any]:
    """Another due time, for which nobody sends a message."""
    return {"due_ms": due_ms, "unsent": 1}


def _postponed(db: sqlite3.Connection, move: Move, now_ms: int, skew_ms: int) -> Postponed:
    row = _row(db, move.task.ref)
    if row is None or row["due_ms"] != move.task.due_ms:
        return Postponed.MISSED
    until_ms = row["lease_until_ms"]
    if until_ms > now_ms - skew_ms:
        _set(db, row["n"], _moved(until_ms + skew_ms))
        return Postponed.HELD
    changes = {"due_ms": move.due_ms, "resends": move.resends, "unsent": move.unsent}
    _set(db, row["n"], changes)
    return Postponed.LAPSED if until_ms > 0 else Postponed.MOVED


def _payloads(db: sqlite3.Connection, task: int, kind: str) -> list[tuple[str, bytes]]:
    """Name and value of each, in the order in which they were put."""
    return db.execute(
        "select name, value from payloads where task = ? and kind = ? order by n", (task, kind)
    ).fetchall()


def _put(
    db: sqlite3.Connection, task: int | None, kind: str, values: Iterable[tuple[str, bytes]]
) -> None:
    rows = [(task, kind, name, value) for name, value in values]
    if rows:
        db.executemany("insert into payloads (task, kind, name, value) values (?, ?, ?, ?)", rows)


def _set(db: sqlite3.Connection, n: int, changes: Mapping[str, Any]) -> None:
    if changes:
        assignments = ", ".join(f"{name} = ?" for name in changes)
        db.execute(f"update tasks set {assignments} where n = ?", (*changes.values(), n))


def _forget_requests(db: sqlite3.Connection, n: int) -> None:
    db.execute("delete from payloads where task = ? and kind = 'request'", (n,))


def _end(db: sqlite3.Connection, n: int, status: Status, message: str | None, now_ms: int) -> None:
    """Make a task terminal: nothing is due any more, nothing outstanding, nobody has it."""
    _forget_requests(db, n)
    db.execute(
        "update tasks set status = ?, status_message = ?, updated_ms = ?, revision = revision + 1,"
        " lease_until_ms = 0, wake_ms = 0, due_ms = null, cleans_up = 0, ending = ? where n = ?",
        (status.value, message, now_ms, ENDING_OF[status].value, n),
    )


def _end_early(
    db: sqlite3.Connection,
    row: Mapping[str, Any],
    event: Event,
    message: str,
    now_ms: int,
    due_ms: int | None,
) -> Cancelled:
    """Make a task terminal whose work is not done. Of one that is to be
    cleaned up the lease goes on."""
    _end(db, row["n"], target(event), message, now_ms)
    if not row["cleans_up"]:
        return Cancelled.OVER
    due = {"due_ms": now_ms if due_ms is None else due_ms}
    _set(db, row["n"], {**_TO_CLEAN_UP, **due, "lease_until_ms": row["lease_until_ms"]})
    return Cancelled.CLEAN_UP


def _is_to_clean_up(row: Mapping[str, Any]) -> bool:
    return row["due_ms"] is not None and row["status"] in TERMINAL
