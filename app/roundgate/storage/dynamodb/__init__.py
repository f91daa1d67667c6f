"""The stores in a table of DynamoDB, for any number of machines."""

from __future__ import annotations

from roundgate import aws
from roundgate.storage.dynamodb.root_items import SHARDS as SHARDS
from roundgate.storage.dynamodb.sessions import DynamoDbSessions as DynamoDbSessions
from roundgate.storage.dynamodb.table import BATCH as BATCH
from roundgate.storage.dynamodb.table import CONFIG as CONFIG
from roundgate.storage.dynamodb.table import Table as Table
from roundgate.storage.dynamodb.tasks import DynamoDbTasks as DynamoDbTasks
from roundgate.storage.ports import Opening, Ports, StoreFacts


def open_store(opening: Opening) -> Ports:
    """Return the parts of a store. A local queue is in a SQLite file on this machine."""
    name = opening.text.removeprefix("dynamodb://")
    table = Table(name, lambda: aws.client("dynamodb", **CONFIG), opening.clock)
    queue = opening.queue
    if queue is None:
        from roundgate.storage.sqlite import SqliteDatabase, SqliteQueue

        queue = SqliteQueue(SqliteDatabase(opening.file), opening.clock)
    return Ports(
        DynamoDbTasks(table, opening.shards),
        queue,
        DynamoDbSessions(table, opening.clock),
        StoreFacts(
            [table.prepare],
            clock_skew_s=60.0,  # machines have clocks of their own
            trouble=table.trouble,
        ),
    )
