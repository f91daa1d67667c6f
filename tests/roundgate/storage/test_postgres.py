"""The stores and the queue in PostgreSQL do what every one must, and survive what happens to their server."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from roundgate.clock import Clock
from roundgate.errors import ConfigError, Unavailable
from roundgate.protocol.tasks import Status
from roundgate.storage.ports import Opening, SessionRow, SessionStore, TaskQueue
from roundgate.storage.postgres import (
    PostgresDatabase,
    PostgresQueue,
    PostgresSessions,
    PostgresTasks,
    open_store,
    tasks,
)
from roundgate.storage.postgres import database as limits
from roundgate.storage.postgres.queue import HIDDEN_MS
from roundgate.storage.postgres.schema import MIGRATIONS, migrate
from roundgate.storage.tasks import (
    FORGET_AFTER_MS,
    Lost,
    Put,
    RecordChange,
    RecordPart,
    TaskRecord,
    TaskRef,
)
from roundgate.tasks import events
from roundgate.tasks.stored import StoredTasks
from tests.roundgate.storage import once_contract, queue_contract, session_contract, task_contract
from tests.roundgate.storage.account_contract import AccountContract
from tests.roundgate.storage.once_contract import LATER
from tests.roundgate.storage.queue_contract import LetPass
from tests.roundgate.storage.rate_contract import RateContract
from tests.roundgate.storage.task_contract import (
    END,
    NOW,
    REF,
    asking,
    blob,
    ids,
    new,
    raw,
    working,
)
from tests.roundgate.storage.test_sqlite_plans import of_owners, of_workers
from tests.roundgate.storage.version_contract import COLUMN, FILLED, Opened, VersionContract
from tests.support.clocks import FixedClock, SkippingClock
from tests.support.postgresql import Server
from tests.support.reopening import reopening

Connect = Callable[..., PostgresDatabase]


@pytest.fixture
async def connect(postgresql: Server) -> AsyncIterator[Connect]:
    """Makes the connections of one more process."""
    made: list[PostgresDatabase] = []

    def one(url: str = postgresql.url, connections: int = 4) -> PostgresDatabase:
        made.append(PostgresDatabase(url, connections))
        return made[-1]

    yield one
    for database in made:
        await database.aclose()


@pytest.fixture
def open_sessions(connect: Connect, clock: FixedClock) -> Callable[[], SessionStore]:
    return lambda: PostgresSessions(connect(), clock)


class TestPostgresTasks(task_contract.TaskStoreContract):
    """The contract of tasks."""

    @pytest.fixture
    def reopen(self, connect: Connect) -> task_contract.Reopen:
        return lambda: StoredTasks(PostgresTasks(connect()))

    async def test_what_expired_long_ago_is_forgotten(self, store: StoredTasks) -> None:
        await store.create(new(call=blob(9_000)))
        await store.create(new(TaskRef("owner", "later"), expires_ms=END + 1))
        assert await store.forget(END + FORGET_AFTER_MS - 1) == 0
        assert await store.forget(END + FORGET_AFTER_MS) == 1
        assert ids((await store.find()).records) == ["later"]
        assert await store.read(REF, NOW) is None

    async def test_large_tasks_are_forgotten_a_few_at_a_time_the_oldest_first(
        self, store: StoredTasks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tasks, "_FORGET", tasks._FORGET.replace("64000000", "150000"))
        for n in range(5):
            await store.create(
                new(TaskRef("owner", f"{n}"), call=blob(100_000), expires_ms=END - n)
            )
        assert await store.forget(END + FORGET_AFTER_MS) == 2
        assert sorted(ids((await store.find()).records)) == ["0", "1", "2"]
        assert await store.forget(END + FORGET_AFTER_MS) == 2
        assert await store.forget(END + FORGET_AFTER_MS) == 1

    async def test_no_value_outlives_its_task(self, store: StoredTasks, connect: Connect) -> None:
        lease = await working(store, call=blob(9_000), journal=[b"1"])
        await store.write(lease, events.Finish(Status.COMPLETED, b""), NOW)
        assert await store.purge(REF, NOW)
        assert await connect().fetch("select * from roundgate.payloads") == []

    async def test_of_a_swap_and_a_deletion_at_once_one_happens(
        self, stores: list[StoredTasks], connect: Connect
    ) -> None:
        for n in range(20):
            ref = TaskRef("owner", f"{n}")
            await stores[0].create(new(ref))
            known = await raw(stores[0], ref)
            change = RecordChange(
                known, replace(known, fence=1), [Put(RecordPart.JOURNAL, blob(5_000))]
            )
            swapped, deleted = await asyncio.gather(
                stores[1].store.swap(change), stores[2].store.delete(known)
            )
            assert deleted == isinstance(swapped, Lost)
            assert (await stores[3].store.head(ref) is None) == deleted
        orphans = (
            "select task from roundgate.payloads where task not in (select n from roundgate.tasks)"
        )
        assert await connect().fetch(orphans) == []

    async def test_names_and_messages_may_have_any_character(self, store: StoredTasks) -> None:
        lease = await asking(store, {"a\0b": b"?", "ä\n'": b"?"})
        assert lease is not None
        record = await store.read(REF, NOW)
        assert record is not None
        assert list(record.requests) == ["a\0b", "ä\n'"]
        known = await raw(store)
        swapped = await store.store.swap(
            RecordChange(known, replace(known, status_message="one\0two"))
        )
        assert isinstance(swapped, TaskRecord)
        assert (await raw(store)).status_message == "one\ufffdtwo", "PostgreSQL keeps no NUL"

    async def test_an_id_that_no_task_can_have_is_unknown(self, store: StoredTasks) -> None:
        assert await store.read(TaskRef("owner", "id\0"), NOW) is None
        assert await store.store.heads([TaskRef("owner\0", "id\0")]) == {}

    async def test_large_values_lie_outside_of_the_tables_that_are_looked_up(
        self, store: StoredTasks, connect: Connect, clock: FixedClock
    ) -> None:
        await store.create(new(call=blob(2_000_000)))
        await PostgresSessions(connect(), clock).put("key", blob(300_000), LATER)
        for table in ("tasks", "payloads", "sessions"):
            select = f"select pg_relation_size('roundgate.{table}')"
            (size,) = (await connect().fetch(select))[0]
            assert size < 50_000


class TestPostgresOnce(once_contract.OnceStoreContract):
    """The contract of `once`."""

    @pytest.fixture
    def spawn_claims(self, postgresql: Server) -> once_contract.SpawnClaims:
        imports = "from roundgate.storage.postgres import PostgresDatabase, PostgresSessions"
        sessions = "PostgresSessions(PostgresDatabase(*place), Clock())"
        return once_contract.spawning(imports, sessions, [postgresql.url])

    def test_processes_that_race_for_a_database_without_tables_all_get_on(
        self, spawn_claims: once_contract.SpawnClaims, postgresql: Server
    ) -> None:
        postgresql.execute("drop schema if exists roundgate cascade")
        assert spawn_claims("id", processes=6, claims=1).count("won") == 1


class TestPostgresSessions(session_contract.SessionStoreContract):
    """The contract of sessions."""

    async def test_rows_are_deleted_when_their_time_has_come(
        self, store: SessionStore, connect: Connect, clock: FixedClock
    ) -> None:
        for number in range(10):
            await store.put_new(f"key {number}", b"x", clock.now_ms() + 1_000)
        clock.skip(120)
        await store.put_new("another", b"y", LATER)
        rows = await connect().fetch("select key from roundgate.sessions")
        assert [tuple(row) for row in rows] == [("another",)]


@pytest.mark.long
class TestPostgresAccounts(AccountContract):
    """The contract of accounts."""


@pytest.mark.long
class TestPostgresRates(RateContract):
    """The contract of shared token buckets."""


class TestPostgresQueue(queue_contract.DatabaseQueueContract):
    """The contract of the queue."""

    hidden_s = HIDDEN_MS / 1000

    @pytest.fixture
    async def reopen(
        self, connect: Connect, clock: SkippingClock
    ) -> AsyncIterator[queue_contract.Reopen]:
        async with reopening(lambda: PostgresQueue(connect(), clock)) as open_one:
            yield open_one

    async def test_many_that_send_and_receive_at_once_lose_and_double_nothing(
        self, reopen: queue_contract.Reopen
    ) -> None:
        queues = [reopen() for _ in range(4)]
        refs = [TaskRef(f"owner {n % 5}", f"{n}") for n in range(200)]
        got: list[TaskRef] = []

        async def take(queue: TaskQueue) -> None:
            while messages := await queue.receive(7, 300):
                got.extend(message.ref for message in messages)
                await queue.delete(messages)

        sends = [queue.send_many(refs[start::8]) for start, queue in enumerate(queues * 2)]
        await asyncio.gather(*sends, *map(take, queues))
        assert sorted(got) == sorted(refs)

    async def test_who_waits_elsewhere_is_woken_at_once(
        self, queue: TaskQueue, reopen: queue_contract.Reopen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("roundgate.storage.postgres.queue.POLL_S", 600)
        waiting = asyncio.ensure_future(queue.receive(10, 600_000))
        await asyncio.sleep(0.5)
        await reopen().send(REF)
        async with asyncio.timeout(60):
            assert [message.ref for message in await waiting] == [REF]

    async def test_who_waits_elsewhere_is_woken_by_a_process_that_receives_no_more(
        self, queue: TaskQueue, reopen: queue_contract.Reopen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("roundgate.storage.postgres.queue.POLL_S", 600)
        sender = reopen()
        stopped = asyncio.ensure_future(sender.receive(10, 600_000))
        waiting = asyncio.ensure_future(queue.receive(10, 600_000))
        await asyncio.sleep(0.5)
        stopped.cancel()
        await asyncio.wait([stopped])
        async with asyncio.timeout(60):
            await sender.send(REF)
            assert [message.ref for message in await waiting] == [REF]

    async def test_who_waits_gets_what_was_delayed_when_its_time_comes(
        self, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("roundgate.storage.postgres.queue.POLL_S", 600)
        began = time.monotonic()
        await queue.send(REF, 400)
        async with asyncio.timeout(60):
            assert [message.ref for message in await queue.receive(10, 600_000)] == [REF]
        assert time.monotonic() - began > 0.3

    async def test_a_lost_listener_costs_a_pause_and_is_replaced(
        self,
        queue: TaskQueue,
        reopen: queue_contract.Reopen,
        connect: Connect,
        let_pass: LetPass,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where query ilike 'listen%'"
        other, waiting = reopen(), asyncio.ensure_future(queue.receive(10, 20_000))
        await asyncio.sleep(0.5)
        assert len(await connect().fetch(cut)) == 1
        await other.send(REF)
        assert [message.ref for message in await waiting] == [REF]
        await let_pass(6)
        monkeypatch.setattr("roundgate.storage.postgres.queue.POLL_S", 60)
        waiting = asyncio.ensure_future(queue.receive(10, 30_000))
        await asyncio.sleep(0.5)
        await other.send(TaskRef("owner", "second"))
        async with asyncio.timeout(60):
            assert len(await waiting) == 1

    async def test_a_queue_that_is_closed_while_it_connects_leaves_no_connection(
        self, connect: Connect, clock: FixedClock
    ) -> None:
        database, connected = connect(), asyncio.Event()
        listen, queue = database.listen, PostgresQueue(database, clock)

        async def slowly(channel: str, heard: Callable[..., None]) -> Any:
            connected.set()
            await asyncio.sleep(0.2)
            return await listen(channel, heard)

        database.listen = slowly  # type: ignore[method-assign]
        receiving = asyncio.ensure_future(queue.receive(10, 0))
        await connected.wait()
        await queue.aclose()
        await receiving
        open_ones = "select 1 from pg_stat_activity where query ilike 'listen%'"
        async with asyncio.timeout(60):
            while await connect().fetch(open_ones) != []:  # noqa: ASYNC110 - until it has noticed
                await asyncio.sleep(0.1)


class TestPostgresVersions(VersionContract):
    """The contract of versions."""

    @pytest.fixture
    def opened(
        self,
        postgresql: Server,
        connect: Connect,
        clock: FixedClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[Opened]:
        scripts = (*MIGRATIONS, COLUMN, FILLED)
        drop = "drop schema if exists roundgate cascade"
        postgresql.execute(drop)

        async def open_some(
            version: int, min_version: int = 1, processes: int = 1
        ) -> list[PostgresSessions]:
            stores = [PostgresSessions(connect(), clock) for _ in range(processes)]
            migrates = partial(migrate, scripts=scripts[:version], min_version=min_version)
            with monkeypatch.context() as patched:
                patched.setattr(limits, "migrate", migrates)
                await asyncio.gather(*(store.read("key") for store in stores))
            return stores

        yield open_some
        postgresql.execute(drop)


class TestTables:
    """Versions of the tables."""

    @pytest.fixture
    async def connection(self, postgresql: Server) -> AsyncIterator[Any]:
        made = await asyncpg.connect(postgresql.url)
        await made.execute("drop schema if exists roundgate cascade")
        yield made
        await made.execute("drop schema if exists roundgate cascade")
        await made.close()

    async def test_tables_of_an_earlier_version_are_migrated_and_keep_their_rows(
        self, connection: Any
    ) -> None:
        store = await migrate(connection)
        await connection.execute("insert into roundgate.sessions values ('key', '', 1, 1)")
        later = (*MIGRATIONS, "alter table sessions add column owner text not null default ''")
        assert await migrate(connection, later, min_version=2) == store
        assert await migrate(connection, later, min_version=2) == store
        rows = await connection.fetch("select key, owner from roundgate.sessions")
        assert [tuple(row) for row in rows] == [("key", "")]
        with pytest.raises(
            Unavailable, match=r"version 2, this version uses 1\); use that version"
        ):
            await migrate(connection)

    async def test_a_process_refuses_to_start_on_tables_that_need_a_later_version(
        self, connection: Any, postgresql: Server
    ) -> None:
        opening = Opening(postgresql.url, Path("unused"), Clock(), 1, 1, None)
        open_store(opening)  # before there are tables
        await migrate(connection)
        open_store(opening)
        await connection.execute("update roundgate.store set min_version = 99")
        with pytest.raises(ConfigError, match=r"version 1, this version uses 1\)"):
            open_store(opening)

    async def test_a_process_starts_while_the_database_does_not_answer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "CHECK_S", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            url = f"postgresql://roundgate@127.0.0.1:{port}/roundgate"
            open_store(Opening(url, Path("unused"), Clock(), 1, 1, None))
        open_store(Opening(url, Path("unused"), Clock(), 1, 1, None))

    async def test_tables_that_another_script_made_are_refused(self, connection: Any) -> None:
        await migrate(connection, ("-- before they were settled\n" + MIGRATIONS[0],))
        with pytest.raises(Unavailable, match=r"version 1, with other tables"):
            await migrate(connection)

    async def test_a_migration_that_fails_leaves_everything_as_it_was(
        self, connection: Any
    ) -> None:
        await migrate(connection)
        broken = (*MIGRATIONS, "alter table sessions add column owner text; select 1 / 0")
        with pytest.raises(asyncpg.DivisionByZeroError):
            await migrate(connection, broken)
        await migrate(connection)
        assert await connection.fetchval("select version from roundgate.store") == 1

    @pytest.mark.parametrize("before", ["nothing", "the schema", "an earlier version"])
    async def test_processes_that_migrate_at_once_take_turns(
        self, connection: Any, postgresql: Server, before: str
    ) -> None:
        if before == "the schema":
            await connection.execute("create schema roundgate")
        elif before == "an earlier version":
            await migrate(connection)
        later = (*MIGRATIONS, "create table two (n int); select pg_sleep(0.2)")
        others = [await asyncpg.connect(postgresql.url) for _ in range(4)]
        stores = await asyncio.gather(*(migrate(other, later) for other in others))
        assert len(set(stores)) == 1
        for other in others:
            await other.close()

    async def test_a_process_whose_host_vanishes_in_a_migration_stops_no_other(
        self, connection: Any, postgresql: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("roundgate.storage.postgres.schema.IDLE_MS", 300)
        vanishing, locked = await asyncpg.connect(postgresql.url), asyncio.Event()

        class Vanishing:
            """A connection that sends nothing more once it has the lock, and is not closed."""

            def __getattr__(self, name: str) -> Any:
                return getattr(vanishing, name)

            async def execute(self, statements: str, **options: Any) -> None:
                if locked.is_set():
                    await asyncio.Event().wait()
                await vanishing.execute(statements, **options)
                locked.set()

        first = asyncio.ensure_future(migrate(Vanishing()))
        await locked.wait()
        async with asyncio.timeout(60):
            assert await migrate(connection)
        first.cancel()
        await asyncio.wait([first])

    async def test_a_database_of_a_later_version_is_refused_in_each_call_and_by_health(
        self, connection: Any, connect: Connect
    ) -> None:
        await migrate(connection, (*MIGRATIONS, "select 1"), min_version=2)
        database = connect()
        for _ in range(2):
            with pytest.raises(Unavailable, match="another version of the gateway"):
                await database.fetch("select 1")
        assert "another version" in (database.outage.trouble or "")

    async def test_a_role_without_the_right_to_make_a_schema_uses_the_one_that_it_was_given(
        self, connection: Any, postgresql: Server, connect: Connect
    ) -> None:
        await connection.execute("drop owned by plain" if await _role(connection) else "select 1")
        await connection.execute(
            "do $$ begin create role plain login; exception when duplicate_object then null; end $$"
        )
        database = connect(postgresql.url.replace("roundgate@", "plain@"))
        with pytest.raises(Unavailable) as refused:
            await database.fetch("select 1")
        assert "permission denied" in str(refused.value.__cause__)
        await connection.execute("create schema roundgate authorization plain")
        assert await PostgresSessions(database, Clock()).put_new("key", b"", LATER)


async def _role(connection: Any) -> bool:
    return bool(await connection.fetchval("select to_regrole('plain') is not null"))


class TestAway:
    """A database that cannot be used."""

    @pytest.fixture
    def store(self, connect: Connect) -> StoredTasks:
        return StoredTasks(PostgresTasks(connect()))

    @pytest.mark.parametrize("how", ["kill", "stop"])
    async def test_a_store_goes_on_after_its_server_has_started_again(
        self, store: StoredTasks, postgresql: Server, how: str
    ) -> None:
        await store.create(new())
        await asyncio.gather(*(store.read(REF, NOW) for _ in range(8)))
        await asyncio.to_thread(getattr(postgresql, how))
        with pytest.raises(Unavailable):
            await store.read(REF, NOW)
        await asyncio.to_thread(postgresql.start)
        assert await store.read(REF, NOW) is not None
        assert await store.create(new(TaskRef("owner", "second")))

    async def test_the_first_error_of_a_lost_connection_is_logged_and_its_end_once(
        self, connect: Connect, postgresql: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "roundgate.storage")
        database = connect(connections=2)
        await database.fetch("select 1")
        lost = [
            asyncio.ensure_future(database.fetch_once(f"select pg_sleep(60) -- {n}"))
            for n in range(2)
        ]
        sleeping = "from pg_stat_activity where query like 'select pg_sleep(60)%'"
        while len(await connect().fetch(f"select 1 {sleeping}")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        postgresql.execute(f"select pg_terminate_backend(pid) {sleeping}")
        for call in lost:
            with pytest.raises(Unavailable):
                await call
        await asyncio.gather(*(database.fetch("select 1") for _ in range(5)))
        away, back = caplog.records
        reason = away.__dict__["fields"]["error"]
        assert reason.endswith("terminating connection due to administrator command")
        assert back.getMessage() == "the database answers again"

    async def test_a_read_whose_connection_was_cut_is_repeated(
        self, store: StoredTasks, connect: Connect
    ) -> None:
        await store.create(new())
        other = connect(connections=1)
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        await other.fetch("select 1")
        await asyncio.gather(
            other.fetch(f"{cut} and application_name = 'roundgate'"),
            *(store.read(REF, NOW) for _ in range(20)),
        )
        assert await store.read(REF, NOW) is not None

    async def test_a_server_that_stands_still_is_not_waited_for_long(
        self, store: StoredTasks, postgresql: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("CONNECT_S", "ACQUIRE_S"):
            monkeypatch.setattr(limits, name, 1)
        monkeypatch.setitem(limits._OPTIONS, "command_timeout", 1)
        await store.create(new())
        postgresql.pause()
        try:
            began = time.monotonic()
            reads = [store.read(REF, NOW) for _ in range(20)]
            got = await asyncio.gather(*reads, return_exceptions=True)
            assert {type(one) for one in got} == {Unavailable}
            assert time.monotonic() - began < 8
        finally:
            postgresql.resume()
        async with asyncio.timeout(60):
            while True:
                try:
                    assert await store.read(REF, NOW) is not None
                    break
                except Unavailable:
                    await asyncio.sleep(0.1)

    async def test_a_connection_to_a_server_that_became_a_standby_is_replaced(
        self, store: StoredTasks, connect: Connect
    ) -> None:
        await store.create(new())
        name, writable = "default_transaction_read_only", connect()
        await writable.fetch("select 1")
        await writable.fetch(f"alter database roundgate set {name} = on")
        try:
            demoted = StoredTasks(PostgresTasks(connect()))
            with pytest.raises(Unavailable):
                await demoted.create(new(TaskRef("owner", "second")))
        finally:
            await writable.fetch(f"alter database roundgate reset {name}")
        assert await demoted.create(new(TaskRef("owner", "third")))

    async def test_who_waits_too_long_for_a_connection_is_told(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database = connect(connections=1)
        await database.fetch("select 1")
        slow = asyncio.ensure_future(database.fetch("select pg_sleep(1)"))
        await asyncio.sleep(0.1)
        with monkeypatch.context() as patched:
            patched.setattr(limits, "ACQUIRE_S", 0.2)
            with pytest.raises(Unavailable):
                await database.fetch("select 1")
        await slow
        assert len(await database.fetch("select 1")) == 1

    async def test_the_server_ends_a_statement_that_takes_too_long(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(limits._OPTIONS["server_settings"], "statement_timeout", "300")
        with pytest.raises(Unavailable) as refused:
            await connect().fetch("select pg_sleep(20)")
        assert "statement timeout" in str(refused.value.__cause__)

    async def test_a_server_that_has_no_more_connections_is_unavailable(
        self, postgresql: Server, connect: Connect
    ) -> None:
        limit = "alter role crowded connection limit 1"
        postgresql_statements = [
            "do $$ begin create role crowded login; exception when duplicate_object then null; end $$",
            limit,
            "grant create on database roundgate to crowded",
        ]
        owner = connect()
        for statement in postgresql_statements:
            await owner.fetch(statement)
        await owner.fetch("grant usage on schema roundgate to crowded")
        await owner.fetch("grant select on roundgate.store to crowded")
        url = postgresql.url.replace("roundgate@", "crowded@")
        first, second = connect(url), connect(url)
        await first.fetch("select 1")
        with pytest.raises(Unavailable) as refused:
            await second.fetch("select 1")
        assert "too many connections for role" in str(refused.value.__cause__)

    @pytest.mark.parametrize("wrong", ["password", "host", "database"])
    async def test_no_error_and_no_trouble_has_the_password(
        self, postgresql: Server, connect: Connect, wrong: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = f"postgresql://guarded:s3cr3t-word@/roundgate?host={postgresql.folder}"
        url = {
            "password": url,
            "host": "postgresql://guarded:s3cr3t-word@127.0.0.1:1/roundgate",
            "database": url.replace("/roundgate", "/none").replace("guarded", "roundgate"),
        }[wrong]
        database = connect(url)
        with pytest.raises(Unavailable) as refused:
            await database.fetch("select 1")
        assert str(refused.value) == "The database cannot be used just now"
        assert database.outage.trouble == "the database cannot be used; the log has the reason"
        (line,) = caplog.records
        (reason,) = line.__dict__["fields"].values()
        error: BaseException | None = refused.value
        texts = [reason, caplog.text]
        while error is not None:
            texts.append(f"{error!r} {error}")
            error = error.__cause__ or error.__context__
        assert not [text for text in texts if "s3cr3t" in text]

    async def test_an_error_has_no_value_of_a_row(
        self, connect: Connect, clock: FixedClock
    ) -> None:
        store = PostgresSessions(connect(), clock)
        for key, value in (("s3cr3t\ud800", b"x"), ("key", "s3cr3t")):
            with pytest.raises(ValueError, match="cannot store") as refused:
                await store.put(key, value, LATER)  # type: ignore[arg-type]
            assert "s3cr3t" not in str(refused.value)
        await store.put("key", b"1", LATER)
        with pytest.raises(Unavailable) as told:
            await connect().fetch(
                "insert into roundgate.sessions values ($1, $2, 1, 1)", "key", b"s3cr3t"
            )
        assert "Key (key)=(key)" not in str(told.value)

    async def test_of_two_statements_that_wait_for_each_other_both_happen_in_the_end(
        self, connect: Connect
    ) -> None:
        database = connect()
        await database.fetch(
            "insert into roundgate.sessions values ('1', '', 0, 0), ('2', '', 0, 0)"
        )

        def both(first: int) -> str:
            """Locks one row, then the other."""
            return (
                f"with a as (update roundgate.sessions set version = version + 1 where key = '{first}'"
                " returning pg_sleep(0.3)), b as (update roundgate.sessions set version = version + 1"
                f" where key = '{3 - first}' and (select count(*) from a) = 1 returning key)"
                " select * from b"
            )

        await asyncio.gather(database.fetch(both(1)), database.fetch(both(2)))
        rows = await database.fetch("select version from roundgate.sessions")
        assert [tuple(row) for row in rows] == [(2,), (2,)]

    def test_stores_work_in_one_event_loop_after_another(self, postgresql: Server) -> None:
        store = PostgresSessions(PostgresDatabase(postgresql.url), Clock())

        async def use(value: bytes) -> SessionRow | None:
            await store.put("key", value, LATER)
            found = await store.read("key")
            await store.aclose()
            return found

        assert asyncio.run(use(b"1")) == SessionRow(b"1", 1)
        assert asyncio.run(use(b"2")) == SessionRow(b"2", 2)

    async def test_a_caller_that_gives_up_does_not_end_the_opening_of_others(
        self, connect: Connect
    ) -> None:
        database = connect()
        first = asyncio.ensure_future(database.fetch("select 1"))
        second = asyncio.ensure_future(database.fetch("select 1"))
        await asyncio.sleep(0)
        first.cancel()
        assert len(await second) == 1


class Traced(PostgresDatabase):
    """Remembers each statement."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.statements: set[str] = set()

    async def fetch(self, statement: str, *facts: Any) -> list[Any]:
        self.statements.add(statement)
        return await super().fetch(statement, *facts)

    async def fetch_once(self, statement: str, *facts: Any) -> list[Any]:
        self.statements.add(statement)
        return await super().fetch_once(statement, *facts)


