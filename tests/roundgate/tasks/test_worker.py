"""A worker's turn, one behaviour at a time: what becomes of the task, of the
message, and of the lease."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock
from roundgate.errors import LeaseLost, Unavailable
from roundgate.protocol.tasks import Status
from roundgate.replay.context import Context
from roundgate.replay.sync_context import SyncContext
from roundgate.storage.tasks import TaskRef
from roundgate.tasks import events, lease
from roundgate.tasks import turn as turns
from roundgate.tasks.call import TaskCall
from roundgate.tasks.events import Added, NewTask, NotClaimed
from roundgate.tasks.stored import Claimed, StoredTasks
from roundgate.tasks.turn import DECLINED_MS, TurnResult
from tests.support.clocks import FixedClock, pass_time
from tests.support.crashes import called
from tests.support.log_lines import log_lines
from tests.support.replay import Effects, Name
from tests.support.rounds import accept
from tests.support.tasks import Share, Shared, Waiting, Workshop, as_stored, asks, quick

SKEW_S = 5
"""What clocks may differ by when nobody says anything."""


async def sleeps(ctx: Context) -> str:
    await ctx.sleep(60)
    return "awake"


async def running(shop: Workshop, waits: Waiting) -> tuple[TaskRef, asyncio.Task[TurnResult]]:
    """A task whose handler has begun, and its turn."""
    ref = await shop.begin("waits")
    turn = asyncio.create_task(shop.worker.work(ref))
    await waits.began.wait()
    return ref, turn


async def in_time(task: asyncio.Task[Any]) -> Any:
    """What a task returns in time. (A timeout around it would cancel it, and be taken for its end.)"""
    await asyncio.wait({task}, timeout=60)
    assert task.done(), "it goes on"
    return await task


# Messages that come to nothing


@pytest.mark.parametrize(
    "state", ["gone", "expired", "over", "cancelled", "leased", "asleep", "waiting"]
)
async def test_a_message_for_a_task_that_is_not_to_be_had_is_dropped_quietly(
    shared: Shared, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = shared.workshop(quick=quick, asks=asks, sleeps=sleeps)
    ref = await shop.begin({"asleep": "sleeps", "waiting": "asks"}.get(state, "quick"))
    if state == "gone":
        ref = TaskRef("nobody", "nothing")
    elif state == "expired":
        shop.clock.skip(shop.config.ttl_s)
    elif state == "cancelled":
        await shop.cancel(ref)
    elif state == "leased":
        assert isinstance(await shop.worker.claim(ref), Claimed)
    else:
        ends = {"asleep": TurnResult.RELEASED, "waiting": TurnResult.ASKED}
        assert await shop.worker.work(ref) is ends.get(state, TurnResult.FINISHED)
    before = (await shop.store.find()).records
    caplog.clear()
    with caplog.at_level(logging.INFO):
        assert await shop.worker.work(ref) is TurnResult.NOT_CLAIMED
    assert caplog.records == []
    assert (await shop.store.find()).records == before


# How it ends


async def test_an_unexpected_exception_is_a_result_with_a_reference_and_without_its_text(
    shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(ctx: Context) -> None:
        raise ValueError("password: hunter2")

    shop = shared.workshop(breaks=breaks)
    ref = await shop.begin("breaks")
    assert await shop.turns() == [TurnResult.FINISHED]
    text = await shop.error(ref)
    (logged,) = [record for record in caplog.records if record.exc_info]
    reference = logged.fields["reference"]  # type: ignore[attr-defined]
    assert text.endswith(f"under reference {reference}")
    assert "hunter2" not in str(await shop.shown(ref))
    assert "hunter2" in str(logged.exc_info)


class Panic(BaseException):
    """As `pyo3_runtime.PanicException`, which a panic of an extension in Rust raises."""


class WithoutText(Exception):
    def __str__(self) -> str:
        return str(self.args[7])


@pytest.mark.parametrize("error", [Panic("out of bounds"), WithoutText()], ids=["panic", "no text"])
async def test_an_exception_of_any_kind_ends_the_task_at_its_first_attempt(
    shared: Shared, error: BaseException
) -> None:
    async def breaks(ctx: Context) -> None:
        raise error

    shop = shared.workshop(breaks=breaks)
    ref = await shop.begin("breaks")
    assert await shop.turns() == [TurnResult.FINISHED]
    assert "failed unexpectedly" in await shop.error(ref)


async def test_a_result_that_is_too_large_says_so(share: Share) -> None:
    async def large(ctx: Context) -> str:
        return "x" * 2_000

    shop = share(max_result_bytes=1_024).workshop(large=large)
    ref = await shop.begin("large")
    await shop.turns()
    assert (await shop.error(ref)).startswith("The result is too large: 2")


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, float("nan"), {1: object()}], ids=["object", "set", "nan", "dict"]
)
async def test_a_result_that_is_no_json_ends_the_task_all_the_same(
    shared: Shared, value: Any
) -> None:
    async def strange(ctx: Context) -> Any:
        return value

    shop = shared.workshop(strange=strange)
    ref = await shop.begin("strange")
    assert await shop.turns() == [TurnResult.FINISHED]
    assert (await shop.shown(ref))["status"] == "completed"


# ctx.state, and what is too much


@pytest.mark.parametrize("has_step", [False, True], ids=["suspends", "step"])
async def test_a_state_that_is_no_json_is_an_error_of_the_tool(
    shared: Shared, has_step: bool
) -> None:
    effects = Effects()

    async def strange(ctx: Context) -> None:
        ctx.state["when"] = object()
        if has_step:
            await ctx.step("one", effects.do, 1)
        await ctx.elicit("who", "Who?", Name)

    shop = shared.workshop(strange=strange)
    ref = await shop.begin("strange")
    assert await shop.turns() == [TurnResult.FINISHED]
    assert "reference" in await shop.error(ref)
    assert effects.seen == ([1] if has_step else [])


async def test_a_heartbeat_that_finds_the_state_half_done_does_not_stop(share: Share) -> None:
    """The handler may be in the middle of a change, in a thread too; only at its own calls
    is the state of a piece."""
    seen = asyncio.Event()

    async def halfway(ctx: Context) -> str:
        ctx.state["half"] = object()
        await ctx.status("halfway")
        await seen.wait()
        del ctx.state["half"]
        return "whole"

    shop = share(Clock(), lease_s=600).workshop(halfway=halfway)
    ref = await shop.begin("halfway")
    turn = asyncio.create_task(shop.worker.work(ref))
    await shop.until(ref, lambda record: record.status_message == "halfway")
    seen.set()
    assert await turn is TurnResult.FINISHED
    assert await shop.value(ref) == "whole"


async def test_a_journal_that_grows_too_large_is_an_error_that_names_the_largest_entry(
    share: Share,
) -> None:
    effects = Effects()

    async def hoards(ctx: Context) -> None:
        await ctx.step("small", effects.do, "s")
        await ctx.step("huge", effects.do, "x" * 900)
        await ctx.step("more", effects.do, "y" * 200)
        await ctx.step("never", effects.do, "z")

    shop = share(max_journal_bytes=1_024).workshop(hoards=hoards)
    ref = await shop.begin("hoards")
    assert await shop.turns() == [TurnResult.FINISHED]
    assert (
        "1024 bytes (tasks.max_journal_bytes); the largest entry is step 'huge'"
        in await shop.error(ref)
    )
    assert effects.seen == ["s", "x" * 900, "y" * 200]


# Faults of ours


async def until_the_end(shop: Workshop, ref: TaskRef, clock: FixedClock) -> list[TurnResult]:
    """Turns and sweeps, while time passes, until the task is over."""
    turns: list[TurnResult] = []
    for _ in range(60):
        turns += await shop.turns()
        if (await shop.record(ref)).status.is_terminal:
            return turns
        clock.skip(10)
        await shop.sweep.sweep()
    raise AssertionError(turns)


async def test_a_tool_that_nobody_serves_is_waited_for_and_counted_against_nobody(
    shared: Shared, clock: FixedClock
) -> None:
    ref = await shared.workshop(quick=quick).begin("quick")
    later = shared.workshop(other=quick)
    shortest_ms, longest_ms = DECLINED_MS
    waited_s = 0.0
    while waited_s < 3_000:
        assert await later.turns() == [TurnResult.DECLINED]
        record = await later.record(ref)
        assert (record.status, record.attempts, record.deaths) == (Status.WORKING, 0, 0)
        assert (await later.shown(ref))["statusMessage"] == "Waiting for a worker that serves quick"
        pause_ms = record.wake_ms - clock.now_ms()
        assert min(max(shortest_ms, int(waited_s * 250)), longest_ms) - 1 <= pause_ms <= longest_ms
        clock.skip(pause_ms / 1000)
        waited_s += pause_ms / 1000
    again = shared.workshop(quick=quick)
    assert await again.turns() == [TurnResult.FINISHED]
    assert await again.value(ref) == "quick"


async def test_a_task_whose_tool_no_worker_serves_for_an_hour_fails_and_says_why(
    shared: Shared, clock: FixedClock
) -> None:
    ref = await shared.workshop(quick=quick).begin("quick")
    later = shared.workshop(other=quick)
    assert await later.turns() == [TurnResult.DECLINED]
    clock.skip(3_600)
    assert await later.turns() == [TurnResult.GIVEN_UP]
    shown = await later.shown(ref)
    assert (shown["status"], shown["error"]["code"]) == ("failed", -32603)
    assert shown["statusMessage"].startswith(
        "Given up because for 3600 s there was no worker that serves quick (reference "
    )


async def test_a_journal_of_a_later_version_is_left_to_a_worker_that_reads_it(
    shared: Shared, clock: FixedClock
) -> None:
    shop = shared.workshop(quick=quick)
    now_ms = clock.now_ms()
    call = TaskCall("quick", {}, LOCAL, {}).to_bytes()
    facts = {
        "call": call,
        "created_ms": now_ms,
        "expires_ms": now_ms + 10**7,
        "due_ms": now_ms,
        "tool": "quick",
    }
    tag = NewTask(TaskRef("owner", "tag"), journal=[b'["zz","one",1]'], **facts)  # type: ignore[arg-type]
    version = NewTask(TaskRef("owner", "version"), journal_version=99, **facts)  # type: ignore[arg-type]
    for task, needs in ((tag, "can read its journal"), (version, "reads journals of version 99")):
        await shop.store.create(task)
        for _ in range(shop.config.max_attempts + 1):
            assert await shop.worker.work(task.ref) is TurnResult.DECLINED
            clock.skip(60)
        record = await shop.record(task.ref)
        assert (record.status, record.status_message) == (
            Status.WORKING,
            f"Waiting for a worker that {needs}",
        )


async def test_a_task_whose_workers_die_with_it_alone_each_time_fails_after_the_bound(
    shared: Shared, clock: FixedClock
) -> None:
    shop = shared.workshop(quick=quick)
    ref = await shop.begin("quick")
    assert isinstance(await shop.worker.claim(ref), Claimed)  # and nothing more is heard of it
    for _ in range(shop.config.max_deaths):
        clock.skip(shop.config.lease_s + SKEW_S)
        assert await shop.worker.work(ref) is TurnResult.SUSPECT
        assert isinstance(await shop.worker.claim(ref, alone=True), Claimed)
    clock.skip(shop.config.lease_s + SKEW_S)
    assert await shop.worker.work(ref, alone=True) is TurnResult.GIVEN_UP
    assert (await shop.shown(ref))["status"] == "failed"
    message = (await shop.shown(ref))["statusMessage"]
    assert message.startswith(
        "Given up because 3 workers died or stalled while they ran this task alone (reference "
    )


async def test_deaths_that_it_shares_with_others_never_count_against_a_task(
    shared: Shared, clock: FixedClock
) -> None:
    shop = shared.workshop(quick=quick)
    ref = await shop.begin("quick")
    for _ in range(10 * shop.config.max_deaths):
        claimed = await shop.worker.claim(ref)
        assert isinstance(claimed, Claimed)
        clock.skip(shop.config.lease_s + SKEW_S)  # its process dies
        alone = await shop.worker.claim(ref, alone=True)
        assert isinstance(alone, Claimed)
        await shop.store.write(
            alone.lease, events.Checkpoint(added=Added([b'["s","step",1]'])), clock.now_ms()
        )
        now_ms = clock.now_ms()
        await shop.store.write(alone.lease, events.Release(0, now_ms), now_ms)
    assert await shop.worker.work(ref) is TurnResult.FINISHED


async def test_a_clock_that_is_ahead_takes_no_living_lease(share: Share) -> None:
    theirs, ours = FixedClock(), FixedClock()
    shared = share(theirs, clock_skew_s=45)
    shop = shared.workshop(quick=quick)
    ref = await shop.begin("quick")
    assert isinstance(await shop.worker.claim(ref), Claimed)
    shared.clock = ours
    other = shared.workshop(quick=quick)
    ours.skip(shared.config.lease_s + 40)
    assert await other.worker.claim(ref, alone=True) is NotClaimed.LEASED
    ours.skip(5)
    assert isinstance(await other.worker.claim(ref, alone=True), Claimed)


class Flaky:
    """A store that cannot be reached for its next so many calls of a method."""

    def __init__(self, store: Any, error: Exception | None = None, **failures: int) -> None:
        self._store = store
        self._error = error
        self.failures = failures
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            what = called(name, args)
            self.calls.append(what)
            if self.failures.get(what, 0) > 0:
                self.failures[what] -= 1
                raise self._error or Unavailable(f"{what} did not get through")
            return await getattr(self._store, name)(*args, **kwargs)

        return call


async def two_steps(ctx: Context) -> list[Any]:
    return [await ctx.step(name, lambda name=name: name) for name in ("one", "two")]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without pauses, as many."""
    monkeypatch.setattr(lease, "PAUSES_S", (0,) * 4)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("method", ["checkpoint", "finish"])
