"""What every task store promises: a suite that the test of each store inherits. See
app/roundgate/storage/tasks.py. What the machine makes of events on a store is in
tests/roundgate/tasks/test_stored.py.

A test of a store gives the fixture `reopen`: it makes a store on the same data,
as another process would.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace

from roundgate.auth.principal import LOCAL
from roundgate.errors import LeaseLost, NotRetryable, Unavailable
from roundgate.json import decode, encode
from roundgate.operators.continuing import retry, rewind
from roundgate.protocol.tasks import Status
from roundgate.replay.journal import Answered as AnsweredEntry
from roundgate.replay.journal import Asked, Entry, Finished, Opened, Raised, from_row, row
from roundgate.settings import TasksConfig
from roundgate.storage import TaskQueue
from roundgate.storage.tasks import (
    FORGET_AFTER_MS,
    SHARD_AT_MOST_MS,
    Drop,
    Ending,
    Lost,
    Mark,
    OpenTask,
    Put,
    RecordChange,
    RecordPart,
    TaskRecord,
    TaskRef,
    Wanted,
    Work,
)
from roundgate.tasks import TaskCall, events
from roundgate.tasks.events import (
    Added,
    AnswersTaken,
    Cancelled,
    Delivered,
    NewTask,
    NotClaimed,
    Postponed,
    Sending,
)
from roundgate.tasks.external import Deliveries
from roundgate.tasks.stored import Claimed, Lease, StoredTasks
from tests.support.clocks import FixedClock
from tests.support.postponing import Move, postpone, postpone_many

Reopen = Callable[[], StoredTasks]

NOW: Final = 1_800_000_000_000
END: Final = NOW + 3_600_000
SOON: Final = NOW + 10_000
UNTIL: Final = NOW + 30_000
REF: Final = TaskRef("owner", "id")
EVERY_BYTE: Final = bytes(range(256))
TERMINAL: Final = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


class Sent:
    """A queue that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[TaskRef] = []

    async def send(self, ref: TaskRef, delay_ms: int = 0) -> None:
        """Keep it."""
        self.sent.append(ref)


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


def as_queue(queue: Any) -> TaskQueue:
    """A double as the queue that it stands for."""
    return queue  # type: ignore[no-any-return]


