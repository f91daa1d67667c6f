"""PostgreSQL behind PgBouncer, in both modes, with the settings of `docs/postgresql.md`: the contracts of every store,
and what happens to connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roundgate.errors import Unavailable
from roundgate.storage.ports import TaskQueue
from roundgate.storage.postgres import PostgresTasks
from roundgate.storage.postgres import database as limits
from roundgate.storage.postgres.queue import POLL_S
from roundgate.storage.tasks import TaskRef
from roundgate.tasks.stored import StoredTasks
from tests.roundgate.storage import queue_contract, test_postgres
from tests.roundgate.storage.task_contract import NOW, REF, new
from tests.roundgate.storage.test_postgres import Connect
from tests.roundgate.storage.test_postgres import connect as connect
from tests.roundgate.storage.test_postgres import open_sessions as open_sessions
from tests.support.pgbouncer import Mode, Pooled, Pooler, pooler, why_not
from tests.support.postgresql import Server

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=["session", "transaction"])
def running(request: pytest.FixtureRequest, postgresql_server: Server) -> Iterator[Pooler]:
    """A pooler in each mode; tests of a mode that the installed version lacks are skipped."""
    mode: Mode = request.param
    if reason := why_not(mode):
        pytest.skip(reason)
    with pooler(postgresql_server, mode) as made:
        yield made


@pytest.fixture
def postgresql(running: Pooler, postgresql_server: Server) -> Pooled:
    postgresql_server.empty()
    return Pooled(postgresql_server, running)


class TestPooledTasks(test_postgres.TestPostgresTasks):
    """The contract of tasks."""


class TestPooledSessions(test_postgres.TestPostgresSessions):
    """The contract of sessions."""


class TestPooledOnce(test_postgres.TestPostgresOnce):
    """The contract of `once`."""


class TestPooledVersions(test_postgres.TestPostgresVersions):
    """The contract of versions."""


class TestPooledAccounts(test_postgres.TestPostgresAccounts):
    """The contract of accounts."""


class TestPooledRates(test_postgres.TestPostgresRates):
    """The contract of shared token buckets."""


class TestPooledQueue(test_postgres.TestPostgresQueue):
    """The contract of the queue. Its notifications do not pass in transaction mode."""

    @pytest.fixture(autouse=True)
    def _notified(self, request: pytest.FixtureRequest, running: Pooler) -> None:
        listens = ("woken", "listener", "leaves_no_connection")
        if running.mode == "transaction" and any(word in request.node.name for word in listens):
            pytest.skip("PgBouncer passes no notifications in transaction mode")

    async def test_a_message_of_another_process_is_found_within_a_second(
        self, queue: TaskQueue, reopen: queue_contract.Reopen
    ) -> None:
        waiting = asyncio.ensure_future(queue.receive(10, 60_000))
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await reopen().send(REF)
        assert [message.ref for message in await waiting] == [REF]
        assert time.monotonic() - began < POLL_S + 5


async def _again(ask: Callable[[], Any]) -> Any:
    """Return the first answer after an outage."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except Unavailable:
                await asyncio.sleep(0.1)


class TestPooledAway:
    """Connections that end."""

    @pytest.fixture
    def store(self, connect: Connect) -> StoredTasks:
        return StoredTasks(PostgresTasks(connect()))

    @pytest.mark.parametrize("how", ["kill", "stop"])
    async def test_a_store_goes_on_after_the_server_has_started_again(
        self,
        store: StoredTasks,
        postgresql: Pooled,
        how: str,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        caplog.set_level("INFO", "roundgate.storage")
        for name in ("CONNECT_S", "ACQUIRE_S"):
            monkeypatch.setattr(limits, name, 2)
        await store.create(new())
        await asyncio.gather(*(store.read(REF, NOW) for _ in range(8)))
        await asyncio.to_thread(getattr(postgresql.server, how))
        for _ in range(3):
            with pytest.raises(Unavailable):
                await store.read(REF, NOW)
        await asyncio.to_thread(postgresql.server.start)
        assert await _again(lambda: store.read(REF, NOW)) is not None
        assert await store.create(new(TaskRef("owner", "second")))
        messages = [line.getMessage() for line in caplog.records]
        assert messages == ["cannot use the database", "the database answers again"]

    async def test_a_store_goes_on_after_the_pooler_has_started_again(
        self, store: StoredTasks, postgresql: Pooled
    ) -> None:
        await store.create(new())
        await asyncio.gather(*(store.read(REF, NOW) for _ in range(8)))
        await asyncio.to_thread(postgresql.pooler.kill)
        with pytest.raises(Unavailable):
            await store.read(REF, NOW)
        await asyncio.to_thread(postgresql.pooler.start)
        assert await _again(lambda: store.read(REF, NOW)) is not None

    async def test_a_read_whose_connection_the_server_cut_is_repeated(
        self, store: StoredTasks, postgresql: Pooled
    ) -> None:
        await store.create(new())
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()"
        for _ in range(5):
            reads = asyncio.gather(*(store.read(REF, NOW) for _ in range(20)))
            await asyncio.to_thread(postgresql.server.execute, f"{cut} and datname = 'roundgate'")
            assert None not in await reads

    async def test_the_settings_of_a_connection_are_those_of_the_role(
        self, connect: Connect
    ) -> None:
        (row,) = await connect().fetch(
            "select current_setting('statement_timeout'), current_setting('plan_cache_mode')"
        )
        own = limits._OPTIONS["server_settings"]
        assert tuple(row) == (f"{limits.STATEMENT_S}s", own["plan_cache_mode"])
        assert own["statement_timeout"] == f"{limits.STATEMENT_S * 1000}"


async def test_in_session_mode_a_full_pool_is_unavailable_until_it_has_room(
    postgresql_server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ACQUIRE_S", 1)
    with pooler(postgresql_server, "session", pool_size=1) as full:
        first, second = connect(full.url), connect(full.url)
        await first.fetch("select 1")
        with pytest.raises(Unavailable):
            await second.fetch("select 1")
        await first.aclose()
        assert await _again(lambda: second.fetch("select 1"))
