"""SQLite as the store: the embedded default, and the reference for every other.

The file uses WAL mode, so that several processes can read while one writes. Every write is a
function that runs in a transaction and checks its own condition. Calls run in threads; each
connection serves one call at a time.

A transaction waits for the disk once, whatever its size. So writes that come while the disk is busy
become one transaction, in their order, in which each write has a savepoint of its own (`Writer`):

    writes        a      b c d      e
    thread        begin a commit ── begin b c d commit ── begin e commit
                        └ to disk             └ to disk         └ to disk

A write returns after the commit. A write that raises an error is rolled back alone. If a
transaction of several writes cannot be committed (the disk is full), each write is retried alone,
so that no write fails because of another.

A deleted or replaced file stays open in this process: other processes do not see its writes, and
they are lost when this process ends. So each call compares the files at the path with the opened
ones, and raises `Unavailable` if they differ.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar
from zlib import crc32

from msgspec import Struct

from roundgate.errors import Unavailable
from roundgate.storage.ports import Outage

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


log = logging.getLogger("roundgate.storage")

BUSY_S: Final = 10
MAX_CONNECTIONS: Final = 8
FORGET_ROWS: Final = 500
FORGET_BYTES: Final = 16_000_000
"""The maximum total size in bytes of the expired values that one transaction deletes, beside
`FORGET_ROWS`: SQLite reads every page of a value that it deletes."""
_WAL_ATTEMPTS: Final = 200

# Large values are in tables with a rowid, behind the columns that a condition reads, so an index
# look-up skips them. In a table without rowid they would be in the index itself.
MIGRATIONS: Final = (
    """
create table store (id text not null);
insert into store (id) values (lower(hex(randomblob(8))));
create table tasks (
    n integer primary key,
    version integer not null default (abs(random() % 1000000000000)),
    owner text not null,
    id text not null,
    tool text not null,
    call_id text,
    status text not null,
    status_message text,
    ending text,
    failed_steps text,
    retried_as text,
    created_ms integer not null,
    updated_ms integer not null,
    expires_ms integer not null,
    revision integer not null default 0,
    fence integer not null default 0,
    lease_until_ms integer not null default 0,
    wake_ms integer not null default 0,
    due_ms integer,
    attempts integer not null default 0,
    deaths integer not null default 0,
    suspect integer not null default 0,
    alone integer not null default 0,
    declined_ms integer not null default 0,
    journal_version integer not null default 1,
    resends integer not null default 0,
    noted integer not null default 0,
    unsent integer not null default 0,
    cleans_up integer not null default 0,
    events text,
    asked text
);
create unique index tasks_by_ref on tasks (owner, id);
create index tasks_by_due on tasks (due_ms) where due_ms is not null;
create index tasks_by_expiry on tasks (expires_ms);
create index tasks_hidden on tasks (expires_ms) where id >= '~';
create index tasks_open_by_owner on tasks (owner) where due_ms is not null;
create index tasks_ended on tasks (ending) where ending in ('step_failed', 'error', 'cancelled');
create table payloads (
    n integer primary key,
    task integer not null references tasks (n) on delete cascade,
    kind text not null,
    name text not null,
    value blob not null
);
create index payloads_of_task on payloads (task, kind);
create table told (
    only_row integer primary key check (only_row = 1),
    said blob not null
);
create table waiting (
    n integer primary key,
    owner text not null,
    task text not null unique,
    visible_ms integer not null,
    turn integer,
    taken integer not null default 0,
    receipt integer not null default 0
);
create index waiting_by_turn on waiting (turn, n, owner) where turn is not null;
create index waiting_by_time on waiting (visible_ms) where turn is null;
create table turns (
    owner text primary key,
    turn integer not null
) without rowid;
create index turns_by_turn on turns (turn);
create table sessions (
    key text primary key not null,
    version integer not null,
    forget_ms integer not null,
    value blob not null
);
create index sessions_by_forget on sessions (forget_ms);
""",
)
"""The scripts that each bring the tables to the next version. Released scripts never change; new
columns need defaults, so that processes of the previous version can continue.

A file has its version (`pragma user_version`) and a number for the scripts that made it (`pragma
application_id`). A file from an unreleased state of a script has another number.
"""
MIN_VERSION: Final = 1
"""The oldest version of a file whose processes can use the present tables. A script that removes
what they need raises it, in a release after the one whose processes stopped using it."""
_TABLE_OF_MIN_VERSION: Final = (
    "create table if not exists compatible"
    " (only_row integer primary key check (only_row = 1), min_version integer not null)"
)
"""Not a part of the scripts, because the first one was in use before it."""

_writing: Final[dict[Path, threading.Lock]] = {}
"""The locks that serialize the writers of this process, by file."""

_BESIDE: Final = ("-wal", "-shm")
"""The suffixes of the files that SQLite keeps beside an open file."""

FileId: TypeAlias = tuple[int, int]
"""A file's identity: device and inode."""


