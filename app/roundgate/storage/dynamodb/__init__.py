"""The stores in a table of DynamoDB, for any number of machines."""

from __future__ import annotations

from roundgate.storage.dynamodb.root_items import SHARDS as SHARDS
from roundgate.storage.dynamodb.sessions import DynamoDbSessions as DynamoDbSessions
from roundgate.storage.dynamodb.table import BATCH as BATCH
from roundgate.storage.dynamodb.table import CONFIG as CONFIG
from roundgate.storage.dynamodb.table import Table as Table
from roundgate.storage.dynamodb.table import create_table as create_table
from roundgate.storage.dynamodb.tasks import DynamoDbTasks as DynamoDbTasks
