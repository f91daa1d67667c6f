"""A round behind a question is run once, by whoever comes first and lives,
on each kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from roundgate.clock import Clock
from roundgate.errors import InvalidParams, ToolError, Unavailable
from roundgate.http.older import claims, one_run, patient
from roundgate.http.older.one_run import OneRun
from roundgate.http.older.patient import PatientRows
from roundgate.methods.rounds import Reply
from roundgate.storage.dynamodb.sessions import DynamoDbSessions
from roundgate.storage.postgres import Database as Postgres
from roundgate.storage.postgres import PostgresSessions
from roundgate.storage.sessions import SessionStore
from roundgate.storage.sqlite.database import Database
from roundgate.storage.sqlite.sessions import SqliteSessions
from tests.support.dynamodb import Emulator
from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.postgresql import Server
from tests.support.postgresql import postgresql as postgresql
from tests.support.postgresql import postgresql_server as postgresql_server

Serve = Callable[[], Awaitable[Reply]]


class Work:
    """A round that counts how often it is run, and goes on when it is told to."""

    def __init__(self) -> None:
        self.times = 0
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.may_end = asyncio.Event()

    async def __call__(self) -> Reply:
        self.times += 1
        mine = self.times
        self.begun.put_nowait(mine)
        await self.may_end.wait()
        return Reply(b'{"n": %d}' % mine)


@pytest.fixture(params=["sqlite", "dynamodb", "postgres"])
async def another(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Callable[[], OneRun]]:
    """Makes the part of another request in the same round, at another replica."""
    async with AsyncExitStack() as stack:
        if request.param == "dynamodb":
            emulator: Emulator = request.getfixturevalue("dynamodb")
            table = stack.enter_context(emulator.table())
        elif request.param == "postgres":
            server: Server = request.getfixturevalue("postgresql")

        def make(clock: Clock | None = None) -> OneRun:
            store: SessionStore
            if request.param == "dynamodb":
                store = DynamoDbSessions(emulator.open(table), Clock())
            elif request.param == "postgres":
                store = PostgresSessions(Postgres(server.url), Clock())
            else:
                store = SqliteSessions(Database(tmp_path / "shared.sqlite3"), Clock())
            stack.push_async_callback(store.aclose)
            rows = PatientRows(store, clock or Clock())
            return OneRun(rows, clock or Clock(), "session.round", keep_ms=60_000, wait_ms=1_000)

        yield make


async def begun(work: Work) -> None:
    async with asyncio.timeout(30):
        await work.begun.get()


async def test_of_many_at_once_one_runs_it_and_all_have_its_end(
    another: Callable[[], OneRun],
) -> None:
    work = Work()
    several = [asyncio.create_task(another().of(work, 30)) for _ in range(6)]
    await begun(work)
    work.may_end.set()
    ends = await asyncio.gather(*several)
    assert work.times == 1
    assert len({(one.reply.result, one.next_round, one.until_ms) for one in ends if one}) == 1
    late = await another().of(work, 30)
    assert late is not None
    assert (late.reply.result, work.times) == (b'{"n": 1}', 1)


async def test_who_waits_too_long_is_told_and_may_ask_again(another: Callable[[], OneRun]) -> None:
    work, second = Work(), another()
    first = asyncio.create_task(another().of(work, 30))
    await begun(work)
    assert await second.of(work, 0.1) is None
    work.may_end.set()
    ends = await first, await second.of(work, 30)
    assert ends[0] == ends[1]
    assert work.times == 1


async def test_an_error_is_the_end_for_all(another: Callable[[], OneRun]) -> None:
    async def refuse() -> Reply:
        raise InvalidParams("no such thing")

    for _ in range(2):
        with pytest.raises(InvalidParams, match="no such thing"):
            await another().of(refuse, 30)


async def test_what_could_not_be_done_just_now_is_done_by_the_next(
    another: Callable[[], OneRun],
) -> None:
    async def fail() -> Reply:
        raise Unavailable("not now")

    work = Work()
    work.may_end.set()
    with pytest.raises(Unavailable):
        await another().of(fail, 30)
    assert await another().of(work, 30) is not None
    assert work.times == 1


async def test_a_store_that_is_away_for_a_moment_costs_no_call(
    another: Callable[[], OneRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the claim was written and nobody heard of it."""
    work, run = Work(), another()
    work.may_end.set()
    rows: SessionStore = run._rows._rows  # type: ignore[attr-defined]
    real, away = rows.put_new, [True, False]

    async def put_new(key: str, value: bytes, forget_ms: int) -> bool:
        if away:
            if away.pop():
                raise Unavailable("away")
            await real(key, value, forget_ms)
            raise Unavailable("no answer")
        return await real(key, value, forget_ms)

    monkeypatch.setattr(rows, "put_new", put_new)
    assert await run.of(work, 30) is not None
    assert work.times == 1


