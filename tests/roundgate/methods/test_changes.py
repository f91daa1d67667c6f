"""What changes at one replica reaches the streams of all, through each kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock
from roundgate.errors import Unavailable
from roundgate.methods import changes
from roundgate.methods.changes import MAX_CHARS, MAX_PENDING, Changes, Hub, OpenSubscription, Topic
from roundgate.protocol.notifications import RESOURCE_UPDATED, TASK, TOOLS_CHANGED
from roundgate.protocol.params import SubscriptionFilter
from roundgate.storage.dynamodb.sessions import DynamoDbSessions
from roundgate.storage.ports import SessionRow, SessionStore
from roundgate.storage.postgres import PostgresDatabase as Postgres
from roundgate.storage.postgres import PostgresSessions
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.sessions import SqliteSessions
from tests.support.dynamodb import Emulator
from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.postgresql import Server
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server

EVERYTHING = frozenset({"tools", "prompts", "resources"})
EVERY_S = 0.02
Open = Callable[[], SessionStore]


class Cut:
    """A store that can be cut off."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.is_cut = False
        self.fault: Exception = Unavailable("cut off")
        self.failed = asyncio.Event()
        self.goes_on = asyncio.Event()
        """Writes wait for this."""
        self.goes_on.set()
        self.reads = 0

    def _reach(self) -> None:
        if self.is_cut:
            self.failed.set()
            raise self.fault

    async def put_new(self, key: str, value: bytes, forget_ms: int) -> bool:
        await self.goes_on.wait()
        self._reach()
        return await self._store.put_new(key, value, forget_ms)

    async def replace(self, key: str, value: bytes, version: int, forget_ms: int) -> bool:
        self._reach()
        return await self._store.replace(key, value, version, forget_ms)

    async def put(self, key: str, value: bytes, forget_ms: int) -> int:
        self._reach()
        return await self._store.put(key, value, forget_ms)

    async def read(self, key: str) -> SessionRow | None:
        self.reads += 1
        self._reach()
        return await self._store.read(key)

    async def read_values(self, keys: Any) -> Any:
        return await self._store.read_values(keys)

    async def aclose(self) -> None:
        await self._store.aclose()


class Replica:
    """One process: its streams, and its own connection to the store."""

    def __init__(self, store: SessionStore, *, shares: bool = True) -> None:
        self.rows = Cut(store)
        self.hub = Hub(10, 10)
        self.changes = Changes(self.hub, self.rows, Clock(), every_s=EVERY_S, shares=shares)

    async def listen(self, *uris: str) -> OpenSubscription:
        """A stream for the list of tools and these resources."""
        wanted = SubscriptionFilter(tools_list_changed=True, resource_subscriptions=list(uris))
        await self.changes.ready()
        stream = self.hub.subscribe(1, LOCAL, wanted, EVERYTHING)
        self.changes.follow(stream)
        return stream


ON_ANOTHER_STORE = [pytest.param(name, marks=pytest.mark.long) for name in ("dynamodb", "postgres")]


@pytest.fixture(params=["sqlite", *ON_ANOTHER_STORE])
async def replica(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[..., Replica]]:
    """Makes replicas on one store."""
    async with AsyncExitStack() as stack:
        if request.param == "dynamodb":
            emulator: Emulator = request.getfixturevalue("dynamodb")
            table = stack.enter_context(emulator.table())
        elif request.param == "postgres":
            server: Server = request.getfixturevalue("postgresql")

        def make(**options: Any) -> Replica:
            store: SessionStore
            if request.param == "dynamodb":
                store = DynamoDbSessions(emulator.open(table), Clock())
            elif request.param == "postgres":
                store = PostgresSessions(Postgres(server.url), Clock())
            else:
                store = SqliteSessions(SqliteDatabase(tmp_path / "shared.sqlite3"), Clock())
            made = Replica(store, **options)
            stack.push_async_callback(store.aclose)
            stack.push_async_callback(made.changes.aclose)
            return made

        yield make