async def test_a_store_that_is_back_soon_is_waited_for(shared: Shared, method: str) -> None:
    shop = shared.workshop(two=two_steps)
    ref = await shop.begin("two")
    failures: dict[str, Any] = {method: 4}
    flaky = Flaky(shop.store, **failures)
    assert await replace(shop, store=as_stored(flaky)).worker.work(ref) is TurnResult.FINISHED
    assert await shop.value(ref) == ["one", "two"]


@pytest.mark.usefixtures("hasty")
async def test_a_store_that_stays_away_is_a_fault_and_the_task_goes_on_later(
    shared: Shared, clock: FixedClock
) -> None:
    effects = Effects()

    async def steps(ctx: Context) -> list[Any]:
        return [await ctx.step(name, effects.do, name) for name in ("one", "two")]

    shop = shared.workshop(steps=steps)
    ref = await shop.begin("steps")
    assert await shop.lost() == [ref]
    flaky = Flaky(shop.store, checkpoint=5, release=1)
    with pytest.raises(Unavailable):
        await replace(shop, store=as_stored(flaky)).worker.work(ref)
    assert effects.seen == ["one"]  # not a step more than could be remembered
    assert (await shop.record(ref)).status is Status.WORKING
    await until_the_end(shop, ref, clock)
    assert await shop.value(ref) == ["one", "two"]
    assert effects.seen == ["one", "one", "two"]