class SqliteDatabase:
    """A SQLite file. Connections are made on demand, so none is open before a fork.

    `durable` writes are on the disk when they return. Other writes survive the death of the
    process, but not of the machine.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.id: str | None = None
        """The random id of the file; `None` until it is opened."""
        self._path = path
        self._durable = durable
        self._idle: list[sqlite3.Connection] = []
        self._writing = _writing.setdefault(path.absolute(), threading.Lock())
        self._threads: list[ThreadPoolExecutor] = []
        self._writer: Writer | None = None
        self._places: Sequence[Path] = ()
        """The paths of the file and its companions. Companions of a link are beside its target."""
        self._opened: list[FileId | None] = []
        """The files at their first opening; empty before."""
        self._is_lost = False
        self._outage = Outage()
        # on AWS Lambda no lifespan ends, so `aclose` is never called
        weakref.finalize(self, _close, self._idle, self._threads)

    async def write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """Run work in a transaction and return its result once the transaction is committed.

        Args:
            work: the function that writes. It runs again if it shared a transaction with other
                writes and that transaction failed.
            durable: whether the write must survive the death of the machine. Ignored unless the
                database is durable.

                Raises:
                    Unavailable: as for `read`; nothing was written.
        """
        try:
            written: T = await self._writer_here().write(work, durable and self._durable)
        except sqlite3.IntegrityError:
            raise
        except (sqlite3.Error, OSError) as error:
            if not self._is_lost:  # otherwise `_check_files` has logged the reason
                self._outage.note(str(error))
            raise _unavailable(error) from error
        self._outage.note(None)
        return written

    def _writer_here(self) -> Writer:
        """Return the writer of this event loop. The writer of a loop that has ended may hold
        unfinished work."""
        if self._writer is None or self._writer.loop is not asyncio.get_running_loop():
            self._writer = Writer(self._run_alone, self._pool())
        return self._writer

    def _pool(self) -> ThreadPoolExecutor:
        """Return the thread pool, with one thread for each concurrent call. Threads of anyio take
        three times as long."""
        if not self._threads:
            self._threads.append(ThreadPoolExecutor(MAX_CONNECTIONS, "sqlite"))
        return self._threads[0]

    def _run_alone(self, work: Callable[[sqlite3.Connection], None], durable: bool) -> None:
        """Run work while no other thread of this process writes. SQLite lets waiting writers sleep
        and poll; a lock wakes the next writer at once."""

        def alone(db: sqlite3.Connection) -> None:
            with self._writing:
                db.execute(f"pragma synchronous = {'full' if durable else 'normal'}")
                work(db)
            self._check_files()  # the write may have gone to a deleted file

        self._borrow(alone)

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work in a thread with a connection of its own and return its result.

        Raises:
            Unavailable: the file is locked for too long, missing, or not a database, or the disk is
                full.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool(), self._borrow, work
            )
        except sqlite3.IntegrityError:
            raise
        except (sqlite3.Error, OSError) as error:
            raise _unavailable(error) from error

    async def aclose(self) -> None:
        self._writer = None
        _close(self._idle, self._threads)
        self._opened = []

    def trouble(self) -> str | None:
        """Return the reason why the file cannot be used: it was deleted or replaced after it was
        opened, or the last write failed. Otherwise return `None`."""
        return self._file_trouble() or self._outage.trouble

    def _file_trouble(self) -> str | None:
        if not self._opened:
            return None
        now = [_file_id(place) for place in self._places]
        if all(then in (None, current) for then, current in zip(self._opened, now, strict=True)):
            self._is_lost = False
            return None
        what = "deleted" if None in now[:1] else "replaced"
        if now[0] == self._opened[0]:
            what = "separated from its -wal or -shm file"
        return (
            f"the file {self._path.name} was {what} while it was in use, so the store is closed;"
            " stop all processes that use the file, restore it, and start them again"
        )

    def _check_files(self) -> None:
        """Check that the files at the path are the opened ones.

        Raises:
            OSError: a file was deleted or replaced.
        """
        trouble = self._file_trouble()
        if trouble is None:
            return
        if not self._is_lost:
            self._is_lost = True
            fields = {"path": str(self._path), "error": trouble}
            log.error("the store file was deleted or replaced", extra={"fields": fields})
        raise OSError(trouble)

    def _borrow(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self._check_files()
        try:
            db = self._idle.pop()
        except IndexError:
            db = self._connect()
        try:
            return work(db)
        finally:
            self._idle.append(db)

    def _connect(self) -> sqlite3.Connection:
        if not self._opened:  # a file that disappeared later is not created again
            self._make_file()
        # autocommit: every statement is its own transaction; any thread may use the connection
        # once the previous call has ended
        db = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=rw",
            timeout=BUSY_S,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        try:
            _use_wal(db)
            db.execute("pragma foreign_keys = on")
            is_new = migrate(db, self._path)
            self._note_opened(db, is_new=is_new)
            self._check_files()  # the file may have been replaced since the check above
        except BaseException:
            db.close()
            raise
        return db

    def _make_file(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            # The file holds journals and answers, so only its owner may read it; SQLite gives its
            # companions the same mode. Only a new file is created here: closing a file that other
            # threads have open would drop their locks (POSIX).
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def _note_opened(self, db: sqlite3.Connection, *, is_new: bool) -> None:
        if self._opened:
            return
        self.id = db.execute("select id from store").fetchone()[0]
        real = self._path.resolve()
        beside = [real.with_name(real.name + suffix) for suffix in _BESIDE]
        self._places = (self._path, *beside)
        self._opened = [_file_id(place) for place in self._places]
        fields = {"path": str(self._path.absolute()), "store": self.id, "new": is_new}
        log.info("store opened", extra={"fields": fields})


def connect_in_memory() -> sqlite3.Connection:
    """Return a connection to a new database in memory, with all tables. Closing the connection
    deletes the database."""
    path = Path(":memory:")
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("pragma foreign_keys = on")
    migrate(db, path)
    return db


def expired_rows(
    db: sqlite3.Connection,
    table: str,
    size: str,
    time: str,
    before_ms: int,
    condition: str = "true",
) -> list[tuple[int]]:
    """Return the rowids of expired rows, the oldest first: at most `FORGET_ROWS`, and until their
    values reach `FORGET_BYTES`.

    Args:
        db: a connection.
        table: the table, which has a `rowid`.
        size: the SQL expression for the bytes of a row's values; null if it has none.
        time: the column of the expiry, which has an index.
        before_ms: the time before which rows have expired, in milliseconds since the epoch.
        condition: a further SQL condition for the rows.
    """
    where = f"{condition} and {time} < ?"
    select = f"select rowid, {size} from {table} where {where} order by {time} limit ?"
    rows, total = [], 0
    for number, bytes_ in db.execute(select, (before_ms, FORGET_ROWS)):
        rows.append((number,))
        total += bytes_ or 0
        if total >= FORGET_BYTES:
            break
    return rows


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"The store cannot be used just now: {error}")


def _close(connections: list[sqlite3.Connection], threads: list[ThreadPoolExecutor]) -> None:
    while threads:
        threads.pop().shutdown(wait=False)
    while connections:
        connections.pop().close()


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch a new file to WAL mode, and retry while it is locked. SQLite does not wait for this
    change, so only one of several processes that start together succeeds at once. WAL mode stays in
    the file."""
    pause = threading.Event()
    for attempt in range(_WAL_ATTEMPTS):
        try:
            db.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError:
            if attempt + 1 == _WAL_ATTEMPTS:
                raise
            pause.wait(BUSY_S / _WAL_ATTEMPTS)


