"""The task queue as a table of a SQLite file: the embedded default.

Who waits in the process that sends is woken at once; who waits in another looks again every `POLL_S`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from app.clock import Clock
from app.storage.queue import Message
from app.storage.sqlite import Database, transaction
from app.storage.tasks import TaskRef

POLL_S: Final = 0.25
HIDDEN_MS: Final = 30_000
"""How long a message that was received and not deleted stays hidden."""


class SqliteQueue:
    """The `TaskQueue`, see there."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._sent = asyncio.Event()
        self._closed = False

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        """See `TaskQueue`."""
        facts = (str(ref), self._clock.now_ms() + delay_ms)
        statement = "insert into messages (task, visible_ms) values (?, ?)"
        await self._database.write(lambda db: db.execute(statement, facts))
        self._sent.set()

    async def receive(self, limit: int, wait_ms: int) -> Sequence[Message]:
        """See `TaskQueue`."""
        until_ms = self._clock.monotonic_ms() + wait_ms
        while True:
            self._sent.clear()
            messages = await self._take(limit)
            left_s = (until_ms - self._clock.monotonic_ms()) / 1000
            if messages or left_s <= 0 or self._closed:
                return messages
            with suppress(TimeoutError):
                async with asyncio.timeout(min(POLL_S, left_s)):
                    await self._sent.wait()

    async def delete(self, messages: Sequence[Message]) -> None:
        """See `TaskQueue`."""
        rows = [tuple(map(int, message.receipt.split("/"))) for message in messages]

        def write(db: sqlite3.Connection) -> None:
            with transaction(db):
                db.executemany("delete from messages where n = ? and receipt = ?", rows)

        if rows:
            await self._database.write(write)

    async def aclose(self) -> None:
        """See `TaskQueue`."""
        self._closed = True
        self._sent.set()
        await self._database.aclose()

    async def _take(self, limit: int) -> list[Message]:
        now_ms = self._clock.now_ms()
        select = "select 1 from messages where visible_ms <= ? limit 1"
        if await self._database.read(lambda db: db.execute(select, (now_ms,)).fetchone()) is None:
            return []  # most of the time: without a lock that others would have to wait for
        hide = (
            "update messages set visible_ms = ?, receipt = receipt + 1"
            " where n in (select n from messages where visible_ms <= ? order by visible_ms limit ?)"
            " returning task, n, receipt"
        )
        facts = (now_ms + HIDDEN_MS, now_ms, limit)
        rows = await self._database.write(lambda db: db.execute(hide, facts).fetchall())
        return [Message(TaskRef.parse(task), f"{n}/{receipt}") for task, n, receipt in rows]
