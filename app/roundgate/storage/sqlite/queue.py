"""The task queue as a table of a SQLite file: the embedded default. The queue keeps at most one
message per task.

Owners take turns. A message that becomes visible gets a turn: the turn after its owner's last one,
or the current turn if that is later. The queue delivers messages in the order of their turns
(start-time fair queueing):

    turn       7        8        9        10
    A waits    a3       a4       a5       a6 …          ten thousand more
    B sends    b1                                       served next, whatever A has waiting

A message is a hint, so sending does not wait for the disk: if a message is lost with the machine,
the sweep replaces it. Sending wakes a waiting `receive` of the same process at once; other
processes poll every `POLL_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from roundgate.clock import Clock
from roundgate.storage.ports import Message
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.tasks import TaskRef

if TYPE_CHECKING:
    import sqlite3

POLL_S: Final = 0.25
HIDDEN_MS: Final = 30_000
"""The time in milliseconds for which a received message stays hidden."""
SKIPPED_AT_MOST: Final = 500
"""The maximum number of skipped owners in one statement. Messages of further owners may be
received, as `put_back` allows."""
_PROMOTED_AT_ONCE: Final = 500
_SERVED: Final = ""
"""The key of the row in the table of turns that has the last served turn of all owners."""


class SqliteQueue:
    """A `TaskQueue` in a SQLite file."""

    def __init__(self, database: SqliteDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._sent = asyncio.Event()
        self._closed = False

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        await self._send([ref], delay_ms)

    async def send_many(self, refs: Sequence[TaskRef]) -> None:
        if refs:
            await self._send(refs, 0)

    async def receive(
        self, limit: int, wait_ms: int, *, skip: Collection[str] = ()
    ) -> Sequence[Message]:
        until_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            self._sent.clear()
            messages = await self._take(limit, list(skip)[:SKIPPED_AT_MOST])
            left_s = (until_ms - self._clock.monotonic_ms()) / 1000
            if messages or left_s <= 0 or self._closed:
                return messages
            with suppress(TimeoutError):
                async with asyncio.timeout(min(POLL_S, left_s)):
                    await self._sent.wait()

    async def delete(self, messages: Sequence[Message]) -> None:
        await self._for_each(
            "delete from waiting where n = ? and receipt = ?", map(_receipt, messages)
        )

    async def put_back(self, messages: Sequence[Message], delay_ms: int = 0) -> None:
        visible_ms = self._clock.now_ms() + delay_ms
        statement = (
            "update waiting set visible_ms = ?, taken = 0 where n = ? and receipt = ? and taken"
        )
        await self._for_each(statement, ((visible_ms, *_receipt(message)) for message in messages))
        self._sent.set()

    async def depth(self) -> int | None:
        """Return the exact number of messages that wait for delivery."""
        now_ms = self._clock.now_ms()
        select = (
            "select (select count(*) from waiting where turn is not null)"
            " + (select count(*) from waiting where turn is null and visible_ms <= ?)"
        )
        count: int = await self._database.read(
            lambda db: db.execute(select, (now_ms,)).fetchone()[0]
        )
        return count

    async def waiting(self, refs: Sequence[TaskRef]) -> Collection[TaskRef] | None:
        """Return tasks with a message, as `TaskQueue.waiting` does. A message with a long delay
        does not count, because it is for later."""
        soon_ms = self._clock.now_ms() + HIDDEN_MS
        select = "select 1 from waiting where task = ? and (turn is not null or visible_ms <= ?)"

        def look(db: sqlite3.Connection) -> set[TaskRef]:
            return {ref for ref in refs if db.execute(select, (str(ref), soon_ms)).fetchone()}

        return await self._database.read(look)

    async def aclose(self) -> None:
        self._closed = True
        self._sent.set()
        await self._database.aclose()

    async def _send(self, refs: Sequence[TaskRef], delay_ms: int) -> None:
        now_ms = self._clock.now_ms()

        def write(db: sqlite3.Connection) -> None:
            for ref in refs:
                _put(db, ref, now_ms + delay_ms)
            if delay_ms <= 0:
                _give_turns(db, now_ms)

        await self._database.write(write, durable=False)
        self._sent.set()

    async def _take(self, limit: int, skip: Sequence[str]) -> list[Message]:
        now_ms = self._clock.now_ms()
        if not await self._database.read(lambda db: _is_any_visible(db, now_ms, skip)):
            return []  # the usual case, without a write lock

        def write(db: sqlite3.Connection) -> list[Message]:
            _give_turns(db, now_ms)
            return [_taken(db, row, now_ms + HIDDEN_MS) for row in _next(db, limit, skip)]

        return await self._database.write(write, durable=False)

    async def _for_each(self, statement: str, facts: Iterable[tuple[Any, ...]]) -> None:
        rows = list(facts)

        def write(db: sqlite3.Connection) -> None:
            db.executemany(statement, rows)

        if rows:
            await self._database.write(write, durable=False)


def _put(db: sqlite3.Connection, ref: TaskRef, visible_ms: int) -> None:
    """Put a message for the task into the queue, which holds one per task.

    A waiting message becomes visible at the earlier of the two times. A message that a worker has
    received becomes visible again at `visible_ms`; deleting the received delivery does not remove
    it.
    """
    db.execute(
        "insert into waiting (owner, task, visible_ms) values (?, ?, ?) on conflict (task) do update set"
        " visible_ms = case when taken then excluded.visible_ms else min(visible_ms, excluded.visible_ms) end,"
        " receipt = receipt + taken, taken = 0",
        (ref.owner, str(ref), visible_ms),
    )


def _is_any_visible(db: sqlite3.Connection, now_ms: int, skip: Sequence[str]) -> bool:
    others = _not_in(skip)
    ready = f"select 1 from waiting where turn is not null and {others} limit 1"
    come = f"select 1 from waiting where turn is null and visible_ms <= ? and {others} limit 1"
    row = db.execute(ready, skip).fetchone() or db.execute(come, (now_ms, *skip)).fetchone()
    return row is not None


def _give_turns(db: sqlite3.Connection, now_ms: int) -> None:
    """Assign turns to the messages that have become visible."""
    select = "select n, owner from waiting where turn is null and visible_ms <= ? order by visible_ms, n limit ?"
    come = db.execute(select, (now_ms, _PROMOTED_AT_ONCE)).fetchall()
    if not come:
        return
    served = _last_turn(db, _SERVED)
    last: dict[str, int | None] = {owner: _last_turn(db, owner) for _, owner in come}
    for n, owner in come:
        before = last[owner]
        turn = last[owner] = max(served or 0, 0 if before is None else before + 1)
        db.execute("update waiting set turn = ?, taken = 0 where n = ?", (turn, n))
    db.executemany("insert or replace into turns (owner, turn) values (?, ?)", last.items())


def _next(db: sqlite3.Connection, limit: int, skip: Sequence[str]) -> list[Any]:
    select = (
        f"select n, task, receipt, turn from waiting where turn is not null and {_not_in(skip)}"
        " order by turn, n limit ?"
    )
    rows = db.execute(select, (*skip, limit)).fetchall()
    if rows:
        served = max(_last_turn(db, _SERVED) or 0, rows[-1][-1])
        # owners without a later turn start at the served turn
        db.execute("delete from turns where turn < ? or owner = ?", (served, _SERVED))
        db.execute("insert into turns (owner, turn) values (?, ?)", (_SERVED, served))
    return rows


def _taken(db: sqlite3.Connection, row: Any, hidden_until_ms: int) -> Message:
    n, task, receipt, _ = row
    db.execute(
        "update waiting set turn = null, taken = 1, receipt = receipt + 1, visible_ms = ? where n = ?",
        (hidden_until_ms, n),
    )
    return Message(TaskRef.parse(task), f"{n}/{receipt + 1}")


def _last_turn(db: sqlite3.Connection, owner: str) -> int | None:
    row = db.execute("select turn from turns where owner = ?", (owner,)).fetchone()
    return None if row is None else row[0]


def _not_in(owners: Sequence[str]) -> str:
    return f"owner not in ({', '.join('?' * len(owners))})"


def _receipt(message: Message) -> tuple[int, int]:
    n, _, receipt = message.receipt.partition("/")
    return int(n), int(receipt)
