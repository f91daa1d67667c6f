"""The stored tasks on a file: leases, races between processes, and the tasks that operators bring
back. The table of `test_machine` has every event in every state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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
    Delivered,
    NotClaimed,
    Postponed,
    Sending,
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
    blob,
    claim,
    ids,
    new,
    raw,
    record,
    take_over,
    working,
)
from tests.support.clocks import FixedClock
from tests.support.postponing import Move, postpone, postpone_many
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


async def blamed(store: StoredTasks) -> Lease:
    """A task with which two workers have died that had nothing else, and one that had; and that has failed before."""
    lease = await working(store)
    await store.write(
        lease, events.Release(0, SOON, attempts=3, declined_ms=NOW - 9, keeps_blame=True), NOW
    )
    await claim(store, until_ms=NOW)
    for _ in range(2):
        await take_over(store, now_ms=NOW, until_ms=NOW)
    lease = (await take_over(store, now_ms=NOW)).lease
    found = await record(store)
    assert (found.suspect, found.deaths, found.attempts, found.declined_ms) == (True, 2, 3, NOW - 9)
    return lease


async def asleep(store: StoredTasks) -> None:
    await store.write(await working(store), events.Release(END - 1, END - 1), NOW)


async def begun(store: StoredTasks, state: str) -> Lease | None:
    """A task that may have begun something elsewhere; the lease, if a worker has it."""
    if state == "new":
        await store.create(new(cleans_up=True))
        return None
    lease = await working(store, cleans_up=True)
    if state == "working":
        return lease
    if state == "asking":
        await store.write(lease, events.SuspendTask({"a": b"?", "b": blob(9000)}), NOW)
    else:
        await store.write(lease, events.Release(END - 1, END - 1), NOW)
    return None


async def clean_up(
    store: StoredTasks,
    ref: TaskRef,
    now_ms: int = NOW,
    *,
    fence: int | None = None,
    journal: Sequence[bytes] | None = None,
) -> Claimed | None:
    until_ms = now_ms + (UNTIL - NOW)
    event = events.ClaimCleanup(until_ms, until_ms, now_ms, fence=fence, journal=journal)
    claimed = await store.claim(ref, event, now_ms)
    return claimed if isinstance(claimed, Claimed) else None


UNDER_A_LEASE: Final[Mapping[str, Callable[[StoredTasks, Lease], Awaitable[object]]]] = {
    "checkpoint": lambda store, lease: store.write(
        lease, events.Checkpoint(END, added=Added([b"late"], b"late", "late")), NOW
    ),
    "checkpoint without entries": lambda store, lease: store.write(
        lease, events.Checkpoint(END), NOW
    ),
    "suspend": lambda store, lease: store.write(
        lease, events.SuspendTask({"late": b"late"}, added=Added([b"late"])), NOW
    ),
    "release": lambda store, lease: store.write(
        lease, events.Release(SOON, SOON, added=Added([b"late"], b"late")), NOW
    ),
    "restart": lambda store, lease: store.write(
        lease, events.Restart(b"late", [b"late"], b"late", 9, SOON), NOW
    ),
    "park": lambda store, lease: store.write(lease, events.Park("late"), NOW),
    "finish": lambda store, lease: store.write(
        lease, events.Finish(Status.COMPLETED, b"late", "late"), NOW
    ),
    "finish with much": lambda store, lease: store.write(
        lease, events.Finish(Status.COMPLETED, blob(400_000), "late"), NOW
    ),
}
"""Every write that a worker does."""


async def _claimed_again(store: StoredTasks) -> Lease:
    lease = await working(store)
    await take_over(store)
    return lease


async def _asking(store: StoredTasks) -> Lease:
    return await asking(store, {"a": b"?"})


async def _answered(store: StoredTasks) -> Lease:
    lease = await asking(store, {"a": b"?"})
    await answer(store, {"a": b"!"})
    return lease


async def _released(store: StoredTasks) -> Lease:
    lease = await working(store)
    await store.write(lease, events.Release(0, SOON), NOW)
    return lease


async def _finished(store: StoredTasks) -> Lease:
    lease = await working(store)
    await store.write(lease, events.Finish(Status.FAILED, b"first"), NOW)
    return lease


async def _cancelled(store: StoredTasks) -> Lease:
    lease = await working(store)
    await store.apply(REF, events.Cancel("cancelled", NOW), NOW)
    return lease


async def _expired(store: StoredTasks) -> Lease:
    lease = await working(store)
    await store.apply(REF, events.Expire(END), END)
    return lease


async def _let_go(store: StoredTasks) -> Lease:
    lease = await working(store)
    await store.apply(REF, events.LetGo(SOON, blame=True, fence=lease.fence), NOW)
    return lease


async def _restarted(store: StoredTasks) -> Lease:
    lease = await working(store)
    await store.write(lease, events.Restart(b"call", [], b"{}", 1, SOON), NOW)
    return lease


async def _parked(store: StoredTasks) -> Lease:
    lease = await working(store)
    await store.write(lease, events.Park("parked"), NOW)
    return lease


async def _requeued(store: StoredTasks) -> Lease:
    lease = await working(store)
    await store.apply(REF, events.Requeue(SOON), NOW)
    return lease


async def _requeued_and_claimed(store: StoredTasks) -> Lease:
    lease = await _requeued(store)
    await claim(store)
    return lease


async def _never_claimed(store: StoredTasks) -> Lease:
    lease = await working(store, TaskRef("owner", "other"))
    await store.create(new())
    return replace(lease, ref=REF, fence=0)


async def _never_created(store: StoredTasks) -> Lease:
    lease = await working(store)
    return replace(lease, ref=TaskRef("owner", "unknown"))


LOST: Final[Mapping[str, Callable[[StoredTasks], Awaitable[Lease]]]] = {
    "claimed again": _claimed_again,
    "asking": _asking,
    "asking and answered": _answered,
    "released": _released,
    "finished": _finished,
    "cancelled": _cancelled,
    "expired": _expired,
    "let go": _let_go,
    "restarted": _restarted,
    "parked": _parked,
    "requeued": _requeued,
    "requeued and claimed": _requeued_and_claimed,
    "never claimed": _never_claimed,
    "never created": _never_created,
}
"""Every way in which a lease is no more."""

BLAME: Final = ("suspect", "deaths", "attempts", "declined_ms", "alone")


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


async def test_a_task_that_asks_until_a_moment_is_due_then_and_goes_on_from_then_on(
    store: StoredTasks,
) -> None:
    await store.write(await working(store), events.SuspendTask({"a": b"?"}, wake_ms=SOON), NOW)
    assert (await record(store)).due_ms == SOON
    assert not (await store.apply(REF, events.GoOn(UNTIL), SOON - 1)).happened
    assert (await store.apply(REF, events.GoOn(UNTIL), SOON)).happened
    found = await record(store)
    assert (found.status, found.requests, found.wake_ms, found.due_ms) == (
        Status.WORKING,
        {},
        0,
        UNTIL,
    )
    assert not (await store.apply(REF, events.GoOn(UNTIL), SOON)).happened
    assert (await claim(store, now_ms=SOON)).answers == {}


async def test_while_it_goes_on_no_answer_to_what_it_asked_is_taken_and_lost(
    store: StoredTasks,
) -> None:
    questions = {"a": b"?", "b": b"?"}
    await store.write(await working(store), events.SuspendTask(questions, wake_ms=SOON), NOW)
    assert (await store.apply(REF, events.GoOn(UNTIL), SOON)).happened
    for answers in ({"b": b"!"}, {"a": b"!", "b": b"!"}, {"b": b"!", "nobody": b"!"}):
        assert (
            await store.apply(REF, events.TakeAnswers(answers, UNTIL), SOON)
        ).result is AnswersTaken.LATER
    assert (
        await store.apply(REF, events.TakeAnswers({"nobody": b"!"}, UNTIL), SOON)
    ).result is AnswersTaken.NOT_NEEDED
    claimed = await claim(store, now_ms=SOON)
    assert (
        await store.apply(REF, events.TakeAnswers({"b": b"!"}, UNTIL), SOON)
    ).result is AnswersTaken.LATER
    await store.write(claimed.lease, events.SuspendTask({"b": b"?"}), SOON)
    assert (await record(store)).requests == {"b": b"?"}
    assert (
        await store.apply(REF, events.TakeAnswers({"a": b"!"}, UNTIL), SOON)
    ).result is AnswersTaken.NOT_NEEDED
    assert (
        await store.apply(REF, events.TakeAnswers({"b": b"!"}, UNTIL), SOON)
    ).result is AnswersTaken.FULLY
    assert (await claim(store, now_ms=SOON)).answers == {"b": b"!"}


@pytest.mark.parametrize("keeps_blame", [True, False])
async def test_what_it_asked_may_be_asked_again_after_a_fault_and_not_after_it_let_go(
    store: StoredTasks, keeps_blame: bool
) -> None:
    await store.write(await working(store), events.SuspendTask({"a": b"?"}, wake_ms=SOON), NOW)
    assert (await store.apply(REF, events.GoOn(UNTIL), SOON)).happened
    lease = (await claim(store, now_ms=SOON)).lease
    await store.write(lease, events.Release(0, UNTIL, keeps_blame=keeps_blame), SOON)
    expected = AnswersTaken.LATER if keeps_blame else AnswersTaken.NOT_NEEDED
    assert (await store.apply(REF, events.TakeAnswers({"a": b"!"}, UNTIL), SOON)).result is expected


async def test_one_that_is_answered_before_goes_on_at_once(store: StoredTasks) -> None:
    await store.write(
        await working(store), events.SuspendTask({"a": b"?", "b": b"?"}, wake_ms=SOON), NOW
    )
    assert (
        await store.apply(REF, events.TakeAnswers({"a": b"!"}, UNTIL), NOW)
    ).result is AnswersTaken.PARTLY
    assert (await record(store)).due_ms == SOON
    assert (
        await store.apply(REF, events.TakeAnswers({"b": b"!"}, UNTIL), NOW)
    ).result is AnswersTaken.FULLY
    assert not (await store.apply(REF, events.GoOn(UNTIL), SOON)).happened
    assert (await claim(store, now_ms=NOW)).answers == {"a": b"!", "b": b"!"}


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


async def test_a_claim_is_no_change_that_the_client_can_see(store: StoredTasks) -> None:
    await store.create(new())
    before = await record(store)
    await claim(store, now_ms=SOON)
    assert await record(store) == replace(before, fence=1, lease_until_ms=UNTIL)


async def test_of_many_claims_at_once_one_wins(stores: list[StoredTasks]) -> None:
    await stores[0].create(new())
    got = await asyncio.gather(
        *(store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW) for store in stores * 8)
    )
    assert sorted(isinstance(one, Claimed) for one in got) == [False] * 31 + [True]
    assert {one for one in got if not isinstance(one, Claimed)} == {NotClaimed.LEASED}
    assert (await record(stores[0])).fence == 1


async def test_a_task_sleeps_until_it_is_to_wake(store: StoredTasks) -> None:
    lease = await working(store)
    await store.write(lease, events.Release(SOON, SOON), NOW)
    assert (await record(store)).wake_ms == SOON
    assert (
        await store.claim(REF, events.Claim(UNTIL, UNTIL, SOON - 1), SOON - 1) is NotClaimed.ASLEEP
    )
    claimed = await claim(store, now_ms=SOON)
    assert claimed.record.wake_ms == 0, "a claim ends its sleep"
    assert (await record(store)).wake_ms == 0


# leases


@pytest.mark.parametrize("how", LOST)
async def test_no_write_under_a_lease_that_is_lost_changes_anything(
    store: StoredTasks, how: str
) -> None:
    lease = await LOST[how](store)
    before = sorted((await store.find()).records, key=str)
    known = await store.read(REF, NOW)
    for write in UNDER_A_LEASE.values():
        with pytest.raises(LeaseLost):
            await write(store, lease)
    assert sorted((await store.find()).records, key=str) == before
    assert await store.read(REF, NOW) == known


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
            UNDER_A_LEASE[write](stalled, lease),
            other.claim(ref, events.Claim(END, END, UNTIL, alone=True), UNTIL),
            return_exceptions=True,
        )
        if late is None:
            assert not isinstance(claimed, Claimed) or b"late" in claimed.journal
        else:
            assert isinstance(late, LeaseLost)
            assert isinstance(claimed, Claimed)
            assert b"late" not in claimed.journal


@pytest.mark.parametrize("entries", [[], [b"entry"]], ids=["alone", "with entries"])
async def test_a_renewal_extends_the_lease_and_moves_the_due_time_if_told_so(
    store: StoredTasks, entries: list[bytes]
) -> None:
    lease = await working(store)
    await store.write(lease, events.Checkpoint(UNTIL + 5, added=Added(entries)), NOW)
    found = await record(store)
    assert (found.lease_until_ms, found.due_ms) == (UNTIL + 5, SOON)
    assert await store.claim(REF, events.Claim(END, END, UNTIL + 4), UNTIL + 4) is NotClaimed.LEASED
    await store.write(lease, events.Checkpoint(UNTIL + 6, UNTIL + 9, added=Added(2 * entries)), NOW)
    found = await record(store)
    assert (found.lease_until_ms, found.due_ms) == (UNTIL + 6, UNTIL + 9)
    assert list((await take_over(store, now_ms=UNTIL + 6)).journal) == 3 * entries


# blame


async def test_a_suspect_that_is_free_stays_one(store: StoredTasks) -> None:
    await working(store)
    lease = (await take_over(store)).lease
    await store.write(lease, events.Release(SOON, SOON, keeps_blame=True), NOW)
    assert (
        await store.claim(REF, events.Claim(UNTIL, UNTIL, SOON - 1), SOON - 1) is NotClaimed.ASLEEP
    )
    assert await store.claim(REF, events.Claim(UNTIL, UNTIL, SOON), SOON) is NotClaimed.SUSPECT
    found = (await claim(store, now_ms=SOON, alone=True)).record
    assert (found.suspect, found.deaths) == (True, 0), "it was given back"


@pytest.mark.parametrize("how", ["checkpoint", "suspend", "release", "restart", "requeue"])
async def test_progress_lifts_all_blame(store: StoredTasks, how: str) -> None:
    lease = await blamed(store)
    if how == "checkpoint":
        await store.write(lease, events.Checkpoint(added=Added([b"entry"])), NOW)
    elif how == "suspend":
        await store.write(lease, events.SuspendTask({"a": b"?"}), NOW)
    elif how == "release":
        await store.write(lease, events.Release(0, SOON), NOW)
    elif how == "restart":
        await store.write(lease, events.Restart(b"", [], b"", 1, SOON), NOW)
    else:
        await store.apply(REF, events.Requeue(SOON), NOW)
    found = await record(store)
    assert (found.suspect, found.deaths, found.attempts, found.declined_ms) == (False, 0, 0, 0)
    assert found.alone is True, "that was the last lease"


async def test_a_renewal_a_state_and_a_message_are_no_progress(store: StoredTasks) -> None:
    lease = await blamed(store)
    before = await record(store)
    await store.write(lease, events.Checkpoint(END, END, added=Added((), b"state", "message")), NOW)
    found = await record(store)
    assert [getattr(found, name) for name in BLAME] == [getattr(before, name) for name in BLAME]


async def test_a_fault_and_a_decline_are_noted_and_lift_no_blame(store: StoredTasks) -> None:
    lease = await blamed(store)
    await store.write(
        lease, events.Release(0, SOON, attempts=4, declined_ms=NOW - 5, keeps_blame=True), NOW
    )
    found = await record(store)
    assert (found.suspect, found.deaths, found.attempts, found.declined_ms) == (
        True,
        2,
        4,
        NOW - 5,
    )


# let_go


@pytest.mark.parametrize(
    ("alone", "blame", "deaths"), [(False, False, 0), (False, True, 0), (True, True, 1)]
)
async def test_a_lease_is_ended_from_outside(
    store: StoredTasks, alone: bool, blame: bool, deaths: int
) -> None:
    await store.create(new())
    before = (await claim(store, alone=alone)).record
    assert (
        await store.apply(REF, events.LetGo(SOON, blame=blame, fence=before.fence), NOW)
    ).happened is True
    expected = replace(before, lease_until_ms=0, due_ms=SOON, suspect=blame, deaths=deaths)
    assert await record(store) == expected
    assert (
        await store.apply(REF, events.LetGo(SOON, blame=blame, fence=before.fence), NOW)
    ).happened is False
    assert (
        await store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW) is NotClaimed.SUSPECT
    ) is blame


async def test_a_suspect_that_is_let_go_without_blame_stays_one(store: StoredTasks) -> None:
    await working(store)
    lease = (await take_over(store)).lease
    assert (
        await store.apply(REF, events.LetGo(SOON, blame=False, fence=lease.fence), NOW)
    ).happened is True
    found = await record(store)
    assert (found.suspect, found.deaths) == (True, 0)


async def test_a_lease_is_ended_from_another_thread_with_a_loop_and_a_store_of_its_own(
    store: StoredTasks, reopen: Reopen
) -> None:
    lease = await working(store)

    async def end() -> bool:
        other = reopen()
        try:
            return (
                await other.apply(REF, events.LetGo(SOON, blame=True, fence=lease.fence), NOW)
            ).happened
        finally:
            await other.aclose()

    assert await asyncio.to_thread(asyncio.run, end()) is True
    assert (await record(store)).suspect


# attempts


async def test_attempts_are_as_release_was_told_until_there_is_progress(store: StoredTasks) -> None:
    lease = await working(store)
    await store.write(lease, events.Release(0, SOON, attempts=3), NOW)
    lease = (await claim(store)).lease
    assert (await record(store)).attempts == 3
    await store.write(lease, events.Release(0, SOON), NOW)
    assert (await record(store)).attempts == 0


# cancel


@pytest.mark.parametrize("state", ["new", "working", "asking", "asleep"])
async def test_an_open_task_is_cancelled(store: StoredTasks, state: str) -> None:
    if state == "new":
        await store.create(new())
    elif state == "working":
        await working(store)
    elif state == "asking":
        await asking(store, {"a": b"?", "b": blob(9000)})
    else:
        await asleep(store)
    cancelled = (
        await store.apply(REF, events.Cancel("The client cancelled it", SOON), SOON)
    ).result
    assert cancelled is Cancelled.OVER
    found = await record(store)
    assert (found.status, found.status_message, found.updated_ms) == (
        Status.CANCELLED,
        "The client cancelled it",
        SOON,
    )
    assert (found.requests, found.outcome, found.due_ms) == ({}, None, None)
    assert (found.lease_until_ms, found.wake_ms) == (0, 0)


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


@pytest.mark.parametrize("state", ["new", "working", "asking", "asleep"])
async def test_a_cancelled_task_that_has_begun_something_keeps_what_ends_it(
    store: StoredTasks, state: str
) -> None:
    await begun(store, state)
    assert (
        await store.apply(REF, events.Cancel("no more", SOON), NOW)
    ).result is Cancelled.CLEAN_UP
    found = await record(store)
    assert (found.status, found.status_message) == (Status.CANCELLED, "no more")
    assert (found.due_ms, found.requests, found.wake_ms) == (SOON, {}, 0)
    assert found.cleans_up
    assert (await store.apply(REF, events.Cancel("again", SOON), NOW)).result is Cancelled.OVER
    assert await store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW) is NotClaimed.CLEAN_UP
    assert (
        await store.claim(REF, events.Claim(UNTIL, UNTIL, NOW, alone=True), NOW)
        is NotClaimed.CLEAN_UP
    )
    assert (await store.open_tasks(10))[0] == []
    assert await store.count_open("owner", 10) == 0
    assert ids(await store.due(SOON, 10)) == ["id"]
    assert await store.due(SOON - 1, 10) == []


async def test_a_cleanup_gives_all_that_a_run_needs(store: StoredTasks) -> None:
    lease = await begun(store, "working")
    assert lease is not None
    await store.write(lease, events.Checkpoint(added=Added([b"start", blob(9_000)], b"state")), NOW)
    await store.write(lease, events.SuspendTask({"a": b"?"}), NOW)
    await answer(store, {"a": blob(3_000)})
    await store.apply(REF, events.Cancel("no more", SOON), NOW)
    claimed = await clean_up(store, REF)
    assert claimed is not None
    assert (claimed.call, claimed.state) == (b"call", b"state")
    assert claimed.journal == [b"start", blob(9_000)]
    assert claimed.answers == {"a": blob(3_000)}
    assert (claimed.record.attempts, claimed.record.status) == (1, Status.CANCELLED)
    assert claimed.lease.fence == lease.fence + 1


@pytest.mark.parametrize("size", SIZES)
async def test_who_had_the_task_adds_what_it_could_not_write(store: StoredTasks, size: int) -> None:
    lease = await working(store, cleans_up=True, journal=[b"0", blob(9000)])
    await store.apply(REF, events.Cancel("cancelled", NOW), NOW)
    journal = [b"0", blob(9000), blob(size)]
    assert await clean_up(store, REF, journal=[b"another's"]) is None
    claimed = await clean_up(store, REF, fence=lease.fence, journal=journal)
    assert claimed is not None
    assert list(claimed.journal) == journal
    await store.write(claimed.lease, events.PostponeCleanup(SOON, SOON), NOW)
    again = await clean_up(store, REF, SOON)
    assert again is not None
    assert list(again.journal) == journal


async def test_what_ends_by_itself_is_not_cleaned_up(store: StoredTasks) -> None:
    lease = await begun(store, "working")
    assert lease is not None
    await store.write(lease, events.Finish(Status.COMPLETED, b"outcome"), NOW)
    assert (await record(store)).due_ms is None
    assert await clean_up(store, REF) is None
    assert await store.due(END, 10) == []


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
async def test_what_is_ended_early_by_its_worker_is_cleaned_up(
    store: StoredTasks, status: Status
) -> None:
    lease = await begun(store, "working")
    assert lease is not None
    await store.write(lease, events.Checkpoint(added=Added([b"start"])), NOW)
    await store.write(lease, events.Finish(status, b"too long", cleanup_due_ms=SOON), NOW)
    found = await record(store)
    assert (found.status, found.outcome, found.due_ms) == (status, b"too long", SOON)
    claimed = await clean_up(store, REF)
    assert claimed is not None
    assert claimed.journal == [b"start"]
    await store.write(claimed.lease, events.EndCleanup(), NOW)
    assert (await record(store)).outcome == b"too long"


async def test_what_expires_is_cleaned_up_though_nobody_can_see_it(store: StoredTasks) -> None:
    await begun(store, "asleep")
    await store.create(new(other := TaskRef("owner", "other")))
    assert (await store.apply(REF, events.Expire(END), END - 1)).happened == 0
    assert (
        sum(
            decision.happened
            for decision in await store.apply_many(
                [(ref, events.Expire(END + 5)) for ref in [REF, other]], END
            )
        )
        == 2
    )
    assert (
        sum(
            decision.happened
            for decision in await store.apply_many(
                [(ref, events.Expire(END + 5)) for ref in [REF, other]], END
            )
        )
        == 0
    )
    assert await store.claim(REF, events.Claim(END + 1, END + 1, END), END) is NotClaimed.CLEAN_UP
    assert ids(await store.due(END + 5, 10)) == ["id"]
    claimed = await clean_up(store, REF, END + 5)
    assert claimed is not None
    assert claimed.record.status is Status.FAILED
    await store.write(claimed.lease, events.EndCleanup(), NOW)
    assert await store.due(END + 100_000, 10) == []


async def test_a_worker_that_had_the_task_cleans_up_before_its_lease_is_over(
    store: StoredTasks,
) -> None:
    lease = await begun(store, "working")
    assert lease is not None
    await store.apply(REF, events.Cancel("no more", SOON), NOW)
    assert await clean_up(store, REF) is None
    assert await clean_up(store, REF, UNTIL - 1) is None
    assert await clean_up(store, REF, NOW, fence=lease.fence - 1) is None
    claimed = await clean_up(store, REF, NOW, fence=lease.fence)
    assert claimed is not None
    # from now on nobody has it by that lease
    assert await clean_up(store, REF, NOW, fence=lease.fence) is None


async def test_a_cleanup_that_failed_is_tried_again_when_it_is_time(store: StoredTasks) -> None:
    await begun(store, "asleep")
    await store.apply(REF, events.Cancel("no more", SOON), NOW)
    claimed = await clean_up(store, REF)
    assert claimed is not None
    await store.write(claimed.lease, events.PostponeCleanup(SOON, SOON + 5), NOW)
    assert await clean_up(store, REF, SOON - 1) is None
    assert (await record(store)).due_ms == SOON + 5
    again = await clean_up(store, REF, SOON)
    assert again is not None
    assert again.record.attempts == 2
    await store.write(again.lease, events.EndCleanup(), NOW)
    assert await clean_up(store, REF, END) is None
    found = await record(store)
    assert (found.status, found.due_ms, found.lease_until_ms) == (Status.CANCELLED, None, 0)
    assert not found.cleans_up
    assert await store.claim(REF, events.Claim(UNTIL, UNTIL, SOON), SOON) is NotClaimed.OVER


async def test_who_died_while_cleaning_up_is_followed_when_the_lease_is_over(
    store: StoredTasks,
) -> None:
    await begun(store, "asleep")
    await store.apply(REF, events.Cancel("no more", SOON), NOW)
    first = await clean_up(store, REF)
    assert first is not None
    assert await clean_up(store, REF, UNTIL - 1) is None
    second = await clean_up(store, REF, UNTIL)
    assert second is not None
    assert second.record.attempts == 2
    # the first was not dead after all
    with pytest.raises(LeaseLost):
        await store.write(first.lease, events.EndCleanup(), NOW)
    with pytest.raises(LeaseLost):
        await store.write(first.lease, events.PostponeCleanup(END, END), NOW)
    await store.write(second.lease, events.EndCleanup(), NOW)
    with pytest.raises(LeaseLost):
        await store.write(second.lease, events.EndCleanup(), NOW)


async def test_what_is_to_be_cleaned_up_is_found_as_cancelled_and_may_be_purged(
    store: StoredTasks,
) -> None:
    await begun(store, "asleep")
    await store.apply(REF, events.Cancel("no more", SOON), NOW)
    for statuses, found in ((OPEN, []), (TERMINAL[2:], ["id"])):
        records = (await store.find(Wanted(statuses=frozenset(statuses)))).records
        assert ids(records) == found
    assert await store.purge(REF, NOW)
    assert await clean_up(store, REF, END) is None
    assert await store.due(END, 10) == []


# finish


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED])
async def test_a_finished_task_has_its_outcome_and_nothing_else(
    store: StoredTasks, status: Status
) -> None:
    lease = await working(store, status_message="on it")
    await store.write(lease, events.Finish(status, b"outcome", "over"), SOON)
    found = await record(store)
    assert (found.status, found.outcome, found.status_message) == (status, b"outcome", "over")
    assert (found.updated_ms, found.due_ms, found.lease_until_ms, found.wake_ms) == (
        SOON,
        None,
        0,
        0,
    )
    assert found.requests == {}


async def test_the_last_message_replaces_the_one_before_even_by_nothing(store: StoredTasks) -> None:
    lease = await working(store, status_message="on it")
    await store.write(lease, events.Finish(Status.COMPLETED, b"outcome"), SOON)
    assert (await record(store)).status_message is None


# what the client can see


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
        await tasks.write(lease, events.Checkpoint(added=Added([b"1"])), NOW)
    deaf.lose = next_lost or 0
    if next_lost is not None:
        with suppress(Unavailable):
            await tasks.write(lease, events.Checkpoint(added=Added([b"2"])), NOW)
    if next_lost:
        await tasks.write(lease, events.Checkpoint(added=Added([b"2"])), NOW)
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
        await tasks.write(lease, events.Checkpoint(added=Added([b"given up"])), NOW)
    for entry in (b"1", b"1"):
        await tasks.write(lease, events.Checkpoint(added=Added([entry])), NOW)
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
    assert (await tasks.apply(REF, events.Requeue(SOON), NOW)).happened
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
    assert not after.is_before(replace(after, created_ms=1)), "another task of the same id"


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
    assert (await tasks.apply(late, events.Expire(END), END)).happened == 1
    tool = counted.told[0][1]
    assert counted.told == [
        *(("created", tool), ("claimed", tool), ("ended", tool, "cancelled")),
        *(("created", tool), ("ended", tool, "ok")),
        *(("created", tool), ("ended", tool, "error")),
    ]


async def test_checkpoints_of_one_worker_at_once_are_all_kept(store: StoredTasks) -> None:
    lease = await working(store)
    entries = [b"%d %b" % (n, blob(900)) for n in range(20)]
    await asyncio.gather(
        *(store.write(lease, events.Checkpoint(added=Added([entry])), NOW) for entry in entries)
    )
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
            await store.write(lease, events.Checkpoint(added=Added([b"%d" % n])), NOW)
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


async def test_a_parked_task_is_working_and_claimed_by_nobody(store: StoredTasks) -> None:
    lease = await working(store, journal=[b"0"])
    await store.write(lease, events.Park("waits for its operator"), SOON)
    found = await record(store)
    assert (found.status, found.status_message) == (Status.WORKING, "waits for its operator")
    assert (found.lease_until_ms, found.wake_ms, found.due_ms) == (0, END, END)
    assert (found.updated_ms, found.revision) == (SOON, 2)
    assert (
        await store.claim(REF, events.Claim(END, END, END - 1, alone=True), END - 1)
        is NotClaimed.ASLEEP
    )
    assert await store.due(END - 1, 10) == []


async def test_with_all_answers_the_task_works_and_is_due(store: StoredTasks) -> None:
    await asking(store, {"a": b"?", "b": b"?"})
    assert (
        await store.apply(REF, events.TakeAnswers({"b": b"2", "a": b"1"}, SOON + 1), SOON)
    ).result is AnswersTaken.FULLY
    found = await record(store)
    assert (found.status, found.requests, found.due_ms, found.updated_ms) == (
        Status.WORKING,
        {},
        SOON + 1,
        SOON,
    )
    assert (await claim(store)).answers == {"a": b"1", "b": b"2"}


async def test_an_unknown_answer_beside_some_does_no_harm(store: StoredTasks) -> None:
    await asking(store, {"a": b"?", "c": b"?"})
    assert await answer(store, {"a": b"!", "b": b"!"}) is AnswersTaken.PARTLY
    assert await answer(store, {"c": b"!"}) is AnswersTaken.FULLY
    assert (await claim(store)).answers == {"a": b"!", "c": b"!"}


async def test_the_first_answer_to_a_question_counts(store: StoredTasks) -> None:
    await asking(store, {"a": b"?", "b": b"?"})
    assert await answer(store, {"a": b"first"}) is AnswersTaken.PARTLY
    before = await record(store)
    assert (
        await store.apply(REF, events.TakeAnswers({"a": b"second"}, SOON), SOON)
    ).result is AnswersTaken.NOT_NEEDED
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


async def test_the_due_time_moves_with_the_task(store: StoredTasks) -> None:
    await store.create(new())

    async def due_ms() -> int | None:
        found = await record(store)
        listed = await store.due(END, 10)
        assert [task.due_ms for task in listed] == ([] if found.due_ms is None else [found.due_ms])
        return found.due_ms

    assert await due_ms() == SOON
    lease = (await claim(store)).lease
    assert await due_ms() == SOON
    await store.write(lease, events.Checkpoint(added=Added([b"entry"])), NOW)
    assert await due_ms() == SOON
    await store.write(lease, events.Checkpoint(UNTIL + 1), NOW)
    assert await due_ms() == SOON
    await store.write(lease, events.Checkpoint(UNTIL + 1, UNTIL + 2), NOW)
    assert await due_ms() == UNTIL + 2
    await store.write(lease, events.Release(0, SOON + 2), NOW)
    assert await due_ms() == SOON + 2
    await store.write((await claim(store)).lease, events.SuspendTask({"a": b"?", "b": b"?"}), NOW)
    assert await due_ms() == END
    await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON + 3), NOW)
    assert await due_ms() == END
    await store.apply(REF, events.TakeAnswers({"b": b"!"}, SOON + 3), NOW)
    assert await due_ms() == SOON + 3
    await store.apply(REF, events.Requeue(SOON + 4), NOW)
    assert await due_ms() == SOON + 4
    await store.write((await claim(store)).lease, events.Finish(Status.COMPLETED, b""), NOW)
    assert await due_ms() is None


async def test_postponing_leaves_everything_else(store: StoredTasks) -> None:
    lease = await working(store)
    before = await record(store)
    (task,) = await store.due(UNTIL, 10)
    assert await postpone_many(store, [Move(task, END, 1)], UNTIL) == [Postponed.LAPSED]
    assert await record(store) == replace(before, due_ms=END, resends=1)
    await store.write(lease, events.Checkpoint(added=Added([b"entry"])), NOW)


async def test_a_task_that_a_worker_has_is_put_off_until_its_lease_has_lapsed(
    store: StoredTasks,
) -> None:
    lease = await working(store)
    before = await record(store)
    (task,) = await store.due(SOON, 10)
    move = Move(task, END, 1)
    assert await postpone_many(store, [move], UNTIL + 4, skew_ms=5) == [Postponed.HELD]
    assert await record(store) == replace(before, due_ms=UNTIL + 5)
    assert await postpone_many(store, [move], UNTIL + 4, skew_ms=5) == [Postponed.MISSED]
    (task,) = await store.due(UNTIL + 5, 10)
    assert (task.resends, task.unsent) == (0, True)
    again = Move(task, END, 1)
    assert await postpone_many(store, [again], UNTIL + 5, skew_ms=5) == [Postponed.LAPSED]
    await store.write(lease, events.Checkpoint(added=Added([b"entry"])), NOW)


async def test_postponing_counts_until_the_next_claim(store: StoredTasks) -> None:
    await store.create(new())
    for n in range(3):
        (task,) = await store.due(END, 10)
        assert (task.resends, (await record(store)).resends) == (n, n)
        assert await postpone(store, task, SOON + n + 1) is True
    (task,) = await store.due(END, 10)
    assert await postpone_many(store, [Move(task, SOON + 9, task.resends)], SOON) == [
        Postponed.MOVED
    ]
    assert (await record(store)).resends == 3
    assert (await claim(store)).record.resends == 0
    (task,) = await store.due(END, 10)
    assert task.resends == 0


async def test_what_is_due_with_no_message_on_its_way_says_so(store: StoredTasks) -> None:
    async def unsent() -> bool:
        (task,) = (await store.open_tasks(10))[0]
        return task.unsent

    await store.create(new())
    assert not await unsent(), "whoever creates it sends one"
    lease = (await claim(store)).lease
    await store.write(lease, events.Checkpoint(UNTIL, UNTIL), NOW)
    assert await unsent(), "that message is gone"
    (task,) = await store.due(UNTIL, 10)
    assert await postpone(store, task, UNTIL + 1)
    assert not await unsent(), "the sweep sends one"
    (task,) = await store.due(UNTIL + 1, 10)
    waits = Move(task, UNTIL + 2, 0, Sending.LEFT)
    assert await postpone_many(store, [waits], UNTIL + 1) == [Postponed.LAPSED]
    assert await unsent(), "a worker that has it wait does not"
    assert (await record(store)).resends == 0
    await store.write(lease, events.Release(SOON, SOON + 2_000), NOW)
    assert not await unsent(), "its worker has sent one that is delayed"
    lease = (await claim(store, now_ms=SOON)).lease
    await store.write(lease, events.Release(SOON, SOON), NOW)
    assert await unsent(), "it sleeps for too long for a message"
    lease = (await claim(store, now_ms=SOON)).lease
    assert (
        await store.apply(REF, events.LetGo(SOON, blame=False, fence=lease.fence), NOW)
    ).happened
    assert await unsent()
    await store.apply(REF, events.Requeue(SOON), NOW)
    assert not await unsent()
    await store.write((await claim(store)).lease, events.SuspendTask({"a": b"?"}), NOW)
    assert not await unsent()
    await answer(store, {"a": b"!"})
    assert not await unsent()


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
        await store.write(lease, events.Checkpoint(added=Added([encode(row(entry))])), NOW)
    await store.write(
        lease,
        events.Finish(Status.COMPLETED, b"{}", ending=Ending.STEP_FAILED, failed_steps=["charge"]),
        NOW,
    )
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
    lease = await working(store)
    marks = [Mark("event:paid", END), Mark("event:late", NOW + 1)]
    await store.write(lease, events.Checkpoint(added=Added([b"opened"], events=marks)), NOW)
    payload = blob(40_000)
    taken = (
        await store.apply(REF, events.Deliver("event:paid", payload, "digest", SOON), NOW)
    ).result
    assert taken is Delivered.KEPT
    assert (await raw(store)).events == (replace(marks[0], digest="digest"), marks[1])
    await store.write(lease, events.Release(END, END, awaits=["event:paid"], ready_ms=SOON), NOW)
    claimed = await claim(store, now_ms=NOW + 1)
    assert claimed.answers == {"event:paid": payload}
    assert [mark.name for mark in claimed.record.events] == ["event:paid"]
    await store.write(claimed.lease, events.Finish(Status.COMPLETED, b"{}"), NOW + 1)
    for digest, expected in (("digest", Delivered.AGAIN), ("other", Delivered.OTHER)):
        again = (
            await store.apply(REF, events.Deliver("event:paid", payload, digest, SOON), NOW + 1)
        ).result
        assert again is expected


async def test_a_delivery_wakes_what_waits_for_it_and_is_found_by_the_index(
    store: StoredTasks,
) -> None:
    for ref, requests in ((REF, {}), (TaskRef("owner", "asks"), {"who": b"?"})):
        lease = await working(store, ref)
        added = Added([b"opened"], events=[Mark("event:paid", END)])
        await store.write(lease, events.Checkpoint(added=added), NOW)
        awaits: dict[str, Any] = {"wake_ms": END, "awaits": ["event:paid"], "ready_ms": SOON}
        if requests:
            await store.write(lease, events.SuspendTask(requests, **awaits), NOW)
        else:
            await store.write(lease, events.Release(due_ms=END, **awaits), NOW)
        assert ref not in [task.ref for task in await store.due(SOON, 10)]
        taken = (
            await store.apply(ref, events.Deliver("event:paid", b"7", "digest", SOON), NOW)
        ).result
        assert taken is Delivered.WAKES
        assert ref in [task.ref for task in await store.due(SOON, 10)]
        assert (await claim(store, ref)).answers == {"event:paid": b"7"}


async def test_a_task_that_a_failed_step_ended_hands_its_events_on(store: StoredTasks) -> None:
    call = TaskCall("report", {}, LOCAL, {})
    entries: list[Entry] = [
        Opened("event:paid", END, "token"),
        Opened("event:sent", END, "token"),
        Raised("charge", "", False),
    ]
    marks = [Mark("event:paid", END), Mark("event:sent", END)]
    lease = await working(store, call=call.to_bytes())
    rows = [encode(row(entry)) for entry in entries]
    await store.write(lease, events.Checkpoint(added=Added(rows, events=marks)), NOW)
    await store.write(
        lease,
        events.Finish(Status.COMPLETED, b"{}", ending=Ending.STEP_FAILED, failed_steps=["charge"]),
        NOW,
    )
    taken = (await store.apply(REF, events.Deliver("event:paid", b"7", "digest", SOON), NOW)).result
    assert taken is Delivered.KEPT, "a retry will find it"
    going_on = await retry(store, REF, NOW)
    _, work = await store.read_work(going_on)
    assert work is not None
    paid = from_row(decode(work.journal[0]))
    assert isinstance(paid, Opened)
    assert (paid.outcome, paid.payload) == ("delivered", 7)
    assert [mark.digest for mark in (await raw(store, going_on)).events] == [
        "digest",
        None,
    ]
    late = (await store.apply(REF, events.Deliver("event:sent", b"8", "digest", SOON), NOW)).result
    assert late is Delivered.CLOSED
    deliveries = Deliveries(store, FixedClock(NOW), TasksConfig())
    assert await deliveries.deliver(REF, "event:sent", 8) is Delivered.KEPT
    assert (await claim(store, going_on)).answers == {"event:sent": b"8"}


async def test_what_was_delivered_while_a_retry_was_made_is_handed_on_by_the_next_one(
    store: StoredTasks,
) -> None:
    call = TaskCall("report", {}, LOCAL, {})
    entries: list[Entry] = [Opened("event:paid", END, "token"), Raised("charge", "", False)]
    lease = await working(store, call=call.to_bytes())
    rows = [encode(row(entry)) for entry in entries]
    added = Added(rows, events=[Mark("event:paid", END)])
    await store.write(lease, events.Checkpoint(added=added), NOW)
    await store.write(
        lease,
        events.Finish(Status.COMPLETED, b"{}", ending=Ending.STEP_FAILED, failed_steps=["charge"]),
        NOW,
    )
    with pytest.raises(Unavailable):
        await retry(as_store(DiesBeforeItNotes(store)), REF, NOW)
    taken = (await store.apply(REF, events.Deliver("event:paid", b"7", "digest", SOON), NOW)).result
    assert taken is Delivered.KEPT
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
    await store.write(lease, events.Checkpoint(added=Added([b"entry"])), NOW)
    assert await store.purge(REF, END) is True
    with pytest.raises(LeaseLost):
        await store.write(lease, events.Checkpoint(added=Added([b"another"])), NOW)
    assert (await store.find()).records == []


@pytest.mark.parametrize("state", ["leased", "asleep"])
async def test_a_working_task_is_taken_from_whoever_has_it(store: StoredTasks, state: str) -> None:
    await (working(store) if state == "leased" else asleep(store))
    before = await record(store)
    assert (await store.apply(REF, events.Requeue(SOON + 1), NOW)).happened is True
    found = await record(store)
    assert found.fence > before.fence
    expected = replace(before, fence=found.fence, lease_until_ms=0, wake_ms=0, due_ms=SOON + 1)
    assert found == expected
    assert (await claim(store)).lease.fence > found.fence


async def test_a_task_that_somebody_has_claimed_since_is_not_requeued(store: StoredTasks) -> None:
    await store.create(new())
    found = await record(store)
    assert (
        await store.apply(REF, events.Requeue(SOON, fence=found.fence + 1), NOW)
    ).happened is False
    await claim(store)
    before = await record(store)
    assert (await store.apply(REF, events.Requeue(SOON, fence=found.fence), NOW)).happened is False
    assert await record(store) == before
    assert (await store.apply(REF, events.Requeue(SOON, fence=before.fence), NOW)).happened is True