@pytest.mark.usefixtures("hasty")
async def test_a_queue_that_cannot_be_reached_only_makes_it_later(
    shared: Shared, clock: FixedClock
) -> None:
    async def sheds(ctx: Context) -> str:
        await ctx.shed()
        return "done"

    shop = shared.workshop(sheds=sheds)
    ref = await shop.begin("sheds")
    assert await shop.lost() == [ref]
    flaky: Any = Flaky(shop.queue, send=1)
    deaf = replace(shop, store=StoredTasks(shop.store.store, flaky), queue=flaky)
    assert await deaf.worker.work(ref) is TurnResult.RELEASED
    assert await shop.turns() == []
    assert await until_the_end(shop, ref, clock) == [TurnResult.FINISHED]


async def test_a_call_that_no_version_of_ours_wrote_fails_in_the_end(
    shared: Shared, clock: FixedClock
) -> None:
    shop = shared.workshop(quick=quick)
    now_ms = clock.now_ms()
    ref = TaskRef((await shop.begin("quick")).owner, "strange")
    await shop.store.create(NewTask(ref, "quick", b"{}", now_ms, now_ms + 10**7, now_ms))
    assert await shop.worker.work(ref) is TurnResult.DECLINED
    clock.skip(3_600)
    assert await shop.worker.work(ref) is TurnResult.GIVEN_UP
    assert "no worker that can read its call" in (await shop.shown(ref))["statusMessage"]