def _file_id(path: Path) -> FileId | None:
    """Return the identity of a file; `None` if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def migrate(
    db: sqlite3.Connection,
    path: Path,
    scripts: Sequence[str] = MIGRATIONS,
    min_version: int = MIN_VERSION,
) -> bool:
    """Bring the tables of a file to this version, even if other processes do so at the same time.
    Leave tables of a later version as they are. Return whether the file was empty.

    Raises:
        sqlite3.OperationalError: this version cannot use the file.
    """
    if _version(db, path, scripts) >= len(scripts):
        return False
    with transaction(db):
        version = _version(db, path, scripts)
        if version >= len(scripts):
            return False
        for script in scripts[version:]:
            for statement in filter(str.strip, script.split(";")):
                db.execute(statement)
        db.execute(_TABLE_OF_MIN_VERSION)
        db.execute("insert or replace into compatible values (1, ?)", (min_version,))
        db.execute(f"pragma application_id = {_tables_id(scripts)}")
        db.execute(f"pragma user_version = {len(scripts)}")
    return version == 0


def _version(db: sqlite3.Connection, path: Path, scripts: Sequence[str]) -> int:
    """Return the version of a file, 0 if it is empty.

    Raises:
        sqlite3.OperationalError: this version cannot use the file.
    """
    if reason := _why_other(db, path, scripts):
        raise sqlite3.OperationalError(reason)
    return _pragma(db, "user_version")


def _tables_id(scripts: Sequence[str]) -> int:
    return crc32("".join(scripts).encode()) & 0x7FFF_FFFF


def other_version(path: Path) -> str | None:
    """Return the reason why this version cannot use an existing file. Return `None` if it can, or if
    only opening the file can show the reason."""
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return _why_other(db, path, MIGRATIONS)
    except sqlite3.Error:
        return None


def _why_other(db: sqlite3.Connection, path: Path, scripts: Sequence[str]) -> str | None:
    version = _pragma(db, "user_version")
    if version == 0:
        return None
    is_later = version > len(scripts)
    if is_later and _min_version(db, version) <= len(scripts):
        return None
    if not is_later and _pragma(db, "application_id") == _tables_id(scripts[:version]):
        return None
    which = f"this version reads {len(scripts)}" if is_later else "with other tables"
    return (
        f"{path.name} was written by another version of the gateway (file version {version},"
        f" {which}); use that version, or another file"
    )


def _min_version(db: sqlite3.Connection, version: int) -> int:
    """Return the oldest version that can use a file; the file's own if the file does not say."""
    if not db.execute("select 1 from sqlite_master where name = 'compatible'").fetchone():
        return version
    return int(db.execute("select min_version from compatible").fetchone()[0])


def _pragma(db: sqlite3.Connection, name: str) -> int:
    value: int = db.execute(f"pragma {name}").fetchone()[0]
    return value
