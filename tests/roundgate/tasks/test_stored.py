"""The stored tasks on a file: leases, races between processes, and the tasks that operators bring
back. The table of `test_machine` has every event in every state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from roundgate.auth.principal import LOCAL
from roundgate.errors import LeaseLost, NotRetryable, Unavailable
from roundgate.json import decode, encode
from roundgate.observability.metrics import Metrics
from roundgate.operators.continuing import retry, rewind
from roundgate.protocol.tasks import OPEN, Status
from roundgate.replay.journal import Answered as AnsweredEntry
from roundgate.replay.journal import Asked, Entry, Finished, Opened, Raised, from_row, row
from roundgate.settings import TasksConfig
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import Ending, Mark, TaskRef, Wanted
from roundgate.tasks import TaskCall, events
from roundgate.tasks.events import (
    Added,
    AnswersTaken,
    Cancelled,
    ClaimCleanup,
    Delivered,
    No,
    NotClaimed,
    Postponed,
)
from roundgate.tasks.external import Deliveries
from roundgate.tasks.stored import Claimed, Lease, StoredTasks
from tests.roundgate.storage.task_contract import (
    END,
    NOW,
    REF,
    SIZES,
    SOON,
    TERMINAL,
    UNTIL,
    Reopen,
    answer,
    asking,
    became,
    blob,
    checkpoint,
    claim,
    happens,
    ids,
    new,
    raw,
    record,
    take_over,
    working,
)
from tests.support.clocks import FixedClock
from tests.support.postponing import Move, postpone_many
from tests.support.reopening import reopening


class DiesBeforeItNotes:
    """A store that is away when the retry of a task is to be noted."""

    def __init__(self, store: StoredTasks) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply(self, ref: TaskRef, event: events.Event, now_ms: int) -> events.Decision:
        """Not now."""
        if isinstance(event, events.NoteRetry):
            raise Unavailable("away")
        return await self._store.apply(ref, event, now_ms)


def as_store(store: Any) -> StoredTasks:
    """A double as the store that it stands for."""
    return store  # type: ignore[no-any-return]


async def begun(store: StoredTasks, *entries: bytes) -> Lease:
    """A task with a worker that may have begun something elsewhere."""
    lease = await working(store, cleans_up=True)
    await checkpoint(store, lease, b"start", *entries)
    return lease


async def clean_up(store: StoredTasks, now_ms: int = NOW, **facts: Any) -> Claimed:
    """The claim of a task to be cleaned up."""
    until_ms = now_ms + (UNTIL - NOW)
    claimed = await store.claim(REF, ClaimCleanup(until_ms, until_ms, now_ms, **facts), now_ms)
    assert isinstance(claimed, Claimed), claimed
    return claimed


LATE: Final = Added([b"late"], b"late", "late")
UNDER_A_LEASE: Final[Mapping[str, events.UnderLease]] = {
    "checkpoint": events.Checkpoint(END, added=LATE),
    "checkpoint without entries": events.Checkpoint(END),
    "suspend": events.SuspendTask({"late": b"late"}, added=LATE),
    "release": events.Release(SOON, SOON, added=LATE),
    "restart": events.Restart(b"late", [b"late"], b"late", 9, SOON),
    "park": events.Park("late"),
    "finish": events.Finish(Status.COMPLETED, b"late", "late"),
    "finish with much": events.Finish(Status.COMPLETED, blob(400_000), "late"),
}
"""Every write that a worker does."""

ASKS: Final = events.SuspendTask({"a": b"?"})
REQUEUE: Final = events.Requeue(SOON)
LOST: Final[Mapping[str, Sequence[events.Event]]] = {
    "claimed again": [events.Claim(END, END, UNTIL, alone=True)],
    "asking": [ASKS],
    "asking and answered": [ASKS, events.TakeAnswers({"a": b"!"}, SOON)],
    "released": [events.Release(0, SOON)],
    "finished": [events.Finish(Status.FAILED, b"first")],
    "cancelled": [events.Cancel("cancelled", NOW)],
    "expired": [events.Expire(END)],
    "let go": [events.LetGo(SOON, blame=True)],
    "restarted": [events.Restart(b"call", [], b"{}", 1, SOON)],
    "parked": [events.Park("parked")],
    "requeued": [REQUEUE],
    "requeued and claimed": [REQUEUE, events.Claim(UNTIL, UNTIL, NOW)],
}
"""What ends a lease."""


async def happen(store: StoredTasks, lease: Lease, event: events.Event) -> None:
    """Have an event happen to a task, under the lease if it is one of its worker."""
    now_ms = END if isinstance(event, events.Expire) else NOW
    if isinstance(event, events.UnderLease):
        await store.write(lease, event, now_ms)
    elif isinstance(event, events.Claim):
        assert isinstance(await store.claim(lease.ref, event, now_ms), Claimed)
    else:
        assert await happens(store, event, now_ms)


@pytest.fixture
async def reopen(tmp_path: Path) -> AsyncIterator[Reopen]:
    async with reopening(
        lambda: StoredTasks(SqliteTasks(SqliteDatabase(tmp_path / "tasks.sqlite3", durable=False)))
    ) as open_one:
        yield open_one


@pytest.fixture
def store(reopen: Reopen) -> StoredTasks:
    return reopen()


@pytest.fixture
def stores(reopen: Reopen) -> list[StoredTasks]:
    return [reopen() for _ in range(4)]


# going on without answers


async def test_while_it_goes_on_no_answer_to_what_it_asked_is_taken_and_lost(
    store: StoredTasks,
) -> None:
    questions = {"a": b"?", "b": b"?"}
    await store.write(await working(store), events.SuspendTask(questions, wake_ms=SOON), NOW)
    assert await happens(store, events.GoOn(UNTIL), SOON)
    assert (await record(store)).requests == {}
    for answers in ({"b": b"!"}, {"a": b"!", "b": b"!"}, {"b": b"!", "nobody": b"!"}):
        assert await answer(store, answers, now_ms=SOON) is AnswersTaken.LATER
    assert await answer(store, {"nobody": b"!"}, now_ms=SOON) is AnswersTaken.NOT_NEEDED
    claimed = await claim(store, now_ms=SOON)
    assert claimed.answers == {}
    assert await answer(store, {"b": b"!"}, now_ms=SOON) is AnswersTaken.LATER
    await store.write(claimed.lease, events.SuspendTask({"b": b"?"}), SOON)
    assert (await record(store)).requests == {"b": b"?"}
    assert await answer(store, {"a": b"!"}, now_ms=SOON) is AnswersTaken.NOT_NEEDED
    assert await answer(store, {"b": b"!"}, now_ms=SOON) is AnswersTaken.FULLY
    assert (await claim(store, now_ms=SOON)).answers == {"b": b"!"}


# claim


async def test_a_claim_gives_the_task_with_all_that_a_run_needs(store: StoredTasks) -> None:
    await store.create(
        new(call=b"call", state=b"state", journal=[b"0", b"1"], status_message="waits")
    )
    claimed = await claim(store)
    assert (claimed.call, claimed.state, list(claimed.journal)) == (
        b"call",
        b"state",
        [b"0", b"1"],
    )
    assert claimed.answers == {}
    assert claimed.lease.ref == REF
    assert claimed.lease.fence == claimed.record.fence
    assert claimed.record == await record(store)


async def test_of_many_claims_at_once_one_wins(stores: list[StoredTasks]) -> None:
    await stores[0].create(new())
    got = await asyncio.gather(
        *(store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW) for store in stores * 8)
    )
    assert sorted(isinstance(one, Claimed) for one in got) == [False] * 31 + [True]
    assert {one for one in got if not isinstance(one, Claimed)} == {NotClaimed.LEASED}
    assert (await record(stores[0])).fence == 1


# leases


async def nothing_is_written(store: StoredTasks, lease: Lease) -> None:
    before, known = (await store.find()).records, await store.read(REF, NOW)
    for event in UNDER_A_LEASE.values():
        with pytest.raises(LeaseLost):
            await store.write(lease, event, NOW)
    assert (await store.find()).records == before
    assert await store.read(REF, NOW) == known


@pytest.mark.parametrize("how", LOST)
async def test_no_write_under_a_lease_that_is_lost_changes_anything(
    store: StoredTasks, how: str
) -> None:
    lease = await working(store)
    for event in LOST[how]:
        if isinstance(event, events.UnderLease):
            event = replace(event, fence=lease.fence)
        await happen(store, lease, event)
    await nothing_is_written(store, lease)


async def test_no_write_without_a_lease_changes_anything(store: StoredTasks) -> None:
    lease = await working(store, TaskRef("owner", "other"))
    await nothing_is_written(store, replace(lease, ref=TaskRef("owner", "unknown")))
    await store.create(new())
    await nothing_is_written(store, replace(lease, ref=REF, fence=0))


@pytest.mark.parametrize("write", UNDER_A_LEASE)
async def test_a_worker_that_stalled_and_its_successor_do_not_both_write(
    stores: list[StoredTasks], write: str
) -> None:
    """Whichever is first: either the claim is refused, or the write is."""
    stalled, other = stores[:2]
    for n in range(8):
        ref = TaskRef("owner", f"{n}")
        lease = await working(stalled, ref)
        late, claimed = await asyncio.gather(
            stalled.write(lease, UNDER_A_LEASE[write], NOW),
            other.claim(ref, events.Claim(END, END, UNTIL, alone=True), UNTIL),
            return_exceptions=True,
        )
        if late is None:
            assert not isinstance(claimed, Claimed) or b"late" in claimed.journal
        else:
            assert isinstance(late, LeaseLost)
            assert isinstance(claimed, Claimed)
            assert b"late" not in claimed.journal


async def test_a_lease_is_ended_from_another_thread_with_a_loop_and_a_store_of_its_own(
    store: StoredTasks, reopen: Reopen
) -> None:
    lease = await working(store)

    async def end() -> bool:
        other = reopen()
        try:
            return await happens(other, events.LetGo(SOON, blame=True, fence=lease.fence))
        finally:
            await other.aclose()

    assert await asyncio.to_thread(asyncio.run, end()) is True
    assert (await record(store)).suspect


async def test_of_cancellation_and_completion_one_happens(stores: list[StoredTasks]) -> None:
    seen = set()
    for n in range(12):
        ref = TaskRef("owner", f"{n}")
        lease = await working(stores[0], ref)
        both = [
            stores[0].write(lease, events.Finish(Status.COMPLETED, b"outcome", "done"), NOW),
            stores[1].apply(ref, events.Cancel("cancelled", NOW), NOW),
        ]
        order = both if n % 2 else both[::-1]
        got = await asyncio.gather(*order, return_exceptions=True)
        results = [getattr(one, "result", None) for one in got]
        assert Cancelled.OVER in results, "there is such a task"
        found = await record(stores[2], ref)
        was_lost = any(isinstance(one, LeaseLost) for one in got)
        assert found.status is (Status.CANCELLED if was_lost else Status.COMPLETED)
        assert found.outcome == (None if was_lost else b"outcome")
        seen.add(found.status)
    assert seen <= {Status.CANCELLED, Status.COMPLETED}


# cleaning up


async def test_what_a_cancelled_task_has_begun_is_cleaned_up_under_a_lease(
    store: StoredTasks,
) -> None:
    lease = await begun(store, blob(9_000))
    await store.write(lease, events.SuspendTask({"a": b"?"}, added=Added(state=b"state")), NOW)
    await answer(store, {"a": blob(3_000)})
    cancel = events.Cancel("no more", SOON)
    assert await became(store, cancel) is Cancelled.CLEAN_UP
    assert await became(store, cancel) is Cancelled.OVER
    assert ((await store.open_tasks(10))[0], await store.count_open("owner", 10)) == ([], 0)
    assert ids(await store.due(SOON, 10)) == ["id"]
    for statuses, found in ((OPEN, []), (TERMINAL[2:], ["id"])):
        assert ids((await store.find(Wanted(statuses=frozenset(statuses)))).records) == found
    dead = await clean_up(store)
    assert (dead.call, dead.state, dead.answers) == (b"call", b"state", {"a": blob(3_000)})
    assert dead.journal == [b"start", blob(9_000)]
    claimed = await clean_up(store, UNTIL)  # the first was not dead after all
    for late in (events.EndCleanup(), events.PostponeCleanup(END, END)):
        with pytest.raises(LeaseLost):
            await store.write(dead.lease, late, NOW)
    await store.write(claimed.lease, events.EndCleanup(), NOW)
    with pytest.raises(LeaseLost):
        await store.write(claimed.lease, events.EndCleanup(), NOW)
    assert await store.due(END, 10) == []


@pytest.mark.parametrize("size", SIZES)
async def test_who_had_the_task_adds_what_it_could_not_write(store: StoredTasks, size: int) -> None:
    lease = await working(store, cleans_up=True, journal=[b"0", blob(9000)])
    await store.apply(REF, events.Cancel("cancelled", NOW), NOW)
    journal = [b"0", blob(9000), blob(size)]
    others = ClaimCleanup(UNTIL, UNTIL, NOW, journal=[b"another's"])
    assert await store.claim(REF, others, NOW) is No.NOT_NOW
    claimed = await clean_up(store, fence=lease.fence, journal=journal)
    assert list(claimed.journal) == journal
    await store.write(claimed.lease, events.PostponeCleanup(SOON, SOON), NOW)
    assert list((await clean_up(store, SOON)).journal) == journal


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
async def test_what_is_ended_early_by_its_worker_is_cleaned_up(
    store: StoredTasks, status: Status
) -> None:
    lease = await begun(store)
    await store.write(lease, events.Finish(status, b"too long", cleanup_due_ms=SOON), NOW)
    claimed = await clean_up(store)
    assert claimed.journal == [b"start"]
    await store.write(claimed.lease, events.EndCleanup(), NOW)
    found = await record(store)
    assert (found.status, found.outcome, found.due_ms) == (status, b"too long", None)


async def test_what_expires_is_cleaned_up_though_nobody_can_see_it(store: StoredTasks) -> None:
    await store.write(await begun(store), events.Release(END - 1, END - 1), NOW)
    await store.create(new(other := TaskRef("owner", "other")))
    expire = [(ref, events.Expire(END + 5)) for ref in (REF, other)]
    for happened in (True, False):
        decisions = await store.apply_many(expire, END)
        assert [decision.happened for decision in decisions] == [happened] * 2
    assert await store.claim(REF, events.Claim(END + 1, END + 1, END), END) is NotClaimed.CLEAN_UP
    assert ids(await store.due(END + 5, 10)) == ["id"]
    claimed = await clean_up(store, END + 5)
    assert claimed.record.status is Status.FAILED
    await store.write(claimed.lease, events.EndCleanup(), NOW)
    assert await store.due(END + 100_000, 10) == []


async def test_what_is_to_be_cleaned_up_may_be_purged(store: StoredTasks) -> None:
    await begun(store)
    await store.apply(REF, events.Cancel("no more", SOON), NOW)
    assert await store.purge(REF, NOW)
    assert await store.claim(REF, ClaimCleanup(END, END, END), END) is No.NOT_NOW
    assert await store.due(END, 10) == []


# a store that does not answer


class Deaf:
    """A store of which the answers to some writes are lost, whether they happen or not."""

    def __init__(self, store: Any, *, happens: bool) -> None:
        self._store = store
        self._happens = happens
        self.lose = 0
        """How many answers to lose."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def swap(self, change: Any) -> Any:
        """Perform it, perhaps."""
        if not self.lose:
            return await self._store.swap(change)
        self.lose -= 1
        if self._happens:
            await self._store.swap(change)
        raise Unavailable("no answer")


