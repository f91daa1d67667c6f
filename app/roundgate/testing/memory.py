"""Stores in memory: what instances of one gateway share in a test. They are those of SQLite,
on a file that is none."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from roundgate.clock import Clock
from roundgate.runtime.startup import Stores
from roundgate.storage.sqlite import (
    Database,
    SqliteOnce,
    SqliteQueue,
    SqliteSessions,
    SqliteTasks,
    connect_in_memory,
    transacted,
)
from roundgate.tasks.stored import StoredTasks

T = TypeVar("T")


class Memory:
    """What is kept. It is gone when it is closed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connection: sqlite3.Connection | None = None

    def stores(self, life: Life) -> Stores:
        """The stores as one instance of the gateway reaches them, for as long as it lives."""
        database = _MemoryDatabase(self, life)
        return Stores(
            SqliteOnce(database, self._clock),
            StoredTasks(SqliteTasks(database)),
            SqliteQueue(database, self._clock),
            SqliteSessions(database, self._clock),
        )

    def next_ms(self) -> int | None:
        """When the next message comes, or a task is looked for, in milliseconds since the epoch;
        `None`: never. That a task is forgotten some time does not count."""
        select = (
            "select min(at) from (select min(visible_ms) as at from waiting where turn is null"
            " union all select min(due_ms) from tasks where due_ms < expires_ms)"
        )
        found: int | None = self.connection.execute(select).fetchone()[0]
        return found

    @property
    def connection(self) -> sqlite3.Connection:
        """The one connection: another would have a memory of its own."""
        if self._connection is None:
            self._connection = connect_in_memory()
        return self._connection

    def close(self) -> None:
        """Forget everything."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Life:
    """One instance of a gateway or worker, until it ends or dies. A dead one
    reaches nothing any more."""

    def __init__(self) -> None:
        self.died = asyncio.Event()
        self._is_buried = asyncio.Event()

    async def die(self) -> None:
        """Let whoever awaits this go on no more."""
        self.died.set()
        await asyncio.Future[None]()

    async def reach(self) -> None:
        """Called before a store is used: it does nothing while the instance lives.

        Raises:
            CancelledError: it is dead, and the test is over, so that what it left behind may end.
        """
        if self.died.is_set():
            await self._is_buried.wait()
            raise asyncio.CancelledError

    def bury(self) -> None:
        """Let what it left behind end."""
        self._is_buried.set()


class _MemoryDatabase(Database):
    """The memory, as one instance reaches it: without threads, so that a test
    has no races of its own."""

    def __init__(self, memory: Memory, life: Life) -> None:
        super().__init__(Path(":memory:"), durable=False)
        self._memory = memory
        self._life = life

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """See `Database`."""
        await self._life.reach()
        return work(self._memory.connection)

    async def write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """See `Database`."""
        return await self.read(lambda db: transacted(db, work))

    async def aclose(self) -> None:
        """The memory outlives the instance."""
