"""Waiting and going on as a task: `ctx.sleep`, `ctx.poll`, `ctx.continue_as_task`,
in a call and in a task."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from roundgate.clock import Clock
from roundgate.errors import StepFailed
from roundgate.replay.context import Context
from roundgate.replay.engine import Completed, Suspended
from roundgate.replay.journal import Passed, Slept
from roundgate.replay.run import HOLD_MS, Stop
from roundgate.replay.waiting import SHED_MARGIN_MS
from tests.support.clocks import FixedClock
from tests.support.replay import Effects, Name, asked_of, error_of, value_of
from tests.support.rounds import accept
from tests.support.task_runs import SharedJournal


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture
def task(clock: FixedClock) -> SharedJournal:
    return SharedJournal(clock=clock)


def suspended(outcome: Any) -> Suspended:
    assert isinstance(outcome, Suspended), outcome
    return outcome


# Sleep


async def test_a_sleep_of_a_task_gives_the_turn_back_until_it_is_over(
    task: SharedJournal, clock: FixedClock
) -> None:
    async def handler(ctx: Context) -> str:
        await ctx.sleep(60)
        return "awake"

    asleep = suspended(await task.run(handler))
    assert (asleep.requests, asleep.wake_ms) == ({}, clock.now_ms() + 60_000)
    clock.skip(59)
    wake_ms = asleep.wake_ms
    clock.skip(-29)  # woken too early: it sleeps on until the same moment
    assert suspended(await task.run(handler)).wake_ms == wake_ms
    clock.skip(30)
    assert value_of(await task.run(handler)) == "awake"


async def test_a_sleep_begins_when_it_is_first_come_to(
    task: SharedJournal, clock: FixedClock
) -> None:
    async def handler(ctx: Context) -> str:
        await ctx.sleep(10)
        await ctx.sleep(10)
        return "awake"

    first = suspended(await task.run(handler)).wake_ms
    clock.skip(15)
    assert suspended(await task.run(handler)).wake_ms == clock.now_ms() + 10_000
    assert task.journal.steps["sleep:sleep"] == Slept("sleep:sleep", first or 0, "sleep 10000 ms")
    assert "sleep:sleep#2" in task.journal.steps
    clock.skip(10)
    assert value_of(await task.run(handler)) == "awake"


async def test_a_sleep_that_is_over_soon_keeps_the_worker(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> str:
        await ctx.sleep(0.05)
        return "awake"

    begun = time.monotonic()
    assert value_of(await task.run(handler)) == "awake"
    assert time.monotonic() - begun >= 0.05


@pytest.mark.parametrize(
    ("seconds", "holds"), [(HOLD_MS / 1000, True), (HOLD_MS / 1000 + 0.001, False)]
)
async def test_how_long_a_task_keeps_its_worker(
    task: SharedJournal, seconds: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, slept = asyncio.sleep, list[float]()

    async def sleep(for_s: float) -> None:
        slept.append(for_s)
        await real(0)

    monkeypatch.setattr(task.clock, "sleep", sleep)

    async def handler(ctx: Context) -> None:
        await ctx.sleep(seconds)

    assert isinstance(await task.run(handler), Completed) == holds
    assert slept == ([seconds] if holds else [])


async def test_sleeps_side_by_side_wake_at_the_first(
    task: SharedJournal, clock: FixedClock
) -> None:
    effects = Effects()

    async def branch(ctx: Context, seconds: float) -> None:
        await ctx.sleep(seconds, f"sleep{seconds}")
        await ctx.step(f"after{seconds}", effects.do, seconds)

    async def handler(ctx: Context) -> None:
        await asyncio.gather(*(branch(ctx, seconds) for seconds in (30, 10, 20)))

    for _ in range(3):
        asleep = suspended(await task.run(handler))
        assert asleep.wake_ms == clock.now_ms() + 10_000
        clock.skip(10)
    await task.run(handler)
    assert effects.seen == [10, 20, 30]


async def test_a_step_beside_a_sleep_runs_to_its_end_first(task: SharedJournal) -> None:
    effects = Effects()

    async def slow() -> None:
        await asyncio.sleep(0.05)
        effects.do("slow")

    async def handler(ctx: Context) -> None:
        await asyncio.gather(ctx.sleep(60), ctx.step("slow", slow))

    suspended(await task.run(handler))
    assert effects.seen == ["slow"]
    assert [entry.key for entry in task.written] == ["step@0/slow"]


async def test_a_question_beside_a_sleep_is_asked_at_once(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> str:
        _, who = await asyncio.gather(ctx.sleep(60), ctx.elicit("who", "Who?", Name))
        return who.name

    outcome = suspended(await task.run(handler))
    assert (list(outcome.requests), outcome.wake_ms is not None) == (["who"], True)
    task.journal.receive({"who": accept(name="me")})
    assert suspended(await task.run(handler)).requests == {}


async def test_a_call_waits_in_its_request_if_there_is_time(clock: FixedClock) -> None:
    async def handler(ctx: Context) -> str:
        await ctx.sleep(0.05)
        return "awake"

    for may in (False, True):
        call = SharedJournal(task_id=None, may_become_task=may, clock=clock)
        assert value_of(await call.run(handler, within_ms=10_000)) == "awake"


async def test_a_call_that_may_become_a_task_does_so_to_sleep_longer_than_its_deadline(
    clock: FixedClock,
) -> None:
    async def handler(ctx: Context) -> str:
        await ctx.sleep(60)
        return "awake"

    call = SharedJournal(task_id=None, may_become_task=True, clock=clock)
    outcome = suspended(await call.run(handler, within_ms=10_000))
    assert (outcome.wants_task, outcome.wake_ms) == (True, clock.now_ms() + 60_000)


async def test_a_call_that_may_not_waits_as_long_as_it_can_and_goes_on_in_its_next_round(
    clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(ctx: Context) -> str:
        await ctx.sleep(25)
        return "awake"

    async def sleep(for_s: float) -> None:
        clock.skip(for_s)

    monkeypatch.setattr(clock, "sleep", sleep)
    call, begun_ms, rounds = SharedJournal(task_id=None, clock=clock), clock.now_ms(), 0
    while isinstance(outcome := await call.run(handler, within_ms=10_000), Suspended):
        assert asked_of(outcome) == {}
        rounds += 1
        assert clock.now_ms() == begun_ms + rounds * (10_000 - SHED_MARGIN_MS)
    assert value_of(outcome) == "awake"
    assert clock.now_ms() == begun_ms + 25_000
    assert rounds == 2


# Poll


class Job:
    """Is done at a time."""

    def __init__(self, clock: FixedClock, takes_s: float, value: Any = "done") -> None:
        self._clock = clock
        self._done_ms = clock.now_ms() + takes_s * 1000
        self._value = value
        self.looks: list[Any] = []

    async def look(self, *args: Any) -> Any:
        self.looks.append(args)
        return self._value if self._clock.now_ms() >= self._done_ms else None


async def test_a_poll_of_a_task_holds_no_worker_between_two_times(
    task: SharedJournal, clock: FixedClock
) -> None:
    job = Job(clock, 25)

    async def handler(ctx: Context) -> list[str]:
        return [
            await ctx.poll("job", job.look, "a", every_s=10),
            await ctx.step("after", lambda: "after"),
        ]

    for _ in range(3):
        outcome = suspended(await task.run(handler))
        assert outcome.wake_ms == clock.now_ms() + 10_000
        assert task.written == []  # that it is not done yet is not worth remembering
        clock.skip(10)
    assert value_of(await task.run(handler)) == ["done", "after"]
    assert job.looks == [("a",)] * 4
    written = [(entry.key, getattr(entry, "value", None)) for entry in task.written]
    assert written == [("job", "done"), ("after", "after")]
    assert value_of(await task.run(handler)) == ["done", "after"]
    assert len(job.looks) == 4


async def test_a_poll_that_is_soon_again_keeps_the_worker() -> None:
    looks: list[int] = []

    def look() -> int | None:
        looks.append(1)
        return len(looks) if len(looks) > 2 else None

    async def handler(ctx: Context) -> int:
        found: int = await ctx.poll("job", look, every_s=0.01)
        return found

    assert value_of(await SharedJournal(clock=Clock()).run(handler)) == 3


@pytest.mark.parametrize("value", [False, 0, "", []])
async def test_whatever_is_not_none_is_an_answer(
    task: SharedJournal, clock: FixedClock, value: Any
) -> None:
    job = Job(clock, 0, value)

    async def handler(ctx: Context) -> Any:
        return await ctx.poll("job", job.look, every_s=10)

    assert value_of(await task.run(handler)) == value
    assert value_of(await task.run(handler)) == value
    assert len(job.looks) == 1


async def test_a_poll_that_raises_is_remembered_as_a_step_that_raised(task: SharedJournal) -> None:
    effects = Effects()

    def breaks() -> None:
        effects.do("looked")
        raise ValueError("no such job")

    async def handler(ctx: Context) -> Any:
        return await ctx.poll("job", breaks, every_s=10)

    for _ in range(2):
        error = error_of(await task.run(handler))
        assert isinstance(error, StepFailed)
        assert str(error) == "step 'job' failed: ValueError: no such job"
    assert effects.seen == ["looked"]


async def test_a_poll_stops_when_its_run_is_stopped(task: SharedJournal) -> None:
    looks: list[int] = []

    async def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            assert task.last is None
            stopped[0].stop(Stop.LOST)

    stopped: list[Any] = []

    async def handler(ctx: Context) -> None:
        await ctx.poll("job", look, every_s=0.001)

    async with asyncio.timeout(60):
        suspended(await task.run(handler, prepare=stopped.append))
    assert len(looks) == 2


# Going on as a task


async def goes_on(ctx: Context) -> str:
    await ctx.step("before", lambda: 1)
    await ctx.status("going on")
    await ctx.continue_as_task()
    await ctx.step("after", lambda: 2)
    return "done"


async def test_a_call_that_may_become_a_task_ends_where_it_says_so(clock: FixedClock) -> None:
    call = SharedJournal(task_id=None, may_become_task=True, clock=clock)
    outcome = suspended(await call.run(goes_on))
    assert (outcome.wants_task, outcome.requests, outcome.wake_ms) == (True, {}, None)
    assert list(call.journal.steps) == ["before"]
    assert call.last is not None
    assert call.last.message == "going on"
    task = SharedJournal(clock=clock, journal=call.journal)
    assert value_of(await task.run(goes_on)) == "done"
    assert [entry.key for entry in task.written] == ["after"]


async def test_a_call_that_may_not_just_goes_on(clock: FixedClock) -> None:
    assert value_of(await SharedJournal(task_id=None, clock=clock).run(goes_on)) == "done"


async def test_what_is_asked_beside_it_comes_out_too(clock: FixedClock) -> None:
    async def handler(ctx: Context) -> None:
        await asyncio.gather(ctx.continue_as_task(), ctx.elicit("who", "Who?", Name))

    outcome = suspended(
        await SharedJournal(task_id=None, may_become_task=True, clock=clock).run(handler)
    )
    assert (outcome.wants_task, list(outcome.requests)) == (True, ["who"])


async def test_a_call_near_its_deadline_wants_to_be_a_task_at_a_step(clock: FixedClock) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step("long", clock.skip, 9.9)
        await ctx.step("another", lambda: None)

    call = SharedJournal(task_id=None, may_become_task=True, clock=clock)
    assert suspended(await call.run(handler, within_ms=10_000)).wants_task
    assert list(call.journal.steps) == ["long"]


# Giving the turn back


async def test_shed_gives_a_turn_of_a_task_back_once_and_that_is_written(
    task: SharedJournal,
) -> None:
    async def handler(ctx: Context) -> str:
        await ctx.shed()
        return "done"

    outcome = suspended(await task.run(handler))
    assert (outcome.requests, outcome.wake_ms) == ({}, None)
    assert task.written == [Passed("shed:shed")]
    assert value_of(await task.run(handler)) == "done"


async def test_a_run_that_is_told_to_yield_stops_before_its_next_step(task: SharedJournal) -> None:
    effects = Effects()

    async def handler(ctx: Context) -> str:
        await ctx.step("one", effects.do, 1)
        assert task_run
        task_run[0].request_stop()
        await ctx.step("two", effects.do, 2)
        return "done"

    task_run: list[Any] = []
    outcome = suspended(await task.run(handler, prepare=task_run.append))
    assert (outcome.requests, outcome.wake_ms, effects.seen) == ({}, None, [1])
    task_run.clear()

    async def again(ctx: Context) -> str:
        await ctx.step("one", effects.do, 1)
        await ctx.step("two", effects.do, 2)
        return "done"

    assert value_of(await task.run(again)) == "done"
    assert effects.seen == [1, 2]


async def test_a_step_that_is_remembered_is_no_reason_to_yield(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> str:
        return await ctx.step("one", lambda: "one")  # type: ignore[no-any-return]

    await task.run(handler)

    def yields(run: Any) -> None:
        run.request_stop()

    assert value_of(await task.run(handler, prepare=yields)) == "one"


async def test_a_worker_near_its_deadline_yields_at_a_step_and_never_without_progress(
    task: SharedJournal, clock: FixedClock
) -> None:
    async def handler(ctx: Context) -> str:
        for _ in range(6):
            await ctx.step("second", clock.skip, 100)
        return "done"

    turns = 1
    while isinstance(await task.run(handler, within_ms=250_000), Suspended):
        turns += 1
    assert turns == 3
    assert len(task.written) == 6
