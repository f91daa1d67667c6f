"""What the accounts of owners promise on every session store: a suite that the test of each store
inherits.

A test of a store gives the fixture `open_sessions`, which makes a store on the same data, as another
process would; `clock` is the clock of all.
"""

from __future__ import annotations

import asyncio

import pytest

from roundgate.errors import QuotaExceeded
from roundgate.storage.accounts import BLOCK, ROW, Accounts
from roundgate.storage.ports import SessionRow, SessionStore
from tests.support.clocks import FixedClock

MOST = 1_000_000
HOUR_MS = 3_600_000


class AccountContract:
    """No owner has more stored than its limit, whatever its processes do."""

    @pytest.fixture
    def here(self, store: SessionStore, clock: FixedClock) -> Accounts:
        return Accounts(store, clock, MOST)

    @pytest.fixture
    def there(self, another: SessionStore, clock: FixedClock) -> Accounts:
        return Accounts(another, clock, MOST)

    async def test_a_write_beyond_the_limit_is_refused_and_does_not_happen(
        self, here: Accounts, clock: FixedClock
    ) -> None:
        rows, until_ms = here.rows("ann"), clock.now_ms() + HOUR_MS
        assert await rows.put_new("large", b"x" * (MOST - 2 * ROW), until_ms)
        with pytest.raises(QuotaExceeded, match=r"1,000,000 bytes .*limits.max_stored_bytes"):
            await rows.put_new("larger", b"x" * ROW, until_ms)
        assert await rows.read("larger") is None
        row = await rows.read("large")
        assert row is not None
        with pytest.raises(QuotaExceeded):
            await rows.replace("large", b"x" * MOST, row.version, until_ms)
        with pytest.raises(QuotaExceeded):
            await rows.put("large", b"x" * MOST, until_ms)
        assert await rows.read("large") == row
        assert await rows.put_new("small", b"", until_ms)

    async def test_rows_count_however_small_they_are(
        self, here: Accounts, clock: FixedClock
    ) -> None:
        rows, until_ms = here.rows("ann"), clock.now_ms() + HOUR_MS
        for number in range(MOST // ROW):
            await rows.put_new(f"row {number}", b"", until_ms)
        with pytest.raises(QuotaExceeded):
            await rows.put_new("one more", b"", until_ms)

    async def test_other_owners_have_their_own_account(
        self, here: Accounts, clock: FixedClock
    ) -> None:
        until_ms = clock.now_ms() + HOUR_MS
        await here.reserve("ann", MOST, until_ms)
        with pytest.raises(QuotaExceeded):
            await here.reserve("ann", 1, until_ms)
        await here.reserve("bob", MOST, until_ms)

    async def test_the_limit_is_one_for_all_processes(
        self, here: Accounts, there: Accounts, clock: FixedClock
    ) -> None:
        until_ms = clock.now_ms() + HOUR_MS

        async def used(accounts: Accounts) -> int:
            total = 0
            while True:
                try:
                    await accounts.reserve("ann", 5_000, until_ms)
                except QuotaExceeded:
                    return total
                total += 5_000

        total = sum(await asyncio.gather(*(used(one) for one in [here, there] * 4)))
        assert MOST - 2 * 5_000 < total <= MOST

    async def test_bytes_count_until_their_time_is_over(
        self, here: Accounts, there: Accounts, clock: FixedClock
    ) -> None:
        await here.reserve("ann", MOST // 2, clock.now_ms() + HOUR_MS)
        await here.reserve("ann", MOST // 2, clock.now_ms() + 10 * HOUR_MS)
        clock.skip(3_600)
        assert await there.usage("ann") >= MOST // 2
        clock.skip(1_000)
        assert await there.usage("ann") == MOST // 2
        await there.reserve("ann", MOST // 2, clock.now_ms() + HOUR_MS)
        with pytest.raises(QuotaExceeded):
            await there.reserve("ann", 1, clock.now_ms() + HOUR_MS)
        clock.skip(20 * 3_600)
        assert await there.usage("ann") == 0
        await here.reserve("ann", MOST, clock.now_ms() + HOUR_MS)

    async def test_what_a_dead_process_had_reserved_ahead_is_little_and_comes_back(
        self, store: SessionStore, clock: FixedClock
    ) -> None:
        until_ms = clock.now_ms() + HOUR_MS
        for _ in range(100):  # each begins and dies
            await Accounts(store, clock, MOST).reserve("ann", 100, until_ms)
        last = Accounts(store, clock, MOST)
        assert await last.usage("ann") < MOST * 0.85
        await last.reserve("ann", MOST // 10, until_ms)
        clock.skip(2 * 3_600)
        assert await last.usage("ann") == 0

    async def test_what_was_not_written_does_not_count(
        self, here: Accounts, there: Accounts, clock: FixedClock
    ) -> None:
        rows, until_ms = here.rows("ann"), clock.now_ms() + HOUR_MS
        assert await rows.put_new("key", b"x" * 100_000, until_ms)
        for _ in range(100):
            assert not await rows.put_new("key", b"y" * 100_000, until_ms)
            assert not await rows.replace("key", b"y" * 100_000, 7, until_ms)
        assert await rows.read("key") == SessionRow(b"x" * 100_000, 1)
        assert await there.usage("ann") < 250_000

    async def test_a_value_that_is_replaced_counts_what_it_grows_by(
        self, here: Accounts, clock: FixedClock
    ) -> None:
        rows, until_ms = here.rows("ann"), clock.now_ms() + HOUR_MS
        await rows.put_new("key", b"x" * 100_000, until_ms)
        for _ in range(100):
            row = await rows.read("key")
            assert row is not None
            assert await rows.replace("key", b"x" * (len(row.value) + 100), row.version, until_ms)
        assert await here.usage("ann") < 200_000
        row = await rows.read("key")
        assert row is not None
        assert await rows.replace("key", row.value, row.version, until_ms + 24 * HOUR_MS)
        assert await here.usage("ann") > 200_000, "it is kept for longer"

    async def test_a_row_that_each_write_keeps_a_little_longer_counts_few_times(
        self, here: Accounts, clock: FixedClock
    ) -> None:
        rows, until_ms = here.rows("ann"), clock.now_ms() + 24 * HOUR_MS
        await rows.put_new("key", b"x" * 10_000, until_ms)
        for n in range(1, 101):
            row = await rows.read("key")
            assert row is not None
            assert await rows.replace("key", row.value, row.version, until_ms + n * 1_000)
        row = await rows.read("key")
        assert row is not None
        assert row.forget_ms >= until_ms + 100_000
        assert await here.usage("ann") < 100_000

    async def test_many_small_writes_are_few_writes_of_the_account(
        self, store: SessionStore, clock: FixedClock
    ) -> None:
        accounts, until_ms = Accounts(store, clock, 1_000 * MOST), clock.now_ms() + HOUR_MS
        for _ in range(1_000):
            await accounts.reserve("ann", 1_100, until_ms)
        row = await store.read("account.ann")
        assert row is not None
        assert row.version <= 8
        assert await accounts.usage("ann") <= 1_000 * 1_100 + BLOCK
