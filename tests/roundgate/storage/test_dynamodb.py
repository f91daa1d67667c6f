"""The DynamoDB stores do what every store must, at DynamoDB Local."""

from __future__ import annotations

import asyncio
import json
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from roundgate.clock import Clock
from roundgate.errors import LeaseLost, Unavailable
from roundgate.protocol.tasks import Status
from roundgate.settings import TasksConfig
from roundgate.storage.dynamodb import table as versions
from roundgate.storage.dynamodb.sessions import DynamoDbSessions
from roundgate.storage.dynamodb.table import Table
from roundgate.storage.dynamodb.tasks import DynamoDbTasks
from roundgate.storage.ports import OnceRecord, OnceStore, SessionStore
from roundgate.storage.tasks import TaskRef, Wanted
from roundgate.tasks import events
from roundgate.tasks.events import Added, AnswersTaken
from roundgate.tasks.stored import Claimed, Lease, StoredTasks
from roundgate.tasks.sweep import SHARD_MS, Sweep
from tests.roundgate.storage import once_contract, task_contract
from tests.roundgate.storage.account_contract import AccountContract
from tests.roundgate.storage.once_contract import LATER
from tests.roundgate.storage.rate_contract import RateContract
from tests.roundgate.storage.session_contract import SessionStoreContract
from tests.roundgate.storage.task_contract import (
    END,
    NOW,
    REF,
    SOON,
    UNTIL,
    asking,
    became,
    blob,
    checkpoint,
    claim,
    happens,
    ids,
    new,
    record,
    take_over,
    working,
)
from tests.roundgate.storage.version_contract import Opened, VersionContract
from tests.support.clocks import FixedClock
from tests.support.dynamodb import ROOT, Emulator
from tests.support.long import is_long
from tests.support.postponing import Move, postpone, postpone_many
from tests.support.proxy import Proxy, Way
from tests.support.reopening import reopening

DAY_S = 86_400
TABLE = json.loads((ROOT / "infra/table.json").read_text())
TWO_DAYS_S = 2 * DAY_S


@pytest.fixture
def table(dynamodb: Emulator) -> Iterator[str]:
    with dynamodb.table() as name:
        yield name


@pytest.fixture
async def open_sessions(
    dynamodb: Emulator, table: str, clock: FixedClock
) -> AsyncIterator[Callable[[], SessionStore]]:
    async with reopening(lambda: DynamoDbSessions(dynamodb.open(table), clock)) as open_one:
        yield open_one


class TestDynamoDbTasks(task_contract.TaskStoreContract):
    """The contract of tasks."""

    @pytest.fixture
    async def reopen(self, dynamodb: Emulator, table: str) -> AsyncIterator[task_contract.Reopen]:
        async with reopening(lambda: StoredTasks(DynamoDbTasks(dynamodb.open(table)))) as open_one:
            yield open_one


class TestDynamoDbOnce(once_contract.OnceStoreContract):
    """The contract of `once`."""

    @pytest.fixture
    def swept(self, dynamodb: Emulator, table: str, clock: FixedClock) -> once_contract.Swept:
        """DynamoDB deletes what is past its `ttl`, within days."""

        async def is_due(token_id: str) -> bool:
            pk = f"U#once.{token_id}"
            (row,) = [item for item in dynamodb.items(table) if item["pk"]["S"] == pk]
            return int(row["ttl"]["N"]) * 1000 <= clock.now_ms()

        return is_due

    @pytest.fixture
    def spawn_claims(self, dynamodb: Emulator, table: str) -> once_contract.SpawnClaims:
        imports = (
            "from roundgate.storage.dynamodb import DynamoDbSessions\n"
            "from bench.dynamodb import Emulator\nimport boto3"
        )
        sessions = "DynamoDbSessions(Emulator(place[0]).open(place[1]), Clock())"
        return once_contract.spawning(imports, sessions, [dynamodb.url, table])

    async def test_an_outcome_larger_than_a_row_is_read_back(self, store: OnceStore) -> None:
        await store.claim("id", "yes", 10, LATER)
        await store.finish("id", blob(3_000_000), LATER)
        assert await store.read("id") == OnceRecord("yes", blob(3_000_000), 10)
        assert await store.claim("id", "no", 20, LATER) == OnceRecord("yes", blob(3_000_000), 10)
        await store.finish("id", blob(4_000_000), LATER)
        assert await store.read("id") == OnceRecord("yes", blob(3_000_000), 10)

    async def test_rows_of_a_large_outcome_go_with_their_record(
        self, store: OnceStore, dynamodb: Emulator, table: str
    ) -> None:
        await store.claim("id", "yes", 10, 5001)
        await store.finish("id", blob(1_000_000), 5001)
        assert [item["ttl"]["N"] for item in dynamodb.items(table)] == [f"{TWO_DAYS_S + 6}"] * 5


class TestDynamoDbSessions(SessionStoreContract):
    """The contract, on DynamoDB."""


@pytest.mark.long
class TestDynamoDbAccounts(AccountContract):
    """The contract of accounts, on DynamoDB."""


@pytest.mark.long
class TestDynamoDbRates(RateContract):
    """The contract of shared token buckets, on DynamoDB."""


