"""What a session may change later: kept in few rows for each caller, and looked at no
more often than needed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from roundgate.auth.principal import Principal
from roundgate.errors import InvalidParams, SessionNotFound, Unavailable
from roundgate.http.older.sessions import (
    ENDED_PER_BUCKET,
    KNOWN_MS,
    MAX_SUBSCRIPTIONS,
    PER_BUCKET,
    Sessions,
    SessionState,
)
from roundgate.storage import patience
from roundgate.storage.ports import SessionRow
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.sessions import SqliteSessions
from roundgate.tokens.ids import SessionFacts
from tests.support.clocks import FixedClock

ANN, BOB = Principal("issuer", "ann"), Principal("issuer", "bob")
LATER = 9_000_000_000_000


class Counting(SqliteSessions):
    """Counts reads, and can be away."""

    reads = 0
    away = False

    async def read(self, key: str) -> SessionRow | None:
        self.reads += 1
        if self.away:
            raise Unavailable("The store cannot be used just now")
        return await super().read(key)


def session(number: int = 0, expires_ms: int = LATER) -> SessionFacts:
    return SessionFacts(f"session {number}", "2025-11-25", "2025-11-25", {}, {}, 0, expires_ms)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
async def store(tmp_path: Path, clock: FixedClock) -> AsyncIterator[Counting]:
    made = Counting(SqliteDatabase(tmp_path / "sessions.sqlite3"), clock)
    yield made
    await made.aclose()


@pytest.fixture
def sessions(store: Counting, clock: FixedClock) -> Sessions:
    return Sessions(lambda _: store, clock)


@pytest.fixture
def elsewhere(store: Counting, clock: FixedClock) -> Sessions:
    """In another process."""
    return Sessions(lambda _: store, clock)


async def test_a_new_session_has_the_state_of_one(sessions: Sessions) -> None:
    assert await sessions.state(session(), ANN) == SessionState()


async def test_what_a_session_changes_is_known_elsewhere(
    sessions: Sessions, elsewhere: Sessions
) -> None:
    await sessions.set_level(session(), ANN, "error")
    await elsewhere.subscribe(session(), ANN, "a:1")
    await sessions.subscribe(session(), ANN, "a:2")
    await elsewhere.unsubscribe(session(), ANN, "a:1")
    assert await sessions.state(session(), ANN) == SessionState("error", ("a:2",))


async def test_the_state_of_a_session_is_its_callers(sessions: Sessions) -> None:
    await sessions.set_level(session(), ANN, "error")
    assert await sessions.state(session(), BOB) == SessionState()


async def test_changes_at_once_are_all_kept(sessions: Sessions, elsewhere: Sessions) -> None:
    both = (sessions, elsewhere)
    await asyncio.gather(*(both[n % 2].subscribe(session(), ANN, f"a:{n}") for n in range(8)))
    assert set((await sessions.state(session(), ANN)).uris) == {f"a:{n}" for n in range(8)}


async def test_a_session_that_was_ended_is_not_found_elsewhere(
    sessions: Sessions, elsewhere: Sessions
) -> None:
    await sessions.end(session(), ANN)
    for one in (sessions, elsewhere):
        with pytest.raises(SessionNotFound):
            await one.check(session(), ANN)
        with pytest.raises(SessionNotFound):
            await one.set_level(session(), ANN, "error")


async def test_whether_a_session_was_ended_is_looked_at_again_after_a_while(
    sessions: Sessions, elsewhere: Sessions, store: Counting, clock: FixedClock
) -> None:
    for _ in range(10):
        await sessions.check(session(), ANN)
    assert store.reads == 1
    await elsewhere.end(session(), ANN)
    clock.skip(KNOWN_MS / 1000)
    with pytest.raises(SessionNotFound):
        await sessions.check(session(), ANN)


async def test_a_store_that_is_away_is_no_session_that_was_ended(
    sessions: Sessions, store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_S", 0)
    store.away = True
    with pytest.raises(Unavailable):
        await sessions.check(session(), ANN)


async def test_a_session_subscribes_to_so_many_resources_and_no_more(sessions: Sessions) -> None:
    for number in range(MAX_SUBSCRIPTIONS):
        await sessions.subscribe(session(), ANN, f"a:{number}")
    await sessions.subscribe(session(), ANN, "a:0")
    with pytest.raises(InvalidParams, match="unsubscribe"):
        await sessions.subscribe(session(), ANN, "a:more")


async def test_a_caller_with_any_number_of_sessions_takes_so_much_room_and_no_more(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buckets = 2
    monkeypatch.setattr("roundgate.http.older.sessions.BUCKETS", buckets)
    numbers = range(3 * buckets * PER_BUCKET)
    for number in numbers:
        await sessions.set_level(session(number), ANN, "error")
    with sqlite3.connect(tmp_path / "sessions.sqlite3") as db:
        rows = db.execute("select length(value) from sessions").fetchall()
    db.close()
    assert len(rows) == buckets
    assert sum(size for (size,) in rows) < buckets * PER_BUCKET * 200
    kept = [
        number
        for number in numbers
        if (await sessions.state(session(number), ANN)).level == "error"
    ]
    assert len(kept) == buckets * PER_BUCKET
    assert numbers[-1] in kept


async def test_a_session_that_was_ended_stays_so_however_many_change_or_end_after_it(
    sessions: Sessions, elsewhere: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundgate.http.older.sessions.BUCKETS", 1)
    opened = [session(number, LATER + number) for number in range(2 * ENDED_PER_BUCKET)]
    for one in opened:
        await sessions.end(one, ANN)
    for number in range(2 * PER_BUCKET):
        await sessions.set_level(session(1_000 + number, 2 * LATER), ANN, "error")
    for one in opened:
        with pytest.raises(SessionNotFound):
            await elsewhere.check(one, ANN)
        with pytest.raises(SessionNotFound):
            await elsewhere.set_level(one, ANN, "error")
    await elsewhere.check(session(-1, 2 * LATER), ANN)
    await elsewhere.check(opened[0], BOB)
    with sqlite3.connect(tmp_path / "sessions.sqlite3") as db:
        [(size,)] = db.execute("select length(value) from sessions").fetchall()
    db.close()
    assert size < 100 * (ENDED_PER_BUCKET + PER_BUCKET)


async def test_a_live_session_that_has_changed_outlives_the_floor(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundgate.http.older.sessions.BUCKETS", 1)
    await sessions.set_level(session(-1), ANN, "error")
    for number in range(2 * ENDED_PER_BUCKET):
        await sessions.end(session(number, LATER + number), ANN)
    assert (await sessions.state(session(-1), ANN)).level == "error"
