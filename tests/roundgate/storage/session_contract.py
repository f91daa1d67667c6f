"""What every store of sessions must do: a suite that the test of each store inherits.

A test of a store gives the fixture `open_sessions`, which makes a store on the same data, as another
process would; `clock` is the clock of all.
"""

from __future__ import annotations

import asyncio

from roundgate.storage.ports import SessionRow, SessionStore
from tests.support.clocks import FixedClock

LATER = 9_000_000_000_000
"""Long after the clock of a test."""


class SessionStoreContract:
    """Values by key, for a time."""

    async def test_what_nobody_kept_is_not_there(self, store: SessionStore) -> None:
        assert await store.read("nothing") is None
        assert await store.read_values(["nothing", "nor this"]) == {}

    async def test_the_first_value_stays(self, store: SessionStore, another: SessionStore) -> None:
        assert await store.put_new("key", b"first", LATER)
        assert not await another.put_new("key", b"second", LATER)
        assert await another.read("key") == SessionRow(b"first", 1)

    async def test_of_many_at_once_exactly_one_is_kept(
        self, store: SessionStore, another: SessionStore
    ) -> None:
        stores = [store, another] * 10
        won = await asyncio.gather(
            *(one.put_new("key", b"%d" % n, LATER) for n, one in enumerate(stores))
        )
        assert won.count(True) == 1
        row = await store.read("key")
        assert row is not None
        assert row.value == b"%d" % won.index(True)

    async def test_a_value_is_replaced_by_who_read_it_last(
        self, store: SessionStore, another: SessionStore
    ) -> None:
        await store.put_new("key", b"1", LATER)
        row = await another.read("key")
        assert row is not None
        assert await store.replace("key", b"2", row.version, LATER)
        assert not await another.replace("key", b"3", row.version, LATER)
        now = await another.read("key")
        assert now is not None
        assert (now.value, now.version > row.version) == (b"2", True)

    async def test_what_is_not_there_is_not_replaced(self, store: SessionStore) -> None:
        assert not await store.replace("key", b"2", 1, LATER)
        assert await store.read("key") is None

    async def test_what_is_put_takes_the_place_of_what_is_there(
        self, store: SessionStore, another: SessionStore
    ) -> None:
        assert await store.put("key", b"1", LATER) == 1
        assert await another.put("key", b"2", LATER) == 2
        assert not await store.put_new("key", b"3", LATER)
        assert await store.read("key") == SessionRow(b"2", 2)

    async def test_each_of_many_that_put_at_once_has_a_version_of_its_own(
        self, store: SessionStore, another: SessionStore
    ) -> None:
        puts = [one.put("key", b"%d" % n, LATER) for n, one in enumerate([store, another] * 10)]
        versions = await asyncio.gather(*puts)
        assert sorted(versions) == list(range(1, 21))
        row = await store.read("key")
        assert row == SessionRow(b"%d" % versions.index(20), 20)

    async def test_what_is_put_in_place_of_a_large_value_is_the_value(
        self, store: SessionStore
    ) -> None:
        await store.put_new("key", b"0123456789" * 100_000, LATER)
        await store.put("key", b"x" * 300_000, LATER)
        row = await store.read("key")
        assert row is not None
        assert row.value == b"x" * 300_000

    async def test_several_are_read_at_once(self, store: SessionStore) -> None:
        for number in range(5):
            await store.put_new(f"key {number}", b"%d" % number, LATER)
        found = await store.read_values(["key 3", "key 1", "nothing"])
        assert found == {"key 1": b"1", "key 3": b"3"}

    async def test_a_large_value_comes_back_whole(
        self, store: SessionStore, another: SessionStore
    ) -> None:
        large = b"0123456789" * 100_000
        assert await store.put_new("key", large, LATER)
        row = await another.read("key")
        assert row is not None
        assert row.value == large
        assert await another.read_values(["key"]) == {"key": large}

    async def test_what_is_to_be_forgotten_is_as_good_as_not_there(
        self, store: SessionStore, another: SessionStore, clock: FixedClock
    ) -> None:
        soon_ms = clock.now_ms() + 1_000
        await store.put_new("key", b"old", soon_ms)
        old = await store.read("key")
        assert old is not None
        assert old.forget_ms == soon_ms
        clock.skip(2)
        assert await another.read("key") is None
        assert await another.read_values(["key"]) == {}
        assert await another.put_new("key", b"new", LATER)
        row = await store.read("key")
        assert row is not None
        assert row.value == b"new"