# Leases


async def renewal(shop: Workshop, ref: TaskRef, clock: FixedClock) -> None:
    """Let more than half of the lease pass, and wait until its worker has renewed it."""
    until_ms = (await shop.record(ref)).lease_until_ms
    clock.skip(0.6 * shop.config.lease_s)
    await shop.until(ref, lambda record: record.lease_until_ms != until_ms)


async def test_a_lease_is_renewed_while_a_long_step_runs(share: Share, clock: FixedClock) -> None:
    long = Waiting()
    shared = share(lease_s=1)
    shop, thief = shared.workshop(long=long.step), shared.workshop(long=long.step)
    ref = await shop.begin("long")
    turn = asyncio.create_task(shop.worker.work(ref))
    for _ in range(4):
        await renewal(shop, ref, clock)
        assert await thief.worker.work(ref) is TurnResult.NOT_CLAIMED
    long.free.set()
    assert await turn is TurnResult.FINISHED
    assert (await shop.record(ref)).fence == 1


async def test_a_worker_stopped_past_its_lease_begins_no_step_of_a_task_claimed_since(
    shared: Shared, clock: FixedClock
) -> None:
    effects, seen = Effects(), list[bool]()
    shop = shared.workshop()

    async def robbed(ctx: Context) -> None:
        await ctx.step("one", effects.do, "one")
        clock.skip(60)  # SIGSTOP, and another takes it up; SIGCONT
        assert isinstance(await shop.worker.claim(ref, alone=True), Claimed)
        try:
            await ctx.step("two", effects.do, "two")
        finally:
            seen.append(ctx.cancelled)

    victim = shared.workshop(robbed=robbed)
    ref = await victim.begin("robbed")
    assert await victim.turns() == [TurnResult.LOST]
    assert (effects.seen, seen) == (["one"], [True])
    record = await shop.record(ref)
    assert (record.status, record.fence) == (Status.WORKING, 2)
    clock.skip(60)
    claimed = await shop.worker.claim(ref, alone=True)
    assert isinstance(claimed, Claimed)
    assert [json.loads(entry)[:3] for entry in claimed.journal] == [["s", "one", "one"]]


async def test_a_worker_that_was_stopped_past_its_lease_renews_it_before_it_goes_on(
    shared: Shared, clock: FixedClock
) -> None:
    seen: list[int] = []

    async def step() -> None:
        seen.append((await shop.record(ref)).lease_until_ms - clock.now_ms())

    async def stopped(ctx: Context) -> None:
        clock.skip(60)
        await ctx.step("one", step)

    shop = shared.workshop(stopped=stopped)
    ref = await shop.begin("stopped")
    assert await shop.turns() == [TurnResult.FINISHED]
    assert seen == [shop.config.lease_s * 1000]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "error", [Unavailable("not now"), RuntimeError("ExpiredTokenException")], ids=["away", "token"]
)
async def test_no_step_begins_while_nobody_can_say_whether_the_lease_holds(
    shared: Shared, clock: FixedClock, error: Exception
) -> None:
    effects = Effects()

    async def stopped(ctx: Context) -> None:
        clock.skip(60)
        await ctx.step("one", effects.do, len(flaky.calls))

    shop = shared.workshop(stopped=stopped)
    ref = await shop.begin("stopped")
    flaky = Flaky(shop.store, error, checkpoint=3)
    assert await replace(shop, store=as_stored(flaky)).worker.work(ref) is TurnResult.FINISHED
    assert flaky.calls[:5] == ["claim", *["checkpoint"] * 4]
    assert effects.seen == [1]  # the arguments are older than the renewal; it ran once


