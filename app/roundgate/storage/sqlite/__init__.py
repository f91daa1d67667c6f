"""The stores in a SQLite file, for one machine."""

from __future__ import annotations

from roundgate.errors import ConfigError, Problem
from roundgate.storage.ports import Opening, Ports, StoreFacts
from roundgate.storage.sqlite.database import SqliteDatabase as SqliteDatabase
from roundgate.storage.sqlite.database import connect_in_memory as connect_in_memory
from roundgate.storage.sqlite.database import other_version as other_version
from roundgate.storage.sqlite.database import transacted as transacted
from roundgate.storage.sqlite.queue import SqliteQueue as SqliteQueue
from roundgate.storage.sqlite.sessions import SqliteSessions as SqliteSessions
from roundgate.storage.sqlite.tasks import SqliteTasks as SqliteTasks


def open_store(opening: Opening) -> Ports:
    """Return the parts of a store.

    Raises:
        ConfigError: this version cannot use the file.
    """
    if reason := other_version(opening.file):
        raise ConfigError([Problem("environment", "GATEWAY_STORE", reason, "name another file")])
    database = SqliteDatabase(opening.file)
    return Ports(
        SqliteTasks(database),
        opening.queue or SqliteQueue(database, opening.clock),
        SqliteSessions(database, opening.clock),
        StoreFacts(trouble=database.trouble, id=lambda: database.id),
    )
