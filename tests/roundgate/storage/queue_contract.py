"""What every task queue must do: a suite that the test of each queue
inherits. See app/roundgate/storage/ports.py.

A test of a queue gives the fixtures `reopen`, which makes a queue on the same messages as another
process would, and `let_pass`, which has so many seconds pass. After `hidden_s` of them a message
that was received is visible again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from roundgate.storage.ports import Message, TaskQueue
from roundgate.storage.tasks import TaskRef
from tests.support.clocks import SkippingClock

Reopen = Callable[[], TaskQueue]
LetPass = Callable[[float], Awaitable[None]]

REF: Final = TaskRef("owner", "id")
PATIENCE_S: Final = 60


def refs(count: int) -> list[TaskRef]:
    return [TaskRef("owner", f"id-{n}") for n in range(count)]


async def drain(queue: TaskQueue, count: int) -> list[Message]:
    """So many messages, in however many deliveries."""
    got: list[Message] = []
    until = time.monotonic() + PATIENCE_S
    while len(got) < count and time.monotonic() < until:
        got += await queue.receive(10, 1000)
    return got


async def nothing(queue: TaskQueue) -> bool:
    return list(await queue.receive(10, 0)) == []


class TaskQueueContract:
    """Hints that a task wants a worker."""

    hidden_s: float

    @pytest.fixture
    def queue(self, reopen: Reopen) -> TaskQueue:
        return reopen()

    async def test_a_message_carries_the_reference(self, queue: TaskQueue) -> None:
        ref = TaskRef("0" * 64, "a-Z_0")
        await queue.send(ref)
        (message,) = await queue.receive(10, 1000)
        assert message.ref == ref

    async def test_an_empty_queue_has_nothing(self, queue: TaskQueue) -> None:
        assert await nothing(queue)

    async def test_every_message_is_delivered_to_somebody(
        self, queue: TaskQueue, reopen: Reopen
    ) -> None:
        sent = refs(25)
        await asyncio.gather(*(queue.send(ref) for ref in sent))
        assert sorted(message.ref for message in await drain(reopen(), 25)) == sorted(sent)

    async def test_a_message_that_was_received_is_hidden_from_others(
        self, queue: TaskQueue, reopen: Reopen
    ) -> None:
        for ref in refs(8):
            await queue.send(ref)
        others = [reopen() for _ in range(4)]
        got = await asyncio.gather(*(other.receive(2, 1000) for other in others))
        counted = Counter(message.ref for messages in got for message in messages)
        assert set(counted.values()) == {1}
        rest = await drain(queue, 8 - len(counted))
        assert sorted([*counted, *(message.ref for message in rest)]) == refs(8)
        assert await nothing(queue)

    async def test_no_more_messages_are_received_than_wanted(self, queue: TaskQueue) -> None:
        for ref in refs(5):
            await queue.send(ref)
        assert len(await queue.receive(1, 1000)) == 1
        assert 1 <= len(await queue.receive(2, 1000)) <= 2

    async def test_a_message_that_was_not_deleted_is_delivered_again(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        await queue.send(REF)
        (first,) = await queue.receive(10, 1000)
        assert await nothing(queue)
        await let_pass(self.hidden_s)
        (second,) = await queue.receive(10, 1000)
        assert second.ref == first.ref
        assert second.receipt != first.receipt

    async def test_a_message_that_was_deleted_is_never_delivered_again(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        for ref in refs(3):
            await queue.send(ref)
        got = await drain(queue, 3)
        await queue.delete([message for message in got if message.ref != TaskRef("owner", "id-1")])
        await let_pass(self.hidden_s)
        assert [message.ref for message in await queue.receive(10, 0)] == [TaskRef("owner", "id-1")]

    async def test_any_process_may_delete(
        self, queue: TaskQueue, reopen: Reopen, let_pass: LetPass
    ) -> None:
        await queue.send(REF)
        await reopen().delete(await queue.receive(10, 1000))
        await let_pass(self.hidden_s)
        assert await nothing(queue)

    async def test_many_messages_are_deleted_at_once(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        for ref in refs(23):
            await queue.send(ref)
        await queue.delete(await drain(queue, 23))
        await let_pass(self.hidden_s)
        assert await nothing(queue)

    async def test_deleting_nothing_or_twice_does_no_harm(self, queue: TaskQueue) -> None:
        await queue.send(REF)
        got = await queue.receive(10, 1000)
        await queue.delete([])
        await queue.delete(got)
        await queue.delete(got)
        assert await nothing(queue)

    async def test_an_old_receipt_does_not_delete_a_later_delivery(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        await queue.send(REF)
        old = await queue.receive(10, 1000)
        await let_pass(self.hidden_s)
        (later,) = await queue.receive(10, 1000)
        await queue.delete(old)
        await let_pass(self.hidden_s)
        assert [message.ref for message in await queue.receive(10, 1000)] == [later.ref]

    async def test_a_message_that_is_sent_while_another_is_worked_on_outlives_it(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        await queue.send(REF)
        first = await queue.receive(10, 1000)
        await queue.send(REF)
        await queue.delete(first)
        second = await queue.receive(10, 1000)
        assert [message.ref for message in second] == [REF]
        await queue.delete(second)
        await let_pass(self.hidden_s)
        assert await nothing(queue)

    async def test_many_messages_are_sent_at_once(self, queue: TaskQueue) -> None:
        await queue.send_many(refs(23))
        await queue.send_many([])
        assert sorted(message.ref for message in await drain(queue, 23)) == sorted(refs(23))

    async def test_a_message_that_was_put_back_is_delivered_again_at_once(
        self, queue: TaskQueue, reopen: Reopen
    ) -> None:
        await queue.send_many(refs(3))
        got = await drain(queue, 3)
        await queue.put_back(got[1:])
        await queue.put_back([])
        again = await drain(reopen(), 2)
        assert sorted(message.ref for message in again) == sorted(
            message.ref for message in got[1:]
        )
        assert await nothing(queue)

    async def test_a_message_may_be_put_back_for_later(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        await queue.send(REF)
        await queue.put_back(await queue.receive(10, 1000), 1000)
        assert await nothing(queue)
        await let_pass(1.2)
        assert [message.ref for message in await queue.receive(10, 1000)] == [REF]

    async def test_the_depth_counts_messages_that_wait(self, queue: TaskQueue) -> None:
        assert await queue.depth() in (0, None)
        await queue.send_many(refs(5))
        assert await queue.depth() in (5, None)
        await drain(queue, 5)
        assert await queue.depth() in (0, None)

    async def test_only_tasks_that_have_a_message_are_known_to_wait(self, queue: TaskQueue) -> None:
        await queue.send_many(refs(5))
        await queue.delete(await queue.receive(1, 1000))
        left = {message.ref for message in await drain(queue, 4)}
        known = await queue.waiting([*refs(5), REF])
        assert known is None or set(known) == left

    async def test_a_message_is_not_delivered_before_its_delay_is_over(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        await queue.send(REF, 2500)
        assert await nothing(queue)
        await let_pass(1)
        assert await nothing(queue)
        await let_pass(2.2)
        assert [message.ref for message in await queue.receive(10, 1000)] == [REF]

    @pytest.mark.parametrize("delay_ms", [10**9, 10**12], ids=["11 days", "31 years"])
    async def test_any_delay_is_taken(self, queue: TaskQueue, delay_ms: int) -> None:
        await queue.send(REF, delay_ms)
        assert await nothing(queue)

    async def test_who_waits_gets_a_message_when_it_is_sent(
        self, queue: TaskQueue, reopen: Reopen
    ) -> None:
        async def later() -> None:
            await asyncio.sleep(0.3)
            await reopen().send(REF)

        got, _ = await asyncio.gather(queue.receive(10, 600_000), later())
        assert [message.ref for message in got] == [REF]

    async def test_a_receive_waits_until_its_time_is_over(self, queue: TaskQueue) -> None:
        began = time.monotonic()
        assert list(await queue.receive(10, 1000)) == []
        assert time.monotonic() - began > 0.8

    async def test_a_waiting_receive_ends_when_the_queue_is_closed(self, queue: TaskQueue) -> None:
        waiting = asyncio.ensure_future(queue.receive(10, 600_000))
        await asyncio.sleep(0.3)
        await queue.aclose()
        async with asyncio.timeout(PATIENCE_S):
            assert list(await waiting) == []

    async def test_a_message_is_not_lost_with_the_receive_that_was_closed(
        self, queue: TaskQueue, reopen: Reopen
    ) -> None:
        waiting = asyncio.ensure_future(queue.receive(10, 4000))
        await asyncio.sleep(0.3)
        await queue.aclose()
        await waiting
        other = reopen()
        await other.send(REF)
        assert [message.ref for message in await drain(other, 1)] == [REF]

    async def test_messages_survive_a_restart(self, queue: TaskQueue, reopen: Reopen) -> None:
        await queue.send(REF)
        await queue.aclose()
        assert [message.ref for message in await reopen().receive(10, 1000)] == [REF]

    async def test_a_closed_queue_may_be_closed_again(self, queue: TaskQueue) -> None:
        await queue.send(REF)
        await queue.aclose()
        await queue.aclose()


class DatabaseQueueContract(TaskQueueContract):
    """The contract of a queue in a database, whose owners take turns, on a clock that skips."""

    @pytest.fixture
    def clock(self) -> SkippingClock:
        return SkippingClock()

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
        assert await nothing(queue)
        await let_pass(0.2)
        (message,) = await queue.receive(10, 0)
        await queue.delete([message])
        await let_pass(100)
        assert await nothing(queue)
        for _ in range(5):
            await queue.send_many([REF, REF])
        assert len(await queue.receive(10, 0)) == 1

    async def test_a_send_for_later_while_the_task_is_worked_on_is_for_later(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        await queue.send(REF)
        taken = await queue.receive(10, 0)
        await queue.send(REF, 60_000)
        await queue.delete(taken)
        await let_pass(59)
        assert await nothing(queue)
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

    async def test_owners_whose_messages_were_delayed_take_turns(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        for n in range(20):
            await queue.send(TaskRef("a", f"{n}"), 1_000)
        await queue.send(TaskRef("b", "0"), 2_000)
        await let_pass(3)
        assert "b.0" in [str(message.ref) for message in await queue.receive(2, 0)]

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
        owners = {message.ref.owner for message in await queue.receive(10, 0, skip={"a", "c"})}
        assert owners == {"b"}
        assert list(await queue.receive(10, 0, skip={"a", "c"})) == []
        assert len(await queue.receive(10, 0, skip={"c"})) == 3

    async def test_which_tasks_have_a_message_is_known(
        self, queue: TaskQueue, let_pass: LetPass
    ) -> None:
        sent = refs(4)
        await queue.send_many(sent[:2])
        await queue.send(sent[2], 600_000)
        (taken,) = await queue.receive(1, 0)
        assert set(await queue.waiting([*sent, REF]) or ()) == set(sent[:2])
        await queue.delete([taken])
        assert set(await queue.waiting(sent) or ()) == set(sent[:2]) - {taken.ref}
        await let_pass(599)
        assert sent[2] in (await queue.waiting(sent) or ())
