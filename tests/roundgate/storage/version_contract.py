"""What every store with SQL scripts or a table of DynamoDB does while processes of several versions use it: a suite
that their tests inherit.

    version 1 ─ 2 adds a column, 1 may stay ─ 3 needs the column, 1 may not ─ rolled back to 2

A test of a store gives the fixture `opened`: it opens a store on the same data, as a process of a version would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pytest

from roundgate.errors import Unavailable
from roundgate.storage.ports import SessionRow, SessionStore

LATER = 9_000_000_000_000
COLUMN = "alter table sessions add column owner text not null default '?'"
"""The script of version 2."""
FILLED = "update sessions set owner = '' where owner = '?'"
"""The script of version 3."""


class Opened(Protocol):
    """Opens a store as processes of a version do that start at once. Their tables may be used from `min_version` on."""

    async def __call__(
        self, version: int, min_version: int = 1, processes: int = 1
    ) -> Sequence[SessionStore]: ...


class VersionContract:
    """Tables that expand, then contract."""

    async def test_an_older_process_goes_on_and_starts_until_the_tables_contract(
        self, opened: Opened
    ) -> None:
        (first,) = await opened(1)
        assert await first.put_new("first", b"1", LATER)

        (second,) = await opened(2)
        assert await first.put_new("on", b"2", LATER)
        (restarted,) = await opened(1)
        assert await restarted.put_new("restarted", b"3", LATER)
        keys = ["first", "on", "restarted"]
        for store in (first, second, restarted):
            assert list((await store.read_values(keys)).values()) == [b"1", b"2", b"3"]

        (third,) = await opened(3, 2)
        for _ in range(2):
            with pytest.raises(
                Unavailable,
                match=r"another version .*version 3, this version \w+ 1\); use that version",
            ):
                await opened(1)
        (undone,) = await opened(2)
        assert await undone.put_new("undone", b"4", LATER)
        for store in (second, third, undone, *await opened(3, 2)):
            assert await store.read("undone") == SessionRow(b"4", 1)
        with pytest.raises(Unavailable):  # the process before did not allow it again
            await opened(1)

    async def test_processes_of_a_version_that_start_at_once_all_use_the_tables(
        self, opened: Opened
    ) -> None:
        await opened(1)
        await opened(2, processes=4)
        stores = await opened(3, 2, processes=4)
        assert await stores[0].put_new("key", b"", LATER)
        with pytest.raises(Unavailable, match="version 3"):
            await opened(1)
