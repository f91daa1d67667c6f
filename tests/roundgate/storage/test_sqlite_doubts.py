"""Writes to SQLite of which nobody hears whether they happened: each happens once.
Found by `tests/roundgate/model`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roundgate.errors import Unavailable
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import TaskRef
from roundgate.tasks import events
from roundgate.tasks.events import Added, NewTask
from roundgate.tasks.stored import Claimed, StoredTasks

REF = TaskRef("owner", "task")
STEP = Added([b'["step","a",1]'])


class Forgetful(SqliteDatabase):
    """Does what it is asked to, and then cannot say so, as often as it is told."""

    forgets = 0

    async def write(
        self, work: Callable[[sqlite3.Connection], Any], *, durable: bool = True
    ) -> Any:
        value = await super().write(work, durable=durable)
        if self.forgets:
            self.forgets -= 1
            raise Unavailable("nobody hears of it")
        return value


@pytest.fixture
async def database(tmp_path: Path) -> Any:
    made = Forgetful(tmp_path / "tasks.sqlite3", durable=False)
    yield made
    await made.aclose()


async def claimed(store: StoredTasks, now_ms: int) -> Claimed:
    found = await store.claim(REF, events.Claim(now_ms + 30_000, now_ms + 30_000, now_ms), now_ms)
    assert isinstance(found, Claimed)
    return found


async def begun(store: StoredTasks) -> Claimed:
    await store.create(NewTask(REF, "tool", b"{}", created_ms=1, expires_ms=10**6, due_ms=2))
    return await claimed(store, 10)


async def test_a_renewal_between_two_attempts_does_not_have_a_checkpoint_written_twice(
    database: Forgetful,
) -> None:
    store = StoredTasks(SqliteTasks(database))
    lease = (await begun(store)).lease
    database.forgets = 1
    with pytest.raises(Unavailable):
        await store.write(lease, events.Checkpoint(added=STEP), 20)
    await store.write(lease, events.Checkpoint(60_000), 30)
    await store.write(lease, events.Checkpoint(added=STEP), 40)
    await store.write(lease, events.Release(0, 60), 50)
    assert (await claimed(store, 100)).journal == STEP.entries


async def test_a_checkpoint_of_which_nobody_hears_twice_is_written_once(
    database: Forgetful,
) -> None:
    store = StoredTasks(SqliteTasks(database))
    lease = (await begun(store)).lease
    database.forgets = 2
    for now_ms in (20, 21):
        with pytest.raises(Unavailable):
            await store.write(lease, events.Checkpoint(added=STEP), now_ms)
    await store.write(lease, events.Checkpoint(added=STEP), 22)
    await store.write(lease, events.Release(0, 60), 50)
    assert (await claimed(store, 100)).journal == STEP.entries
