"""What every store must do for `once` tools: a suite that the test of each store inherits.

A test of a store gives the fixture `open_sessions`, which makes a store on the same data, as another
process would, and `spawn_claims`, which has several real processes claim one and the same id at once.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeAlias

import pytest

from roundgate.storage.ports import OnceRecord, OnceStore, SessionStore
from tests.support.clocks import FixedClock

ROOT = Path(__file__).parents[3]
LATER = 9_000_000_000_000
"""Long after the clock of a test."""

Reopen = Callable[[], OnceStore]

Swept: TypeAlias = Callable[[str], Awaitable[bool]]
"""Whether the record of an id is deleted, or, where the database does that in its own time, due to be."""


class SpawnClaims(Protocol):
    """Has processes claim an id, several times each; returns what each claim got: "won", or the winner's answers."""

    def __call__(self, token_id: str, processes: int, claims: int) -> list[str]: ...


_CLAIM = """
import asyncio, multiprocessing, sys
from pathlib import Path
from roundgate.clock import Clock
from roundgate.storage.ports import OnceStore
IMPORTS

*place, token_id, processes, claims = sys.argv[1:]

async def claim(me):
    sessions = SESSIONS
    store = OnceStore(sessions)
    CONNECT
    ready.wait()  # all begin at once
    got = await asyncio.gather(*(store.claim(token_id, f"{me}/{n}", 1, 9_000_000_000_000) for n in range(int(claims))))
    await sessions.aclose()
    return ["won" if record is None else record.answers for record in got]

def claim_here(me):
    return asyncio.run(claim(me))

fork = multiprocessing.get_context("fork")
ready = fork.Barrier(int(processes), timeout=60)
with fork.Pool(ready.parties) as pool:
    for got in pool.map(claim_here, range(ready.parties), chunksize=1):
        print(*got, sep="\\n")
"""


def spawning(
    imports: str, sessions: str, place: list[str], *, connects: bool = True
) -> SpawnClaims:
    """Return a function that runs claims in several processes at once.

    Args:
        imports: what the processes import for their stores.
        sessions: the expression of a process's store, of `place`.
        place: where the store is.
        connects: whether each process has used the store before the claims begin.
    """
    connect = "await store.read(token_id)" if connects else ""
    code = _CLAIM.replace("IMPORTS", imports).replace("SESSIONS", sessions)
    command = [sys.executable, "-c", code.replace("CONNECT", connect), *place]

    def spawn(token_id: str, processes: int, claims: int) -> list[str]:
        facts = [token_id, str(processes), str(claims)]
        output = subprocess.check_output([*command, *facts], cwd=ROOT, text=True, timeout=60)
        return output.splitlines()

    return spawn