class TestDynamoDbVersions(VersionContract):
    """The contract of versions, on DynamoDB."""

    @pytest.fixture
    async def opened(
        self, dynamodb: Emulator, table: str, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Opened]:
        made: list[DynamoDbSessions] = []

        async def open_some(
            version: int, min_version: int = 1, processes: int = 1
        ) -> list[DynamoDbSessions]:
            stores = [DynamoDbSessions(dynamodb.open(table), clock) for _ in range(processes)]
            made.extend(stores)
            with monkeypatch.context() as patched:
                patched.setattr(versions, "VERSION", version)
                patched.setattr(versions, "MIN_VERSION", min_version)
                await asyncio.gather(*(store.read("key") for store in stores))
            return stores

        yield open_some
        for store in made:
            await store.aclose()

    async def test_a_refusal_is_a_trouble(
        self, dynamodb: Emulator, table: str, opened: Opened
    ) -> None:
        await opened(2, 2)
        older = dynamodb.open(table)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await older.root("pk")
            assert "another version of the gateway" in (older.trouble() or "")
        await older.aclose()


# the table


def test_the_table_is_made_as_it_is_defined(dynamodb: Emulator, table: str) -> None:
    client = dynamodb.client()
    made = client.describe_table(TableName=table)["Table"]
    assert made["KeySchema"] == TABLE["KeySchema"]
    assert made["BillingModeSummary"]["BillingMode"] == TABLE["BillingMode"] == "PAY_PER_REQUEST"
    indexes = {index["IndexName"]: index for index in made["GlobalSecondaryIndexes"]}
    assert len(indexes) == len(TABLE["GlobalSecondaryIndexes"]) == 3
    for defined in TABLE["GlobalSecondaryIndexes"]:
        index = indexes[defined["IndexName"]]
        assert index["KeySchema"] == defined["KeySchema"]
        assert index["Projection"]["ProjectionType"] == defined["Projection"]["ProjectionType"]
        projected = [one["Projection"].get("NonKeyAttributes", []) for one in (index, defined)]
        assert sorted(projected[0]) == sorted(projected[1])
    ttl = client.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    client.close()


def test_what_only_a_deployed_table_has_is_asked_for() -> None:
    assert TABLE["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert "SSESpecification" not in TABLE, (
        "the free encryption is the default, and is not asked for"
    )