@asynccontextmanager
async def told(stream: OpenSubscription) -> AsyncIterator[Callable[[], Awaitable[Topic]]]:
    """Reads the changes of a stream one by one."""
    changes = stream.changes(30)

    async def following() -> Topic:
        async with asyncio.timeout(60):
            change = await anext(changes)
        assert change is not None
        return change[0]

    yield following
    await changes.aclose()


async def nothing_more(stream: OpenSubscription) -> None:
    await asyncio.sleep(EVERY_S * 10)
    assert not stream._pending


async def test_a_change_at_one_replica_is_told_at_all_and_once_at_each(
    replica: Callable[..., Replica],
) -> None:
    one, other = replica(), replica()
    streams = [await each.listen("u:1") for each in (one, other)]
    for changed in ((RESOURCE_UPDATED, "u:1"), (RESOURCE_UPDATED, "u:2"), (TOOLS_CHANGED, None)):
        await one.changes.publish(*changed)
    for stream in streams:
        async with told(stream) as following:
            assert [await following() for _ in range(2)] == [
                (RESOURCE_UPDATED, "u:1"),
                (TOOLS_CHANGED, None),
            ]
        await nothing_more(stream)


async def test_what_changed_before_a_stream_was_opened_is_not_told_and_all_after_it_is(
    replica: Callable[..., Replica],
) -> None:
    one, other = replica(), replica()
    await one.changes.publish(TOOLS_CHANGED)
    stream = await other.listen("u:1")
    await one.changes.publish(RESOURCE_UPDATED, "u:1")
    async with told(stream) as following:
        assert await following() == (RESOURCE_UPDATED, "u:1")
    other.hub.unsubscribe(stream)
    await one.changes.publish(TOOLS_CHANGED)
    stream = await other.listen("u:1")
    await nothing_more(stream)


async def test_replicas_that_tell_at_the_same_time_lose_nothing(
    replica: Callable[..., Replica],
) -> None:
    several, listener = [replica() for _ in range(4)], replica()
    uris = {f"u:{n}" for n in range(40)}
    stream = await listener.listen(*uris)
    await asyncio.gather(
        *(several[n % 4].changes.publish(RESOURCE_UPDATED, uri) for n, uri in enumerate(uris))
    )
    async with told(stream) as following:
        assert {await following() for _ in uris} == {(RESOURCE_UPDATED, uri) for uri in uris}