async def test_every_statement_finds_its_rows_by_an_index(postgresql: Server) -> None:
    database, clock = Traced(postgresql.url), Clock()
    store = StoredTasks(PostgresTasks(database))
    await of_owners(store)
    await of_workers(store)
    await store.late_shards(END)
    await store.store.heads([REF])
    await store.forget(END)
    queue = PostgresQueue(database, clock)
    await queue.send_many([REF, TaskRef("other", "x")])
    messages = await queue.receive(10, 0, skip=["nobody"])
    await queue.put_back(messages[:1])
    await queue.receive(10, 0)  # takes the message that was put back
    await queue.delete(messages)
    await queue.waiting([REF])
    sessions = PostgresSessions(database, clock)
    await sessions.put_new("key", b"", 1)
    await sessions.replace("key", b"", 1, 1)
    await sessions.put("key", b"", 1)
    await sessions.read_values(["key", "other"])
    assert len(database.statements) > 36, "the story has become short"
    connection = await asyncpg.connect(postgresql.url)
    await connection.execute(
        "set enable_seqscan = off"
    )  # what has no index is scanned all the same
    await connection.execute("set plan_cache_mode = force_generic_plan")
    scans = []
    for n, statement in enumerate(sorted(database.statements)):
        nulls = ", ".join(["null"] * len(set(re.findall(r"\$\d+", statement))))
        await connection.execute(f"prepare plan_{n} as {statement}")
        execute = f"execute plan_{n}" + (f" ({nulls})" if nulls else "")
        plan = [row[0] for row in await connection.fetch(f"explain {execute}")]
        scans += [
            f"{step}: {statement}" for step in plan if re.search(r"Seq Scan on (?!served)", step)
        ]
    await connection.close()
    await queue.aclose()
    assert not scans, "\n".join(scans)