class OnceStoreContract:
    """One outcome for each token id."""

    @pytest.fixture
    def reopen(self, open_sessions: Callable[[], SessionStore]) -> Reopen:
        return lambda: OnceStore(open_sessions())

    @pytest.fixture
    def store(self, reopen: Reopen) -> OnceStore:
        return reopen()

    @pytest.fixture
    def swept(self, store: OnceStore) -> Swept:
        async def is_gone(token_id: str) -> bool:
            return await store.read(token_id) is None

        return is_gone

    async def test_an_id_that_nobody_claimed_has_no_record(self, store: OnceStore) -> None:
        assert await store.read("unknown") is None

    async def test_the_first_claim_wins_and_the_second_gets_the_record_of_the_first(
        self, store: OnceStore
    ) -> None:
        assert await store.claim("id", "yes", 10, LATER) is None
        assert await store.claim("id", "no", 20, LATER) == OnceRecord("yes", None, 10)

    async def test_ids_do_not_meet_even_if_one_begins_like_the_other_or_differs_in_case(
        self, store: OnceStore
    ) -> None:
        ids = ["a", "A", "aa", "a ", "ä", "", "'; drop table once; --"]
        assert [await store.claim(one, one, 1, LATER) for one in ids] == [None] * len(ids)
        assert [await store.read(one) for one in ids] == [OnceRecord(one, None, 1) for one in ids]

    async def test_of_many_claims_at_once_exactly_one_wins(self, store: OnceStore) -> None:
        got = await asyncio.gather(*(store.claim("id", f"claim {n}", n, LATER) for n in range(50)))
        (winner,) = [f"claim {n}" for n, record in enumerate(got) if record is None]
        assert {record.answers for record in got if record} == {winner}

    def test_of_claims_from_several_processes_exactly_one_wins(
        self, spawn_claims: SpawnClaims
    ) -> None:
        got = spawn_claims("id", processes=4, claims=25)
        assert len(got) == 100
        assert got.count("won") == 1
        assert len(set(got) - {"won"}) == 1, "all others see the same winner"

    @pytest.mark.parametrize(
        "outcome",
        [b"{}", b"", bytes(range(256)), b"x" * 300_000],
        ids=["json", "empty", "every byte", "large"],
    )
    async def test_an_outcome_is_read_back_byte_for_byte(
        self, store: OnceStore, outcome: bytes
    ) -> None:
        await store.claim("id", "yes", 10, LATER)
        await store.finish("id", outcome, LATER)
        assert await store.read("id") == OnceRecord("yes", outcome, 10)

    async def test_a_claim_after_the_end_gets_the_outcome(self, store: OnceStore) -> None:
        await store.claim("id", "yes", 10, LATER)
        await store.finish("id", b"done", LATER)
        assert await store.claim("id", "yes", 99, LATER) == OnceRecord("yes", b"done", 10)

    async def test_a_finished_record_is_never_changed(self, store: OnceStore) -> None:
        await store.claim("id", "yes", 10, LATER)
        await store.finish("id", b"first", LATER)
        await store.finish("id", b"second", LATER)
        record = await store.read("id")
        assert record is not None
        assert record.outcome == b"first"

    async def test_of_many_claims_of_a_released_id_exactly_one_wins(self, store: OnceStore) -> None:
        await store.claim("id", "first", 10, LATER)
        await store.release("id", LATER)
        record = await store.read("id")
        assert record is not None
        assert record.is_released
        got = await asyncio.gather(*(store.claim("id", "next", 20, LATER) for _ in range(20)))
        assert got.count(None) == 1
        assert await store.claim("id", "last", 30, LATER) == OnceRecord("next", None, 20)
        await store.finish("id", b"done", LATER)
        assert await store.read("id") == OnceRecord("next", b"done", 20)

    async def test_what_was_never_claimed_cannot_be_finished(self, store: OnceStore) -> None:
        await store.finish("unknown", b"done", LATER)
        assert await store.read("unknown") is None

    async def test_a_claim_is_not_taken_over_however_late_it_is(
        self, store: OnceStore, clock: FixedClock
    ) -> None:
        await store.claim("id", "yes", clock.now_ms() + 1, LATER)
        clock.skip(3600)
        assert await store.claim("id", "yes", LATER, LATER) is not None

    async def test_another_process_sees_claim_and_outcome(
        self, store: OnceStore, reopen: Reopen
    ) -> None:
        other = reopen()
        await store.claim("id", "yes", 10, LATER)
        assert await other.claim("id", "yes", 10, LATER) == OnceRecord("yes", None, 10)
        await store.finish("id", b"done", LATER)
        assert await other.read("id") == OnceRecord("yes", b"done", 10)

    async def test_everything_survives_a_restart(self, store: OnceStore, reopen: Reopen) -> None:
        await store.claim("finished", "yes", 10, LATER)
        await store.finish("finished", b"done", LATER)
        await store.claim("claimed", "yes", 10, LATER)
        again = reopen()
        assert await again.read("finished") == OnceRecord("yes", b"done", 10)
        assert await again.read("claimed") == OnceRecord("yes", None, 10)

    async def test_what_may_be_forgotten_is_swept_and_nothing_else(
        self, store: OnceStore, clock: FixedClock, swept: Swept
    ) -> None:
        soon = clock.now_ms() + 60_000
        await store.claim("short", "yes", 10, soon)
        await store.claim("long", "yes", 10, LATER)
        clock.skip(3 * 86_400)  # a clock that is ahead for a while forgets nothing
        await store.claim("trigger", "yes", 10, LATER)
        assert await swept("short")
        assert not await swept("long")
        assert await store.read("long") == OnceRecord("yes", None, 10)

    async def test_nothing_is_swept_before_its_time(
        self, store: OnceStore, clock: FixedClock, swept: Swept
    ) -> None:
        await store.claim("id", "yes", 10, clock.now_ms() + 601_000)
        clock.skip(600)
        await store.claim("trigger", "yes", 10, LATER)
        assert not await swept("id")
        assert await store.read("id") is not None