@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("between", ["nothing", "a renewal", "a sweep"])
async def test_entries_in_doubt_are_added_once(
    store: StoredTasks, happens: bool, between: str
) -> None:
    deaf: Any = Deaf(store.store, happens=happens)
    tasks, lease = StoredTasks(deaf), await working(store)
    deaf.lose = 2
    for _ in range(2):
        with pytest.raises(Unavailable):
            await tasks.write(lease, events.Checkpoint(added=Added([b"1"], b"state")), NOW)
    if between == "a renewal":
        await tasks.write(lease, events.Checkpoint(UNTIL + 1), NOW)
    elif between == "a sweep":
        (task,) = await tasks.due(END, 10)
        await postpone_many(tasks, [Move(task, END, 0)], NOW)
    for entry in (b"1", b"2"):
        await tasks.write(lease, events.Checkpoint(added=Added([entry], b"state")), NOW)
    claimed = await take_over(store, now_ms=UNTIL + 1)
    assert (claimed.journal, claimed.state) == ([b"1", b"2"], b"state")


@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("next_lost", [None, 0, 1])
@pytest.mark.parametrize("end", ["release", "suspend", "checkpoint"])
async def test_entries_that_were_given_up_in_doubt_are_added_once_by_a_later_write(
    store: StoredTasks, happens: bool, next_lost: int | None, end: str
) -> None:
    deaf: Any = Deaf(store.store, happens=happens)
    tasks, lease = StoredTasks(deaf), await working(store)
    deaf.lose = 1
    with pytest.raises(Unavailable):
        await checkpoint(tasks, lease, b"1")
    deaf.lose = next_lost or 0
    if next_lost is not None:
        with suppress(Unavailable):
            await checkpoint(tasks, lease, b"2")
    if next_lost:
        await checkpoint(tasks, lease, b"2")
    rest = Added([b"1", b"3"])
    if end == "release":
        await tasks.write(lease, events.Release(0, SOON, added=rest), NOW)
    elif end == "suspend":
        await tasks.write(lease, events.SuspendTask({}, wake_ms=NOW + 1, added=rest), NOW)
    else:
        await tasks.write(lease, events.Checkpoint(added=rest), NOW)
    _, work = await store.store.read_work(lease.ref)
    assert work is not None
    assert sorted(work.journal) == sorted(
        {b"1", b"2", b"3"} - ({b"2"} if next_lost is None else set())
    )


