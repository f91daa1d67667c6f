"""PostgreSQL as the store: a pool of connections.

Each operation is one statement in one round trip: it happens as a whole or not at all. If the
connection is lost, the statement may have happened, so only repeatable statements are retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Final

import asyncpg

from roundgate.background import detached
from roundgate.errors import Unavailable
from roundgate.storage.ports import Outage
from roundgate.storage.postgres.schema import check_version, migrate

CHECK_S: Final = 3
"""The time limit in seconds for the check of the tables when a process starts."""
CONNECT_S: Final = 5
"""The time limit in seconds for making a connection."""
ACQUIRE_S: Final = 10
"""The time limit in seconds for acquiring a connection of the pool."""
STATEMENT_S: Final = 15
"""The time limit in seconds of a statement, in this process and in the server."""
FORGET_ROWS: Final = 500
FORGET_BYTES: Final = 64_000_000
"""The limits of one deletion of expired rows: `FORGET_ROWS` rows, and about `FORGET_BYTES` bytes of
values, which PostgreSQL deletes in pieces of 2 KB."""
_ATTEMPTS: Final = 3
_FAILED: Final = (
    *(asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError),
    OSError,  # includes timeouts
)
_ROLLED_BACK: Final = (
    *(asyncpg.DeadlockDetectedError, asyncpg.SerializationError),
    asyncpg.ReadOnlySQLTransactionError,
)
_OTHERS_S: Final = 0.05
"""Seconds after the end of a connection in which those of the others arrive. asyncpg closes an expired
connection in a task of its own, and an error there is logged with a traceback."""
_OF_ALL_CONNECTIONS: Final = (
    asyncpg.ReadOnlySQLTransactionError,  # the server has become a standby
    asyncpg.InternalClientError,  # the connection was cut while a statement was sent
)
"""The errors after which the other connections of the pool cannot be expected to work, as after the
loss of one."""
_OPTIONS: Final[dict[str, Any]] = {
    "timeout": CONNECT_S,
    "command_timeout": STATEMENT_S,
    "server_settings": {
        "application_name": "roundgate",
        "statement_timeout": str(STATEMENT_S * 1000),
        "plan_cache_mode": "force_generic_plan",  # planning would take half of a statement's time
    },
}


def other_version(url: str) -> str | None:
    """Return the reason why this version cannot use the tables of a database. Return `None` if it can,
    or if the database does not answer within `CHECK_S` seconds: plain calls do without it."""
    reasons: list[str] = []

    async def check() -> None:
        connection = await asyncpg.connect(url, **_OPTIONS)
        try:
            await check_version(connection)
        except Unavailable as error:
            reasons.append(str(error))
        finally:
            await connection.close()

    def run() -> None:
        with suppress(*_FAILED):  # the first use of the store tells of it
            asyncio.run(check())

    # in a thread, because an event loop may run here, and name resolution cannot be cancelled
    checking = Thread(target=run, daemon=True)
    checking.start()
    checking.join(CHECK_S)
    return reasons[0] if reasons else None


class PostgresDatabase:
    """One PostgreSQL database. Connections are made on demand, up to `connections`, plus one
    connection that listens."""

    def __init__(self, url: str, connections: int = 10) -> None:
        self.id: str | None = None
        """The random id of the tables; `None` until they are opened."""
        self._url = url
        self._connections = connections
        self._opening: asyncio.Task[Any] | None = None
        """The task that opens the pool of the event loop that last used the database."""
        self.outage = Outage()

    async def fetch(self, statement: str, *facts: Any) -> list[Any]:
        """Return the rows of a repeatable statement, as `fetch_once` does, but retry every failure
        except a timeout."""
        return await self._fetch(statement, facts, is_repeatable=True)

    async def fetch_once(self, statement: str, *facts: Any) -> list[Any]:
        """Return the rows of a statement once it is committed.

        Raises:
            Unavailable: the database cannot be used; the statement may have happened.
            ValueError: PostgreSQL cannot store one of the values.
        """
        return await self._fetch(statement, facts, is_repeatable=False)

    async def _fetch(
        self, statement: str, facts: Sequence[Any], *, is_repeatable: bool
    ) -> list[Any]:
        values = [_storable(value) for value in facts]
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                async with asyncio.timeout(ACQUIRE_S):
                    pool = await self._pool()
                    connection = await pool.acquire()
                try:
                    rows: list[Any] = await connection.fetch(statement, *values)
                except BaseException as error:
                    is_closed = True
                    with suppress(*_FAILED):  # an error of the cleanup would replace the first
                        is_closed = connection.is_closed()
                        await pool.release(connection, timeout=CONNECT_S)
                    if is_closed:
                        await asyncio.sleep(_OTHERS_S)
                    if is_closed or isinstance(error, _OF_ALL_CONNECTIONS):
                        await pool.expire_connections()
                    raise
                await pool.release(connection, timeout=CONNECT_S)
            except _FAILED as error:
                if _is_of_value(error):  # the message contains the value
                    raise ValueError("PostgreSQL cannot store a value of this write") from None
                is_safe = is_repeatable and not isinstance(error, TimeoutError)
                if not attempts_left or not (is_safe or isinstance(error, _ROLLED_BACK)):
                    raise self._unavailable(error) from error
            else:
                self.outage.note(None)
                return rows
        raise AssertionError("the last attempt returns or raises")

    async def listen(self, channel: str, heard: Callable[..., None]) -> Any:
        """Return a separate connection that calls `heard` for each notification.

        Raises:
            Unavailable: the database cannot be used.
        """
        try:
            connection = await asyncpg.connect(self._url, **_OPTIONS)
            await connection.add_listener(channel, heard)
        except _FAILED as error:
            raise self._unavailable(error) from error
        return connection

    async def aclose(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None and opening.get_loop() is asyncio.get_running_loop():
            opening.cancel()  # without effect once it is open
            with suppress(asyncio.CancelledError, Exception):
                pool = await opening
                async with asyncio.timeout(CONNECT_S):  # a timeout terminates the connections
                    await pool.close()

    async def _pool(self) -> Any:
        """Return the open pool. All callers wait for the same attempt to open it; cancelling a
        caller does not end the attempt."""
        opening = self._opening
        if opening is None or opening.get_loop() is not asyncio.get_running_loop():
            opening = self._opening = detached(asyncio.create_task, self._open())
            opening.add_done_callback(self._note_opened)
        return opening.result() if opening.done() else await asyncio.shield(opening)

    async def _open(self) -> Any:
        pool = await asyncpg.create_pool(
            self._url, min_size=0, max_size=self._connections, reset=_keep, **_OPTIONS
        )
        try:
            async with pool.acquire() as connection:
                self.id = await migrate(connection)
        except BaseException:
            pool.terminate()
            raise
        return pool

    def _note_opened(self, opening: asyncio.Task[Any]) -> None:
        """Let the next caller try again after a failed attempt."""
        error = asyncio.CancelledError() if opening.cancelled() else opening.exception()
        if error is not None and self._opening is opening:
            self._opening = None
            if isinstance(error, Unavailable):
                self.outage.trouble = str(error)

    def _unavailable(self, error: Exception) -> Unavailable:
        """Return the error to raise. Callers see the error, so only the log has the reason, without
        its detail, which may contain values."""
        text = str(error.args[0] if isinstance(error, asyncpg.PostgresError) else error)
        self.outage.note(text or type(error).__name__)
        return Unavailable("The database cannot be used just now")


def deletion(table: str, key: str, time: str, size: str, condition: str = "true") -> str:
    """Return a statement that deletes rows with a time before `$1`, the oldest first, and returns
    their keys. The statement skips locked rows, and stops at `FORGET_ROWS` rows or `FORGET_BYTES`
    bytes.

    Args:
        table: the table.
        key: the column of the key.
        time: the column of the time.
        size: the SQL expression for the size of a row in bytes.
        condition: a further SQL condition for the rows.
    """
    where = f"{condition} and {time} < $1"
    some = f"select {key}, {time} as time, {size} as size from roundgate.{table} where {where}"
    old = f"{some} order by {time} limit {FORGET_ROWS} for update skip locked"
    sums = (
        f"select {key}, sum(size) over (order by time, {key}) - size as before from ({old}) as old"
    )
    keys = f"select {key} from ({sums}) as sums where before < {FORGET_BYTES}"
    return f"delete from roundgate.{table} where {key} in ({keys}) returning {key}"


def _is_of_value(error: Exception) -> bool:
    is_invalid = isinstance(error, asyncpg.DataError | ValueError)
    return is_invalid and not isinstance(error, asyncpg.ClientConfigurationError)


async def _keep(connection: Any) -> None:
    """Do nothing, because each use of a connection is one statement, which leaves no state."""


def _storable(value: Any) -> Any:
    """Return a text, or a list of texts, without the NUL character, which PostgreSQL cannot
    store."""
    if isinstance(value, list):
        return [_storable(part) for part in value]
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value
