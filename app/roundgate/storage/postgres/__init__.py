"""The stores and the queue in a PostgreSQL database, for several hosts."""

from __future__ import annotations

from roundgate.errors import ConfigError, Problem
from roundgate.storage.ports import Opening, Ports, StoreFacts
from roundgate.storage.postgres.database import PostgresDatabase as PostgresDatabase
from roundgate.storage.postgres.database import other_version
from roundgate.storage.postgres.queue import PostgresQueue as PostgresQueue
from roundgate.storage.postgres.sessions import PostgresSessions as PostgresSessions
from roundgate.storage.postgres.tasks import PostgresTasks as PostgresTasks


def open_store(opening: Opening) -> Ports:
    """Return the parts of a store.

    Raises:
        ConfigError: this version cannot use the tables.
    """
    if reason := other_version(opening.text):
        raise ConfigError(
            [Problem("environment", "GATEWAY_STORE", reason, "name another database")]
        )
    database = PostgresDatabase(opening.text, opening.connections)
    return Ports(
        PostgresTasks(database),
        opening.queue or PostgresQueue(database, opening.clock),
        PostgresSessions(database, opening.clock),
        StoreFacts(
            clock_skew_s=60.0, trouble=lambda: database.outage.trouble, id=lambda: database.id
        ),
    )