async def test_entries_that_were_given_up_are_not_added_late(store: StoredTasks) -> None:
    deaf: Any = Deaf(store.store, happens=False)
    tasks, lease = StoredTasks(deaf), await working(store)
    deaf.lose = 1
    with pytest.raises(Unavailable):
        await checkpoint(tasks, lease, b"given up")
    for entry in (b"1", b"1"):
        await checkpoint(tasks, lease, entry)
    assert (await take_over(store)).journal == [b"1", b"1"]


# messages


class Sent:
    """A queue that keeps what is sent, in how many calls."""

    def __init__(self) -> None:
        self.sent: list[tuple[TaskRef, int]] = []
        self.calls = 0
        self.is_away = False

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        self.calls += 1
        if self.is_away:
            raise Unavailable("no queue")
        self.sent.append((ref, delay_ms))

    async def send_many(self, refs: Sequence[TaskRef]) -> None:
        self.calls += 1
        self.sent += [(ref, 0) for ref in refs]


@pytest.fixture
def queue() -> Sent:
    return Sent()


def sending(store: Any, queue: Any) -> StoredTasks:
    return StoredTasks(store, queue)


async def test_a_message_follows_a_write_once(store: StoredTasks, queue: Sent) -> None:
    tasks = sending(store.store, queue)
    assert await tasks.create(new())
    assert not await tasks.create(new())
    lease = (await claim(tasks)).lease
    await tasks.write(lease, events.Release(NOW + 5, SOON + 5), NOW)
    with pytest.raises(LeaseLost):
        await tasks.write(lease, events.Release(NOW + 5, SOON + 5), NOW)
    assert queue.sent == [(REF, 0), (REF, 5)]


