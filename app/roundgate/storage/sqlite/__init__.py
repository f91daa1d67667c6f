"""The stores in a SQLite file, for one machine."""

from __future__ import annotations

from roundgate.storage.sqlite.database import Database as Database
from roundgate.storage.sqlite.database import connect_in_memory as connect_in_memory
from roundgate.storage.sqlite.database import other_version as other_version
from roundgate.storage.sqlite.queue import SqliteQueue as SqliteQueue
from roundgate.storage.sqlite.sessions import SqliteSessions as SqliteSessions
from roundgate.storage.sqlite.tasks import SqliteTasks as SqliteTasks
from roundgate.storage.sqlite.writing import transacted as transacted
