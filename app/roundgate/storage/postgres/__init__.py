"""The stores and the queue in a PostgreSQL database, for several hosts."""

from __future__ import annotations

from roundgate.storage.postgres.database import Database as Database
from roundgate.storage.postgres.queue import PostgresQueue as PostgresQueue
from roundgate.storage.postgres.sessions import PostgresSessions as PostgresSessions
from roundgate.storage.postgres.tasks import PostgresTasks as PostgresTasks