async def test_a_message_that_cannot_be_sent_is_no_error(store: StoredTasks, queue: Sent) -> None:
    queue.is_away = True
    tasks = sending(store.store, queue)
    assert await tasks.create(new())
    assert await happens(tasks, events.Requeue(SOON))
    assert (queue.sent, queue.calls) == ([], 2)
    assert ids(await tasks.due(SOON, 10)) == ["id"]


async def test_a_sweep_sends_in_one_call_and_also_if_one_of_its_writes_fails(
    store: StoredTasks, queue: Sent
) -> None:
    refs = [TaskRef("owner", f"{n}") for n in range(6)]
    for ref in refs:
        await store.create(new(ref))
    deaf: Any = Deaf(store.store, happens=False)
    tasks = sending(deaf, queue)
    moves = [Move(task, END, 1) for task in await tasks.due(SOON, 10)]
    deaf.lose = 1
    with pytest.raises(Unavailable):
        await postpone_many(tasks, moves, SOON)
    assert (len(queue.sent), queue.calls) == (5, 1)
    assert len(await postpone_many(tasks, moves, SOON)) == 6
    assert (sorted(ref for ref, _ in queue.sent), queue.calls) == (refs, 2)


# listeners


async def test_listeners_are_told_of_what_a_client_can_see(store: StoredTasks) -> None:
    told: list[str] = []
    await store.create(new())
    end = store.listen(REF, lambda: told.append("one"))
    store.listen(REF, lambda: told.append("other"))
    lease = (await claim(store)).lease
    await store.write(lease, events.Checkpoint(UNTIL, added=Added([b"1"])), NOW)
    assert told == []
    await store.write(lease, events.Checkpoint(UNTIL, added=Added(status_message="on it")), NOW)
    assert told == ["one", "other"]
    end()
    end()
    await store.write(lease, events.Finish(Status.COMPLETED, b"{}"), NOW)
    assert told == ["one", "other", "other"]


