"""Hidden tasks: one request runs each round, the first end counts, and nobody but their client
continues them; on each kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from roundgate import json
from roundgate.auth.principal import Principal
from roundgate.errors import CallCancelled, LeaseLost, TaskNotFound, ToolError, Unavailable
from roundgate.protocol.tasks import Status
from roundgate.replay import NotSent
from roundgate.settings import TasksConfig
from roundgate.storage.dynamodb.tasks import DynamoDbTasks
from roundgate.storage.sqlite.database import SqliteDatabase
from roundgate.storage.sqlite.tasks import SqliteTasks
from roundgate.storage.tasks import Ending, TaskRecord, TaskRef, TaskStore
from roundgate.tasks import hidden
from roundgate.tasks.hidden import (
    GAP_MS,
    LEASE_MS,
    LEEWAY_MS,
    UNRENEWED_MS,
    HiddenTasks,
    NewCall,
    Sight,
)
from roundgate.tasks.stored import KEEP_MS, StoredTasks
from roundgate.tasks.turn import TurnResult
from tests.support.clocks import FixedClock
from tests.support.dynamodb import Emulator
from tests.support.dynamodb import dynamodb as dynamodb
from tests.support.tasks import Shared

T = TypeVar("T")

ANN = Principal("issuer", "ann")
WAIT_MS = 300_000
ASKED = {"mark.0": b'{"method":"elicitation/create"}'}
CALL = NewCall("session", 7, ANN, "greet", b"call", "call id")

Another = Callable[..., HiddenTasks]


async def at_once(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


def hidden_tasks(
    store: StoredTasks, clock: FixedClock, config: TasksConfig, repeatable_ms: int = 0
) -> HiddenTasks:
    return HiddenTasks(
        *(store, clock, config, at_once),
        wait_ms=WAIT_MS,
        repeatable_ms=repeatable_ms,
        view="",
    )


@pytest.fixture(params=["sqlite", pytest.param("dynamodb", marks=pytest.mark.long)])
async def another(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FixedClock
) -> AsyncIterator[Another]:
    """Makes the hidden tasks of another replica."""
    async with AsyncExitStack() as stack:
        if request.param == "dynamodb":
            emulator: Emulator = request.getfixturevalue("dynamodb")
            table = stack.enter_context(emulator.table())

        def make(repeatable_ms: int = 0, **limits: Any) -> HiddenTasks:
            store: TaskStore
            if request.param == "dynamodb":
                store = DynamoDbTasks(emulator.open(table))
            else:
                store = SqliteTasks(SqliteDatabase(tmp_path / "shared.sqlite3"))
            stack.push_async_callback(store.aclose)
            return hidden_tasks(StoredTasks(store), clock, TasksConfig(**limits), repeatable_ms)

        yield make


async def head(tasks: HiddenTasks, ref: TaskRef) -> TaskRecord:
    record = await tasks.head(ref)
    assert record is not None
    return record


async def answered(tasks: HiddenTasks, **more: Any) -> TaskRef:
    """A task whose only question has been answered."""
    ref = await tasks.ask(replace(CALL, **more), b"state", ASKED)
    await tasks.answer(ref, "mark.0", b"answer", ends=False)
    return ref


async def test_of_many_requests_one_runs_a_round_and_all_find_its_end(another: Another) -> None:
    ref = await answered(another())
    replicas = [another() for _ in range(6)]
    seen = [await tasks.head(ref) for tasks in replicas]
    claims = await asyncio.gather(
        *(tasks.claim(one) for tasks, one in zip(replicas, seen, strict=True) if one)
    )
    (held,) = [one for one in claims if one is not None]
    assert (held.claimed.state, held.claimed.answers) == (b"state", {"mark.0": b"answer"})
    await held.finish(b"outcome", Ending.OK)
    assert {await tasks.outcome(ref) for tasks in replicas} == {b"outcome"}


async def test_the_first_answer_counts_and_one_to_an_earlier_question_never(
    another: Another,
) -> None:
    tasks = another()
    ref = await answered(tasks)
    await another().answer(ref, "mark.0", b"later", ends=False)
    held = await claimed(tasks, ref)
    assert held.claimed.answers == {"mark.0": b"answer"}
    await held.suspend(b"next", {"other.0": b"{}"})
    await another().answer(ref, "mark.0", b"late", ends=False)
    record = await head(tasks, ref)
    assert (record.status, record.asked) == (Status.INPUT_REQUIRED, ("other.0",))


async def test_an_answer_that_ends_the_call_leaves_no_question_open(another: Another) -> None:
    tasks = another()
    ref = await tasks.ask(CALL, b"state", {"m.0": b"{}", "m.1": b"{}", "m.2": b"{}"})
    await tasks.answer(ref, "m.1", b"no", ends=True)
    held = await claimed(tasks, ref)
    assert held.claimed.answers == {"m.0": b"no", "m.1": b"no", "m.2": b"no"}


async def claimed(tasks: HiddenTasks, ref: TaskRef) -> hidden.Holding:
    record = await head(tasks, ref)
    held = await tasks.claim(record)
    assert held is not None
    return held


async def test_a_first_round_is_claimed_by_its_process_and_known_as_one(another: Another) -> None:
    tasks = another()
    held = await tasks.report(CALL)
    assert held.is_first
    record = await head(tasks, held.ref)
    assert await another().claim(replace(record, lease_until_ms=0)) is None
    await held.suspend(b"state", ASKED)
    await tasks.answer(held.ref, "mark.0", b"answer", ends=False)
    assert not (await claimed(tasks, held.ref)).is_first


async def test_what_was_taken_over_is_ended_by_its_new_process_alone(another: Another) -> None:
    tasks = another()
    ref = await answered(tasks)
    stalled = await claimed(tasks, ref)
    record = await head(tasks, ref)
    taken = await another().claim(record)
    assert taken is not None
    for lost in (stalled.beat(), stalled.finish(b"stale", Ending.OK), stalled.suspend(b"", ASKED)):
        with pytest.raises(LeaseLost):
            await lost
    await taken.finish(b"outcome", Ending.TOOL_ERROR)
    assert await tasks.outcome(ref) == b"outcome"


async def test_a_lease_that_was_renewed_since_it_was_seen_is_not_taken(
    another: Another, clock: FixedClock
) -> None:
    ref = await answered(another())
    held = await claimed(another(), ref)
    record = await head(another(), ref)
    clock.skip(1)
    await held.beat()
    clock.skip(3_600)
    assert await another().claim(record) is None


async def test_a_call_with_which_processes_die_is_given_up(another: Another) -> None:
    tasks = another(max_deaths=2)
    ref = await answered(tasks)
    often = []
    for _ in range(4):
        held = await claimed(another(), ref)
        often.append(tasks.has_died_often(held.claimed.record))
    assert often == [False, False, True, True]


async def test_a_cancellation_ends_the_round_that_runs(another: Another) -> None:
    tasks = another()
    ref = await answered(tasks)
    held = await claimed(tasks, ref)
    other = another()
    await other.cancel(other.ref(ANN, "session", 7))
    with pytest.raises(LeaseLost):
        await held.beat()
    await other.cancel(other.ref(ANN, "session", 8))  # a request without a task


async def test_a_request_id_that_is_used_again_replaces_the_call(another: Another) -> None:
    tasks = another()
    first = await tasks.ask(CALL, b"first", {"first.0": b"{}"})
    second = await another().ask(replace(CALL, call_id="another"), b"second", {"second.0": b"{}"})
    assert first == second
    await tasks.answer(first, "first.0", b"late", ends=False)
    record, work = await tasks.whole(second)
    assert record is not None
    assert work is not None
    assert (record.asked, work.state) == (("second.0",), b"second")


async def test_a_replaced_call_that_still_runs_does_not_end_the_call_that_replaced_it(
    another: Another,
) -> None:
    first = await another().report(CALL)
    second = await another().report(replace(CALL, call_id="another"))
    with pytest.raises(LeaseLost):
        await first.beat()
    with pytest.raises(LeaseLost):
        await first.finish(b"of the first", Ending.OK)
    await second.finish(b"of the second", Ending.OK)
    assert await another().outcome(second.ref) == b"of the second"


async def test_a_request_does_not_claim_the_call_that_replaced_its_own(another: Another) -> None:
    tasks = another()
    seen = await head(tasks, await answered(tasks))
    ref = await another().ask(replace(CALL, call_id="another"), b"second", {})
    assert await tasks.claim(seen) is None
    assert (await claimed(tasks, ref)).claimed.state == b"second"


async def test_a_creation_that_is_repeated_finds_its_own_task(another: Another) -> None:
    """Because its answer was lost."""
    tasks = another()
    real = tasks._store.create
    lost = [True]

    async def create(task: Any) -> bool:
        is_new = await real(task)
        if lost and lost.pop():
            raise Unavailable("no answer")
        return is_new

    async def twice(ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await ask()
        except Unavailable:
            return await ask()

    tasks._store.create = create  # type: ignore[method-assign]
    tasks.patiently = twice
    ref = await tasks.ask(CALL, b"state", ASKED)
    record = await head(another(), ref)
    assert record.status is Status.INPUT_REQUIRED


async def test_open_calls_count_among_the_tasks_of_their_owner(another: Another) -> None:
    tasks = another(max_open_per_owner=2)
    refs = [await answered(tasks, request_id=number) for number in range(2)]
    with pytest.raises(ToolError, match="max_open_per_owner"):
        await tasks.ask(replace(CALL, request_id=9), b"state", ASKED)
    await tasks.ask(replace(CALL, owner=Principal("issuer", "bob")), b"state", ASKED)
    await tasks.cancel(refs[0])
    await tasks.ask(replace(CALL, request_id=9), b"state", ASKED)


async def test_a_task_expires_after_the_last_round_that_asked(
    another: Another, clock: FixedClock
) -> None:
    tasks = another()
    ref = await answered(tasks)
    for mark in "abc":
        clock.skip(WAIT_MS / 2000)
        held = await claimed(tasks, ref)
        await held.suspend(b"state", {f"{mark}.0": b"{}"})
        record = await head(tasks, ref)
        assert record.expires_ms == record.due_ms == clock.now_ms() + WAIT_MS + LEEWAY_MS
        assert not tasks.is_late(record, clock.now_ms() + WAIT_MS)
        assert tasks.is_late(record, clock.now_ms() + WAIT_MS + 1)
        await tasks.answer(ref, f"{mark}.0", b"answer", ends=False)


async def test_a_round_that_takes_long_does_not_expire(another: Another, clock: FixedClock) -> None:
    tasks = another()
    held = await tasks.report(CALL)
    for _ in range(10):
        clock.skip(WAIT_MS / 4000)
        await held.beat()
        record = await tasks._store.read(held.ref, clock.now_ms())
        assert record is not None
    await held.finish(b"outcome", Ending.OK)
    record = await head(tasks, held.ref)
    assert record.expires_ms == clock.now_ms() + KEEP_MS


async def test_calls_that_nobody_follows_are_ended_without_a_sweep(
    another: Another, clock: FixedClock
) -> None:
    tasks = another(max_open_per_owner=3)
    refs = [await tasks.ask(replace(CALL, request_id=number), b"s", ASKED) for number in range(3)]
    clock.skip((WAIT_MS + LEEWAY_MS + hidden.TIDY_AFTER_MS) / 1000)
    await tasks.ask(replace(CALL, request_id=9), b"s", ASKED)
    records = [await tasks.head(ref) for ref in refs]
    assert not [record for record in records if record is not None and record.is_open]


async def test_the_end_of_a_call_is_kept_for_a_while_and_not_for_days(
    shared: Shared, clock: FixedClock
) -> None:
    shop = shared.workshop()
    tasks = hidden_tasks(shop.store, clock, shop.config)
    ref = await answered(tasks)
    await (await claimed(tasks, ref)).finish(b"outcome", Ending.OK)
    clock.skip(KEEP_MS / 1000 - 1)
    await shop.sweep.sweep()
    assert await tasks.outcome(ref) == b"outcome"
    clock.skip(1)
    await shop.sweep.sweep()
    assert await tasks.head(ref) is None


@pytest.fixture
def sight(clock: FixedClock) -> Callable[[int, int], bool]:
    """Looks at a lease that ends so many milliseconds from the beginning, after so many more."""
    looks, began_ms = Sight(clock), clock.now_ms()
    ref = TaskRef("owner", "~id")
    seen = TaskRecord(ref, "greet", Status.WORKING, None, 0, 0, 0, 1, fence=1)

    def look(until_ms: int, after_ms: int) -> bool:
        clock.skip(after_ms / 1000)
        end_ms = 0 if until_ms == 0 else began_ms + until_ms
        return looks.is_free(replace(seen, lease_until_ms=end_ms))

    return look


Look = Callable[[int, int], bool]


def test_a_lease_that_was_given_back_is_free(sight: Look) -> None:
    assert not sight(LEASE_MS, 0)
    assert sight(0, 0)


def test_a_lease_is_lost_when_it_was_not_renewed_for_as_long_as_it_lasts(sight: Look) -> None:
    far = 3_600_000  # the clock of its process is an hour ahead
    looks = [sight(far, 0), *(sight(far, LEASE_MS // 4) for _ in range(4))]
    assert looks == [False] * 4 + [True]


def test_a_lease_that_is_renewed_is_not_lost(sight: Look) -> None:
    assert not any(sight(LEASE_MS + number, LEASE_MS // 4) for number in range(1, 20))


def test_a_short_look_goes_by_the_wall_clock_too(sight: Look) -> None:
    ended = -hidden.SKEW_MS - 1
    assert not sight(ended, 0)
    assert not sight(ended, UNRENEWED_MS - 1)
    assert sight(ended, 1)


def test_while_the_store_is_away_no_process_is_taken_for_dead(sight: Look) -> None:
    """Whoever runs the round could not renew its lease."""
    assert not sight(1, 0)
    assert not sight(1, LEASE_MS + GAP_MS)
    assert not sight(1, UNRENEWED_MS - 1)


async def test_no_client_sees_a_hidden_task_and_no_worker_runs_it(
    shared: Shared, clock: FixedClock
) -> None:
    shop = shared.workshop()
    tasks = hidden_tasks(shop.store, clock, shop.config)
    ref = await answered(tasks)
    assert await shop.tasks.record(ANN, ref.id) is None
    with pytest.raises(TaskNotFound):
        await shop.tasks.update(ANN, ref.id, {"mark.0": 1})
    with pytest.raises(TaskNotFound):
        await shop.tasks.cancel(ANN, ref.id)
    assert await shop.worker.work(ref) is TurnResult.NOT_CLAIMED
    assert await shop.messages() == []
    record = await head(tasks, ref)
    assert (record.status, record.fence) == (Status.WORKING, 0)


async def test_a_hidden_task_that_has_expired_is_deleted_and_sent_to_nobody(
    shared: Shared, clock: FixedClock
) -> None:
    shop = shared.workshop()
    tasks = hidden_tasks(shop.store, clock, shop.config)
    refs = [await answered(tasks), await tasks.ask(replace(CALL, request_id=8), b"s", ASKED)]
    clock.skip(WAIT_MS / 1000)
    assert await shop.sweep.sweep() == 0
    clock.skip(2 * LEEWAY_MS / 1000)
    await shop.sweep.sweep()
    assert await shop.messages() == []
    assert [await tasks.head(ref) for ref in refs] == [None, None]


async def test_a_cancellation_that_comes_before_the_task_ends_the_call(
    another: Another, clock: FixedClock
) -> None:
    tasks = another()
    ref = tasks.ref(ANN, "session", 7)
    assert not await tasks.is_cancelled(ref)
    for _ in range(2):
        await another().cancel_call(ref)
    assert await tasks.is_cancelled(ref)
    with pytest.raises(CallCancelled):
        await tasks.ask(CALL, b"state", ASKED)
    clock.skip(WAIT_MS / 1000 + 1)
    assert not await tasks.is_cancelled(ref)
    await another().cancel_call(ref)
    with pytest.raises(CallCancelled):
        await tasks.report(CALL)
    clock.skip(WAIT_MS / 1000 + 1)
    assert await tasks.ask(CALL, b"state", ASKED) == ref
    await another().cancel_call(ref)
    record = await head(tasks, ref)
    assert (record.status, record.call_id) == (Status.CANCELLED, CALL.call_id)
    assert not await tasks.is_cancelled(ref)


# rounds of older servers


async def send(
    tasks: HiddenTasks, ref: TaskRef, answers: bytes = b"{}", *, continues: bool = True
) -> Any:
    """What comes of answers to a round."""
    return await tasks.send(ref, "up", answers, secret="s", continues=continues)


async def holding(tasks: HiddenTasks, ref: TaskRef, answers: bytes = b"{}") -> hidden.Holding:
    """A round that was claimed with its answers."""
    held = await send(tasks, ref, answers)
    assert isinstance(held, hidden.Holding)
    return held


@pytest.fixture
def round_of(another: Another, monkeypatch: pytest.MonkeyPatch) -> TaskRef:
    """A round of a call, which requests read all the time."""
    monkeypatch.setattr(hidden, "LOOKS_S", (0.01, 0.01))
    return another().ref(ANN, "held", "id", 0)


async def passing(clock: FixedClock, sending: asyncio.Task[T]) -> T:
    """The end of a request, while time passes."""
    async with asyncio.timeout(60):
        while not sending.done():
            clock.skip(0.5)
            await asyncio.sleep(0.05)
    return await sending


async def test_answers_reach_the_process_that_listens_and_the_outcome_all_requests(
    another: Another, round_of: TaskRef
) -> None:
    receiving = asyncio.create_task(another().receive(round_of))
    sending = asyncio.create_task(send(another(), round_of, b'{"a":1}', continues=False))
    held = await receiving
    assert held is not None
    assert held.answers == b'{"a":1}'
    async with held.renewed():
        await held.finish(b"done")
    assert await sending == b"done"
    assert await send(another(), round_of, b'{"a":1}', continues=False) == b"done"
    assert await send(another(), round_of, b'{"a":2}', continues=False) is NotSent.OTHER
    assert not await another().close(round_of, "up", b"late")


async def test_operators_cannot_guess_the_answers_of_a_round_from_its_row(
    another: Another, round_of: TaskRef
) -> None:
    answers = b'{"a":{"pin":4711}}'
    held = await holding(another(), round_of, answers)
    await held.finish(b"done")
    record = await head(another(), round_of)
    assert record.call_id not in {json.digest(json.decode(answers)), None}
    other_call = another().ref(ANN, "held", "other", 0)
    await another().send(other_call, "up", answers, secret="t", continues=True)
    other_record = await head(another(), other_call)
    assert record.call_id != other_record.call_id


async def test_a_round_that_no_process_claims_is_lost(
    another: Another, round_of: TaskRef, clock: FixedClock
) -> None:
    sending = asyncio.create_task(send(another(), round_of, continues=False))
    began_ms = clock.monotonic_ms()
    assert await passing(clock, sending) is NotSent.LOST
    assert clock.monotonic_ms() - began_ms >= LEASE_MS
    assert await send(another(), round_of, continues=False) is NotSent.LOST


async def test_lost_rounds_leave_room_for_the_tasks_of_their_owner(
    another: Another, round_of: TaskRef, clock: FixedClock
) -> None:
    tasks = another(max_open_per_owner=1)
    sending = asyncio.create_task(send(tasks, round_of, continues=False))
    assert await passing(clock, sending) is NotSent.LOST
    assert (await tasks.ask(CALL, b"state", ASKED)).is_hidden


async def test_a_process_that_comes_too_late_does_not_run_a_lost_round(
    another: Another, round_of: TaskRef, clock: FixedClock
) -> None:
    sending = asyncio.create_task(send(another(), round_of, continues=False))
    assert await passing(clock, sending) is NotSent.LOST
    async with asyncio.timeout(60):
        assert await another().receive(round_of) is None


@pytest.mark.parametrize("continues", [True, False])
async def test_a_round_that_has_expired_is_lost(
    continues: bool, another: Another, round_of: TaskRef, clock: FixedClock
) -> None:
    await holding(another(), round_of)
    clock.skip(KEEP_MS / 1000 + 1)
    async with asyncio.timeout(60):
        sent = await send(another(), round_of, continues=continues)
    assert sent is NotSent.LOST


async def test_the_same_answers_in_another_order_are_the_same_answers(
    another: Another, round_of: TaskRef
) -> None:
    held = await holding(another(), round_of, b'{"a":{"b":1,"c":2}}')
    await held.finish(b"done")
    assert await send(another(), round_of, b'{"a":{"c":2,"b":1.0}}') == b"done"


async def test_a_round_is_kept_while_its_state_is_valid(
    another: Another, round_of: TaskRef, clock: FixedClock
) -> None:
    tasks = another(repeatable_ms=3_600_000)
    held = await holding(tasks, round_of)
    await held.finish(b"done")
    clock.skip(3_500)
    await tasks.ask(CALL, b"state", ASKED)  # cleans up, too
    assert await send(tasks, round_of) == b"done"
    sent = await send(tasks, round_of, b'{"other":1}')
    assert sent is NotSent.OTHER


async def test_a_round_whose_process_died_is_continued_by_one_of_the_others(
    another: Another, round_of: TaskRef, clock: FixedClock
) -> None:
    died = await holding(another(), round_of)
    taken = await passing(
        clock,
        asyncio.create_task(send(another(), round_of)),
    )
    assert isinstance(taken, hidden.Holding)
    assert taken.answers == b"{}"
    with pytest.raises(LeaseLost):
        await died.finish(b"stale")
    await taken.finish(b"done")
    assert await send(another(), round_of) == b"done"


async def test_a_round_that_was_left_is_continued_at_once(
    another: Another, round_of: TaskRef
) -> None:
    left = await holding(another(), round_of)
    await left.let_go()
    await holding(another(), round_of)


async def test_a_round_that_was_closed_takes_no_answers(
    another: Another, round_of: TaskRef
) -> None:
    assert await another().close(round_of, "up", b"late")
    assert await another().close(round_of, "up", b"later")
    assert await send(another(), round_of) == b"late"


async def test_a_round_that_an_operator_ended_has_no_outcome(
    another: Another, round_of: TaskRef
) -> None:
    await holding(another(), round_of)
    await another().cancel(round_of)
    assert await send(another(), round_of) is NotSent.ENDED
    async with asyncio.timeout(60):
        assert await another().receive(round_of) is None
