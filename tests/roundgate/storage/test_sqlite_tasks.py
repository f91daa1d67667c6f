"""Tasks and their queue in SQLite do what every task store and every queue must, on one file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from roundgate.storage.ports import TaskQueue
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.queue import HIDDEN_MS, SqliteQueue
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import FORGET_AFTER_MS, TaskRef
from roundgate.tasks.stored import StoredTasks
from tests.roundgate.storage import queue_contract, task_contract
from tests.roundgate.storage.queue_contract import LetPass
from tests.roundgate.storage.task_contract import END, NOW, REF, ids, new
from tests.support.clocks import SkippingClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sqlite3"


class TestSqliteTasks(task_contract.TaskStoreContract):
    """The contract of tasks."""

    @pytest.fixture
    async def reopen(self, path: Path) -> AsyncIterator[task_contract.Reopen]:
        made: list[StoredTasks] = []

        def open_one() -> StoredTasks:
            made.append(StoredTasks(SqliteTasks(SqliteDatabase(path, durable=False), shards=8)))
            return made[-1]

        yield open_one
        for store in made:
            await store.aclose()

    async def test_what_expired_long_ago_is_forgotten(self, store: StoredTasks) -> None:
        await store.create(new(call=b"x" * 9000))
        await store.create(new(TaskRef("owner", "later"), expires_ms=END + 1))
        assert await store.forget(END + FORGET_AFTER_MS - 1) == 0
        assert await store.forget(END + FORGET_AFTER_MS) == 1
        assert ids((await store.find()).records) == ["later"]
        assert await store.read(REF, NOW) is None


class TestSqliteQueue(queue_contract.TaskQueueContract):
    """The contract of the queue."""

    hidden_s = HIDDEN_MS / 1000

    @pytest.fixture
    def clock(self) -> SkippingClock:
        return SkippingClock()

    @pytest.fixture
    async def reopen(
        self, path: Path, clock: SkippingClock
    ) -> AsyncIterator[queue_contract.Reopen]:
        made: list[TaskQueue] = []

        def open_one() -> TaskQueue:
            made.append(SqliteQueue(SqliteDatabase(path, durable=False), clock))
            return made[-1]

        yield open_one
        for queue in made:
            await queue.aclose()

    @pytest.fixture
    def let_pass(self, clock: SkippingClock) -> LetPass:
        async def skip(seconds: float) -> None:
            clock.skip(seconds)

        return skip

    async def test_a_task_has_one_message_at_most_which_comes_at_the_earliest_time(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        for delay_ms in (60_000, 5_000, 20_000):
            await queue.send(REF, delay_ms)
        await let_pass(4.9)
        assert await queue_contract.nothing(queue)
        await let_pass(0.2)
        (message,) = await queue.receive(10, 0)
        await queue.delete([message])
        await let_pass(100)
        assert await queue_contract.nothing(queue)
        for _ in range(5):
            await queue.send(REF)
        assert len(await queue.receive(10, 0)) == 1

    async def test_a_send_for_later_while_the_task_is_worked_on_is_for_later(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        await queue.send(REF)
        taken = await queue.receive(10, 0)
        await queue.send(REF, 60_000)
        await queue.delete(taken)
        await let_pass(59)
        assert await queue_contract.nothing(queue)
        await let_pass(1.1)
        assert [message.ref for message in await queue.receive(10, 0)] == [REF]

    async def test_owners_take_turns(self, queue: TaskQueue) -> None:
        await queue.send_many([TaskRef("a", f"{n:05}") for n in range(2_000)])
        first = await queue.receive(10, 0)
        await queue.send_many([TaskRef("b", f"{n}") for n in range(3)])
        await queue.send(TaskRef("c", "0"))
        got = [str(message.ref) for message in await queue.receive(8, 0)]
        assert [message.ref.owner for message in first] == ["a"] * 10
        assert got[:6] == ["b.0", "c.0", "a.00010", "b.1", "a.00011", "b.2"]

    async def test_who_sent_much_before_is_not_made_to_wait_for_it_later(
        self, queue: TaskQueue
    ) -> None:
        await queue.send_many([TaskRef("a", f"{n:05}") for n in range(500)])
        while messages := await queue.receive(10, 0):
            await queue.delete(messages)
        await queue.send_many([TaskRef("b", f"{n:05}") for n in range(500)])
        await queue.send(TaskRef("a", "late"))
        assert TaskRef("a", "late") in [message.ref for message in await queue.receive(4, 0)]

    async def test_owners_that_have_enough_are_skipped(self, queue: TaskQueue) -> None:
        await queue.send_many([TaskRef(owner, f"{n}") for owner in "abc" for n in range(3)])
        assert {message.ref.owner for message in await queue.receive(10, 0, skip={"a", "c"})} == {
            "b"
        }
        assert list(await queue.receive(10, 0, skip={"a", "c"})) == []
        assert len(await queue.receive(10, 0, skip={"c"})) == 3

    async def test_which_tasks_have_a_message_is_known(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        refs = queue_contract.refs(4)
        await queue.send_many(refs[:2])
        await queue.send(refs[2], 600_000)
        (taken,) = await queue.receive(1, 0)
        assert set(await queue.waiting([*refs, REF]) or ()) == set(refs[:2]), (
            "one is worked on and comes again if that fails"
        )
        await queue.delete([taken])
        assert set(await queue.waiting(refs) or ()) == set(refs[:2]) - {taken.ref}
        await let_pass(599)
        assert refs[2] in (await queue.waiting(refs) or ())
