"""The tables in PostgreSQL, in a schema of their own, and their migrations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from roundgate.errors import Unavailable

MIGRATIONS: Final = (
    """
create table store (version int not null, tables_id bigint not null, id text not null);
insert into store values (0, 0, gen_random_uuid());
create table sessions (
    key text collate "C" primary key, value bytea not null, version bigint not null, forget_ms bigint not null
);
create index sessions_by_forget on sessions (forget_ms);
create table tasks (
    n bigint generated always as identity primary key,
    version bigint not null default floor(random() * 1e12),
    owner text collate "C" not null, id text collate "C" not null, tool text not null, call_id text,
    status text not null, status_message text, ending text, failed_steps text, retried_as text, events text, asked text,
    created_ms bigint not null, updated_ms bigint not null, expires_ms bigint not null, revision bigint not null,
    fence bigint not null, lease_until_ms bigint not null, wake_ms bigint not null, due_ms bigint,
    attempts bigint not null, deaths bigint not null, suspect boolean not null, alone boolean not null,
    declined_ms bigint not null, journal_version bigint not null, resends bigint not null,
    noted bigint not null, unsent boolean not null, cleans_up boolean not null,
    unique (owner, id)
) with (fillfactor = 70);
create index tasks_by_due on tasks ((n & 7), due_ms) where due_ms is not null;
create index tasks_open_by_owner on tasks (owner) where due_ms is not null;
create index tasks_by_expiry on tasks (expires_ms);
create index tasks_hidden on tasks (expires_ms) where id >= '~';
create index tasks_ended on tasks (n) where ending in ('step_failed', 'error', 'cancelled');
create table payloads (
    number bigint generated always as identity, task bigint not null references tasks on delete cascade,
    kind text not null, name bytea not null, value bytea not null
);
create index payloads_of_task on payloads (task, kind);
create table told (only_row int primary key check (only_row = 1), said bytea not null);
create table waiting (
    n bigint generated always as identity primary key, owner text collate "C" not null,
    task text collate "C" not null unique, visible_ms bigint not null, turn bigint,
    taken boolean not null default false, receipt bigint not null default 0
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
create index waiting_by_turn on waiting (turn, n) where turn is not null;
create index waiting_of_owner on waiting (owner, turn) where turn is not null;
create index waiting_by_time on waiting (visible_ms) where turn is null;
create sequence served;
""",
)
"""The scripts that each bring the tables to the next version. Released scripts never change; new
columns need defaults, so that processes of the previous version can continue."""
MIN_VERSION: Final = 1
"""The oldest version of the tables whose processes can use the present tables. A script that removes
what they need raises it, in a release after the one whose processes stopped using it."""
MIGRATION_S: Final = 900
"""The time limit in seconds for a migration, including its wait for the lock."""
IDLE_MS: Final = 60_000
"""The time in milliseconds for which the server waits for the next statement of a migration. Then
it releases the lock, because the host of the process may have vanished."""
_LOCK: Final = 0x726F756E64
"""The advisory lock for changes of the tables."""


async def migrate(
    connection: Any, scripts: Sequence[str] = MIGRATIONS, min_version: int = MIN_VERSION
) -> str:
    """Bring the tables to this version, even if other processes do so at the same time. Leave tables
    of a later version as they are. Return the store's id.

    Raises:
        Unavailable: this version cannot use the tables.
    """
    version, store = await check_version(connection, scripts)
    if version >= len(scripts):
        return store
    async with connection.transaction():
        settings = "set local statement_timeout = 0; set local search_path = roundgate"
        idle = f"set local idle_in_transaction_session_timeout = {IDLE_MS}"
        await connection.execute(f"{settings}; {idle}; select pg_advisory_xact_lock({_LOCK})")
        version, store = await check_version(connection, scripts)
        if version >= len(scripts):
            return store
        if await connection.fetchval("select to_regnamespace('roundgate') is null"):
            await connection.execute("create schema roundgate")
        for script in scripts[version:]:
            await connection.execute(script, timeout=MIGRATION_S)
        # outside of the scripts, because the first one was in use before the column
        await connection.execute("alter table store add column if not exists min_version int")
        update = "update store set version = $1, tables_id = $2, min_version = $3"
        await connection.execute(update, len(scripts), _tables_id(scripts), min_version)
    return (await check_version(connection, scripts))[1]


async def check_version(connection: Any, scripts: Sequence[str] = MIGRATIONS) -> tuple[int, str]:
    """Return the version of the tables, 0 if there are none, and the store's id.

    Raises:
        Unavailable: this version cannot use the tables.
    """
    # to_regclass would answer from what the connection knew before it waited for the lock
    tables = "from pg_tables where schemaname = 'roundgate' and tablename = 'store'"
    if not await connection.fetchval(f"select count(*) {tables}"):
        return 0, ""
    row = await connection.fetchrow(
        "select version, tables_id, id, coalesce((to_jsonb(store) ->> 'min_version')::int, version)"
        " from roundgate.store"
    )
    version, number, store, min_version = row
    mine = len(scripts)
    if min_version > mine or (version <= mine and number != _tables_id(scripts[:version])):
        which = f"this version uses {mine}" if min_version > mine else "with other tables"
        raise Unavailable(
            "another version of the gateway has changed the tables of the database (version"
            f" {version}, {which}); use that version, or another database"
        )
    return version, store


def _tables_id(scripts: Sequence[str]) -> int:
    return crc32("".join(scripts).encode())