async def test_who_has_missed_more_than_the_row_has_tells_of_everything_but_tasks(
    replica: Callable[..., Replica],
) -> None:
    one, other = replica(), replica()
    stream = await other.listen("u:1")
    stream.topics |= {(TASK, "t")}
    other.rows.is_cut = True  # so that it looks no more
    await one.changes.publish(RESOURCE_UPDATED, "u:1")
    for number in range(3):
        await one.changes.publish(RESOURCE_UPDATED, f"{number}" * (MAX_CHARS // 2))
    other.rows.is_cut = False
    async with told(stream) as following:
        assert {await following() for _ in range(2)} == stream.topics - {(TASK, "t")}
    await nothing_more(stream)


async def test_a_change_while_the_store_is_away_is_told_when_it_is_back(
    replica: Callable[..., Replica], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = replica(), replica()
    stream, own = await other.listen("u:1"), await one.listen("u:1")
    one.rows.is_cut = True
    await one.changes.publish(RESOURCE_UPDATED, "u:1")
    assert "other processes have not been notified of a change yet" in caplog.text
    async with told(own) as following:  # here it is told at once
        assert await following() == (RESOURCE_UPDATED, "u:1")
    one.rows.is_cut = False
    await one.changes.publish(TOOLS_CHANGED)
    async with told(stream) as following:
        assert {await following() for _ in range(2)} == {
            (RESOURCE_UPDATED, "u:1"),
            (TOOLS_CHANGED, None),
        }


async def test_a_stream_that_opens_without_the_store_notifies_too_much_not_too_little(
    replica: Callable[..., Replica],
) -> None:
    one, other = replica(), replica()
    await one.changes.publish(TOOLS_CHANGED)
    other.rows.is_cut = True
    stream = await other.listen()
    other.rows.is_cut = False
    async with told(stream) as following:
        assert await following() == (TOOLS_CHANGED, None)


@pytest.mark.parametrize("replica", ["sqlite"], indirect=True)
async def test_of_more_changes_than_can_wait_it_is_said_that_there_were_some(
    replica: Callable[..., Replica],
) -> None:
    one, other = replica(), replica()
    stream = await other.listen("u:1")
    one.rows.is_cut = True
    for number in range(MAX_PENDING + 10):
        await one.changes.publish(RESOURCE_UPDATED, f"v:{number}")
    assert len(one.changes._pending) < MAX_PENDING
    one.rows.is_cut = False
    await one.changes.aclose()  # the last moment to say it
    async with told(stream) as following:
        assert {await following() for _ in range(2)} == stream.topics


@pytest.mark.parametrize("replica", ["sqlite"], indirect=True)
@pytest.mark.parametrize("row", [b"nothing", b"[]", b'["e", "x", []]', b'["e", 3, [1]]', b"{}"])
async def test_a_row_of_another_version_is_as_good_as_none(
    replica: Callable[..., Replica], row: bytes
) -> None:
    one, other = replica(), replica()
    await one.rows.put_new("changes", row, Clock().now_ms() + 10_000)
    stream = await other.listen()
    await one.changes.publish(TOOLS_CHANGED)
    async with told(stream) as following:
        assert await following() == (TOOLS_CHANGED, None)


@pytest.mark.parametrize("replica", ["sqlite"], indirect=True)
async def test_nothing_is_read_without_listeners_and_nothing_written_without_streams(
    replica: Callable[..., Replica],
) -> None:
    idle, mute = replica(), replica(shares=False)
    stream = await idle.listen()
    idle.hub.unsubscribe(stream)
    reads = idle.rows.reads
    await mute.changes.publish(TOOLS_CHANGED)
    await asyncio.sleep(EVERY_S * 5)
    assert (idle.rows.reads, mute.rows.reads) == (reads, 0)
    assert await idle.rows.read("changes") is None


@pytest.mark.parametrize("replica", ["sqlite"], indirect=True)
async def test_whatever_fails_while_one_looks_one_looks_again(
    replica: Callable[..., Replica], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = replica(), replica()
    stream = await other.listen("u:1")
    other.rows.fault, other.rows.is_cut = RuntimeError("nobody thought of this"), True
    async with asyncio.timeout(60):
        await other.rows.failed.wait()
    other.rows.is_cut = False
    await one.changes.publish(RESOURCE_UPDATED, "u:1")
    async with told(stream) as following:
        assert await following() == (RESOURCE_UPDATED, "u:1")
    assert "RuntimeError: nobody thought of this" in caplog.text


@pytest.mark.parametrize("replica", ["sqlite"], indirect=True)
@pytest.mark.parametrize("others", [0, 1])
async def test_a_change_whose_call_is_cancelled_while_it_is_told_is_told_all_the_same(
    replica: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    monkeypatch.setattr(changes, "RETRY_S", EVERY_S)
    one, other = replica(), replica()
    stream = await other.listen("u:0", "u:1")
    one.rows.goes_on.clear()
    tells = [
        asyncio.create_task(one.changes.publish(RESOURCE_UPDATED, f"u:{n}"))
        for n in range(others + 1)
    ]
    await asyncio.sleep(EVERY_S * 3)
    tells[-1].cancel()  # its client has hung up
    await asyncio.wait([tells[-1]])
    one.rows.goes_on.set()
    async with told(stream) as following:
        assert [await following() for _ in tells] == [
            (RESOURCE_UPDATED, f"u:{n}") for n in range(others + 1)
        ]


@pytest.mark.parametrize("replica", ["sqlite"], indirect=True)
async def test_no_fault_of_the_store_fails_the_call_that_tells(
    replica: Callable[..., Replica],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "RETRY_S", EVERY_S)
    one, other = replica(), replica()
    stream = await other.listen("u:1")
    one.rows.fault, one.rows.is_cut = RuntimeError("nobody thought of this"), True
    await one.changes.publish(RESOURCE_UPDATED, "u:1")
    assert "RuntimeError: nobody thought of this" in caplog.text
    one.rows.is_cut = False
    async with told(stream) as following:
        assert await following() == (RESOURCE_UPDATED, "u:1")