def blob(size: int) -> bytes:
    """Bytes of which no part is like another."""
    return b"".join(n.to_bytes(4, "big") for n in range(size // 4 + 1))[:size]


def new(ref: TaskRef = REF, **facts: Any) -> NewTask:
    usual: dict[str, Any] = {
        "tool": "report",
        "call": b"call",
        "created_ms": NOW,
        "expires_ms": END,
        "due_ms": SOON,
    }
    return NewTask(ref, **usual | facts)


def ids(tasks: Sequence[OpenTask | TaskRecord]) -> list[str]:
    return [task.ref.id for task in tasks]


async def record(store: StoredTasks, ref: TaskRef = REF, now_ms: int = NOW) -> TaskRecord:
    found = await store.read(ref, now_ms)
    assert found is not None
    return found


async def claim(
    store: StoredTasks, ref: TaskRef = REF, now_ms: int = NOW, until_ms: int = UNTIL, **facts: Any
) -> Claimed:
    times = {"due_ms": until_ms, "lapsed_ms": now_ms, **facts}
    claimed = await store.claim(ref, events.Claim(until_ms, **times), now_ms)
    assert isinstance(claimed, Claimed), claimed
    return claimed


async def take_over(
    store: StoredTasks, ref: TaskRef = REF, now_ms: int = UNTIL, until_ms: int = END
) -> Claimed:
    """The claim of a task whose lease has lapsed."""
    return await claim(store, ref, now_ms, until_ms, alone=True)


async def working(store: StoredTasks, ref: TaskRef = REF, **facts: Any) -> Lease:
    """A new task that a worker has."""
    await store.create(new(ref, **facts))
    return (await claim(store, ref)).lease


async def asking(
    store: StoredTasks, requests: Mapping[str, bytes], ref: TaskRef = REF, **facts: Any
) -> Lease:
    """A new task that waits for answers, and the lease that is over."""
    lease = await working(store, ref, **facts)
    await store.write(lease, events.SuspendTask(requests), NOW)
    return lease


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


async def over(store: StoredTasks, status: Status, ref: TaskRef = REF) -> None:
    if status is Status.CANCELLED:
        await store.create(new(ref))
        await store.apply(ref, events.Cancel("cancelled", NOW), NOW)
    else:
        await store.write(await working(store, ref), events.Finish(status, b"outcome", "over"), NOW)


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


async def raw(store: StoredTasks, ref: TaskRef = REF) -> TaskRecord:
    """The record as the store has it."""
    found = await store.store.head(ref)
    assert found is not None
    return found


def change(
    before: TaskRecord,
    fields: Mapping[str, Any],
    puts: Sequence[Put] = (),
    drops: Sequence[Drop] = (),
) -> RecordChange:
    """A change of these fields."""
    return RecordChange(before, replace(before, **fields), puts, drops)


async def swapped(store: StoredTasks, one: RecordChange) -> TaskRecord:
    """The record after a swap that happens."""
    after = await store.store.swap(one)
    assert isinstance(after, TaskRecord)
    return after


SIZES: Final = [0, 1, 4096, 4097, 30_000, 360_000]


_FORGED_KEYS: list[dict[str, Any]] = [
    {"pk": 1.5, "sk": []},
    {"pk": "", "sk": ""},
    {"pk": "T#x", "sk": 0},
    {"pk": "T#x", "sk": "0", "owner": {}},
    {"pk": "T#x", "sk": "0", "owner": "b"},
    {"pk": "T#x", "sk": "0", "ended": "9", "updated_ms": "x"},
    {"pk": "T#x", "sk": "0", "ended": "9", "updated_ms": 1},
]
"""Positions in a table of DynamoDB that no search can have."""


def _encoded_cursor(start: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(encode([0, start])).decode()


class TaskStoreContract:
    """Records, their values, and the indexes on them."""

    @pytest.fixture
    def store(self, reopen: Reopen) -> StoredTasks:
        return reopen()

    @pytest.fixture
    def stores(self, reopen: Reopen) -> list[StoredTasks]:
        return [reopen() for _ in range(4)]

    # swap

    async def test_a_swap_writes_the_fields_that_it_names(self, store: StoredTasks) -> None:
        values: dict[str, Any] = {
            "status": Status.COMPLETED,
            "status_message": "x" * 9_000,
            "updated_ms": NOW + 1,
            "revision": 7,
            "fence": 3,
            "lease_until_ms": UNTIL,
            "wake_ms": SOON,
            "due_ms": SOON,
            "attempts": 2,
            "deaths": 1,
            "suspect": True,
            "alone": True,
            "declined_ms": NOW,
            "journal_version": 4,
            "resends": 5,
            "cleans_up": True,
            "unsent": True,
            "noted": 9,
            "ending": Ending.STEP_FAILED,
            "failed_steps": ("a b", "c"),
            "events": (Mark("event:paid", 1), Mark("order@1/event:paid", 2, digest="digest")),
            "retried_as": "other",
        }
        await store.create(new())
        before = await raw(store)
        known = before
        for name, value in values.items():
            known = await swapped(store, change(known, {name: value}))
            found = await raw(store)
            assert getattr(known, name) == getattr(found, name) == value
            assert (found, found.version) == (known, known.version)
        back = {name: getattr(before, name) for name in values}
        assert await swapped(store, change(known, back)) == before == await raw(store)

    async def test_a_swap_of_an_old_record_is_lost_and_hands_back_the_new_one(
        self, stores: list[StoredTasks]
    ) -> None:
        lease = await working(stores[0], journal=[b"0"])
        old = await raw(stores[0])
        await stores[0].write(lease, events.Checkpoint(added=Added([b"1"], b"state", "said")), NOW)
        late = change(
            old,
            {"fence": 99, "asked": ("q",)},
            [
                *(
                    Put(RecordPart.JOURNAL, b"late"),
                    Put(RecordPart.STATE, b"late"),
                    Put(RecordPart.CALL, b"late"),
                ),
                *(Put(RecordPart.ANSWER, b"late", "a"), Put(RecordPart.REQUEST, blob(9_000), "q")),
            ],
            [Drop(RecordPart.JOURNAL)],
        )
        lost = await stores[1].store.swap(late)
        assert isinstance(lost, Lost)
        record, work = await stores[2].store.read_work(REF)
        assert lost.record == record
        assert work == Work(b"call", [b"0", b"1"], b"state", {})
        assert lost.record is not None
        await swapped(stores[1], change(lost.record, {}, [Put(RecordPart.JOURNAL, b"2")]))
        assert (await stores[2].store.read_work(REF))[1] == replace(
            work, journal=[b"0", b"1", b"2"]
        )

    async def test_of_many_swaps_of_one_record_one_happens(self, stores: list[StoredTasks]) -> None:
        await stores[0].create(new())
        known = await raw(stores[0])
        changes = [
            change(known, {"fence": n}, [Put(RecordPart.JOURNAL, b"%d" % n)]) for n in range(1, 21)
        ]
        got = await asyncio.gather(
            *(stores[n % 4].store.swap(change) for n, change in enumerate(changes))
        )
        (won,) = [one for one in got if isinstance(one, TaskRecord)]
        assert all(one.record == won for one in got if isinstance(one, Lost))
        record, work = await stores[0].store.read_work(REF)
        assert record == won
        assert work is not None
        assert work.journal == [b"%d" % won.fence]

    async def test_each_write_of_a_chain_needs_no_read(self, store: StoredTasks) -> None:
        await store.create(new())
        known, versions = await raw(store), set()
        for n in range(30):
            puts = [Put(RecordPart.JOURNAL, b"%d %b" % (n, blob(n * 40)))]
            known = await swapped(store, change(known, {"noted": n + 1}, puts))
            versions.add(known.version)
        _, work = await store.store.read_work(REF)
        assert len(versions) == 30
        assert work is not None
        assert work.journal == [b"%d %b" % (n, blob(n * 40)) for n in range(30)]

    @pytest.mark.parametrize("size", [1, 9_000])
    async def test_what_is_dropped_is_gone_and_what_is_put_after_it_is_there(
        self, store: StoredTasks, size: int
    ) -> None:
        await asking(store, {"a": blob(size), "b": blob(size), "c": b"?"}, journal=[blob(size)])
        known = await raw(store)
        assert list(known.asked) == ["a", "b", "c"]
        drops = [Drop(RecordPart.REQUEST, "b"), Drop(RecordPart.JOURNAL)]
        puts = [Put(RecordPart.ANSWER, blob(size), "b"), Put(RecordPart.JOURNAL, b"anew")]
        known = await swapped(store, change(known, {"asked": ("a", "c")}, puts, drops))
        assert list((await record(store)).requests) == ["a", "c"]
        _, work = await store.store.read_work(REF)
        assert work == Work(b"call", [b"anew"], b"{}", {"b": blob(size)})
        drops = [Drop(RecordPart.REQUEST), Drop(RecordPart.ANSWER), Drop(RecordPart.JOURNAL)]
        puts = [Put(RecordPart.CALL, blob(size)), Put(RecordPart.REQUEST, b"!", "d")]
        await swapped(store, change(known, {"asked": ("d",)}, puts, drops))
        assert (await record(store)).requests == {"d": b"!"}
        _, work = await store.store.read_work(REF)
        assert work == Work(blob(size), [], b"{}", {})

    async def test_what_was_deleted_is_not_swapped_and_what_was_swapped_is_not_deleted(
        self, store: StoredTasks
    ) -> None:
        await store.create(new(call=blob(9_000)))
        old = await raw(store)
        known = await swapped(store, change(old, {"fence": 1}))
        assert await store.store.delete(old) is False
        assert await store.store.delete(known) is True
        assert await store.store.delete(known) is False
        assert await store.store.swap(change(known, {"fence": 2})) == Lost(None)
        assert await store.store.read_work(REF) == (None, None)
        for ref in (TaskRef("owner", "other"), REF):  # perhaps in the place of the deleted one
            await store.create(new(ref))
            await swapped(store, change(await raw(store, ref), {"fence": 7}))
            assert isinstance(await store.store.swap(change(known, {"fence": 2})), Lost)
            assert await store.store.delete(known) is False
            assert (await raw(store, ref)).fence == 7

    async def test_a_swap_that_was_cut_off_has_happened_or_never_will(
        self, store: StoredTasks
    ) -> None:
        await store.create(new())
        for n in range(1, 9):
            known = await raw(store)
            cut = asyncio.ensure_future(store.store.swap(change(known, {"attempts": n})))
            await asyncio.sleep(0.001 * (n % 3))
            cut.cancel()
            await asyncio.wait([cut])
            other = await store.store.swap(change(known, {"deaths": n}))
            found = await raw(store)
            if isinstance(other, Lost):
                assert other.record is not None
                assert (other.record.attempts, other.record.deaths) == (n, known.deaths)
            else:
                assert (found.attempts, found.deaths) == (known.attempts, n)

    async def test_heads_are_records_without_values(self, store: StoredTasks) -> None:
        refs = [TaskRef("owner", f"{n}") for n in range(120)]
        for ref in refs[:3]:
            await asking(store, {"a": b"?"}, ref)
        heads = await store.store.heads([*refs, *refs])
        assert heads.keys() == {*refs[:3]}
        for ref, head in heads.items():
            assert head == await store.store.head(ref)
            assert (head.requests, list(head.asked)) == ({}, ["a"])
        assert await store.store.heads([]) == {}
        lagging = await store.store.heads(refs, may_lag=True)
        assert {ref: head.tool for ref, head in lagging.items()} == {
            ref: head.tool for ref, head in heads.items()
        }

    # create and read

    async def test_a_new_task_is_read_as_it_was_created(self, store: StoredTasks) -> None:
        await store.create(new(status_message="waits"))
        assert await record(store) == TaskRecord(
            ref=REF,
            tool="report",
            status=Status.WORKING,
            status_message="waits",
            created_ms=NOW,
            updated_ms=NOW,
            expires_ms=END,
            revision=1,
            requests={},
            outcome=None,
            fence=0,
            lease_until_ms=0,
            wake_ms=0,
            due_ms=SOON,
            attempts=0,
        )

    async def test_what_is_created_is_found_in_any_process_at_once(
        self, stores: list[StoredTasks]
    ) -> None:
        for n, one in enumerate(stores):
            await one.create(new(TaskRef("owner", f"{n}")))
            assert None not in [await other.read(TaskRef("owner", f"{n}"), NOW) for other in stores]

    async def test_an_unknown_task_is_not_found(self, store: StoredTasks) -> None:
        await store.create(new())
        assert await store.read(TaskRef("owner", "unknown"), NOW) is None

    async def test_the_open_tasks_of_an_owner_are_counted_up_to_a_bound(
        self, store: StoredTasks
    ) -> None:
        await working(store, TaskRef("a", "1"))
        await asking(store, {"x": b"?"}, TaskRef("a", "2"))
        for n in range(3, 8):
            await store.create(new(TaskRef("a", f"{n}")))
        await store.create(new(TaskRef("a", "over"), status=Status.COMPLETED))
        await store.create(new(TaskRef("b", "1")))
        assert [await store.count_open("a", up_to) for up_to in (1, 6, 7, 8, 1000)] == [
            1,
            6,
            7,
            7,
            7,
        ]
        assert await store.count_open("b", 10) == 1
        assert await store.count_open("nobody", 10) == 0
        await store.apply(TaskRef("a", "3"), events.Cancel("cancelled", NOW), NOW)
        await store.write(
            (await claim(store, TaskRef("a", "4"))).lease, events.Finish(Status.COMPLETED, b""), NOW
        )
        await store.apply_many([(ref, events.Expire(END)) for ref in [TaskRef("a", "5")]], END)
        assert await store.count_open("a", 10) == 4

    async def test_ids_and_owners_do_not_meet(self, store: StoredTasks) -> None:
        refs = [
            TaskRef(owner, task)
            for owner in ("a", "aa", "A")
            for task in ("a", "aa", "A", "a-_", "ä", "0")
        ]
        for ref in refs:
            await store.create(new(ref, tool=str(ref)))
        assert [(await record(store, ref)).tool for ref in refs] == list(map(str, refs))

    async def test_an_id_that_is_taken_is_not_created_again(
        self, store: StoredTasks, reopen: Reopen
    ) -> None:
        assert await store.create(new(call=b"first")) is True
        assert await reopen().create(new(call=b"second", tool="other")) is False
        assert await store.create(new(call=b"first")) is False
        assert await store.create(new(TaskRef("another", "id"))) is True
        assert (await record(store)).tool == "report"
        assert (await claim(store)).call == b"first"

    @pytest.mark.parametrize("size", [1, 9_000])
    async def test_a_task_may_ask_when_it_is_created(
        self, stores: list[StoredTasks], size: int
    ) -> None:
        requests = {"b": blob(size), "a": b"?"}
        task = new(TaskRef("owner", "~id"), status=Status.INPUT_REQUIRED, requests=requests)
        await stores[0].create(replace(task, state=blob(size)))
        found = await record(stores[1], task.ref)
        assert (list(found.requests.items()), found.asked) == (list(requests.items()), ("b", "a"))
        assert (
            await stores[2].apply(task.ref, events.TakeAnswers({"a": b"!"}, SOON), NOW)
        ).result is AnswersTaken.PARTLY
        assert list((await record(stores[3], task.ref)).requests) == ["b"]
        assert (
            await stores[2].apply(task.ref, events.TakeAnswers({"b": b"!"}, SOON), NOW)
        ).result is AnswersTaken.FULLY
        claimed = await claim(stores[1], task.ref)
        assert (claimed.answers, claimed.state) == ({"a": b"!", "b": b"!"}, blob(size))

    async def test_a_task_may_expire_later_than_it_was_to(self, stores: list[StoredTasks]) -> None:
        task = new(lease_until_ms=UNTIL, due_ms=END)
        await stores[0].create(task)
        lease = Lease.of(await raw(stores[0]))
        later = Added([b"1"], blob(9_000), expires_ms=END + 5_000)
        await stores[0].write(lease, events.Checkpoint(UNTIL, END + 5_000, added=later), NOW)
        found = await record(stores[1], now_ms=END)
        assert (found.expires_ms, found.due_ms) == (END + 5_000, END + 5_000)
        assert [one.expires_ms for one in await stores[1].due(END + 5_000, 9)] == [END + 5_000]
        assert await stores[1].due(END + 4_999, 9) == []
        await stores[0].write(lease, events.Finish(Status.COMPLETED, b"", expires_ms=END + 1), END)
        assert await stores[1].read(task.ref, END + 1) is None

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_a_task_may_be_over_when_it_is_created(
        self, store: StoredTasks, status: Status
    ) -> None:
        await store.create(new(status=status, status_message="was quick", outcome=EVERY_BYTE))
        found = await record(store)
        assert (found.status, found.status_message, found.outcome) == (
            status,
            "was quick",
            EVERY_BYTE,
        )
        assert (found.due_ms, found.created_ms, found.updated_ms) == (None, NOW, NOW)
        assert await store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW) is NotClaimed.OVER
        assert (await store.open_tasks(10))[0] == []
        assert await store.due(END, 10) == []

    async def test_the_outcome_of_a_task_that_was_over_at_once_may_be_large(
        self, store: StoredTasks
    ) -> None:
        await store.create(new(status=Status.COMPLETED, outcome=blob(900_000)))
        assert (await record(store)).outcome == blob(900_000)

    async def test_a_record_tells_what_the_client_is_shown(self, store: StoredTasks) -> None:
        await asking(store, {"b": b"1", "a": b"2"})
        shown = (await record(store)).view(NOW)
        assert (shown.task_id, shown.status) == ("id", Status.INPUT_REQUIRED)
        assert list(shown.requests.items()) == [("b", b"1"), ("a", b"2")]

    async def test_everything_survives_a_restart(self, store: StoredTasks, reopen: Reopen) -> None:
        lease = await working(store, call=blob(10_000), journal=[b"0"])
        await store.write(
            lease, events.Checkpoint(added=Added([b"1", blob(10_000)], blob(9000), "on it")), NOW
        )
        before = await record(store)
        await store.aclose()
        again = reopen()
        assert await record(again) == before
        claimed = await take_over(again)
        assert (claimed.call, claimed.state) == (blob(10_000), blob(9000))
        assert list(claimed.journal) == [b"0", b"1", blob(10_000)]

    async def test_a_closed_store_may_be_closed_again(self, store: StoredTasks) -> None:
        await store.create(new())
        await store.aclose()
        await store.aclose()

    # payloads

    @pytest.mark.parametrize("size", SIZES)
    async def test_payloads_come_back_byte_for_byte(self, store: StoredTasks, size: int) -> None:
        payload = blob(size)
        lease = await working(store, call=payload, state=payload, journal=[payload])
        await store.write(
            lease, events.SuspendTask({"a": payload, "b": b"small"}, added=Added([payload])), NOW
        )
        assert (await record(store)).requests == {"a": payload, "b": b"small"}
        await store.apply(REF, events.TakeAnswers({"a": payload, "b": b"small"}, SOON), NOW)
        claimed = await claim(store)
        assert (claimed.call, claimed.state) == (payload, payload)
        assert list(claimed.journal) == [payload, payload]
        assert claimed.answers == {"a": payload, "b": b"small"}
        await store.write(claimed.lease, events.Finish(Status.COMPLETED, payload), NOW)
        assert (await record(store)).outcome == payload

    # large values
    async def test_every_byte_is_a_payload(self, store: StoredTasks) -> None:
        lease = await working(
            store, call=EVERY_BYTE, state=EVERY_BYTE, journal=[EVERY_BYTE, b"", b"\0"]
        )
        await store.write(lease, events.SuspendTask({"a": EVERY_BYTE}), NOW)
        assert (await record(store)).requests == {"a": EVERY_BYTE}
        await store.apply(REF, events.TakeAnswers({"a": EVERY_BYTE}, SOON), NOW)
        claimed = await claim(store)
        assert (claimed.call, claimed.state, claimed.answers) == (
            EVERY_BYTE,
            EVERY_BYTE,
            {"a": EVERY_BYTE},
        )
        assert list(claimed.journal) == [EVERY_BYTE, b"", b"\0"]

    async def test_a_call_of_4_mb(self, store: StoredTasks) -> None:
        await store.create(new(call=blob(4_000_000)))
        assert (await claim(store)).call == blob(4_000_000)

    @pytest.mark.parametrize("size", [300_000, 3_000_000])
    async def test_a_journal_entry_may_be_large(self, store: StoredTasks, size: int) -> None:
        lease = await working(store, journal=[b"from before"])
        await store.write(lease, events.Checkpoint(added=Added([b"before"])), NOW)
        await store.write(lease, events.Checkpoint(added=Added([blob(size)])), NOW)
        await store.write(lease, events.Checkpoint(added=Added([b"after"])), NOW)
        journal = (await take_over(store)).journal
        assert list(journal) == [b"from before", b"before", blob(size), b"after"]

    async def test_a_result_of_5_mb(self, store: StoredTasks) -> None:
        lease = await working(store)
        await store.write(lease, events.Finish(Status.COMPLETED, blob(5_000_000)), NOW)
        assert (await record(store)).outcome == blob(5_000_000)

    async def test_answers_of_500_kb(self, store: StoredTasks) -> None:
        await asking(store, {"a": b"?", "b": b"?", "c": b"?"})
        answers = {"a": blob(500_000), "b": b"small", "c": blob(500_001)}
        assert (
            await store.apply(REF, events.TakeAnswers(answers, SOON), NOW)
        ).result is AnswersTaken.FULLY
        assert (await claim(store)).answers == answers

    async def test_questions_of_500_kb(self, store: StoredTasks) -> None:
        requests = {"z": blob(500_000), "a": b"small", "m": blob(500_001)}
        await asking(store, requests)
        assert list((await record(store)).requests.items()) == list(requests.items())

    async def test_a_state_of_500_kb_is_replaced(self, store: StoredTasks) -> None:
        lease = await working(store, state=blob(500_000))
        await store.write(lease, events.Checkpoint(added=Added(state=blob(500_001))), NOW)
        await store.write(lease, events.Checkpoint(added=Added([b"entry"])), NOW)
        assert (await take_over(store)).state == blob(500_001)

    # the journal

    async def test_500_small_entries_stay_in_order(self, store: StoredTasks) -> None:
        lease = await working(store, journal=[b"0"])
        entries = [b"%d %b" % (n, b"x" * (n % 90)) for n in range(1, 501)]
        for start in range(0, 500, 4):
            await store.write(
                lease, events.Checkpoint(added=Added(entries[start : start + 4])), NOW
            )
        assert list((await take_over(store)).journal) == [b"0", *entries]

    async def test_500_entries_at_once_stay_in_order(self, store: StoredTasks) -> None:
        entries = [b"entry %d" % n for n in range(500)]
        lease = await working(store, journal=entries)
        await store.write(lease, events.Checkpoint(added=Added(entries)), NOW)
        assert list((await take_over(store)).journal) == entries * 2

    async def test_checkpoints_of_one_worker_at_once_are_all_kept(self, store: StoredTasks) -> None:
        lease = await working(store)
        entries = [b"%d %b" % (n, blob(900)) for n in range(20)]
        await asyncio.gather(
            *(store.write(lease, events.Checkpoint(added=Added([entry])), NOW) for entry in entries)
        )
        assert sorted((await take_over(store)).journal) == sorted(entries)

    async def test_a_checkpoint_that_was_cut_off_may_be_tried_again(
        self, store: StoredTasks
    ) -> None:
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
            await store.write(lease, events.Checkpoint(added=Added([b"%d" % n])), NOW)
        assert list((await take_over(store)).journal) == [b"%d" % n for n in range(12)]

    async def test_after_a_checkpoint_that_was_cut_off_others_are_kept_too(
        self, store: StoredTasks
    ) -> None:
        lease = await working(store)
        for n in range(8):
            cut = asyncio.ensure_future(
                store.write(lease, events.Checkpoint(added=Added([b"cut %d" % n])), NOW)
            )
            await asyncio.sleep(0.001 * (n % 3))
            cut.cancel()
            await asyncio.wait([cut])
            await store.write(lease, events.Checkpoint(added=Added([b"%d" % n])), NOW)
        journal = list((await take_over(store)).journal)
        assert [entry for entry in journal if not entry.startswith(b"cut")] == [
            b"%d" % n for n in range(8)
        ]
        assert len(set(journal)) == len(journal)

    async def test_the_next_worker_goes_on_where_the_last_one_was(
        self, stores: list[StoredTasks]
    ) -> None:
        await stores[0].create(new(journal=[b"0"]))
        for n in range(1, 25):
            claimed = await take_over(stores[n % 4], now_ms=NOW + n, until_ms=NOW + n + 1)
            assert len(claimed.journal) == n
            await stores[n % 4].write(
                claimed.lease, events.Checkpoint(added=Added([b"%d" % n + blob(n * 100)])), NOW
            )
        journal = (await take_over(stores[0], now_ms=NOW + 100)).journal
        assert list(journal) == [b"0", *(b"%d" % n + blob(n * 100) for n in range(1, 25))]

    @pytest.mark.parametrize("how", ["checkpoint", "suspend", "release"])
    async def test_each_write_of_a_worker_may_add_entries_state_and_message(
        self, store: StoredTasks, how: str
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

    async def test_what_is_not_added_stays(self, store: StoredTasks) -> None:
        lease = await working(store, state=b"state", status_message="said", journal=[b"0"])
        await store.write(lease, events.Checkpoint(), NOW)
        await store.write(lease, events.Release(0, SOON), NOW)
        claimed = await claim(store)
        assert (list(claimed.journal), claimed.state, claimed.record.status_message) == (
            [b"0"],
            b"state",
            "said",
        )

    # owner and end

    async def test_who_asks_under_another_owner_finds_nothing_and_changes_nothing(
        self, store: StoredTasks
    ) -> None:
        await asking(store, {"a": b"?"})
        before = await record(store)
        foreign = TaskRef("other", "id")
        assert await store.read(foreign, NOW) is None
        assert (
            await store.apply(foreign, events.TakeAnswers({"a": b"!"}, SOON), NOW)
        ).result is AnswersTaken.UNKNOWN_TASK
        assert (
            await store.apply(foreign, events.TakeAnswers({"a": blob(9000)}, SOON), NOW)
        ).result is AnswersTaken.UNKNOWN_TASK
        assert (
            await store.apply(foreign, events.Cancel("cancelled", NOW), NOW)
        ).result is Cancelled.UNKNOWN_TASK
        assert await store.claim(foreign, events.Claim(UNTIL, UNTIL, NOW), NOW) is NotClaimed.GONE
        assert (await store.apply(foreign, events.Requeue(SOON), NOW)).happened is False
        await store.apply(foreign, events.Expire(END), END)
        assert await record(store) == before
        assert ids((await store.find()).records) == ["id"]

    async def test_a_task_is_found_until_its_time_is_over(self, store: StoredTasks) -> None:
        await store.create(new())
        assert await store.read(REF, END - 1) is not None
        assert await store.read(REF, END) is None

    async def test_a_task_past_its_time_is_as_if_it_never_was(self, store: StoredTasks) -> None:
        await asking(store, {"a": b"?"})
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), END)
        ).result is AnswersTaken.UNKNOWN_TASK
        assert (
            await store.apply(REF, events.TakeAnswers({"b": b"!"}, SOON), END)
        ).result is AnswersTaken.UNKNOWN_TASK
        assert (
            await store.apply(REF, events.TakeAnswers({"a": blob(9000)}, SOON), END)
        ).result is AnswersTaken.UNKNOWN_TASK
        assert (
            await store.apply(REF, events.Cancel("cancelled", END), END)
        ).result is Cancelled.UNKNOWN_TASK
        assert await store.claim(REF, events.Claim(END + 1, END + 1, END), END) is NotClaimed.GONE
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), END - 1)
        ).result is AnswersTaken.FULLY
        assert (await store.apply(REF, events.Requeue(END), END)).happened is False
        assert await store.claim(REF, events.Claim(END + 1, END + 1, END), END) is NotClaimed.GONE
        assert (
            await store.apply(REF, events.Cancel("cancelled", END), END)
        ).result is Cancelled.UNKNOWN_TASK
        assert (await record(store)).status is Status.WORKING

    # restart and park

    async def test_a_restart_puts_another_call_and_journal_in_place_of_all_there_was(
        self, store: StoredTasks
    ) -> None:
        await asking(
            store, {"a": b"?"}, call=blob(9000), journal=[b"0", blob(9000)], state=blob(9000)
        )
        await store.apply(REF, events.TakeAnswers({"a": blob(9000)}, SOON), NOW)
        lease = (await claim(store)).lease
        await store.write(lease, events.Checkpoint(added=Added([b"1", blob(20_000)])), NOW)
        before = await record(store)
        await store.write(
            lease,
            events.Restart(blob(30_000), [b"first", blob(500_000)], b"state", 2, SOON + 1),
            NOW,
        )
        expected = replace(before, lease_until_ms=0, due_ms=SOON + 1, journal_version=2)
        assert await record(store) == expected
        claimed = await claim(store)
        assert (claimed.call, claimed.state) == (blob(30_000), b"state")
        assert (list(claimed.journal), claimed.answers) == ([b"first", blob(500_000)], {})
        await store.write(claimed.lease, events.Checkpoint(added=Added([b"more"])), NOW)
        assert list((await take_over(store)).journal) == [b"first", blob(500_000), b"more"]

    async def test_a_parked_task_is_working_and_claimed_by_nobody(self, store: StoredTasks) -> None:
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

    async def test_a_parked_task_is_brought_back_by_its_operator(self, store: StoredTasks) -> None:
        await store.write(await blamed(store), events.Park("waits for its operator"), NOW)
        assert (await store.apply(REF, events.Requeue(SOON), NOW)).happened is True
        found = (await claim(store)).record
        assert (found.wake_ms, found.suspect, found.deaths, found.attempts) == (0, False, 0, 0)

    # suspend

    async def test_a_task_that_asks_shows_its_questions_in_their_order(
        self, store: StoredTasks
    ) -> None:
        keys = ["z", "a", "Z", "m", "10", "9", "a.b", "#a", ":a", "ä", "a b", "status", "a[0]"]
        requests = {key: key.encode() for key in keys}
        await store.write(await working(store), events.SuspendTask(requests), SOON)
        found = await record(store)
        assert list(found.requests.items()) == list(requests.items())
        assert (found.status, found.updated_ms, found.due_ms) == (Status.INPUT_REQUIRED, SOON, END)
        assert found.outcome is None

    async def test_150_questions_keep_their_order_and_are_answered_at_once(
        self, store: StoredTasks
    ) -> None:
        requests = {f"question {n * 7 % 150}": b"%d" % n for n in range(150)}
        await asking(store, requests)
        assert list((await record(store)).requests.items()) == list(requests.items())
        assert (
            await store.apply(REF, events.TakeAnswers(requests, SOON), NOW)
        ).result is AnswersTaken.FULLY
        assert (await claim(store)).answers == requests

    # answer

    async def test_with_all_answers_the_task_works_and_is_due(self, store: StoredTasks) -> None:
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

    @pytest.mark.parametrize("size", [1, 9000])
    async def test_with_some_answers_the_others_still_wait(
        self, store: StoredTasks, size: int
    ) -> None:
        await asking(store, {"c": b"3?", "b": b"2?", "a": b"1?"})
        assert (
            await store.apply(REF, events.TakeAnswers({"b": blob(size)}, SOON), SOON)
        ).result is AnswersTaken.PARTLY
        found = await record(store)
        assert list(found.requests.items()) == [("c", b"3?"), ("a", b"1?")]
        assert (found.status, found.due_ms, found.updated_ms) == (Status.INPUT_REQUIRED, END, SOON)
        assert await store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW) is NotClaimed.WAITING
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"1", "c": b"3"}, SOON), SOON)
        ).result is AnswersTaken.FULLY
        assert (await claim(store)).answers == {"a": b"1", "b": blob(size), "c": b"3"}

    @pytest.mark.parametrize("size", [1, 9000])
    async def test_answers_to_nothing_are_dropped(self, store: StoredTasks, size: int) -> None:
        await asking(store, {"a": b"?"})
        before = await record(store)
        for answers in (
            {"unknown": blob(size)},
            {},
            {"": blob(size), "A": b"", "a ": b"", "k" * 70_000: b""},
        ):
            assert (
                await store.apply(REF, events.TakeAnswers(answers, SOON), NOW)
            ).result is AnswersTaken.NOT_NEEDED
        assert await record(store) == before
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), NOW)
        ).result is AnswersTaken.FULLY
        assert (await claim(store)).answers == {"a": b"!"}

    @pytest.mark.parametrize("size", [1, 9000])
    async def test_an_unknown_answer_beside_the_last_one_does_no_harm(
        self, store: StoredTasks, size: int
    ) -> None:
        await asking(store, {"a": b"?"})
        assert (
            await store.apply(
                REF, events.TakeAnswers({"a": b"!", "b": blob(size), "": b""}, SOON), NOW
            )
        ).result is AnswersTaken.FULLY
        assert (await claim(store)).answers == {"a": b"!"}

    async def test_an_unknown_answer_beside_some_does_no_harm(self, store: StoredTasks) -> None:
        await asking(store, {"a": b"?", "c": b"?"})
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"!", "b": b"!"}, SOON), NOW)
        ).result is AnswersTaken.PARTLY
        assert (
            await store.apply(REF, events.TakeAnswers({"c": b"!"}, SOON), NOW)
        ).result is AnswersTaken.FULLY
        assert (await claim(store)).answers == {"a": b"!", "c": b"!"}

    async def test_the_first_answer_to_a_question_counts(self, store: StoredTasks) -> None:
        await asking(store, {"a": b"?", "b": b"?"})
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"first"}, SOON), NOW)
        ).result is AnswersTaken.PARTLY
        before = await record(store)
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"second"}, SOON), SOON)
        ).result is AnswersTaken.NOT_NEEDED
        assert await record(store) == before
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"third", "b": b"first"}, SOON), NOW)
        ).result is AnswersTaken.FULLY
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"late", "b": b"late"}, SOON), NOW)
        ).result is AnswersTaken.NOT_NEEDED
        assert (await claim(store)).answers == {"a": b"first", "b": b"first"}

    async def test_a_task_that_does_not_ask_needs_no_answer(self, store: StoredTasks) -> None:
        await store.create(new())
        before = await record(store)
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"!"}, END), NOW)
        ).result is AnswersTaken.NOT_NEEDED
        assert await record(store) == before

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_a_task_that_is_over_needs_no_answer(
        self, store: StoredTasks, status: Status
    ) -> None:
        await over(store, status)
        before = await record(store)
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"!"}, END), SOON)
        ).result is AnswersTaken.NOT_NEEDED
        assert await record(store) == before

    async def test_an_answer_after_the_end_is_too_late_for_the_question_it_is_for(
        self, store: StoredTasks
    ) -> None:
        await asking(store, {"a": b"?"})
        await store.apply(REF, events.Cancel("cancelled", NOW), NOW)
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), NOW)
        ).result is AnswersTaken.NOT_NEEDED
        assert (await record(store)).status is Status.CANCELLED

    async def test_an_answer_to_an_unknown_task_is_for_an_unknown_task(
        self, store: StoredTasks
    ) -> None:
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), NOW)
        ).result is AnswersTaken.UNKNOWN_TASK
        assert (
            await store.apply(REF, events.TakeAnswers({}, SOON), NOW)
        ).result is AnswersTaken.UNKNOWN_TASK
        assert (
            await store.apply(REF, events.TakeAnswers({"a": blob(9000)}, SOON), NOW)
        ).result is AnswersTaken.UNKNOWN_TASK

    async def test_answers_of_all_rounds_are_kept(self, store: StoredTasks) -> None:
        lease = await working(store)
        expected: dict[str, bytes] = {}
        for n in range(30):
            await store.write(lease, events.SuspendTask({f"{n}/{m}": b"?" for m in range(4)}), NOW)
            answers = {f"{n}/{m}": b"%d %d %b" % (n, m, blob(3900)) for m in range(4)}
            assert (
                await store.apply(REF, events.TakeAnswers(answers, SOON), NOW)
            ).result is AnswersTaken.FULLY
            expected |= answers
            lease = (await claim(store)).lease
        assert (await take_over(store)).answers == expected

    async def test_a_question_may_be_asked_again_and_its_new_answer_counts(
        self, store: StoredTasks
    ) -> None:
        await asking(store, {"a": b"?", "b": b"?"})
        await store.apply(REF, events.TakeAnswers({"a": b"old", "b": b"b"}, SOON), NOW)
        await store.write((await claim(store)).lease, events.SuspendTask({"a": b"again?"}), NOW)
        assert (await record(store)).requests == {"a": b"again?"}
        assert (
            await store.apply(REF, events.TakeAnswers({"a": b"new"}, SOON), NOW)
        ).result is AnswersTaken.FULLY
        assert (await claim(store)).answers == {"a": b"new", "b": b"b"}

    @pytest.mark.parametrize("size", [1, 9000])
    async def test_of_answers_at_once_each_is_kept_and_one_is_the_last(
        self, stores: list[StoredTasks], size: int
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

    async def test_of_two_answers_to_a_question_one_is_taken(
        self, stores: list[StoredTasks]
    ) -> None:
        await asking(stores[0], {"a": b"?"})
        each = [
            store.apply(REF, events.TakeAnswers({"a": b"%d" % n}, SOON), NOW)
            for n, store in enumerate(stores * 3)
        ]
        got = [str(decision.result) for decision in await asyncio.gather(*each)]
        assert sorted(got) == [AnswersTaken.FULLY] + [AnswersTaken.NOT_NEEDED] * 11
        assert (await claim(stores[0])).answers == {"a": b"%d" % got.index(AnswersTaken.FULLY)}

    async def test_an_answer_and_a_cancellation_at_once_leave_it_cancelled(
        self, stores: list[StoredTasks]
    ) -> None:
        for n in range(8):
            ref = TaskRef("owner", f"{n}")
            await asking(stores[0], {"a": b"?", "b": b"?"}, ref)
            await asyncio.gather(
                stores[1].apply(ref, events.TakeAnswers({"a": b"!"}, SOON), NOW),
                stores[2].apply(ref, events.Cancel("cancelled", NOW), NOW),
                stores[3].apply(ref, events.TakeAnswers({"b": b"!"}, SOON), NOW),
            )
            found = await record(stores[0], ref)
            assert (found.status, found.requests, found.due_ms) == (Status.CANCELLED, {}, None)

    # the sweep

    async def test_open_tasks_are_due_from_their_time_on_the_longest_overdue_first(
        self, store: StoredTasks
    ) -> None:
        for n in (3, 1, 5, 2, 4):
            await store.create(new(TaskRef("owner", f"{n}"), due_ms=NOW + n))
        assert ids(await store.due(NOW + 4, 10)) == ["1", "2", "3", "4"]
        assert ids(await store.due(NOW + 4, 2)) == ["1", "2"]
        assert await store.due(NOW, 10) == []
        assert ids(await store.due(END + 1, 10)) == ["1", "2", "3", "4", "5"]

    async def test_a_due_task_is_told_as_the_index_has_it(self, store: StoredTasks) -> None:
        await asking(store, {"a": b"?"}, tool="export", expires_ms=SOON, created_ms=NOW - 1)
        expected = OpenTask(REF, "export", Status.INPUT_REQUIRED, NOW - 1, SOON, SOON)
        assert await store.due(SOON, 10) == [expected]
        assert (await store.open_tasks(10))[0] == [expected]

    async def test_the_due_time_moves_with_the_task(self, store: StoredTasks) -> None:
        await store.create(new())

        async def due_ms() -> int | None:
            found = await record(store)
            listed = await store.due(END, 10)
            assert [task.due_ms for task in listed] == (
                [] if found.due_ms is None else [found.due_ms]
            )
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
        await store.write(
            (await claim(store)).lease, events.SuspendTask({"a": b"?", "b": b"?"}), NOW
        )
        assert await due_ms() == END
        await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON + 3), NOW)
        assert await due_ms() == END
        await store.apply(REF, events.TakeAnswers({"b": b"!"}, SOON + 3), NOW)
        assert await due_ms() == SOON + 3
        await store.apply(REF, events.Requeue(SOON + 4), NOW)
        assert await due_ms() == SOON + 4
        await store.write((await claim(store)).lease, events.Finish(Status.COMPLETED, b""), NOW)
        assert await due_ms() is None

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_what_is_over_is_not_due(self, store: StoredTasks, status: Status) -> None:
        await over(store, status)
        assert await store.due(END * 2, 10) == []
        assert (await store.open_tasks(10))[0] == []

    async def test_a_task_that_is_due_is_postponed_by_one_caller(
        self, stores: list[StoredTasks]
    ) -> None:
        await stores[0].create(new())
        (task,) = await stores[0].due(SOON, 10)
        moved = await asyncio.gather(
            *(postpone(store, task, SOON + n) for n, store in enumerate(stores * 3, 1))
        )
        assert sum(moved) == 1
        assert (await record(stores[0])).due_ms == SOON + 1 + moved.index(True)

    async def test_a_task_that_moved_or_ended_meanwhile_is_not_postponed(
        self, store: StoredTasks
    ) -> None:
        await store.create(new())
        (task,) = await store.due(SOON, 10)
        await store.write((await claim(store)).lease, events.Checkpoint(UNTIL, UNTIL), NOW)
        assert await postpone(store, task, END) is False
        assert (await record(store)).due_ms == UNTIL
        await store.apply(REF, events.Cancel("cancelled", NOW), NOW)
        assert await postpone(store, replace(task, due_ms=UNTIL), END) is False
        assert (await store.open_tasks(10))[0] == []
        assert await postpone(store, replace(task, ref=TaskRef("owner", "unknown")), END) is False
        assert ids((await store.find()).records) == ["id"]

    async def test_postponing_leaves_everything_else(self, store: StoredTasks) -> None:
        lease = await working(store)
        before = await record(store)
        (task,) = await store.due(UNTIL, 10)
        assert await postpone_many(store, [Move(task, END, 1)], UNTIL) == [Postponed.LAPSED]
        assert await record(store) == replace(before, due_ms=END, resends=1)
        await store.write(lease, events.Checkpoint(added=Added([b"entry"])), NOW)

    async def test_a_task_that_a_worker_has_is_put_off_until_its_lease_has_lapsed(
        self, store: StoredTasks
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

    async def test_a_task_that_nobody_has_is_moved_and_no_lease_has_lapsed(
        self, store: StoredTasks
    ) -> None:
        await store.create(new())
        (task,) = await store.due(SOON, 10)
        assert await postpone_many(store, [Move(task, END, 1)], SOON, 5) == [Postponed.MOVED]
        lease = (await claim(store)).lease
        await store.write(lease, events.Release(0, SOON), NOW)
        (task,) = await store.due(SOON, 10)
        assert await postpone_many(store, [Move(task, END, 1)], END, 5) == [Postponed.MOVED]

    async def test_whether_a_task_is_renewed_or_found_late_first_it_is_due_while_it_is_open(
        self, stores: list[StoredTasks]
    ) -> None:
        for n in range(8):
            ref = TaskRef("owner", f"{n}")
            lease = await working(stores[0], ref)
            (task,) = [one for one in await stores[1].due(SOON, 100) if one.ref == ref]
            _, (became,) = await asyncio.gather(
                stores[0].write(lease, events.Checkpoint(UNTIL + 1, UNTIL + 9), NOW),
                postpone_many(stores[1], [Move(task, END, 1)], SOON, 5),
            )
            assert became in {Postponed.HELD, Postponed.MISSED}
            assert (await record(stores[0], ref)).due_ms == UNTIL + 9

    @pytest.mark.parametrize("state", ["working", "asking"])
    async def test_an_open_task_past_its_time_is_ended(
        self, store: StoredTasks, state: str
    ) -> None:
        await (working(store) if state == "working" else asking(store, {"a": b"?"}))
        await store.apply(REF, events.Expire(END), END)
        found = await record(store)  # as nobody sees it any more
        assert (found.status, found.due_ms, found.requests, found.outcome) == (
            Status.FAILED,
            None,
            {},
            None,
        )
        assert found.updated_ms == END
        assert (await store.open_tasks(10))[0] == []

    async def test_a_task_whose_time_is_not_over_is_not_ended(self, store: StoredTasks) -> None:
        await store.create(new())
        before = await record(store)
        await store.apply(REF, events.Expire(END - 1), END - 1)
        await store.apply_many(
            [(ref, events.Expire(END)) for ref in [TaskRef("owner", "unknown")]], END
        )
        assert await record(store) == before
        assert ids((await store.find()).records) == ["id"]

    @pytest.mark.parametrize("status", TERMINAL)
    async def test_what_is_over_does_not_expire(self, store: StoredTasks, status: Status) -> None:
        await over(store, status)
        before = await record(store)
        await store.apply(REF, events.Expire(END), END)
        assert await record(store) == before

    async def test_nothing_is_forgotten_that_can_be_found(self, store: StoredTasks) -> None:
        await store.create(new())
        await store.create(new(TaskRef("owner", "later"), expires_ms=END + 1))
        assert await store.forget(END) == 0
        assert await store.read(TaskRef("owner", "later"), END) is not None
        assert sorted(ids((await store.find()).records)) == ["id", "later"]

    async def test_a_wait_keeps_a_task_and_its_work_longer(self, store: StoredTasks) -> None:
        later_ms = END + 10 * FORGET_AFTER_MS
        lease = await working(store, call=blob(50_000))
        added = Added([b"1", blob(50_000)], expires_ms=later_ms)
        await store.write(lease, events.Release(later_ms - 1, SOON, added=added), NOW)
        assert await store.forget(END + 2 * FORGET_AFTER_MS) == 0
        assert (await record(store, now_ms=later_ms - 1)).expires_ms == later_ms
        claimed = await claim(store, now_ms=later_ms - 1, until_ms=later_ms)
        assert (claimed.call, list(claimed.journal)) == (blob(50_000), [b"1", blob(50_000)])

    async def test_postponing_counts_until_the_next_claim(self, store: StoredTasks) -> None:
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

    async def test_what_is_due_with_no_message_on_its_way_says_so(self, store: StoredTasks) -> None:
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
        await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), NOW)
        assert not await unsent()

    async def test_many_are_postponed_at_once_and_each_by_itself(
        self, stores: list[StoredTasks]
    ) -> None:
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

    # shards

    async def test_the_shards_together_have_every_late_task_once(self, store: StoredTasks) -> None:
        refs = [TaskRef(f"owner{n % 3}", f"{n}") for n in range(60)]
        for n, ref in enumerate(refs):
            await store.create(new(ref, due_ms=NOW + n))
        parts = [await store.due(NOW + 49, 100, shard) for shard in range(store.store.shards)]
        assert sorted(task.ref for part in parts for task in part) == sorted(refs[:50])
        assert sorted(await store.late_shards(NOW + 49)) == [
            shard for shard, part in enumerate(parts) if part
        ]
        assert list(await store.late_shards(NOW - 1)) == []
        assert all(
            [task.due_ms for task in part] == sorted(task.due_ms for task in part) for part in parts
        )
        assert len([part for part in parts if part]) > store.store.shards // 2
        largest = max(parts, key=len)
        shard = parts.index(largest)
        assert await store.due(NOW + 49, 2, shard) == largest[:2]

    async def test_a_shard_is_for_one_sweeper_at_a_time(self, stores: list[StoredTasks]) -> None:
        got = await asyncio.gather(
            *(one.take_shard(3, f"{n}", NOW, SOON) for n, one in enumerate(stores * 3))
        )
        assert sum(got) == 1
        mine = f"{got.index(True)}"
        assert await stores[0].take_shard(3, "late", SOON - 1, END) is False
        assert await stores[0].take_shard(4, "late", NOW, SOON) is True, "another shard"
        assert await stores[0].take_shard(3, mine, NOW + 1, UNTIL) is True, "for longer"
        assert await stores[0].take_shard(3, "late", SOON, END) is False
        assert await stores[0].take_shard(3, "late", UNTIL, END) is True

    async def test_a_right_to_a_shard_that_ends_too_late_was_given_by_a_wrong_clock(
        self, store: StoredTasks
    ) -> None:
        ahead = NOW + 3_600_000
        assert await store.take_shard(0, "me", ahead, ahead + 5_000) is True
        assert await store.take_shard(0, "you", NOW, NOW + SHARD_AT_MOST_MS) is True
        assert await store.take_shard(0, "me", NOW, NOW + 5_000) is False

    async def test_what_a_sweeper_says_of_its_clock_is_told_to_the_next(
        self, store: StoredTasks, reopen: Reopen
    ) -> None:
        assert await store.tell_time(b"first") is None
        assert await store.tell_time(b"second") == b"first"
        assert await reopen().tell_time(b"third") == b"second"

    async def test_a_shard_is_given_back(self, store: StoredTasks) -> None:
        assert await store.take_shard(0, "me", NOW, UNTIL) is True
        assert await store.take_shard(0, "me", NOW, NOW) is True
        assert await store.take_shard(0, "you", NOW, UNTIL) is True

    async def test_shards_that_are_taken_are_no_tasks(self, store: StoredTasks) -> None:
        await store.take_shard(0, "me", NOW, UNTIL)
        assert (await store.find()).records == []
        assert (await store.open_tasks(10))[0] == []

    # the operator

    async def test_open_tasks_are_listed_the_soonest_due_first(self, store: StoredTasks) -> None:
        dues = [NOW + n * 37 % 101 for n in range(1, 31)]
        for n, due_ms in enumerate(dues):
            await store.create(new(TaskRef(f"owner{n % 3}", f"{n}"), due_ms=due_ms))
        assert [task.due_ms for task in (await store.open_tasks(100))[0]] == sorted(dues)
        assert [task.due_ms for task in (await store.open_tasks(7))[0]] == sorted(dues)[:7]

    async def test_tasks_are_found_by_owner_status_and_age(self, store: StoredTasks) -> None:
        await working(store, TaskRef("a", "1"))
        await asking(store, {"x": b"?"}, TaskRef("a", "2"), created_ms=NOW + 1)
        await store.create(
            new(TaskRef("aa", "3"), created_ms=NOW + 2, status=Status.COMPLETED, outcome=b"{}")
        )
        await store.create(new(TaskRef("b", "4"), created_ms=NOW - END, expires_ms=1))

        async def found(**filters: Any) -> list[str]:
            return sorted(ids((await store.find(Wanted(**filters))).records))

        works, asks = frozenset({Status.WORKING}), frozenset({Status.INPUT_REQUIRED})
        assert await found() == ["1", "2", "3", "4"]
        assert await found(owner="a") == ["1", "2"]
        assert await found(owner="nobody") == []
        assert await found(tool="report", owner="a") == ["1", "2"]
        assert await found(tool="repor") == []
        assert await found(statuses=works) == ["1", "4"]
        assert await found(statuses=works | asks, owner="a") == ["1", "2"]
        assert await found(statuses=frozenset({Status.COMPLETED})) == ["3"]
        assert await found(created_before_ms=NOW + 1) == ["1", "4"]
        assert await found(owner="a", statuses=asks, created_before_ms=NOW + 2) == ["2"]
        assert await found(owner="a", statuses=asks, created_before_ms=NOW + 1) == []

    async def test_tasks_that_ended_are_found_by_how_they_did(self, store: StoredTasks) -> None:
        for n, status in enumerate((Status.FAILED, Status.COMPLETED, Status.CANCELLED)):
            ref = TaskRef(f"owner{n}", status.value)
            await store.write(await working(store, ref), events.Finish(status, b"{}"), NOW)
        await working(store, TaskRef("owner", "cancelled by its owner"))
        await store.apply(TaskRef("owner", "cancelled by its owner"), events.Cancel("no", NOW), NOW)
        await store.create(new(TaskRef("o", "1"), status=Status.FAILED, outcome=b"{}"))

        async def found(*statuses: Status) -> list[str]:
            wanted = Wanted(statuses=frozenset(statuses))
            return sorted(ids((await store.find(wanted)).records))

        assert await found(Status.FAILED) == ["1", "failed"]
        assert await found(Status.COMPLETED) == ["completed"]
        cancelled = ["cancelled", "cancelled by its owner"]
        assert await found(Status.CANCELLED) == cancelled
        assert await found(Status.CANCELLED, Status.FAILED) == ["1", *cancelled, "failed"]
        assert len(await found(*Status)) == 5

    async def test_a_task_that_a_failed_step_ended_is_failed_for_its_operator(
        self, store: StoredTasks
    ) -> None:
        for ending in (Ending.OK, Ending.TOOL_ERROR, Ending.STEP_FAILED):
            lease = await working(store, TaskRef("owner", ending.value))
            failed = ["order@1/charge#2", "ship"] if ending is Ending.STEP_FAILED else []
            await store.write(
                lease,
                events.Finish(Status.COMPLETED, b"{}", ending=ending, failed_steps=failed),
                NOW,
            )
        lease = await working(store, TaskRef("owner", "error"))
        await store.write(lease, events.Finish(Status.FAILED, b"{}"), NOW)
        await working(store, TaskRef("owner", "open"))
        await working(store, TaskRef("owner", "cancelled"))
        await store.apply(TaskRef("owner", "cancelled"), events.Cancel("no", NOW), NOW)
        over = new(TaskRef("owner", "at once"), status=Status.COMPLETED, ending=Ending.TOOL_ERROR)
        await store.create(over)

        async def found(**wanted: Any) -> list[str]:
            return sorted(ids((await store.find(Wanted(**wanted))).records))

        failed_step = await record(store, TaskRef("owner", "step_failed"))
        assert failed_step.status is Status.COMPLETED
        assert failed_step.shown_status is Status.FAILED
        assert list(failed_step.failed_steps) == ["order@1/charge#2", "ship"]
        assert await found(statuses=frozenset({Status.FAILED})) == ["error", "step_failed"]
        completed = ["at once", "ok", "tool_error"]
        assert await found(statuses=frozenset({Status.COMPLETED})) == completed
        assert await found(endings=frozenset({Ending.STEP_FAILED})) == ["step_failed"]
        assert await found(endings=frozenset({Ending.TOOL_ERROR})) == ["at once", "tool_error"]
        assert await found(endings=frozenset({Ending.CANCELLED, Ending.ERROR})) == [
            "cancelled",
            "error",
        ]
        both = {"statuses": frozenset({Status.FAILED}), "endings": frozenset({Ending.OK})}
        assert await found(**both) == []
        assert (await record(store, TaskRef("owner", "open"))).ending is None

    async def test_the_work_of_a_task_that_a_failed_step_ended_is_kept(
        self, store: StoredTasks
    ) -> None:
        large: dict[str, Any] = {"call": blob(9000), "state": blob(3000)}
        lease = await asking(store, {"a": b"question"}, **large)
        await store.apply(REF, events.TakeAnswers({"a": blob(700)}, SOON), NOW)
        lease = (await claim(store)).lease
        for n in range(3):
            await store.write(lease, events.Checkpoint(added=Added([blob(2000 + n)])), NOW)
        _, before = await store.read_work(REF)
        await store.write(
            lease,
            events.Finish(
                Status.COMPLETED, b"{}", ending=Ending.STEP_FAILED, failed_steps=["charge"]
            ),
            NOW,
        )
        entries = [blob(2000 + n) for n in range(3)]
        expected = Work(large["call"], entries, large["state"], {"a": blob(700)})
        assert before == (await store.read_work(REF))[1] == expected
        assert await store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW) is NotClaimed.OVER
        assert await store.count_open("owner", 10) == 0
        assert await store.due(END, 10) == []
        assert await store.read_work(TaskRef("owner", "none")) == (None, None)
        assert await store.purge(REF, NOW) is True
        assert (await store.read_work(REF))[1] is None

    async def test_the_task_that_goes_on_with_the_work_is_noted_once(
        self, store: StoredTasks
    ) -> None:
        lease = await working(store)
        assert (await store.apply(REF, events.NoteRetry("early"), 0)).happened is False
        await store.write(
            lease,
            events.Finish(
                Status.COMPLETED, b"{}", "over", ending=Ending.STEP_FAILED, failed_steps=["charge"]
            ),
            NOW,
        )
        before = await record(store)
        assert (await store.apply(REF, events.NoteRetry("second"), 0)).happened is True
        assert (await store.apply(REF, events.NoteRetry("third"), 0)).happened is False
        assert await record(store) == replace(before, retried_as="second")
        other = TaskRef("owner", "other")
        await store.write(await working(store, other), events.Finish(Status.COMPLETED, b"{}"), NOW)
        assert (await store.apply(other, events.NoteRetry("second"), 0)).happened is False
        assert (
            await store.apply(TaskRef("owner", "none"), events.NoteRetry("second"), 0)
        ).happened is False

    async def test_the_work_is_taken_up_by_one_task_however_often_that_is_interrupted(
        self, store: StoredTasks
    ) -> None:
        call = TaskCall("report", {"n": 1}, LOCAL, {})
        entries: list[Entry] = [
            Finished("plan", "x" * 5_000),
            Asked("who", "digest"),
            Raised("charge", "", False),
        ]
        lease = await asking(store, {"who": b"{}"}, call=call.to_bytes(), call_id="call")
        await store.apply(REF, events.TakeAnswers({"who": b'{"action":"decline"}'}, SOON), NOW)
        lease = (await claim(store)).lease
        for entry in entries:
            await store.write(lease, events.Checkpoint(added=Added([encode(row(entry))])), NOW)
        await store.write(
            lease,
            events.Finish(
                Status.COMPLETED, b"{}", ending=Ending.STEP_FAILED, failed_steps=["charge"]
            ),
            NOW,
        )
        queue = Sent()
        store = StoredTasks(store.store, as_queue(queue))
        with pytest.raises(Unavailable):
            await retry(as_store(DiesBeforeItNotes(store)), REF, NOW)
        again = await retry(store, REF, NOW + 1_000)
        with pytest.raises(NotRetryable, match=f"was already retried as {again}"):
            await retry(store, REF, NOW)
        assert (await record(store)).retried_as == again.id
        assert queue.sent == [again, again], "who died after the row may not have sent it"
        assert len((await store.find()).records) == 2
        going_on = await claim(store, again)
        assert TaskCall.from_bytes(going_on.call) == replace(call, continues=REF.id)
        answered = AnsweredEntry("who", "digest", 1, 0, {"action": "decline"})
        assert [from_row(decode(one)) for one in going_on.journal] == [entries[0], answered]
        assert going_on.record.call_id == "call"
        assert going_on.record.expires_ms - going_on.record.created_ms == END - NOW

    async def test_the_payload_of_an_event_is_kept_beside_the_answers(
        self, store: StoredTasks
    ) -> None:
        lease = await working(store)
        marks = [Mark("event:paid", END), Mark("event:late", NOW + 1)]
        await store.write(lease, events.Checkpoint(added=Added([b"opened"], events=marks)), NOW)
        payload = blob(40_000)
        taken = (
            await store.apply(REF, events.Deliver("event:paid", payload, "digest", SOON), NOW)
        ).result
        assert taken is Delivered.KEPT
        assert (await raw(store)).events == (replace(marks[0], digest="digest"), marks[1])
        await store.write(
            lease, events.Release(END, END, awaits=["event:paid"], ready_ms=SOON), NOW
        )
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
        self, store: StoredTasks
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

    async def test_of_two_deliveries_at_once_one_is_accepted(
        self, stores: list[StoredTasks]
    ) -> None:
        lease = await working(stores[0])
        added = Added([b"opened"], events=[Mark("event:paid", END)])
        await stores[0].write(lease, events.Checkpoint(added=added), NOW)
        became = await asyncio.gather(
            *(
                store.apply(REF, events.Deliver("event:paid", b"%d" % n, f"digest{n}", SOON), NOW)
                for n, store in enumerate(stores)
            )
        )
        got = [str(decision.result) for decision in became]
        assert sorted(got) == sorted([Delivered.KEPT, *[Delivered.OTHER] * (len(stores) - 1)])

    async def test_a_task_that_a_failed_step_ended_hands_its_events_on(
        self, store: StoredTasks
    ) -> None:
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
            events.Finish(
                Status.COMPLETED, b"{}", ending=Ending.STEP_FAILED, failed_steps=["charge"]
            ),
            NOW,
        )
        taken = (
            await store.apply(REF, events.Deliver("event:paid", b"7", "digest", SOON), NOW)
        ).result
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
        late = (
            await store.apply(REF, events.Deliver("event:sent", b"8", "digest", SOON), NOW)
        ).result
        assert late is Delivered.CLOSED
        deliveries = Deliveries(store, FixedClock(NOW), TasksConfig())
        assert await deliveries.deliver(REF, "event:sent", 8) is Delivered.KEPT
        assert (await claim(store, going_on)).answers == {"event:sent": b"8"}

    async def test_what_was_delivered_while_a_retry_was_made_is_handed_on_by_the_next_one(
        self, store: StoredTasks
    ) -> None:
        call = TaskCall("report", {}, LOCAL, {})
        entries: list[Entry] = [Opened("event:paid", END, "token"), Raised("charge", "", False)]
        lease = await working(store, call=call.to_bytes())
        rows = [encode(row(entry)) for entry in entries]
        added = Added(rows, events=[Mark("event:paid", END)])
        await store.write(lease, events.Checkpoint(added=added), NOW)
        await store.write(
            lease,
            events.Finish(
                Status.COMPLETED, b"{}", ending=Ending.STEP_FAILED, failed_steps=["charge"]
            ),
            NOW,
        )
        with pytest.raises(Unavailable):
            await retry(as_store(DiesBeforeItNotes(store)), REF, NOW)
        taken = (
            await store.apply(REF, events.Deliver("event:paid", b"7", "digest", SOON), NOW)
        ).result
        assert taken is Delivered.KEPT
        going_on = await retry(store, REF, NOW)
        assert (await claim(store, going_on)).answers == {"event:paid": b"7"}

    async def test_a_parked_task_goes_on_from_an_earlier_place(self, store: StoredTasks) -> None:
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
        await store.apply(
            REF, events.TakeAnswers({"who": encode({"action": "decline"})}, SOON), NOW
        )
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

    async def test_a_row_says_what_the_log_knows_its_call_by(self, store: StoredTasks) -> None:
        await store.create(new(call_id="call"))
        await store.create(new(TaskRef("owner", "unknown")))
        assert (await record(store)).call_id == "call"
        assert (await claim(store)).record.call_id == "call"
        assert (await record(store, TaskRef("owner", "unknown"))).call_id is None

    @pytest.mark.parametrize(
        "statuses",
        [None, {Status.WORKING}, {Status.WORKING, Status.FAILED}],
        ids=["any", "open", "open and failed"],
    )
    async def test_a_search_goes_on_where_it_left_off(
        self, store: StoredTasks, statuses: set[Status] | None
    ) -> None:
        for n in range(12):
            await store.create(new(TaskRef(f"owner{n % 2}", f"{n}"), call=blob(5000)))
            if n % 3 == 0:
                lease = (await claim(store, TaskRef(f"owner{n % 2}", f"{n}"))).lease
                await store.write(lease, events.Finish(Status.FAILED, b"{}"), NOW)
        wanted = Wanted(statuses=None if statuses is None else frozenset(statuses))
        at_once = ids((await store.find(wanted, limit=50)).records)
        found: list[str] = []
        cursor, calls = None, 0
        while calls == 0 or cursor is not None:
            some = await store.find(wanted, limit=5, cursor=cursor)
            assert len(some.records) <= 5
            found += ids(some.records)
            cursor, calls = some.cursor, calls + 1
        assert sorted(found) == sorted(at_once)
        assert len(set(found)) == len(found) == (8 if statuses == {Status.WORKING} else 12)

    @pytest.mark.parametrize(
        "cursor",
        [
            *("", "-1", "x", "WzAsIG51bGx", "W10", "\u0661", "e30", "WzksbnVsbF0"),
            *map(_encoded_cursor, _FORGED_KEYS),
        ],
    )
    async def test_what_is_no_cursor_is_refused(self, store: StoredTasks, cursor: str) -> None:
        of_owner = Wanted(owner="a", statuses=frozenset({Status.WORKING}))
        for wanted in (of_owner, Wanted(), Wanted(endings=frozenset({Ending.ERROR}))):
            with pytest.raises(ValueError, match="unknown cursor"):
                await store.find(wanted, 10, cursor)

    async def test_what_is_found_is_as_it_is_read(self, store: StoredTasks) -> None:
        await store.write(
            await working(store, status_message="said"), events.Release(SOON, SOON), NOW
        )
        assert (await store.find()).records == [await record(store)]

    @pytest.mark.parametrize("status", sorted(TERMINAL))
    async def test_a_task_that_ended_is_purged_with_all_that_is_kept_of_it(
        self, store: StoredTasks, status: Status
    ) -> None:
        lease = await working(store, call=blob(9000))
        await store.write(lease, events.Checkpoint(added=Added([blob(9000)])), NOW)
        await store.write(lease, events.Finish(status, blob(9000)), NOW)
        await working(store, TaskRef("owner", "other"))
        assert await store.purge(REF, NOW) is True
        assert await store.purge(REF, NOW) is False
        assert await store.read(REF, NOW) is None
        assert ids((await store.find()).records) == ["other"]
        assert await store.create(new()) is True
        assert (await claim(store)).journal == []

    async def test_an_open_task_is_not_purged_before_its_time_is_over(
        self, store: StoredTasks
    ) -> None:
        lease = await working(store)
        before = await record(store)
        assert await store.purge(REF, NOW) is False
        assert await record(store) == before
        await store.write(lease, events.Checkpoint(added=Added([b"entry"])), NOW)
        assert await store.purge(REF, END) is True
        with pytest.raises(LeaseLost):
            await store.write(lease, events.Checkpoint(added=Added([b"another"])), NOW)
        assert (await store.find()).records == []

    async def test_large_payloads_do_not_hide_a_task_from_its_operator(
        self, store: StoredTasks
    ) -> None:
        await asking(store, {"a": blob(500_000)}, call=blob(2_000_000))
        await store.write(
            await working(store, TaskRef("owner", "2")),
            events.Finish(Status.COMPLETED, blob(500_000)),
            NOW,
        )
        assert sorted(ids((await store.find()).records)) == ["2", "id"]

    @pytest.mark.parametrize("state", ["leased", "asleep"])
    async def test_a_working_task_is_taken_from_whoever_has_it(
        self, store: StoredTasks, state: str
    ) -> None:
        await (working(store) if state == "leased" else asleep(store))
        before = await record(store)
        assert (await store.apply(REF, events.Requeue(SOON + 1), NOW)).happened is True
        found = await record(store)
        assert found.fence > before.fence
        expected = replace(before, fence=found.fence, lease_until_ms=0, wake_ms=0, due_ms=SOON + 1)
        assert found == expected
        assert (await claim(store)).lease.fence > found.fence

    async def test_a_task_that_somebody_has_claimed_since_is_not_requeued(
        self, store: StoredTasks
    ) -> None:
        await store.create(new())
        found = await record(store)
        assert (
            await store.apply(REF, events.Requeue(SOON, fence=found.fence + 1), NOW)
        ).happened is False
        await claim(store)
        before = await record(store)
        assert (
            await store.apply(REF, events.Requeue(SOON, fence=found.fence), NOW)
        ).happened is False
        assert await record(store) == before
        assert (
            await store.apply(REF, events.Requeue(SOON, fence=before.fence), NOW)
        ).happened is True

    async def test_only_a_working_task_is_requeued(self, store: StoredTasks) -> None:
        assert (await store.apply(REF, events.Requeue(SOON), NOW)).happened is False
        await asking(store, {"a": b"?"})
        before = await record(store)
        assert (await store.apply(REF, events.Requeue(SOON), NOW)).happened is False
        assert await record(store) == before
        await store.apply(REF, events.Cancel("cancelled", NOW), NOW)
        assert (await store.apply(REF, events.Requeue(SOON), NOW)).happened is False
        assert (await store.open_tasks(10))[0] == []
