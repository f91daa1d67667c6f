"""Group commit for the writes of one process to a file: writes that come during another commit
share the next one.

A transaction waits for the disk once, whatever its size. So writes that come while the disk is busy
become one transaction, in their order, in which each write has a savepoint of its own:

    writes        a      b c d      e
    thread        begin a commit ── begin b c d commit ── begin e commit
                        └ to disk             └ to disk         └ to disk

A write returns after the commit. A write that raises an error is rolled back alone. If a
transaction of several writes cannot be committed (the disk is full), each write is retried alone,
so that no write fails because of another.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, TypeAlias, TypeVar

from msgspec import Struct

T = TypeVar("T")

TOGETHER: Final = 64
"""The maximum number of writes in one transaction, which readers see all at once."""

Work: TypeAlias = "Callable[[sqlite3.Connection], Any]"


class Write(Struct, eq=False):
    """A write with a waiting caller."""

    work: Work
    done: asyncio.Future[Any]
    durable: bool
    value: Any = None
    error: BaseException | None = None

    def settle(self) -> None:
        """Complete the future with the outcome, unless the caller was cancelled."""
        if self.done.done():  # the caller was cancelled
            return
        if self.error is None:
            self.done.set_result(self.value)
        else:
            self.done.set_exception(self.error)


Run: TypeAlias = "Callable[[Callable[[sqlite3.Connection], None], bool], None]"
"""Runs a function with a connection while no other thread writes. The flag says whether its
transactions must be on the disk when it returns."""


class Writer:
    """The writes of one event loop, in one thread at a time."""

    def __init__(self, run: Run, threads: ThreadPoolExecutor) -> None:
        self.loop = asyncio.get_running_loop()
        self._run = run
        self._threads = threads
        self._waiting: deque[Write] = deque()
        self._is_busy = False

    async def write(self, work: Work, durable: bool) -> Any:
        """Run work and return its result once it is in the file. If the caller is cancelled, the
        write may have happened.

        Raises:
            sqlite3.Error, OSError: the write failed and did not happen.
        """
        write = Write(work, self.loop.create_future(), durable)
        self._waiting.append(write)
        if not self._is_busy:
            self._begin()
        return await write.done

    def _begin(self) -> None:
        writes = [self._waiting.popleft() for _ in range(min(TOGETHER, len(self._waiting)))]
        self._is_busy = bool(writes)
        if writes:
            self._threads.submit(self._in_thread, writes)

    def _in_thread(self, writes: Sequence[Write]) -> None:
        try:
            self._run(lambda db: commit(db, writes), any(write.durable for write in writes))
        except BaseException as error:  # the connection failed
            for write in writes:
                write.error = error
        with suppress(RuntimeError):  # the loop is closed and has no waiting callers
            self.loop.call_soon_threadsafe(self._end, writes)

    def _end(self, writes: Sequence[Write]) -> None:
        self._begin()  # first, so that the thread need not wait for the callers
        for write in writes:
            write.settle()


def commit(db: sqlite3.Connection, writes: Sequence[Write]) -> None:
    """Run several writes in one transaction and record the outcome of each. If the transaction fails,
    run each write by itself, unless the file is locked."""
    try:
        with transaction(db):
            if len(writes) == 1:  # the transaction serves as its savepoint
                writes[0].value, writes[0].error = writes[0].work(db), None
            else:
                for write in writes:
                    _do(db, write)
    except Exception as error:
        for write in writes:
            if len(writes) == 1 or _is_busy(error):
                write.error = error
            else:
                commit(db, [write])


def _is_busy(error: Exception) -> bool:
    """Return whether another process keeps the file locked, so that retrying a single write would
    also fail."""
    code = error.sqlite_errorcode & 0xFF if isinstance(error, sqlite3.OperationalError) else None
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _do(db: sqlite3.Connection, write: Write) -> None:
    """Run one write of a transaction.

    Raises:
        sqlite3.Error: SQLite has ended the transaction.
    """
    write.error = None
    db.execute("savepoint one")
    try:
        write.value = write.work(db)
    except Exception as error:
        if not db.in_transaction:
            raise
        db.execute("rollback to one")
        write.error = error
    db.execute("release one")


def transacted(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    with transaction(db):
        return work(db)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit all statements of the block, or none. The transaction waits for other writers at its
    beginning, so that it cannot fail halfway."""
    with _ended(db, "immediate"):
        yield
        db.execute("commit")


@contextmanager
def snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """Read all values in the block as of one moment."""
    with _ended(db, "deferred"):
        yield


@contextmanager
def _ended(db: sqlite3.Connection, kind: Literal["immediate", "deferred"]) -> Iterator[None]:
    """Begin a transaction, and roll it back at the end unless it was committed or SQLite has
    already ended it, as with a full disk."""
    db.execute(f"begin {kind}")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("rollback")