async def test_the_lease_is_renewed_through_any_error(share: Share, clock: FixedClock) -> None:
    long = Waiting()
    shared = share(lease_s=4, clock_skew_s=0)
    shop, thief = shared.workshop(long=long.step), shared.workshop(long=long.step)
    ref = await shop.begin("long")
    flaky = Flaky(shop.store, RuntimeError("ExpiredTokenException"), checkpoint=2)
    turn = asyncio.create_task(replace(shop, store=as_stored(flaky)).worker.work(ref))
    for _ in range(3):
        await renewal(shop, ref, clock)
        assert await thief.worker.claim(ref, alone=True) is NotClaimed.LEASED
    long.free.set()
    assert await turn is TurnResult.FINISHED
    assert flaky.failures == {"checkpoint": 0}


async def test_a_handler_that_cancels_the_heartbeat_does_not_stop_it(
    share: Share, clock: FixedClock
) -> None:
    over = asyncio.Event()

    async def wild(ctx: Context) -> str:
        for task in asyncio.all_tasks():
            if "Heartbeat" in repr(task.get_coro()):
                task.cancel()
        await ctx.step("long", over.wait)
        return "done"

    shared = share(lease_s=4, clock_skew_s=0)
    shop, thief = shared.workshop(wild=wild), shared.workshop(wild=wild)
    ref = await shop.begin("wild")
    turn = asyncio.create_task(shop.worker.work(ref))

    for _ in range(3):
        await renewal(shop, ref, clock)
        assert await thief.worker.claim(ref, alone=True) is NotClaimed.LEASED
    over.set()
    assert await turn is TurnResult.FINISHED


async def test_a_handler_that_cancels_everything_in_sight_ends_with_an_error(share: Share) -> None:
    async def wild(ctx: Context) -> None:
        for task in asyncio.all_tasks() - before - {asyncio.current_task(), turn}:
            task.cancel()
        await asyncio.sleep(600)

    before = asyncio.all_tasks()
    shop = share(Clock()).workshop(wild=wild)
    ref = await shop.begin("wild")
    turn = asyncio.create_task(shop.worker.work(ref))
    assert await in_time(turn) is TurnResult.FINISHED
    assert "failed unexpectedly" in await shop.error(ref)


async def test_a_handler_that_took_another_path_is_parked_until_its_operator_mends_it(
    shared: Shared, clock: FixedClock
) -> None:
    effects = Effects()

    async def first(ctx: Context) -> str:
        await ctx.step("one", effects.do, 1)
        await ctx.shed()
        return "done"

    async def other(ctx: Context) -> str:
        await ctx.step("one", effects.do, 2)
        return "done"

    shop = shared.workshop(tool=first)
    ref = await shop.begin("tool")
    assert await shop.turns() == [TurnResult.RELEASED]
    broken = shared.workshop(tool=other)
    assert await broken.turns() == [TurnResult.PARKED]
    shown = await shop.shown(ref)
    assert shown["status"] == "working"
    assert shown["statusMessage"].startswith(
        "Waiting for the operator of this server: the handler took another path"
    )
    clock.skip(3_600)
    await shop.sweep.sweep()
    assert await shop.all_turns() == []
    assert (await shop.store.apply(ref, events.Requeue(clock.now_ms()), clock.now_ms())).happened
    await shop.queue.send(ref)
    assert await shop.turns() == [TurnResult.FINISHED]
    assert (await shop.value(ref), effects.seen) == ("done", [1])


async def test_a_handler_that_restarts_begins_anew_with_other_arguments(
    shared: Shared,
) -> None:
    effects = Effects()

    async def counts(ctx: Context, left: int) -> str:
        await ctx.step("one", effects.do, left)
        who = (await ctx.elicit("who", "Who?", Name)).name
        if left:
            await ctx.restart(left=left - 1)
        return who

    shop = shared.workshop(counts=counts)
    ref = await shop.begin("counts", left=2)
    for number in range(3):
        assert (await shop.all_turns())[-1] is TurnResult.ASKED
        (key,) = (await shop.shown(ref))["inputRequests"]
        await shop.answer(ref, **{key: accept(name=f"n{number}")})
    assert (await shop.all_turns())[-1] is TurnResult.FINISHED
    assert (await shop.value(ref), effects.seen) == ("n2", [2, 1, 0])
    record = await shop.record(ref)
    assert record.status is Status.COMPLETED