class Stepped(Clock):
    """A clock on which a test lets time pass; only waiting takes as long as it does."""

    def __init__(self) -> None:
        self._monotonic_ms = 0.0

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def skip(self, milliseconds: float) -> None:
        self._monotonic_ms += milliseconds


class Door:
    """Lets a replica reach the store, or not."""

    def __init__(self) -> None:
        self.is_open = True
        self.tries = 0

    def guards(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(*arguments: Any) -> Any:
            self.tries += 1
            if not self.is_open:
                raise Unavailable("away")
            return await operation(*arguments)

        return wrapped

    async def is_tried(self, times: int = 3) -> None:
        """Wait until that often somebody has tried."""
        wanted = self.tries + times
        async with asyncio.timeout(60):
            while self.tries < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_while_the_store_is_away_nobody_is_taken_for_dead(
    another: Callable[..., OneRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs the round lives, and could not say so; who waits could not have heard it."""
    monkeypatch.setattr(claims, "BEAT_S", 0.1)
    monkeypatch.setattr(one_run, "LAST_LOOK_S", 0.1)
    monkeypatch.setattr(patient, "PAUSES_S", (0.05,))
    work, clock, doors = Work(), Stepped(), [Door(), Door()]
    runs = [another(clock), another(clock)]
    for run, door in zip(runs, doors, strict=True):
        rows: SessionStore = run._rows._rows  # type: ignore[attr-defined]
        for name in ("read", "put_new", "replace"):
            monkeypatch.setattr(rows, name, door.guards(getattr(rows, name)))
    first = asyncio.create_task(runs[0].of(work, 30))
    await begun(work)
    second = asyncio.create_task(runs[1].of(work, 30))
    await doors[1].is_tried(6)  # it has seen the other's claim by then
    doors[0].is_open = False
    await doors[0].is_tried()
    await doors[1].is_tried(6)  # it has seen the last that the other could say
    doors[1].is_open = False
    await doors[1].is_tried()
    clock.skip(claims.LOST_MS + 1_000)
    doors[1].is_open = True
    await doors[1].is_tried(6)  # whoever runs it is the last to reach the store again
    doors[0].is_open = True
    await doors[0].is_tried()
    await doors[1].is_tried(6)
    assert work.times == 1
    work.may_end.set()
    assert await first == await second


async def test_who_runs_a_first_round_says_so_though_nobody_heard_that_it_can(
    another: Callable[[], OneRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim was written, and the attempt after it found it there."""
    waiting, holder = another()._claim, another()._claim
    assert not await waiting.is_lost()
    real = holder._rows.replace

    async def replace(key: str, value: bytes, version: int, forget_ms: int) -> bool:
        await real(key, value, version, forget_ms)
        return await real(key, value, version, forget_ms)

    monkeypatch.setattr(holder._rows, "replace", replace)
    assert [await holder.is_wanted() for _ in range(2)] == [False, True]


async def test_who_is_cut_off_leaves_the_round_to_the_next_at_once(
    another: Callable[[], OneRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "LOST_MS", 600_000)
    work = Work()
    first = asyncio.create_task(another().of(work, 30))
    await begun(work)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    work.may_end.set()
    ran = await another().of(work, 30)
    assert ran is not None
    assert ran.reply.result == b'{"n": 2}'


async def test_who_runs_it_says_so_and_when_nobody_does_the_next_runs_it(
    another: Callable[[], OneRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 0.05)
    monkeypatch.setattr(claims, "LOST_MS", 3_000)
    work, second = Work(), another()
    dying = another()
    first = asyncio.create_task(dying.of(work, 30))
    await begun(work)
    assert await second.of(work, 3.5) is None  # longer than that without a word would be
    monkeypatch.setattr(claims, "BEAT_S", 3_600)  # its process stands still from here on
    monkeypatch.setattr(claims, "LOST_MS", 200)
    work.may_end.clear()
    taken = asyncio.create_task(second.of(work, 60))
    await begun(work)
    work.may_end.set()  # both come to their end: one of them counts, for both
    ends = await first, await taken
    assert ends[0] == ends[1]


async def test_an_error_of_who_was_taken_for_dead_is_not_what_counts(
    another: Callable[[], OneRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "BEAT_S", 3_600)
    monkeypatch.setattr(claims, "LOST_MS", 50)
    work, may_fail = Work(), asyncio.Event()
    work.may_end.set()

    async def fail() -> Reply:
        await may_fail.wait()
        raise ToolError("too late")

    first = asyncio.create_task(another().of(fail, 30))
    async with asyncio.timeout(30):
        while (ran := await another().of(work, 1)) is None:
            pass
    may_fail.set()
    assert await first == ran
