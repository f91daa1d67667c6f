"""What every task store promises: a suite that the test of each store inherits. See
app/roundgate/storage/tasks.py. What the machine makes of events on a store is in
tests/roundgate/tasks/test_stored.py.

A test of a store gives the fixture `reopen`: it makes a store on the same data,
as another process would.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import pytest
from msgspec.structs import replace

from roundgate.json import encode
from roundgate.protocol.tasks import Status
from roundgate.storage.tasks import (
    FORGET_AFTER_MS,
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
from roundgate.tasks import events
from roundgate.tasks.events import (
    Added,
    AnswersTaken,
    Cancelled,
    NewTask,
    NotClaimed,
)
from roundgate.tasks.stored import Claimed, Lease, StoredTasks

Reopen = Callable[[], StoredTasks]

NOW: Final = 1_800_000_000_000
END: Final = NOW + 3_600_000
SOON: Final = NOW + 10_000
UNTIL: Final = NOW + 30_000
REF: Final = TaskRef("owner", "id")
EVERY_BYTE: Final = bytes(range(256))
TERMINAL: Final = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


def blob(size: int) -> bytes:
    """Bytes of which no part is like another."""
    return random.Random(size).randbytes(size)


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


async def became(
    store: StoredTasks, event: events.Event, now_ms: int = NOW, ref: TaskRef = REF
) -> StrEnum | None:
    """Apply an event; return what became of it."""
    return (await store.apply(ref, event, now_ms)).result


async def happens(
    store: StoredTasks, event: events.Event, now_ms: int = NOW, ref: TaskRef = REF
) -> bool:
    """Apply an event; return whether it happened."""
    return (await store.apply(ref, event, now_ms)).happened


async def answer(
    store: StoredTasks, answers: Mapping[str, bytes], ref: TaskRef = REF, now_ms: int = NOW
) -> StrEnum | None:
    """Deliver the answers of a client; return what became of them."""
    return await became(store, events.TakeAnswers(answers, SOON), now_ms, ref)


async def checkpoint(store: StoredTasks, lease: Lease, *entries: bytes) -> None:
    """Add entries to the journal."""
    await store.write(lease, events.Checkpoint(added=Added(entries)), NOW)


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


async def over(store: StoredTasks, status: Status, ref: TaskRef = REF) -> None:
    if status is Status.CANCELLED:
        await store.create(new(ref))
        await store.apply(ref, events.Cancel("cancelled", NOW), NOW)
    else:
        await store.write(await working(store, ref), events.Finish(status, b"outcome", "over"), NOW)


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

    @pytest.mark.parametrize("seed", range(3))
    async def test_any_changes_leave_the_record_its_values_and_its_place_in_the_index(
        self, store: StoredTasks, seed: int
    ) -> None:
        """Whatever an event of the machine writes is a change like one of these."""
        draw = random.Random(seed)
        await store.create(new(journal=[b"0"], state=b"{}"))
        known, call, state, journal = await raw(store), b"call", b"{}", [b"0"]
        answers, requests = dict[str, bytes](), dict[str, bytes]()

        def value() -> bytes:
            return draw.randbytes(draw.choice((0, 1, 900, 5_000, 40_000)))

        for n in range(25):
            puts, drops = list[Put](), list[Drop]()
            if draw.random() < 0.15:
                drops.append(Drop(RecordPart.ANSWER))
                answers.clear()
            else:
                added = {name: value() for name in draw.sample("abcdef", 2)}
                puts += [Put(RecordPart.ANSWER, answer, name) for name, answer in added.items()]
                answers |= added
            if draw.random() < 0.4:  # questions are asked together, in place of those before
                drops.append(Drop(RecordPart.REQUEST))
                requests = {name: value() for name in draw.sample("abcdef", draw.randrange(4))}
                puts += [Put(RecordPart.REQUEST, asked, name) for name, asked in requests.items()]
            elif requests:
                drops.append(Drop(RecordPart.REQUEST, gone := draw.choice([*requests])))
                del requests[gone]
            if draw.random() < 0.1:
                drops.append(Drop(RecordPart.JOURNAL))
                journal = []
            entries = [value() for _ in range(draw.randrange(4))]
            puts += [Put(RecordPart.JOURNAL, entry) for entry in entries]
            journal += entries
            if draw.random() < 0.3:
                call, state = value(), value()
                puts += [Put(RecordPart.CALL, call), Put(RecordPart.STATE, state)]
            fields: dict[str, Any] = {
                "asked": tuple(requests),
                "status": Status.INPUT_REQUIRED if requests else Status.WORKING,
                "status_message": draw.choice((None, "on it")),
                "fence": n,
                "lease_until_ms": draw.choice((0, UNTIL)),
                "due_ms": NOW + draw.randrange(100),
                "resends": draw.randrange(3),
                "unsent": draw.random() < 0.5,
                "expires_ms": END + draw.randrange(100),
            }
            known = await swapped(store, change(known, fields, puts, drops))
            found, (head, work) = await record(store), await store.read_work(REF)
            assert head == known == replace(found, requests={})
            assert list(found.requests.items()) == list(requests.items())
            assert work == Work(call, journal, state, answers)
            index = OpenTask(
                *(REF, "report", known.status, NOW, known.expires_ms, fields["due_ms"]),
                *(known.resends, known.unsent),
            )
            assert await store.due(END, 10) == [index]
            assert await store.due(index.due_ms - 1, 10) == []
        ended = {"status": Status.FAILED, "ending": Ending.ERROR, "due_ms": None}
        await swapped(store, change(known, ended))
        assert (await store.due(END, 10), await store.count_open("owner", 10)) == ([], 0)

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
        await store.create(new(status_message="waits", call_id="call"))
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
            call_id="call",
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
        assert await answer(stores[2], {"a": b"!"}, task.ref) is AnswersTaken.PARTLY
        assert list((await record(stores[3], task.ref)).requests) == ["b"]
        assert await answer(stores[2], {"b": b"!"}, task.ref) is AnswersTaken.FULLY
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
        await answer(store, {"a": payload, "b": b"small"})
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
        await answer(store, {"a": EVERY_BYTE})
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
        await checkpoint(store, lease, b"before")
        await checkpoint(store, lease, blob(size))
        await checkpoint(store, lease, b"after")
        journal = (await take_over(store)).journal
        assert list(journal) == [b"from before", b"before", blob(size), b"after"]

    async def test_a_result_of_5_mb(self, store: StoredTasks) -> None:
        lease = await working(store)
        await store.write(lease, events.Finish(Status.COMPLETED, blob(5_000_000)), NOW)
        assert (await record(store)).outcome == blob(5_000_000)

    async def test_answers_of_500_kb(self, store: StoredTasks) -> None:
        await asking(store, {"a": b"?", "b": b"?", "c": b"?"})
        answers = {"a": blob(500_000), "b": b"small", "c": blob(500_001)}
        assert await answer(store, answers) is AnswersTaken.FULLY
        assert (await claim(store)).answers == answers

    async def test_questions_of_500_kb(self, store: StoredTasks) -> None:
        requests = {"z": blob(500_000), "a": b"small", "m": blob(500_001)}
        await asking(store, requests)
        assert list((await record(store)).requests.items()) == list(requests.items())

    async def test_a_state_of_500_kb_is_replaced(self, store: StoredTasks) -> None:
        lease = await working(store, state=blob(500_000))
        await store.write(lease, events.Checkpoint(added=Added(state=blob(500_001))), NOW)
        await checkpoint(store, lease, b"entry")
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

    # owner and end

    async def test_who_asks_under_another_owner_finds_nothing_and_changes_nothing(
        self, store: StoredTasks
    ) -> None:
        await asking(store, {"a": b"?"})
        before = await record(store)
        foreign = TaskRef("other", "id")
        assert await store.read(foreign, NOW) is None
        assert await answer(store, {"a": b"!"}, foreign) is AnswersTaken.UNKNOWN_TASK
        assert await answer(store, {"a": blob(9000)}, foreign) is AnswersTaken.UNKNOWN_TASK
        assert (
            await became(store, events.Cancel("cancelled", NOW), NOW, foreign)
            is Cancelled.UNKNOWN_TASK
        )
        assert await store.claim(foreign, events.Claim(UNTIL, UNTIL, NOW), NOW) is NotClaimed.GONE
        assert await happens(store, events.Requeue(SOON), NOW, foreign) is False
        await store.apply(foreign, events.Expire(END), END)
        assert await record(store) == before
        assert ids((await store.find()).records) == ["id"]

    # restart and park

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
        assert await answer(store, requests) is AnswersTaken.FULLY
        assert (await claim(store)).answers == requests

    # answer

    async def test_answers_of_all_rounds_are_kept(self, store: StoredTasks) -> None:
        lease = await working(store)
        expected: dict[str, bytes] = {}
        for n in range(30):
            await store.write(lease, events.SuspendTask({f"{n}/{m}": b"?" for m in range(4)}), NOW)
            answers = {f"{n}/{m}": b"%d %d %b" % (n, m, blob(3900)) for m in range(4)}
            assert await answer(store, answers) is AnswersTaken.FULLY
            expected |= answers
            lease = (await claim(store)).lease
        assert (await take_over(store)).answers == expected

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

    async def test_what_a_sweeper_says_of_its_clock_is_told_to_the_next(
        self, store: StoredTasks, reopen: Reopen
    ) -> None:
        assert await store.tell_time(b"first") is None
        assert await store.tell_time(b"second") == b"first"
        assert await reopen().tell_time(b"third") == b"second"

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
        await answer(store, {"a": blob(700)})
        lease = (await claim(store)).lease
        for n in range(3):
            await checkpoint(store, lease, blob(2000 + n))
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

    async def test_a_task_that_ended_is_purged_with_all_that_is_kept_of_it(
        self, store: StoredTasks
    ) -> None:
        lease = await working(store, call=blob(9000))
        await checkpoint(store, lease, blob(9000))
        await store.write(lease, events.Finish(Status.FAILED, blob(9000)), NOW)
        await working(store, TaskRef("owner", "other"))
        assert await store.purge(REF, NOW) is True
        assert await store.purge(REF, NOW) is False
        assert await store.read(REF, NOW) is None
        assert ids((await store.find()).records) == ["other"]
        assert await store.create(new()) is True
        assert (await claim(store)).journal == []

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