async def test_a_glance_shows_states_apart_and_no_expired_task(store: StoredTasks) -> None:
    refs = [REF, TaskRef("owner", "unknown")]
    await store.create(new())
    (before,) = (await store.glance(refs, NOW)).values()
    assert await store.glance(refs, END) == {}
    await store.apply(REF, events.Cancel("no more", NOW), NOW)
    (after,) = (await store.glance(refs, NOW)).values()
    assert before.is_before(after)
    assert not after.is_before(before)
    later = replace(after, created_ms=1, revision=after.revision + 1)
    assert not after.is_before(later), "another task of the same id"


# counts


class Counted(Metrics):
    """Metrics that keep what they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, ...]] = []

    def created(self, tool: str) -> None:
        self.told.append(("created", tool))

    def claimed(self, tool: str) -> None:
        self.told.append(("claimed", tool))

    def ended(self, tool: str, outcome: str, took_ms: float | None = None) -> None:
        self.told.append(("ended", tool, outcome))


async def test_each_task_is_counted_once_when_it_is_created_and_when_it_ends(
    store: StoredTasks,
) -> None:
    counted = Counted()
    tasks = StoredTasks(store.store, metrics=counted)
    for _ in range(2):
        await tasks.create(new())
    lease = (await claim(tasks)).lease
    await tasks.write(lease, events.Checkpoint(added=Added([b"1"], status_message="on it")), NOW)
    for _ in range(2):
        await tasks.apply(REF, events.Cancel("no more", NOW), NOW)
    await tasks.create(new(ended := TaskRef("owner", "ended"), status=Status.COMPLETED))
    assert await tasks.claim(ended, events.Claim(UNTIL, UNTIL, NOW), NOW) is NotClaimed.OVER
    await tasks.create(new(late := TaskRef("owner", "late")))
    assert await happens(tasks, events.Expire(END), END, late) == 1
    tool = counted.told[0][1]
    assert counted.told == [
        *(("created", tool), ("claimed", tool), ("ended", tool, "cancelled")),
        *(("created", tool), ("ended", tool, "ok")),
        *(("created", tool), ("ended", tool, "error")),
    ]


async def test_checkpoints_of_one_worker_at_once_are_all_kept(store: StoredTasks) -> None:
    lease = await working(store)
    entries = [b"%d %b" % (n, blob(900)) for n in range(20)]
    await asyncio.gather(*(checkpoint(store, lease, entry) for entry in entries))
    assert sorted((await take_over(store)).journal) == sorted(entries)


async def test_a_checkpoint_that_was_cut_off_may_be_tried_again(store: StoredTasks) -> None:
    """Its caller was cancelled and does not know whether it has happened."""
    lease = await working(store)
    for n in range(12):
        cut = asyncio.ensure_future(
            store.write(lease, events.Checkpoint(added=Added([b"%d" % n])), NOW)
        )
        for _ in range(n % 4):
            await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait([cut])
        if cut.cancelled():  # on a busy machine a write may end before
            await checkpoint(store, lease, b"%d" % n)
    assert list((await take_over(store)).journal) == [b"%d" % n for n in range(12)]


@pytest.mark.parametrize("how", ["checkpoint", "suspend", "release"])
async def test_each_write_of_a_worker_may_add_entries_state_and_message(
    store: StoredTasks, how: str
) -> None:
    lease = await working(store, journal=[b"0"])
    added = Added([b"1", b"2"], b"new state", "said")
    if how == "checkpoint":
        await store.write(lease, events.Checkpoint(added=added), SOON)
        await store.write(lease, events.Release(0, SOON), SOON)
    elif how == "suspend":
        await store.write(lease, events.SuspendTask({"a": b"?"}, added=added), SOON)
        await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), SOON)
    else:
        await store.write(lease, events.Release(0, SOON, added=added), SOON)
    claimed = await claim(store)
    assert (list(claimed.journal), claimed.state) == ([b"0", b"1", b"2"], b"new state")
    assert (claimed.record.status_message, claimed.record.updated_ms) == ("said", SOON)


async def test_a_task_is_found_until_its_time_is_over(store: StoredTasks) -> None:
    await store.create(new())
    assert await store.read(REF, END - 1) is not None
    assert await store.read(REF, END) is None


async def test_an_unknown_answer_beside_some_does_no_harm(store: StoredTasks) -> None:
    await asking(store, {"a": b"?", "c": b"?"})
    assert await answer(store, {"a": b"!", "b": b"!"}) is AnswersTaken.PARTLY
    assert await answer(store, {"c": b"!"}) is AnswersTaken.FULLY
    assert (await claim(store)).answers == {"a": b"!", "c": b"!"}


async def test_the_first_answer_to_a_question_counts(store: StoredTasks) -> None:
    await asking(store, {"a": b"?", "b": b"?"})
    assert await answer(store, {"a": b"first"}) is AnswersTaken.PARTLY
    before = await record(store)
    assert await answer(store, {"a": b"second"}, now_ms=SOON) is AnswersTaken.NOT_NEEDED
    assert await record(store) == before
    assert await answer(store, {"a": b"third", "b": b"first"}) is AnswersTaken.FULLY
    assert await answer(store, {"a": b"late", "b": b"late"}) is AnswersTaken.NOT_NEEDED
    assert (await claim(store)).answers == {"a": b"first", "b": b"first"}


async def test_a_question_may_be_asked_again_and_its_new_answer_counts(store: StoredTasks) -> None:
    await asking(store, {"a": b"?", "b": b"?"})
    await answer(store, {"a": b"old", "b": b"b"})
    await store.write((await claim(store)).lease, events.SuspendTask({"a": b"again?"}), NOW)
    assert (await record(store)).requests == {"a": b"again?"}
    assert await answer(store, {"a": b"new"}) is AnswersTaken.FULLY
    assert (await claim(store)).answers == {"a": b"new", "b": b"b"}


@pytest.mark.parametrize("size", [1, 9000])
async def test_of_answers_at_once_each_is_kept_and_one_is_the_last(
    stores: list[StoredTasks], size: int
) -> None:
    answers = {f"{n}": b"%d %b" % (n, blob(size)) for n in range(12)}
    await asking(stores[0], dict.fromkeys(answers, b"?"))
    each = [
        stores[n % 4].apply(REF, events.TakeAnswers({key: value}, SOON), NOW)
        for n, (key, value) in enumerate(answers.items())
    ]
    got = [str(decision.result) for decision in await asyncio.gather(*each)]
    assert sorted(got) == [AnswersTaken.FULLY] + [AnswersTaken.PARTLY] * 11
    assert (await claim(stores[0])).answers == answers


async def test_many_are_postponed_at_once_and_each_by_itself(stores: list[StoredTasks]) -> None:
    refs = [TaskRef("owner", f"{n:03}") for n in range(60)]
    for ref in refs:
        await stores[0].create(new(ref))
    tasks = sorted(await stores[0].due(SOON, 100), key=lambda task: task.ref)
    await stores[0].apply(refs[7], events.Cancel("cancelled", NOW), NOW)
    await claim(stores[1], refs[8])
    moves = [Move(task, UNTIL + n, 1) for n, task in enumerate(tasks)]
    got = await asyncio.gather(*(postpone_many(store, moves, SOON) for store in stores[:3]))
    assert [sorted({*each} - {Postponed.MISSED}) for each in zip(*got, strict=True)] == [
        {7: [], 8: [Postponed.HELD]}.get(n, [Postponed.MOVED]) for n in range(60)
    ]
    assert sum(one is not Postponed.MISSED for each in got for one in each) == 59
    left = {task.ref: task.due_ms for task in (await stores[0].open_tasks(100))[0]}
    assert left == {ref: UNTIL + (n if n != 8 else 0) for n, ref in enumerate(refs) if n != 7}
    assert await postpone_many(stores[0], [], SOON) == []


STEP_FAILED: Final = events.Finish(
    Status.COMPLETED, b"{}", ending=Ending.STEP_FAILED, failed_steps=["charge"]
)


async def opened(store: StoredTasks, marks: Sequence[Mark], *entries: Entry, **facts: Any) -> Lease:
    """A task with a worker and open events."""
    lease = await working(store, call=TaskCall("report", {}, LOCAL, {}).to_bytes(), **facts)
    rows = [encode(row(entry)) for entry in entries] or [b"opened"]
    await store.write(lease, events.Checkpoint(added=Added(rows, events=marks)), NOW)
    return lease


async def failed(store: StoredTasks, *names: str) -> None:
    """A task that a failed step ended while it had open events."""
    entries = [Opened(name, END, "token") for name in names]
    marks = [Mark(name, END) for name in names]
    lease = await opened(store, marks, *entries, Raised("charge", "", False))
    await store.write(lease, STEP_FAILED, NOW)


async def delivered(
    store: StoredTasks,
    name: str = "event:paid",
    payload: bytes = b"7",
    digest: str = "digest",
) -> Any:
    """What becomes of a payload."""
    return await became(store, events.Deliver(name, payload, digest, SOON), NOW + 1)


async def test_the_work_is_taken_up_by_one_task_however_often_that_is_interrupted(
    store: StoredTasks, queue: Sent
) -> None:
    call = TaskCall("report", {"n": 1}, LOCAL, {})
    entries: list[Entry] = [
        Finished("plan", "x" * 5_000),
        Asked("who", "digest"),
        Raised("charge", "", False),
    ]
    lease = await asking(store, {"who": b"{}"}, call=call.to_bytes(), call_id="call")
    await answer(store, {"who": b'{"action":"decline"}'})
    lease = (await claim(store)).lease
    for entry in entries:
        await checkpoint(store, lease, encode(row(entry)))
    await store.write(lease, STEP_FAILED, NOW)
    store = sending(store.store, queue)
    with pytest.raises(Unavailable):
        await retry(as_store(DiesBeforeItNotes(store)), REF, NOW)
    again = await retry(store, REF, NOW + 1_000)
    with pytest.raises(NotRetryable, match=f"was already retried as {again}"):
        await retry(store, REF, NOW)
    assert (await record(store)).retried_as == again.id
    assert [ref for ref, _ in queue.sent] == [again, again], (
        "who died after the row may not have sent it"
    )
    assert len((await store.find()).records) == 2
    going_on = await claim(store, again)
    assert TaskCall.from_bytes(going_on.call) == replace(call, continues=REF.id)
    answered = AnsweredEntry("who", "digest", 1, 0, {"action": "decline"})
    assert [from_row(decode(one)) for one in going_on.journal] == [entries[0], answered]
    assert going_on.record.call_id == "call"
    assert going_on.record.expires_ms - going_on.record.created_ms == END - NOW


async def test_the_payload_of_an_event_is_kept_beside_the_answers(store: StoredTasks) -> None:
    marks = [Mark("event:paid", END), Mark("event:late", NOW + 1)]
    lease = await opened(store, marks)
    payload = blob(40_000)
    assert await delivered(store, payload=payload) is Delivered.KEPT
    assert (await raw(store)).events == (replace(marks[0], digest="digest"), marks[1])
    await store.write(lease, events.Release(END, END, awaits=["event:paid"], ready_ms=SOON), NOW)
    claimed = await claim(store, now_ms=NOW + 1)
    assert claimed.answers == {"event:paid": payload}
    assert [mark.name for mark in claimed.record.events] == ["event:paid"]
    await store.write(claimed.lease, events.Finish(Status.COMPLETED, b"{}"), NOW + 1)
    assert await delivered(store, payload=payload) is Delivered.AGAIN
    assert await delivered(store, payload=payload, digest="other") is Delivered.OTHER


@pytest.mark.parametrize("asks", [False, True], ids=["waits", "asks"])
async def test_a_delivery_wakes_what_waits_for_it_and_is_found_by_the_index(
    store: StoredTasks, asks: bool
) -> None:
    lease = await opened(store, [Mark("event:paid", END)])
    awaits: dict[str, Any] = {"wake_ms": END, "awaits": ["event:paid"], "ready_ms": SOON}
    waits = events.SuspendTask({"who": b"?"}, **awaits) if asks else None
    await store.write(lease, waits or events.Release(due_ms=END, **awaits), NOW)
    assert await store.due(SOON, 10) == []
    assert await delivered(store) is Delivered.WAKES
    assert ids(await store.due(SOON, 10)) == ["id"]
    assert (await claim(store)).answers == {"event:paid": b"7"}


async def test_a_task_that_a_failed_step_ended_hands_its_events_on(store: StoredTasks) -> None:
    await failed(store, "event:paid", "event:sent")
    assert await delivered(store) is Delivered.KEPT, "a retry will find it"
    going_on = await retry(store, REF, NOW)
    _, work = await store.read_work(going_on)
    assert work is not None
    paid = from_row(decode(work.journal[0]))
    assert isinstance(paid, Opened)
    assert (paid.outcome, paid.payload) == ("delivered", 7)
    assert [mark.digest for mark in (await raw(store, going_on)).events] == ["digest", None]
    assert await delivered(store, "event:sent") is Delivered.CLOSED
    deliveries = Deliveries(store, FixedClock(NOW), TasksConfig())
    assert await deliveries.deliver(REF, "event:sent", 8) is Delivered.KEPT
    assert (await claim(store, going_on)).answers == {"event:sent": b"8"}


async def test_what_was_delivered_while_a_retry_was_made_is_handed_on_by_the_next_one(
    store: StoredTasks,
) -> None:
    await failed(store, "event:paid")
    with pytest.raises(Unavailable):
        await retry(as_store(DiesBeforeItNotes(store)), REF, NOW)
    assert await delivered(store) is Delivered.KEPT
    going_on = await retry(store, REF, NOW)
    assert (await claim(store, going_on)).answers == {"event:paid": b"7"}


async def test_a_parked_task_goes_on_from_an_earlier_place(store: StoredTasks) -> None:
    call = TaskCall("report", {}, LOCAL, {})
    entries: list[Entry] = [
        Finished("plan", 1, "step plan"),
        Asked("who", "digest"),
        Finished("charge", blob(3_000).hex(), "step charge"),
        Opened("event:paid", END, "token"),
    ]
    rows = [encode(row(entry)) for entry in entries]
    lease = await working(store, call=call.to_bytes(), state=b'{"a": 1}')
    await store.write(lease, events.SuspendTask({"who": b"?"}, added=Added(rows[:2])), NOW)
    await answer(store, {"who": encode({"action": "decline"})})
    lease = (await claim(store)).lease
    marks = [Mark("event:paid", END)]
    await store.write(lease, events.Checkpoint(added=Added(rows[2:], events=marks)), NOW)
    await store.write(lease, events.Park("waits"), NOW)
    await rewind(store, REF, NOW, "charge")
    claimed = await claim(store)
    kept = [from_row(decode(entry)) for entry in claimed.journal]
    assert [(type(entry), entry.key) for entry in kept] == [
        (Finished, "plan"),
        (AnsweredEntry, "who"),
    ]
    assert (claimed.answers, claimed.record.events, claimed.state) == ({}, (), b'{"a": 1}')
    assert TaskCall.from_bytes(claimed.call).generation == 2
    with pytest.raises(NotRetryable, match="neither parked nor ended"):
        await rewind(store, REF, NOW, "plan")


async def test_an_open_task_is_not_purged_before_its_time_is_over(store: StoredTasks) -> None:
    lease = await working(store)
    before = await record(store)
    assert await store.purge(REF, NOW) is False
    assert await record(store) == before
    await checkpoint(store, lease, b"entry")
    assert await store.purge(REF, END) is True
    with pytest.raises(LeaseLost):
        await checkpoint(store, lease, b"another")
    assert (await store.find()).records == []