async def test_every_row_goes_two_days_after_the_end(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    store = tasks.store
    await store.create(new(call=blob(9000), state=blob(9000), journal=[blob(9000)]))
    lease = (await claim(store)).lease
    await store.write(lease, events.Checkpoint(added=Added([blob(9000)], blob(9000))), NOW)
    await store.write(lease, events.SuspendTask({"a": blob(9000)}), NOW)
    await store.apply(REF, events.TakeAnswers({"a": blob(9000)}, SOON), NOW)
    await store.write((await claim(store)).lease, events.Finish(Status.COMPLETED, blob(9000)), NOW)
    rows = dynamodb.items(table)
    assert len(rows) == 7, "head, call, 2 of the journal, last state, answer, result"
    ends = {row["sk"]["S"]: int(row["ttl"]["N"]) for row in rows}
    assert ends.pop("0") == END // 1000 + TWO_DAYS_S
    assert set(ends.values()) == {next_day_s(END // 1000 + TWO_DAYS_S)}


def next_day_s(seconds: int) -> int:
    return -(-seconds // DAY_S) * DAY_S


async def test_every_row_stays_as_long_as_waits_extend_its_task(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    store, later_ms = tasks.store, END + 5 * 1000 * DAY_S
    await store.create(new(call=blob(9000), state=blob(9000), journal=[blob(9000)]))
    lease = (await claim(store)).lease
    await checkpoint(store, lease, blob(9000))
    added = Added([blob(9000)], expires_ms=later_ms)
    await store.write(lease, events.Release(SOON, SOON, added=added), NOW)
    ends = {row["sk"]["S"]: int(row["ttl"]["N"]) for row in dynamodb.items(table)}
    assert len(ends) == 6, "head, call, state, 3 of the journal"
    assert ends.pop("0") == later_ms // 1000 + TWO_DAYS_S
    assert set(ends.values()) == {next_day_s(later_ms // 1000 + TWO_DAYS_S)}
    lease = (await claim(store, now_ms=SOON)).lease
    added = Added([b"1"], expires_ms=later_ms + 1_000)
    calls = await tasks.calls(store.write(lease, events.Checkpoint(added=added), SOON))
    assert calls == {"update_item": 1}, "the rows stay until the end of that day already"


async def test_what_is_over_is_in_no_index_and_keeps_nothing_of_the_work(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    await tasks.store.write(await working(tasks.store), events.Finish(Status.COMPLETED, b"{}"), NOW)
    (head,) = dynamodb.items(table)
    assert not head.keys() & {
        "shard",
        "due_ms",
        "call",
        "state",
        "answers",
        "chunks",
        "tail",
        "owner",
        "settled",
    }


async def test_open_tasks_are_spread_over_the_shards(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    for _ in range(40):
        await tasks.store.create(new(TaskRef("owner", Clock().new_id())))
    assert len({row["shard"]["S"] for row in dynamodb.items(table)}) > 3


async def test_what_checkpoints_write_does_not_touch_the_index(
    dynamodb: Emulator, table: str
) -> None:
    defined = TABLE["GlobalSecondaryIndexes"][0]
    store = StoredTasks(DynamoDbTasks(dynamodb.open(table)))
    lease = await working(store)
    (before,) = dynamodb.items(table)
    await store.write(lease, events.Checkpoint(added=Added([b"entry"], b"state", "message")), SOON)
    (after,) = dynamodb.items(table)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed == {
        "tail",
        "state",
        "status_message",
        "noted",
        "revision",
        "updated_ms",
        "version",
    }
    assert not changed & {
        "pk",
        "sk",
        "shard",
        "due_ms",
        "owner",
        *defined["Projection"]["NonKeyAttributes"],
    }
    await store.aclose()


# how many calls


class Client:
    """boto3's client, with every call counted, and what a test does to it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.calls: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda operation: None
        self.after: Callable[[str], None] = lambda operation: None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in {
            "put_item",
            "update_item",
            "get_item",
            "batch_get_item",
            "query",
            "scan",
            "batch_write_item",
        }:
            return found

        def call(**arguments: Any) -> Any:
            self.calls[name] += 1
            self.before(name)
            try:
                return found(**arguments)
            finally:
                self.after(name)

        return call


class Counted:
    """A store, and the client under it."""

    def __init__(self, dynamodb: Emulator, table: str) -> None:
        self.client = Client(dynamodb.client())
        self._table = Table(table, lambda: self.client, Clock())
        self.store = StoredTasks(DynamoDbTasks(self._table))
        self.sessions = DynamoDbSessions(self._table, Clock())
        self.once = OnceStore(self.sessions)

    async def calls(self, work: Any) -> dict[str, int]:
        self.client.calls.clear()
        await work
        return dict(self.client.calls)


@pytest.fixture
async def tasks(dynamodb: Emulator, table: str) -> AsyncIterator[Counted]:
    counted = Counted(dynamodb, table)
    await counted.once.read("checks the version of the table, once")
    yield counted
    await counted.store.aclose()


READ_AND_WRITE = {"get_item": 1, "update_item": 1}


async def test_everything_usual_is_one_write_and_a_read_before_it_without_a_lease(
    tasks: Counted,
) -> None:
    store, calls = tasks.store, tasks.calls
    assert await calls(
        store.create(new(call=blob(1000), journal=[blob(100)], state=blob(1000)))
    ) == {"put_item": 1}
    assert await calls(store.read(REF, NOW)) == {"query": 1}
    assert await calls(store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW)) == READ_AND_WRITE
    assert await calls(store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW)) == {"get_item": 1}, (
        "refused"
    )
    assert await calls(store.claim(REF, events.Claim(END, END, UNTIL), UNTIL)) == {"get_item": 1}, (
        "a suspect"
    )
    assert await calls(store.claim(REF, events.Claim(END, END, UNTIL, alone=True), UNTIL)) == {
        **READ_AND_WRITE,
        "query": 1,
    }, "what died tidied"
    assert (
        await calls(store.apply(REF, events.LetGo(SOON, blame=False, fence=2), NOW))
        == READ_AND_WRITE
    )
    lease = (await claim(store, alone=True)).lease
    assert await calls(
        store.write(lease, events.Checkpoint(added=Added([b"1", b"2"], b"state", "on it")), NOW)
    ) == {"update_item": 1}
    assert await calls(store.write(lease, events.Checkpoint(UNTIL), NOW)) == {"update_item": 1}
    assert await calls(
        store.write(lease, events.SuspendTask({"a": b"?", "b": b"?"}, added=Added([b"3"])), NOW)
    ) == {"update_item": 1}
    assert (
        await calls(store.apply(REF, events.TakeAnswers({"a": b"!", "b": b"!"}, SOON), NOW))
        == READ_AND_WRITE
    )
    lease = (await claim(store)).lease
    assert await calls(store.write(lease, events.Release(0, SOON), NOW)) == {"update_item": 1}
    (task,) = await store.due(END, 10)
    assert await calls(postpone(store, task, UNTIL)) == {"batch_get_item": 1, "update_item": 1}
    assert await calls(store.count_open("owner", 10)) == {"query": 1}
    assert await calls(store.apply(REF, events.Requeue(SOON), NOW)) == READ_AND_WRITE
    lease = (await claim(store)).lease
    assert await calls(store.write(lease, events.Finish(Status.COMPLETED, blob(4000)), NOW)) == {
        "update_item": 1
    }
    assert await calls(store.read(REF, NOW)) == {"query": 1}
    assert await calls(store.apply_many([(REF, events.Expire(END))], END)) == {
        "batch_get_item": 1
    }, "it is over"


async def test_a_lease_of_a_shard_is_a_read_and_a_write(tasks: Counted) -> None:
    clock = FixedClock(Clock().now_ms())
    no_queue: Any = None  # a lease needs none
    one, other = (
        Sweep(tasks.store, no_queue, tasks.sessions, clock, TasksConfig()) for _ in range(2)
    )
    assert await tasks.calls(one._take(0, SHARD_MS)) == {"get_item": 1, "put_item": 1}, "new"
    assert await tasks.calls(one._take(0, SHARD_MS)) == READ_AND_WRITE, "for longer"
    assert await tasks.calls(other._take(0, SHARD_MS)) == {"get_item": 1}, "refused"
    assert await tasks.calls(one._take(0, 0)) == READ_AND_WRITE, "released"


async def test_large_values_cost_a_batch_more(tasks: Counted) -> None:
    store, calls = tasks.store, tasks.calls
    assert await calls(store.create(new(call=blob(2_000_000)))) == {
        "batch_write_item": 1,
        "put_item": 1,
    }
    assert await calls(store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW)) == {
        **READ_AND_WRITE,
        "batch_get_item": 1,
    }
    lease = (await take_over(store)).lease
    work = store.write(lease, events.Finish(Status.COMPLETED, blob(300_000)), NOW)
    assert await calls(work) == {"batch_write_item": 1, "update_item": 1}
    assert await calls(store.read(REF, NOW)) == {"query": 1}, "without the call"


async def test_a_long_journal_is_read_in_few_rows(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    lease = await working(tasks.store)
    count, most = (2_000, 20) if is_long() else (500, 12)
    entries = [b"%d %b" % (n, blob(60)) for n in range(count)]
    for entry in entries:
        await checkpoint(tasks.store, lease, entry)
    assert list((await take_over(tasks.store)).journal) == entries
    (head,) = [row for row in dynamodb.items(table) if row["sk"]["S"] == "0"]
    assert len(head["chunks"]["L"]) <= most


async def test_what_a_later_write_replaces_is_read_no_more_and_deleted(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    store = tasks.store
    await store.create(new(call=blob(2_000)))
    for n in range(4):
        lease = (await claim(store)).lease
        await store.write(lease, events.Checkpoint(added=Added(state=blob(20_000 + n))), NOW)
        await store.write(lease, events.SuspendTask({"a": blob(9_000), "b": b"?"}), NOW)
        await store.apply(REF, events.TakeAnswers({"b": b"!"}, SOON), NOW)
        assert (await record(store)).requests == {"a": blob(9_000)}
        await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), NOW)
    assert len(dynamodb.items(table)) == 3, "head, call, the last state"


async def test_questions_that_are_cancelled_or_expire_leave_no_rows(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    other = TaskRef("owner", "other")
    await asking(tasks.store, {"a": blob(9_000)})
    await asking(tasks.store, {"a": blob(9_000)}, other)
    await tasks.store.apply(REF, events.Cancel("cancelled", NOW), NOW)
    await tasks.store.apply(other, events.Expire(END), END)
    assert [row["sk"]["S"] for row in dynamodb.items(table)] == ["0", "0"]


async def test_what_a_worker_that_lost_its_lease_had_written_is_deleted(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    lease = await working(tasks.store)
    await take_over(tasks.store)
    with pytest.raises(LeaseLost):
        await tasks.store.write(lease, events.Finish(Status.COMPLETED, blob(900_000)), NOW)
    assert await tasks.store.create(new(call=blob(900_000))) is False
    assert [row["sk"]["S"] for row in dynamodb.items(table)] == ["0"]


async def test_what_a_worker_that_died_had_written_is_deleted_by_the_next(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    """It died between the rows of a large result and the head that would have named them."""
    lease = await working(tasks.store)

    def die(operation: str) -> None:
        if operation == "update_item":
            raise timeout()

    tasks.client.before = die
    with pytest.raises(Unavailable):
        await tasks.store.write(lease, events.Finish(Status.COMPLETED, blob(900_000)), NOW)
    tasks.client.before = lambda operation: None
    assert len(dynamodb.items(table)) == 4
    await take_over(tasks.store)
    assert [row["sk"]["S"] for row in dynamodb.items(table)] == ["0"]


async def test_answers_that_a_worker_has_seen_are_not_paid_for_at_each_step(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    answers = {f"{n}": blob(900 + n) for n in range(6)}
    await asking(tasks.store, dict.fromkeys([*answers, "last"], b"?"))
    await tasks.store.apply(REF, events.TakeAnswers({**answers, "last": b"!"}, SOON), NOW)
    lease = (await claim(tasks.store)).lease
    await checkpoint(tasks.store, lease, b"entry")
    (head,) = [row for row in dynamodb.items(table) if row["sk"]["S"] == "0"]
    assert head["answers"] == {"M": {}}
    await tasks.store.write(lease, events.SuspendTask({"0": b"again?"}), NOW)
    await tasks.store.apply(REF, events.TakeAnswers({"0": b"new"}, SOON), NOW)
    claimed = await claim(tasks.store)
    assert claimed.answers == {**answers, "last": b"!", "0": b"new"}
    assert list(claimed.journal) == [b"entry"]


async def test_rows_from_before_there_were_these_attributes_go_on(
    tasks: Counted, dynamodb: Emulator, table: str
) -> None:
    """A head as the version before this one wrote it, with a journal in chunks
    that are named otherwise."""
    client = dynamodb.client()
    first = struct.pack(">I", 4) + b"0000"
    old = {
        "pk": {"S": "T#owner.id"}, "sk": {"S": "0"}, "ttl": {"N": "1800176400"}, "tool": {"S": "report"},
        "status": {"S": "working"}, "created_ms": {"N": f"{NOW}"}, "updated_ms": {"N": f"{NOW}"},
        "expires_ms": {"N": f"{END}"}, "revision": {"N": "1"}, "fence": {"N": "1"}, "attempts": {"N": "1"},
        "requests": {"M": {}}, "lease_until_ms": {"N": f"{UNTIL}"}, "wake_ms": {"N": "0"},
        "shard": {"S": "3"}, "due_ms": {"N": f"{UNTIL}"}, "call": {"B": b"call"}, "state": {"B": b"{}"},
        "answers": {"M": {"a": {"B": b"!"}}}, "answered": {"N": "1"},
        "chunks": {"L": [{"S": "2#AAAAAAAAAAAAAAAAAAAAAA#1"}]}, "tail": {"L": [{"B": b"1"}]}, "version": {"S": "x"},
    }  # fmt: skip
    part = {
        "pk": old["pk"],
        "sk": {"S": "2#AAAAAAAAAAAAAAAAAAAAAA#0000"},
        "ttl": old["ttl"],
        "b": {"B": first},
    }
    for item in (old, part):
        client.put_item(TableName=table, Item=item)
    client.close()
    found = await record(tasks.store)
    assert (found.deaths, found.suspect, found.alone, found.declined_ms) == (0, False, False, 0)
    assert (found.journal_version, found.resends) == (1, 0)
    assert [task.ref for task in await tasks.store.due(UNTIL, 10)] == [REF]
    claimed = await take_over(tasks.store)
    assert (list(claimed.journal), claimed.answers, claimed.record.deaths) == (
        [b"0000", b"1"],
        {"a": b"!"},
        0,
    )
    await checkpoint(tasks.store, claimed.lease, b"2", blob(3000))
    await tasks.store.write(claimed.lease, events.Release(0, SOON), NOW)
    assert list((await claim(tasks.store)).journal) == [b"0000", b"1", b"2", blob(3000)]


@pytest.mark.parametrize("shards", [1, 8, 32])
async def test_a_sweeper_sees_every_shard_that_may_have_tasks(
    dynamodb: Emulator, table: str, shards: int
) -> None:
    many = StoredTasks(DynamoDbTasks(dynamodb.open(table), shards=shards))
    refs = [TaskRef("owner", f"{n}") for n in range(40)]
    for ref in refs:
        await many.create(new(ref))
    await StoredTasks(DynamoDbTasks(dynamodb.open(table))).create(new())
    found = [await many.due(END, 100, shard) for shard in range(many.store.shards)]
    assert sorted(task.ref for tasks in found for task in tasks) == sorted([*refs, REF])
    assert many.store.shards == max(8, shards)
    assert len([tasks for tasks in found if tasks]) > min(shards, 10) // 2


# capacity units


class Metered:
    """A store, and the units that its calls consume."""

    def __init__(self, dynamodb: Emulator, table: str) -> None:
        self.units: Counter[str] = Counter()
        self.store = StoredTasks(
            DynamoDbTasks(dynamodb.open(table, lambda: self._watched(dynamodb.client())))
        )

    def _watched(self, client: Any) -> Any:
        def ask(params: dict[str, Any], **_: Any) -> dict[str, Any]:
            return {**params, "ReturnConsumedCapacity": "TOTAL"}

        client.meta.events.register("provide-client-params.dynamodb", ask)
        client.meta.events.register("after-call.dynamodb", self._note)
        return client

    def _note(self, parsed: dict[str, Any], model: Any, **_: Any) -> None:
        consumed = parsed.get("ConsumedCapacity", [])
        reads = {"GetItem", "BatchGetItem", "Query", "Scan"}
        kind = "read" if model.name in reads else "write"
        for one in consumed if isinstance(consumed, list) else [consumed]:
            self.units[kind] += one["CapacityUnits"]

    async def of(self, work: Any) -> tuple[float, float]:
        """Read and write units."""
        self.units.clear()
        await work
        return self.units["read"], self.units["write"]


@pytest.fixture
async def metered(dynamodb: Emulator, table: str) -> AsyncIterator[Metered]:
    made = Metered(dynamodb, table)
    await made.store.read(REF, NOW)  # checks the version of the table, once
    yield made
    await made.store.aclose()


async def test_what_is_looked_for_is_read_and_not_what_a_table_has_most_of(
    metered: Metered,
) -> None:
    store = metered.store
    for n in range(40):
        done = new(TaskRef("o", f"done{n}"), status=Status.COMPLETED, outcome=blob(4000))
        await store.create(done)
    await store.create(new(TaskRef("o", "failed"), status=Status.FAILED, outcome=b"{}"))
    await store.create(new(TaskRef("o", "open")))
    looked_for: dict[str, set[Status]] = {"failed": {Status.FAILED}, "open": {Status.WORKING}}
    for task_id, statuses in looked_for.items():
        wanted = Wanted(statuses=frozenset(statuses))
        assert ids((await store.find(wanted)).records) == [task_id]
        read, _ = await metered.of(store.find(wanted))
        assert read <= 8 * 0.5 + 1, "each shard's part of the index, and one root item"
    read, _ = await metered.of(store.find(Wanted(owner="o", statuses=frozenset({Status.WORKING}))))
    assert read <= 0.5 + 1
    read, _ = await metered.of(store.find(Wanted()))
    assert read >= 40, "this one reads the table"


async def test_what_the_documentation_says_that_operations_cost(metered: Metered) -> None:
    store, units = metered.store, metered.of
    assert await units(store.create(new(call=blob(300)))) == (0, 3)
    assert await units(store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW)) == (1, 1), (
        "nothing in an index moves"
    )
    await store.apply(REF, events.LetGo(SOON, blame=False, fence=1), NOW)
    lease = (await claim(store)).lease
    assert await units(
        store.write(lease, events.Checkpoint(added=Added([blob(60)], status_message="on it")), NOW)
    ) == (
        0,
        1,
    )
    assert await units(
        store.write(lease, events.Checkpoint(UNTIL + 1, added=Added([blob(60)])), NOW)
    ) == (0, 1)
    assert await units(store.write(lease, events.Checkpoint(UNTIL + 2), NOW)) == (0, 1)
    assert await units(store.write(lease, events.Checkpoint(UNTIL + 3, UNTIL + 9), NOW)) == (0, 3)
    assert await units(store.read(REF, NOW)) == (1, 0)
    assert await units(store.write(lease, events.SuspendTask({"a": b"?", "b": b"?"}), NOW)) == (
        0,
        3,
    )
    assert await units(store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), NOW)) == (1, 1)
    assert await units(store.apply(REF, events.TakeAnswers({"b": b"!"}, SOON), NOW)) == (1, 3)
    lease = (await claim(store)).lease
    assert await units(store.write(lease, events.Release(0, SOON + 1), NOW)) == (0, 3)
    lease = (await claim(store)).lease
    assert await units(store.write(lease, events.Finish(Status.COMPLETED, b"{}"), NOW)) == (0, 3)
    other = TaskRef("owner", "other")
    await store.create(new(other))
    assert await units(store.apply(other, events.Cancel("cancelled", NOW), NOW)) == (1, 4)


async def test_what_a_sweep_and_the_claim_after_it_cost(metered: Metered) -> None:
    store, units = metered.store, metered.of
    await store.create(new())
    (task,) = await store.due(SOON, 10)
    assert await units(postpone(store, task, SOON + 1)) == (1, 3)
    assert await units(store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW)) == (1, 2), (
        "it was sent again, says the index"
    )
    (task,) = await store.due(SOON + 1, 10)
    assert await units(postpone_many(store, [Move(task, END, 1)], SOON)) == (1, 3)
    await store.apply(REF, events.LetGo(END, blame=False, fence=1), NOW)
    assert await units(store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW)) == (1, 3)


async def test_glances_at_many_tasks_cost_half_a_unit_each_and_a_call_for_each_hundred(
    metered: Metered,
) -> None:
    store, units = metered.store, metered.of
    refs = [TaskRef("owner", f"{n:03}") for n in range(150)]
    await asyncio.gather(*(store.create(new(ref)) for ref in refs))
    assert await units(store.glance(refs, NOW)) == (75, 0)
    assert await units(store.read(refs[0], NOW)) == (1, 0)


async def test_what_the_documentation_says_that_a_cleanup_costs(metered: Metered) -> None:
    store, units = metered.store, metered.of
    await store.create(new(call=blob(300), cleans_up=True))
    assert await units(store.apply(REF, events.Cancel("cancelled", SOON), NOW)) == (1, 4)
    claimed = store.claim(REF, events.ClaimCleanup(UNTIL, UNTIL, NOW), NOW)
    assert await units(claimed) == (1, 3)
    lease = Lease.of(await record(store))
    assert await units(store.write(lease, events.EndCleanup(), NOW)) == (0, 2)


async def test_a_step_costs_little_more_than_a_unit_however_many_there_were(
    metered: Metered,
) -> None:
    store = metered.store
    await store.create(new(call=blob(350)))
    lease = (await claim(store)).lease

    async def steps(count: int) -> None:
        for n in range(count):
            await checkpoint(store, lease, b"%d %b" % (n, blob(60)))

    first, later = await metered.of(steps(100)), await metered.of(steps(400))
    assert max(first[1] / 100, later[1] / 400) <= 1.5
    assert first[0] == later[0] == 0


async def test_a_claim_reads_what_is_live_and_a_look_what_is_shown(metered: Metered) -> None:
    store = metered.store
    await store.create(new(call=blob(2_000), journal=[blob(8_000)]))
    live = -(-2_000 // 4096) - (-8_000 // 4096) - (-9_000 // 4096)
    for n in range(12):
        lease = (await claim(store)).lease
        await store.write(lease, events.Checkpoint(added=Added(state=blob(9_000 + n))), NOW)
        await store.write(lease, events.SuspendTask({"a": blob(9_000)}), NOW)
        assert (await metered.of(store.read(REF, NOW)))[0] <= 4, "the head and one question"
        await store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), NOW)
        assert (await metered.of(store.read(REF, NOW)))[0] <= 1
        assert (await metered.of(claim(store)))[0] <= live + 2
        await store.apply(REF, events.LetGo(SOON, blame=False, fence=2 * n + 2), NOW)


# what goes wrong


def failure(code: str, status: int = 400) -> Exception:
    from botocore.exceptions import ClientError

    made: Exception = ClientError(
        {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "Any",
    )
    return made


def timeout() -> Exception:
    from botocore.exceptions import ReadTimeoutError

    made: Exception = ReadTimeoutError(endpoint_url="http://127.0.0.1")
    return made


@pytest.mark.parametrize(
    "error",
    [
        failure("ThrottlingException"),
        failure("ProvisionedThroughputExceededException"),
        failure("RequestLimitExceeded"),
        failure("InternalServerError", 500),
        failure("", 503),
        timeout(),
    ],
    ids=[
        "throttled",
        "too much for a partition",
        "too much for the account",
        "their fault",
        "503",
        "timeout",
    ],
)
async def test_what_passes_is_unavailable(tasks: Counted, error: Exception) -> None:
    lease = await working(tasks.store)

    def fail(operation: str) -> None:
        raise error

    tasks.client.before = fail
    store = tasks.store
    for work in (
        store.create(new()),
        store.create(new(call=blob(9000))),
        store.read(REF, NOW),
        store.apply(REF, events.TakeAnswers({"a": b"!"}, SOON), NOW),
        store.apply(REF, events.TakeAnswers({"a": blob(9000)}, SOON), NOW),
        store.apply(REF, events.Cancel("cancelled", NOW), NOW),
        store.claim(REF, events.Claim(UNTIL, UNTIL, NOW), NOW),
        store.write(lease, events.Checkpoint(added=Added([b"entry"])), NOW),
        store.write(lease, events.SuspendTask({"a": b"?"}), NOW),
        store.write(lease, events.Release(0, SOON), NOW),
        store.write(lease, events.Finish(Status.COMPLETED, b""), NOW),
        store.due(NOW, 10),
        store.open_tasks(10),
        store.find(),
        store.apply(REF, events.Requeue(SOON), NOW),
        store.apply(REF, events.Expire(END), END),
        tasks.once.claim("id", "yes", 10, LATER),
        tasks.once.finish("id", b"", LATER),
        tasks.once.read("id"),
    ):
        with pytest.raises(Unavailable) as caught:
            await work
        assert caught.value.__cause__ is error


async def test_a_store_that_cannot_be_reached_is_unavailable() -> None:
    nowhere = Emulator("http://127.0.0.1:9")
    pytest.importorskip("boto3")
    store = StoredTasks(
        DynamoDbTasks(
            nowhere.open("table", lambda: nowhere.client(retries={"total_max_attempts": 1}))
        )
    )
    with pytest.raises(Unavailable):
        await store.read(REF, NOW)
    await store.aclose()


async def test_an_outage_is_a_trouble_and_logged_once_as_is_its_end(
    dynamodb: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "roundgate")
    with dynamodb.table() as name, Proxy(dynamodb.url) as network:
        there = Emulator(network.url)
        table = there.open(name, lambda: there.client(retries={"total_max_attempts": 1}))
        network.turn(Way.SHUT)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await table.root("pk")
        assert "cannot be used" in str(table.trouble())
        network.turn(Way.OPEN)
        for _ in range(2):
            assert await table.root("pk") is None
        assert table.trouble() is None
        await table.aclose()
    logged = [
        record.getMessage() for record in caplog.records if record.name.startswith("roundgate")
    ]
    assert logged == ["cannot use the database", "the database answers again"]


async def test_a_mistake_of_ours_is_not_unavailable(dynamodb: Emulator) -> None:
    store = StoredTasks(DynamoDbTasks(dynamodb.open("no-such-table")))
    with pytest.raises(Exception, match="ResourceNotFoundException"):
        await store.read(REF, NOW)
    await store.aclose()


def test_making_a_store_makes_no_client() -> None:
    def make() -> Any:
        raise AssertionError("not yet")

    StoredTasks(DynamoDbTasks(Table("name", make, Clock())))


async def test_a_batch_that_is_taken_in_part_is_finished(
    tasks: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tasks.client._client.batch_write_item

    def half(RequestItems: dict[str, list[Any]]) -> Any:
        ((name, rows),) = RequestItems.items()
        whole(RequestItems={name: rows[:1]})
        return {"UnprocessedItems": {name: rows[1:]} if rows[1:] else {}}

    monkeypatch.setattr(tasks.client._client, "batch_write_item", half)
    await tasks.store.create(new(call=blob(1_000_000)))
    assert (await claim(tasks.store)).call == blob(1_000_000)


async def test_a_batch_that_is_never_taken_is_unavailable(
    tasks: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(RequestItems: dict[str, list[Any]]) -> Any:
        return {"UnprocessedItems": RequestItems}

    monkeypatch.setattr("roundgate.storage.dynamodb.table.BATCH_PAUSE_S", 0)
    monkeypatch.setattr(tasks.client._client, "batch_write_item", none)
    with pytest.raises(Unavailable):
        await tasks.store.create(new(call=blob(1_000_000)))
    assert await tasks.store.read(REF, NOW) is None


class SentTwice:
    """What botocore does when an answer gets lost: it sends the call again."""

    def __init__(self, client: Any, between: Callable[[], None] = lambda: None) -> None:
        self._client = client
        self._between = between

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in {"put_item", "update_item"}:
            return found

        def twice(**arguments: Any) -> Any:
            with suppress(self._client.exceptions.ConditionalCheckFailedException):
                found(**arguments)
            self._between()
            return found(**arguments)

        return twice


async def test_what_was_sent_again_after_others_had_written_keeps_its_rows(
    dynamodb: Emulator, table: str
) -> None:
    """A sweep moved the due time between the write and its repetition: that is refused, and
    the write has happened."""
    client = dynamodb.client()

    def move() -> None:
        update = {
            "UpdateExpression": "SET version = :v",
            "ExpressionAttributeValues": {":v": {"S": Clock().new_id()}},
        }
        client.update_item(
            TableName=table, Key={"pk": {"S": "T#owner.id"}, "sk": {"S": "0"}}, **update
        )

    store = StoredTasks(
        DynamoDbTasks(dynamodb.open(table, lambda: SentTwice(dynamodb.client(), move)))
    )
    assert await store.create(new(call=blob(9000))) is False, "there is one, and it is this one"
    plain = StoredTasks(DynamoDbTasks(dynamodb.open(table)))
    lease = (await claim(plain)).lease
    await store.write(lease, events.Checkpoint(added=Added([blob(9000)], blob(8000))), NOW)
    await checkpoint(store, lease, b"next")
    claimed = await take_over(plain)
    assert (claimed.call, claimed.state) == (blob(9000), blob(8000))
    assert list(claimed.journal) == [blob(9000), b"next"]
    await store.aclose()
    await plain.aclose()
    client.close()


async def test_a_write_that_was_sent_twice_happened_once(dynamodb: Emulator, table: str) -> None:
    store = StoredTasks(DynamoDbTasks(dynamodb.open(table, lambda: SentTwice(dynamodb.client()))))
    await store.create(new())
    lease = (await claim(store)).lease
    await store.write(lease, events.Checkpoint(added=Added([b"1"], status_message="on it")), NOW)
    await store.write(lease, events.Checkpoint(UNTIL, added=Added([b"2", blob(9000)])), NOW)
    await checkpoint(store, lease, blob(9001))
    await store.write(lease, events.SuspendTask({"a": b"?", "b": b"?"}, added=Added([b"3"])), NOW)
    assert await became(store, events.TakeAnswers({"a": b"!"}, SOON)) is AnswersTaken.PARTLY
    assert await became(store, events.TakeAnswers({"b": b"!"}, SOON)) is AnswersTaken.FULLY
    (task,) = await store.due(END, 10)
    assert await postpone(store, task, UNTIL) is True
    assert await happens(store, events.Requeue(SOON)) is True
    claimed = await claim(store)
    assert (list(claimed.journal), claimed.record.attempts) == (
        [b"1", b"2", blob(9000), blob(9001), b"3"],
        0,
    )
    assert claimed.lease.fence == 3, "two claims and one that took it away"
    await store.write(claimed.lease, events.Release(0, SOON), NOW)
    claimed = await claim(store)
    await store.write(claimed.lease, events.Finish(Status.COMPLETED, b"{}"), NOW)
    assert (await record(store)).revision == 6
    await store.aclose()


async def test_a_claim_of_an_id_that_was_sent_twice_is_ours(dynamodb: Emulator, table: str) -> None:
    sessions = DynamoDbSessions(
        dynamodb.open(table, lambda: SentTwice(dynamodb.client())), FixedClock()
    )
    once = OnceStore(sessions)
    assert await once.claim("id", "yes", 10, LATER) is None
    assert await once.claim("id", "yes", 10, LATER) is not None
    await once.finish("id", b"done", LATER)
    assert (await once.read("id")) == OnceRecord("yes", b"done", 10)
    await sessions.aclose()


async def test_a_write_that_happened_despite_unavailable_is_not_added_twice(
    tasks: Counted,
) -> None:
    """The answer got lost for good. The worker tries again and keeps its lease: the row
    tells that it had happened."""
    lease = await working(tasks.store)

    def lose(operation: str) -> None:
        raise timeout()

    tasks.client.after = lose
    with pytest.raises(Unavailable):
        await checkpoint(tasks.store, lease, b"entry")
    tasks.client.after = lambda operation: None
    await checkpoint(tasks.store, lease, b"entry")
    await checkpoint(tasks.store, lease, blob(9000))
    assert list((await take_over(tasks.store)).journal) == [b"entry", blob(9000)]


async def test_of_several_writes_that_nobody_heard_of_the_row_tells_which_has_happened(
    tasks: Counted,
) -> None:
    lease = await working(tasks.store)
    written = [b"0"]
    for n, (lost, then) in enumerate([(b"a", b"b"), (blob(9000), b"c"), (b"d", blob(9001))]):
        await checkpoint(tasks.store, lease, written[-1])
        for moment in (
            "before",
            "after",
        ):  # of the first the call gets lost, of the second the answer
            setattr(tasks.client, moment, _lose)
            with pytest.raises(Unavailable):
                await checkpoint(tasks.store, lease, lost if moment == "before" else then)
            tasks.client.before = tasks.client.after = lambda operation: None
        await checkpoint(tasks.store, lease, lost)
        await checkpoint(tasks.store, lease, b"%d" % n)
        written += [then, lost, b"%d" % n, b"%d" % n]
    assert list((await take_over(tasks.store)).journal) == written[:-1]


def _lose(operation: str) -> None:
    if operation == "update_item":
        raise timeout()


async def test_what_was_given_up_as_unavailable_and_did_not_happen_may_be_tried_again(
    tasks: Counted,
) -> None:
    lease = await working(tasks.store)

    def fail(operation: str) -> None:
        raise timeout()

    tasks.client.before = fail
    with pytest.raises(Unavailable):
        await checkpoint(tasks.store, lease, b"entry")
    tasks.client.before = lambda operation: None
    await checkpoint(tasks.store, lease, b"entry")
    assert list((await take_over(tasks.store)).journal) == [b"entry"]


async def test_more_calls_at_once_than_threads_all_come_through(tasks: Counted) -> None:
    refs = [TaskRef("owner", f"{n}") for n in range(100)]
    await asyncio.gather(*(tasks.store.create(new(ref)) for ref in refs))
    got = await asyncio.gather(
        *(tasks.store.claim(ref, events.Claim(UNTIL, UNTIL, NOW), NOW) for ref in refs)
    )
    assert all(isinstance(one, Claimed) for one in got)