async def test_a_handler_that_swallows_every_suspension_and_asks_on_holds_no_worker(
    share: Share, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def swallows(ctx: Context) -> None:
        nonlocal calls
        while True:
            calls += 1
            with suppress(BaseException):
                await ctx.elicit("who", "Who?", Name)

    shop = share(Clock()).workshop(swallows=swallows)
    ref = await shop.begin("swallows")
    assert await in_time(asyncio.create_task(shop.worker.work(ref))) is TurnResult.ASKED
    assert (await shop.shown(ref))["status"] == "input_required"
    assert calls < 1_000
    assert "is abandoned" not in caplog.text


async def test_a_checkpoint_survives_the_time_out_that_its_handler_puts_around_the_step(
    shared: Shared,
) -> None:
    effects = Effects()

    class Slow(Flaky):
        def __getattr__(self, name: str) -> Any:
            async def call(*args: Any, **kwargs: Any) -> Any:
                if called(name, args) == "checkpoint" and args[1].added.entries:
                    pass_time(31)
                    await asyncio.sleep(0.3)
                return await getattr(shop.store, name)(*args, **kwargs)

            return call

    async def impatient(ctx: Context) -> str:
        try:
            async with asyncio.timeout(30):
                await ctx.step("one", effects.do, "one")
        except TimeoutError:
            pass
        await ctx.shed()
        return await ctx.step("one", effects.do, "again") if effects.seen == [] else "done"

    shop = shared.workshop(impatient=impatient)
    await shop.begin("impatient")
    slow = replace(shop, store=as_stored(Slow(shop.store)))
    assert await slow.turns() == [TurnResult.RELEASED]
    assert await shop.turns() == [TurnResult.FINISHED]
    assert effects.seen == ["one"]


@pytest.mark.parametrize("text", ["half \udc80 a letter", "\ud83d"])
async def test_a_status_that_is_no_unicode_is_shown_as_well_as_it_can_be(
    shared: Shared, text: str
) -> None:
    effects = Effects()

    async def tells(ctx: Context) -> str:
        await ctx.step("one", effects.do, "one")
        await ctx.status(text)
        await ctx.elicit("who", "Who?", Name)
        return "done"

    shop = shared.workshop(tells=tells)
    ref = await shop.begin("tells")
    assert await shop.turns() == [TurnResult.ASKED]
    assert effects.seen == ["one"]
    assert (await shop.shown(ref))["statusMessage"] == text.encode(errors="replace").decode()


async def test_a_task_that_takes_longer_than_a_task_may_is_ended_and_says_so(
    share: Share, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turns, "GRACE_S", 0.1)

    async def hangs(ctx: Context) -> None:
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                if over.is_set():
                    raise

    over = asyncio.Event()
    shop = share(Clock(), lease_s=1, task_timeout_s=0.5).workshop(hangs=hangs)
    ref = await shop.begin("hangs")
    assert await in_time(asyncio.create_task(shop.worker.work(ref))) is TurnResult.FINISHED
    assert "exceeded the time limit" in await shop.error(ref)
    assert "a handler does not end and is abandoned" in caplog.text
    over.set()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_an_async_handler_of_a_cancelled_task_is_cancelled_after_the_grace(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "GRACE_S", 0.3)
    waits = Waiting()
    shop = share(Clock(), lease_s=1).workshop(waits=waits.run)
    ref, turn = await running(shop, waits)
    await shop.cancel(ref)
    before = await shop.record(ref)
    assert await in_time(turn) is TurnResult.LOST
    assert waits.ended == [True]
    assert await shop.record(ref) == before
    assert (await shop.shown(ref))["status"] == "cancelled"


async def test_a_cancel_is_noticed_long_before_the_lease_is_to_be_renewed(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "LOOK_S", 0.5)
    monkeypatch.setattr(turns, "GRACE_S", 0.1)

    waits = Waiting()
    shop = share(Clock(), lease_s=600).workshop(waits=waits.run)
    ref, turn = await running(shop, waits)
    await shop.cancel(ref)
    assert await in_time(turn) is TurnResult.LOST


async def test_the_task_that_runs_a_turn_survives_the_end_of_its_handler(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation is used up: what runs the next turn is not cancelled
    by what ended this one."""
    monkeypatch.setattr(turns, "GRACE_S", 0.1)

    waits = Waiting()
    shop = share(Clock(), lease_s=1).workshop(waits=waits.run, quick=quick)
    ref, other = await shop.begin("waits"), await shop.begin("quick")

    async def two_turns() -> list[TurnResult]:
        return [await shop.worker.work(ref), await shop.worker.work(other)]

    both = asyncio.create_task(two_turns())
    await waits.began.wait()
    await shop.cancel(ref)
    assert await in_time(both) == [TurnResult.LOST, TurnResult.FINISHED]


async def test_a_plain_function_sees_in_its_thread_that_the_task_was_cancelled(
    share: Share,
) -> None:
    began, seen = threading.Event(), list[float]()

    def spins(ctx: SyncContext) -> str:
        began.set()
        until = time.monotonic() + 60
        while not ctx.cancelled and time.monotonic() < until:
            time.sleep(0.01)
        seen.append(until - time.monotonic())
        return "too late"

    shop = share(Clock(), lease_s=1).workshop(spins=spins)
    ref = await shop.begin("spins")
    turn = asyncio.create_task(shop.worker.work(ref))
    await asyncio.to_thread(began.wait)
    await shop.cancel(ref)
    assert await turn is TurnResult.LOST
    assert seen[0] > 0
    assert (await shop.shown(ref))["status"] == "cancelled"


async def test_a_poll_of_a_cancelled_task_polls_no_more(
    share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "GRACE_S", 600)
    calls: list[float] = []

    async def polls(ctx: Context) -> None:
        await ctx.poll("job", lambda: calls.append(time.monotonic()), every_s=0.05)

    shop = share(Clock(), lease_s=1).workshop(polls=polls)
    ref = await shop.begin("polls")
    turn = asyncio.create_task(shop.worker.work(ref))
    async with asyncio.timeout(60):
        while len(calls) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await shop.cancel(ref)
    assert await in_time(turn) is TurnResult.LOST  # which is less than the grace


async def test_a_task_that_expires_while_it_runs_is_stopped(
    share: Share, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "GRACE_S", 0)
    waits = Waiting()
    shop = share(lease_s=1, ttl_s=60).workshop(waits=waits.run)
    _, turn = await running(shop, waits)
    clock.skip(61)
    assert await in_time(turn) is TurnResult.LOST


async def test_a_process_that_stops_lets_go_of_what_it_runs(shared: Shared) -> None:
    waits = Waiting()
    shop = shared.workshop(waits=waits.run)
    ref = await shop.begin("waits")
    (message,) = await shop.messages()
    turn = asyncio.create_task(shop.take(message))
    await waits.began.wait()
    shop.worker.request_stop()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    record = await shop.record(ref)  # a deployment is no fault of the task
    assert (record.lease_until_ms, record.wake_ms, record.attempts) == (0, 0, 0)
    assert not record.suspect
    assert [message.ref for message in await shop.messages()] == [ref]


async def test_a_process_that_stops_fails_no_task_whose_state_is_half_done(shared: Shared) -> None:
    began = asyncio.Event()

    async def collects(ctx: Context) -> None:
        ctx.state["seen"] = {1, 2}  # a list before the next step
        began.set()
        await asyncio.sleep(600)

    shop = shared.workshop(collects=collects)
    ref = await shop.begin("collects")
    turn = asyncio.create_task(shop.worker.work(ref))
    await began.wait()
    shop.worker.request_stop()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    record = await shop.record(ref)
    assert (record.status, record.lease_until_ms) == (Status.WORKING, 0)


async def test_so_does_one_that_is_told_so_just_when_the_handler_has_returned(
    shared: Shared,
) -> None:
    async def returns(ctx: Context) -> str:
        asyncio.get_running_loop().call_soon(turn.cancel)  # while the heartbeat is being stopped
        return "done"

    shop = shared.workshop(returns=returns)
    ref = await shop.begin("returns")
    turn = asyncio.create_task(shop.worker.work(ref))
    await asyncio.sleep(0)
    shop.worker.request_stop()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert (await shop.record(ref)).lease_until_ms == 0


async def test_a_turn_that_is_cancelled_though_nobody_stops_the_process_leaves_a_suspect(
    shared: Shared,
) -> None:
    """So it is when a handler ends the event loop with `sys.exit`: each that ran there
    may have been the one."""
    waits = Waiting()
    shop = shared.workshop(waits=waits.run)
    ref, turn = await running(shop, waits)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    record = await shop.record(ref)
    assert (record.lease_until_ms, record.suspect, record.deaths) == (0, True, 0)
    assert await shop.worker.claim(ref) is NotClaimed.SUSPECT


# What the client sees meanwhile


async def test_a_status_message_is_seen_with_the_next_checkpoint(shared: Shared) -> None:
    seen: list[tuple[str | None, int]] = []

    async def look() -> None:
        record = await shop.record(ref)
        seen.append((record.status_message, record.revision))

    async def tells(ctx: Context) -> None:
        await ctx.status("first")
        await ctx.step("one", look)
        await ctx.step("two", look)
        await ctx.status("second")
        await ctx.elicit("who", "Who?", Name)

    shop = shared.workshop(tells=tells)
    ref = await shop.begin("tells")
    await shop.turns()
    assert seen == [(None, 1), ("first", 2)]
    assert (await shop.shown(ref))["statusMessage"] == "second"


async def test_a_status_message_is_seen_after_a_second_at_most_without_one(share: Share) -> None:
    seen = asyncio.Event()

    async def tells(ctx: Context) -> None:
        await ctx.status("at it")
        await seen.wait()

    shop = share(Clock(), lease_s=900).workshop(tells=tells)
    ref = await shop.begin("tells")
    turn = asyncio.create_task(shop.worker.work(ref))
    await shop.until(ref, lambda record: record.status_message is not None)
    assert (await shop.shown(ref))["statusMessage"] == "at it"
    seen.set()
    assert await turn is TurnResult.FINISHED


# Deadlines


async def test_a_worker_near_its_deadline_lets_go_at_a_step_and_another_turn_goes_on(
    shared: Shared, clock: FixedClock
) -> None:
    effects = Effects()

    async def second(number: int) -> None:
        clock.skip(1)
        effects.do(number)

    async def steps(ctx: Context) -> str:
        for number in range(10):
            await ctx.step("second", second, number)
        return "done"

    shop = shared.workshop(steps=steps)
    ref = await shop.begin("steps")
    turns: list[TurnResult] = []
    for _ in range(10):
        turns += await shop.turns(clock.deadline(4_000))
        if (await shop.record(ref)).status.is_terminal:
            break
    assert turns == [TurnResult.RELEASED] * 3 + [TurnResult.FINISHED]
    assert effects.seen == list(range(10))


async def test_a_step_longer_than_a_worker_lives_fails_after_the_bound(share: Share) -> None:
    async def forever(ctx: Context) -> None:
        await ctx.step("forever", asyncio.sleep, 60)

    clock = FixedClock()
    shop = share(clock, max_attempts=2).workshop(forever=forever)
    ref = await shop.begin("forever")

    real = Clock()
    assert await shop.worker.work(ref, real.deadline(60)) is TurnResult.FAULT
    record = await shop.record(ref)
    assert (record.status, record.attempts) == (Status.WORKING, 1)
    clock.skip(60)
    assert await shop.worker.work(ref, real.deadline(60)) is TurnResult.GIVEN_UP
    assert "a step exceeds the time limit of a worker" in (await shop.shown(ref))["statusMessage"]


async def test_a_turn_that_is_cancelled_during_its_last_write_is_logged_as_it_ended(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[events.UnderLease] = []
    has_written = asyncio.Event()
    write = StoredTasks.write

    async def write_slowly(store: StoredTasks, lease: Any, event: Any, now_ms: int) -> None:
        writes.append(event)
        await write(store, lease, event, now_ms)
        has_written.set()
        await asyncio.sleep(0.05)

    shop = shared.workshop(quick=quick)
    ref = await shop.begin("quick")
    monkeypatch.setattr(StoredTasks, "write", write_slowly)
    with log_lines() as logged:
        turn = asyncio.create_task(shop.worker.work(ref))
        await asyncio.wait_for(has_written.wait(), 60)
        shop.worker.request_stop()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
    assert [line["outcome"] for line in logged.of("task")] == ["finished"]
    assert logged.of("cannot release a task") == []
    assert len(writes) == 1


# Sleeps


async def test_a_sleep_holds_no_worker_and_ends_on_time(shared: Shared, clock: FixedClock) -> None:
    shop = shared.workshop(sleeps=sleeps)
    ref = await shop.begin("sleeps")
    assert await shop.turns() == [TurnResult.RELEASED]
    assert (await shop.record(ref)).lease_until_ms == 0
    clock.skip(59)
    assert await shop.turns() == []
    clock.skip(1)
    assert await shop.turns() == [TurnResult.FINISHED]
    assert await shop.value(ref) == "awake"


async def test_a_message_that_comes_a_little_early_is_not_lost(share: Share) -> None:
    """Clocks of two machines differ by some milliseconds: the message was sent for the
    time of the other one."""
    theirs, ours = FixedClock(), FixedClock()
    shared = share(theirs)
    ref = await shared.workshop(sleeps=sleeps).begin("sleeps")
    assert await shared.workshop(sleeps=sleeps).turns() == [TurnResult.RELEASED]
    shared.clock = ours
    ours.skip(59.95)
    assert await shared.workshop(sleeps=sleeps).worker.work(ref) is TurnResult.FINISHED


async def test_answers_of_before_are_there_after_any_number_of_turns(shared: Shared) -> None:
    async def many(ctx: Context) -> list[str]:
        return [
            (await ctx.elicit("who", f"Who is number {number}?", Name)).name for number in range(5)
        ]

    shop = shared.workshop(many=many)
    ref = await shop.begin("many")
    await shop.all_turns()
    for number in range(5):
        (key,) = (await shop.shown(ref))["inputRequests"]
        assert key == ("who" if number == 0 else f"who#{number + 1}")
        await shop.tasks.update(LOCAL, ref.id, {key: accept(name=f"n{number}")})
        await shop.all_turns()
    assert await shop.value(ref) == [f"n{number}" for number in range(5)]


async def test_a_lease_that_was_given_back_is_over(shared: Shared) -> None:
    """A worker whose release seemed to fail must not write again once an answer or a sweep
    has moved the task on."""
    shop = shared.workshop(asks=asks)
    ref = await shop.begin("asks")
    claimed = await shop.worker.claim(ref)
    assert isinstance(claimed, Claimed)
    now_ms = shop.clock.now_ms()
    await shop.store.write(claimed.lease, events.SuspendTask({"who": b"{}"}), now_ms)
    await shop.answer(ref, who=accept(name="me"))
    with pytest.raises(LeaseLost, match=ref.id):  # its second attempt
        await shop.store.write(claimed.lease, events.SuspendTask({"who": b"{}"}), now_ms)
    assert (await shop.record(ref)).status is Status.WORKING
