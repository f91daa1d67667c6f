"""Time and failure as part of a step: what came of it is remembered, whatever that was."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from roundgate.aio import Threads
from roundgate.clock import Clock
from roundgate.errors import NotJson, OutcomeUnknown, StepTimeout, Suspend, ToolError
from roundgate.replay import run as run_module
from roundgate.replay.context import Context
from roundgate.replay.engine import Failed, Restarted, Suspended
from roundgate.replay.journal import Began, Cut, Entry, Finished, Journal
from roundgate.replay.run import Run, Stop
from roundgate.replay.sync_context import SyncContext
from tests.support.clocks import FixedClock
from tests.support.replay import Effects, Name, asked_of, elsewhere, error_of, play, value_of
from tests.support.rounds import accept
from tests.support.task_runs import SharedJournal


@pytest.fixture
def task() -> SharedJournal:
    return SharedJournal()


async def twice(task: SharedJournal, handler: Any) -> list[Any]:
    """The values of two runs, the second against what the first has left."""
    return [value_of(await task.run(handler)) for _ in range(2)]


# Time


async def test_a_step_that_takes_too_long_is_given_up_and_that_is_remembered(
    task: SharedJournal,
) -> None:
    effects = Effects()

    async def slow() -> None:
        effects.do("slow")
        await asyncio.sleep(30)

    async def handler(ctx: Context) -> str:
        with pytest.raises(StepTimeout, match=r"not over within 0.02 s"):
            await ctx.step("slow", slow, timeout_s=0.02)
        return "gave up"

    assert await twice(task, handler) == ["gave up"] * 2
    assert effects.seen == ["slow"]


async def test_a_step_that_its_handler_cuts_is_not_run_again(task: SharedJournal) -> None:
    effects = Effects()

    async def slow() -> None:
        effects.do("slow")
        await asyncio.sleep(30)

    async def handler(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.step("slow", slow)
        except TimeoutError:
            return "gave up"
        return "never"

    assert await twice(task, handler) == ["gave up"] * 2
    assert effects.seen == ["slow"]
    assert [type(entry) for entry in task.written] == [Cut]


async def test_a_step_that_a_failing_sibling_cuts_is_cut_by_it_again(task: SharedJournal) -> None:
    effects = Effects()

    async def slow() -> None:
        effects.do("slow")
        await asyncio.sleep(30)

    async def fails() -> None:
        await asyncio.sleep(0.02)
        raise ValueError("no")

    async def handler(ctx: Context) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step("slow", slow))
                group.create_task(ctx.step("fails", fails))
        except ExceptionGroup as errors:
            return str(errors.exceptions[0])
        return "never"

    assert await twice(task, handler) == ["step 'fails' failed: ValueError: no"] * 2
    assert effects.seen == ["slow"]


async def test_a_checkpoint_is_finished_though_its_handler_is_being_cancelled() -> None:
    class Slow(SharedJournal):
        async def checkpoint(self, *entries: Entry) -> None:
            await asyncio.sleep(1)
            await super().checkpoint(*entries)

    async def done() -> str:
        return "done"

    async def handler(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.5):
                await ctx.step("one", done)
        except TimeoutError:
            return "late"
        return "never"

    task = Slow()
    assert value_of(await task.run(handler)) == "late"
    assert [(entry.key, type(entry)) for entry in task.written] == [("one", Finished), ("one", Cut)]
    assert (
        value_of(await task.run(handler)) == "late"
    )  # as it was seen, though the step had got through


async def test_a_sleep_beside_a_busy_branch_wakes_on_its_time() -> None:
    task = SharedJournal(clock=Clock())
    awake = asyncio.Event()

    async def busy() -> None:
        await asyncio.wait_for(awake.wait(), 60)

    async def handler(ctx: Context) -> None:
        async def sleeper() -> None:
            begun = time.monotonic()
            await ctx.sleep(1.2)
            assert time.monotonic() - begun >= 1.2
            awake.set()

        await asyncio.gather(sleeper(), ctx.step("busy", busy))

    value_of(await task.run(handler))
    assert awake.is_set()


async def test_a_timeout_of_asyncio_ends_the_long_sleeps_of_branches() -> None:
    async def handler(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.3):
                await asyncio.gather(ctx.sleep(600), ctx.sleep(700))
        except TimeoutError:
            return "gave up"
        return "never"

    outcome = await asyncio.wait_for(SharedJournal(clock=Clock()).run(handler), 60)
    assert value_of(outcome) == "gave up"


async def test_a_durable_limit_is_over_at_its_time_in_whatever_process(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> str:
        try:
            async with ctx.timeout(3_600):
                await ctx.step("one", lambda: 1)
                await ctx.elicit("who", "Who?", Name)
        except TimeoutError:
            return "nobody came"
        return "somebody came"

    outcome = await task.run(handler)
    assert isinstance(outcome, Suspended)
    assert list(outcome.requests) == ["who"]
    assert outcome.wake_ms == task.clock.now_ms() + 3_600_000
    task.clock.skip(3_599)  # type: ignore[attr-defined]
    assert isinstance(await task.run(handler), Suspended)
    task.clock.skip(2)  # type: ignore[attr-defined]
    assert await twice(task, handler) == ["nobody came"] * 2


async def test_a_durable_limit_around_a_sleep_wakes_the_task_for_it(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> str:
        try:
            async with ctx.timeout(60):
                await asyncio.gather(ctx.sleep(600), ctx.sleep(900))
        except TimeoutError:
            return "gave up"
        return "never"

    outcome = await task.run(handler)
    assert isinstance(outcome, Suspended)
    assert outcome.wake_ms == task.clock.now_ms() + 60_000
    task.clock.skip(61)  # type: ignore[attr-defined]
    assert await twice(task, handler) == ["gave up"] * 2


async def test_what_was_done_within_a_limit_is_served_after_it(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> Any:
        async with ctx.timeout(60):
            value = await ctx.step("one", lambda: 1)
        await ctx.sleep(600)
        return value

    assert isinstance(await task.run(handler), Suspended)
    task.clock.skip(601)  # type: ignore[attr-defined]
    assert await twice(task, handler) == [1, 1]


async def test_a_sleep_until_a_moment_is_the_same_in_every_run(task: SharedJournal) -> None:
    moment = datetime.fromtimestamp(task.clock.now_ms() / 1000 + 60, UTC)

    async def handler(ctx: Context) -> str:
        await ctx.sleep_until(moment)
        return "awake"

    outcome = await task.run(handler)
    assert isinstance(outcome, Suspended)
    assert outcome.wake_ms == task.clock.now_ms() + 60_000
    task.clock.skip(60)  # type: ignore[attr-defined]
    assert await twice(task, handler) == ["awake"] * 2


async def test_a_moment_without_a_time_zone_is_refused(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.sleep_until(datetime(2026, 11, 22))

    assert "time zone" in str(error_of(await task.run(handler)))


async def test_a_question_has_a_default_after_its_time(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> Any:
        return (
            await ctx.elicit("who", "Who?", Name, timeout_s=60, default=Name(name="nobody"))
        ).name

    outcome = await task.run(handler)
    assert isinstance(outcome, Suspended)
    assert outcome.wake_ms == task.clock.now_ms() + 60_000
    task.clock.skip(61)  # type: ignore[attr-defined]
    assert value_of(await task.run(handler)) == "nobody"
    task.journal.receive({"who": accept(name="late")})
    assert value_of(await task.run(handler)) == "nobody"


async def test_an_answer_in_time_is_taken_and_no_default_is_a_timeout(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> Any:
        try:
            return (await ctx.elicit("who", "Who?", Name, timeout_s=60)).name
        except TimeoutError:
            return "nobody came"

    await task.run(handler)
    answered = SharedJournal(clock=task.clock, journal=elsewhere(task.journal))
    answered.journal.receive({"who": accept(name="me")})
    task.clock.skip(61)  # type: ignore[attr-defined]
    assert value_of(await answered.run(handler)) == "me"
    assert value_of(await task.run(handler)) == "nobody came"


# Attempts


async def test_a_step_is_tried_again_after_pauses_that_hold_no_worker(task: SharedJournal) -> None:
    tries: list[int] = []

    def flaky() -> str:
        tries.append(1)
        if len(tries) < 4:
            raise ConnectionError("not now")
        return "there"

    async def handler(ctx: Context) -> Any:
        return await ctx.step("flaky", flaky, retries=3, backoff=10)

    for pause_s in (10, 20, 40):
        outcome = await task.run(handler)
        assert isinstance(outcome, Suspended)
        assert outcome.wake_ms is not None
        assert pause_s * 500 <= outcome.wake_ms - task.clock.now_ms() <= pause_s * 1000
        task.clock.skip(pause_s)  # type: ignore[attr-defined]
    assert await twice(task, handler) == ["there"] * 2
    assert len(tries) == 4


async def test_when_all_attempts_have_failed_the_last_error_is_remembered(
    task: SharedJournal,
) -> None:
    tries: list[int] = []

    def fails() -> None:
        tries.append(1)
        raise ConnectionError(f"attempt {len(tries)}")

    async def handler(ctx: Context) -> Any:
        await ctx.step("fails", fails, retries=2, backoff=0)

    for _ in range(2):
        assert (
            str(error_of(await task.run(handler)))
            == "step 'fails' failed: ConnectionError: attempt 3"
        )
    assert len(tries) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"retries": -1},
        {"retries": 1, "at_most_once": True},
        {"retry_if": ValueError},
        {"retries": 1, "max_interval_s": 0},
    ],
)
async def test_options_that_make_no_sense_are_refused(
    task: SharedJournal, options: dict[str, Any]
) -> None:
    async def handler(ctx: Context) -> Any:
        await ctx.step("one", lambda: 1, **options)

    assert isinstance(error_of(await task.run(handler)), ValueError)


# At most once


async def test_of_a_step_at_most_once_that_was_begun_nobody_knows_the_outcome(
    task: SharedJournal,
) -> None:
    effects = Effects()

    async def handler(ctx: Context) -> str:
        try:
            return str(await ctx.step("charge", effects.do, "charge", at_most_once=True))
        except OutcomeUnknown as unknown:
            return f"look: {unknown}"

    fresh = SharedJournal()
    assert value_of(await fresh.run(handler)) == "charge"
    assert [type(entry) for entry in fresh.written] == [Began, type(fresh.written[-1])]
    task.journal.add(fresh.written[0])  # the worker died right after this
    assert "its outcome is unknown" in (await twice(task, handler))[1]
    assert effects.seen == ["charge"]


async def test_a_step_at_most_once_does_not_begin_if_its_lease_ended_while_it_was_written() -> None:
    effects = Effects()

    class Late(SharedJournal):
        async def admit(self) -> None:
            if (
                self.written
            ):  # by the time it is, somebody else may have found that it was begun, and looked
                raise Suspend

    async def handler(ctx: Context) -> Any:
        return await ctx.step("charge", effects.do, "charge", at_most_once=True)

    late = Late()
    assert isinstance(await late.run(handler), Suspended)
    assert [type(entry) for entry in late.written] == [Began]
    assert effects.seen == []


async def test_at_most_once_makes_a_call_a_task_that_can_become_one() -> None:
    effects = Effects()

    async def handler(ctx: Context) -> Any:
        return await ctx.step("charge", effects.do, "charge", at_most_once=True)

    outcome = await SharedJournal(task_id=None, may_become_task=True).run(handler)
    assert isinstance(outcome, Suspended)
    assert outcome.wants_task
    assert effects.seen == []


async def test_a_key_for_services_is_the_same_in_every_run_and_another_for_each_place(
    task: SharedJournal,
) -> None:
    async def handler(ctx: Context) -> list[str]:
        keys = [await ctx.idempotency_key("charge"), await ctx.idempotency_key("charge")]
        return [
            *keys,
            *await asyncio.gather(ctx.idempotency_key("charge"), ctx.idempotency_key("charge")),
        ]

    first, second = await twice(task, handler)
    assert first == second
    assert len(set(first)) == 4
    assert first != value_of(await SharedJournal(task_id="another").run(handler))


# Values


async def test_a_value_that_cannot_be_remembered_is_remembered_as_a_failure(
    task: SharedJournal,
) -> None:
    effects = Effects()

    def step() -> Any:
        effects.do("step")
        return object()

    async def handler(ctx: Context) -> str:
        with pytest.raises(NotJson):
            await ctx.step("step", step)
        return "refused"

    assert await twice(task, handler) == ["refused"] * 2
    assert effects.seen == ["step"]


async def test_one_that_says_so_is_refused_before_its_effect(task: SharedJournal) -> None:
    effects = Effects()

    class Opaque: ...

    def step() -> Any:
        effects.do("step")
        return Opaque()

    step.__annotations__["return"] = Opaque

    async def handler(ctx: Context) -> str:
        with pytest.raises(NotJson, match="would return Opaque"):
            await ctx.step("step", step)
        return "refused"

    assert await twice(task, handler) == ["refused"] * 2
    assert effects.seen == []


# What would end the process


async def test_sys_exit_in_a_step_of_a_branch_is_a_failure_of_the_step(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> list[Any]:
        steps = ctx.step("exits", sys.exit, 3), ctx.step("fine", lambda: "fine")
        return list(await asyncio.gather(*steps, return_exceptions=True))

    for value in await twice(task, handler):
        assert str(value[0]) == "step 'exits' failed: SystemExit: 3"
        assert value[1] == "fine"


class Panic(BaseException):
    """As `pyo3_runtime.PanicException`, which a panic of an extension in Rust raises."""


class WithoutText(Exception):
    def __str__(self) -> str:
        return str(self.args[7])


@pytest.mark.parametrize(
    ("error", "cause"),
    [(Panic("out of bounds"), "Panic: out of bounds"), (WithoutText(), "WithoutText: ")],
)
async def test_a_panic_or_an_error_without_a_text_is_a_failure_of_its_step(
    task: SharedJournal, error: BaseException, cause: str
) -> None:
    def breaks() -> None:
        raise error

    async def handler(ctx: Context) -> list[Any]:
        steps = ctx.step("breaks", breaks), ctx.step("fine", lambda: "fine")
        return list(await asyncio.gather(*steps, return_exceptions=True))

    for value in await twice(task, handler):
        assert str(value[0]) == f"step 'breaks' failed: {cause}"
        assert value[1] == "fine"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), Panic("index")], ids=repr)
async def test_what_would_end_the_process_ends_a_branch_of_the_handler_alone(
    error: BaseException,
) -> None:
    async def leaves() -> None:
        raise error

    async def handler(ctx: Context) -> None:
        await asyncio.gather(leaves(), asyncio.sleep(0))

    cause = "called sys.exit(3)" if isinstance(error, SystemExit) else f"raised {error!r}"
    assert f"the handler {cause}" in str(error_of(await play(handler)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a moment"])
async def test_a_handler_that_goes_on_asking_is_ended(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MAX_REFUSALS", 10)
    turns = Counter[str]()

    async def handler(ctx: Context) -> None:
        while True:
            turns["turns"] += 1
            with suppress(BaseException):
                await ctx.elicit("who", "Who?", Name)
            if waits:
                await asyncio.sleep(0)

    assert list(asked_of(await asyncio.wait_for(play(handler), 60))) == ["who"]
    assert turns["turns"] < 20


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_so_is_one_of_whose_branches_one_does() -> None:
    async def stubborn(ctx: Context) -> None:
        while True:
            with suppress(BaseException):
                await ctx.elicit("who", "Who?", Name)

    async def handler(ctx: Context) -> None:
        await asyncio.gather(stubborn(ctx), ctx.elicit("why", "Why?", Name))

    assert sorted(asked_of(await asyncio.wait_for(play(handler), 60))) == ["who", "why"]


async def test_a_handler_that_waits_for_something_else_after_its_end_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_module, "STOP_GRACE_S", 0.05)

    async def handler(ctx: Context) -> None:
        try:
            await ctx.elicit("who", "Who?", Name)
        except BaseException:
            await asyncio.sleep(60)

    for outcome in (
        await asyncio.wait_for(play(handler), 60),
        await asyncio.wait_for(SharedJournal().run(handler), 60),
    ):
        assert list(asked_of(outcome)) == ["who"]


async def test_a_run_that_ends_does_not_wait_for_a_cut_to_happen_again(task: SharedJournal) -> None:
    task.journal.add(Cut("slow", 60_000))

    async def handler(ctx: Context) -> None:
        await ctx.step("slow", asyncio.sleep, 60)

    def stop_soon(run: Run) -> None:
        asyncio.get_running_loop().call_later(0.05, run.stop, Stop.LOST)

    outcome = await asyncio.wait_for(task.run(handler, prepare=stop_soon), 60)
    assert isinstance(outcome, Suspended)
    assert task.last is not None
    assert not task.last.is_enforced


# Threads


async def test_threads_of_steps_are_counted_also_those_that_nobody_waits_for_any_more() -> None:
    ended, running, most = threading.Event(), Counter[str](), Counter[str]()

    def hangs() -> None:
        running["now"] += 1
        most["most"] = max(most["most"], running["now"])
        ended.wait(60)
        running["now"] -= 1

    async def handler(ctx: Context) -> list[Any]:
        hanging = (ctx.step("hangs", hangs, timeout_s=0.2) for _ in range(30))
        return await asyncio.gather(*hanging, return_exceptions=True)

    try:
        values = value_of(await play(handler, step_threads=Threads(4)))
        assert {type(value) for value in values} == {StepTimeout}
        assert most["most"] == 4
    finally:
        ended.set()


async def test_a_plain_function_runs_its_steps_while_all_threads_are_taken_by_their_likes() -> None:
    def handler(ctx: SyncContext) -> int:
        return int(ctx.step("one", lambda: 1)) + int(ctx.step("two", lambda: 2))

    outcomes = await asyncio.wait_for(asyncio.gather(*(play(handler) for _ in range(60))), 60)
    assert [value_of(outcome) for outcome in outcomes] == [3] * 60


# Beginning anew


async def test_a_restart_is_an_outcome_with_its_arguments(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.step("one", lambda: 1)
        await ctx.restart(page=2)

    assert await task.run(handler) == Restarted({"page": 2})
    anew = Journal().restarted({"page": 2})
    assert elsewhere(anew) == anew


async def test_after_a_restart_clients_know_the_questions_by_other_keys() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.elicit("who", "Who?", Name)

    assert list(asked_of(await play(handler, Journal().restarted({})))) == ["who@2"]


async def test_a_restart_cannot_be_swallowed(task: SharedJournal) -> None:
    async def handler(ctx: Context) -> str:
        try:
            await ctx.restart()
        except BaseException:
            return "swallowed"

    assert await task.run(handler) == Restarted({})


async def test_a_tool_error_is_an_answer_and_never_tried_again(task: SharedJournal) -> None:
    tries: list[int] = []

    def tells() -> str:
        tries.append(1)
        raise ToolError("the card was declined")

    async def handler(ctx: Context) -> Any:
        return await ctx.step("tells", tells, retries=3, backoff=0, retry_if=Exception)

    for _ in range(2):
        assert str(error_of(await task.run(handler))) == "the card was declined"
    assert len(tries) == 1


class Busy(Exception):
    """A service that may be there later."""

    status = 503


def only_busy(error: BaseException) -> bool:
    return getattr(error, "status", None) == 503


@pytest.mark.parametrize("retry_if", [Busy, (Busy, KeyError), only_busy])
@pytest.mark.parametrize(
    ("error", "attempts"), [(Busy(), 3), (ValueError("wrong"), 1), (ToolError("no"), 1)]
)
async def test_retry_if_says_after_which_errors(
    task: SharedJournal, retry_if: Any, error: Exception, attempts: int
) -> None:
    tries: list[int] = []

    def fails() -> None:
        tries.append(1)
        raise error

    async def handler(ctx: Context) -> Any:
        await ctx.step("fails", fails, retries=2, backoff=0, retry_if=retry_if)

    for _ in range(2):
        assert isinstance(await task.run(handler), Failed)
    assert len(tries) == attempts


async def test_a_timeout_is_retried_as_a_timeout_error(task: SharedJournal) -> None:
    tries: list[int] = []

    async def slow() -> None:
        tries.append(1)
        await asyncio.Event().wait()

    async def handler(ctx: Context) -> Any:
        options: dict[str, Any] = {"timeout_s": 0.001, "retries": 1, "backoff": 0}
        with suppress(StepTimeout):
            await ctx.step("once", slow, **options, retry_if=ConnectionError)
        await ctx.step("twice", slow, **options, retry_if=TimeoutError)

    assert isinstance(error_of(await task.run(handler)), StepTimeout)
    assert len(tries) == 3


async def test_an_error_of_retry_if_is_the_failure_of_the_step(task: SharedJournal) -> None:
    def fails() -> None:
        raise Busy

    async def handler(ctx: Context) -> Any:
        await ctx.step("fails", fails, retries=2, retry_if=lambda error: error.missing)

    for _ in range(2):
        failed = str(error_of(await task.run(handler)))
        assert "retry_if raised AttributeError" in failed


@pytest.mark.parametrize(
    ("fraction", "pauses_ms"), [(0.0, (4_000, 8_000, 9_000)), (0.5, (3_000, 6_000, 6_750))]
)
async def test_a_pause_is_random_and_has_a_longest_time(
    fraction: float, pauses_ms: tuple[int, ...]
) -> None:
    class Dice(FixedClock):
        def fraction(self) -> float:
            return fraction

    clock = Dice()
    task = SharedJournal(clock=clock)

    def fails() -> None:
        raise Busy

    async def handler(ctx: Context) -> Any:
        await ctx.step("fails", fails, retries=3, backoff=4, max_interval_s=9)

    for pause_ms in pauses_ms:
        outcome = await task.run(handler)
        assert isinstance(outcome, Suspended)
        assert outcome.wake_ms == clock.now_ms() + pause_ms
        clock.skip(pause_ms / 1000)
    assert isinstance(await task.run(handler), Failed)
