"""Handlers as people write them, each of which once was wrong, hung, or ended in silence."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import pytest

from roundgate.replay.context import Context
from roundgate.replay.engine import Outcome, Suspended
from roundgate.replay.journal import Began, Cut, Entry
from tests.support.clocks import SkippingClock
from tests.support.replay import Effects, Name, asked_of, error_of, value_of
from tests.support.rounds import accept
from tests.support.task_runs import SharedJournal

Handler = Callable[[Context], Awaitable[Any]]


async def echo(what: Any) -> Any:
    return what


async def number_of(number: int) -> int:
    """The later ones are done first."""
    await asyncio.sleep(0.1 * (3 - number))
    return number


async def replayed(handler: Handler, home: SharedJournal | None = None) -> tuple[Any, Any]:
    """What a handler that lets go of its worker once at its end (`shed`) returns when it is run again."""
    home = home or SharedJournal(clock=SkippingClock())
    assert isinstance(await home.run(handler), Suspended)
    first = value_of(await home.run(handler))
    return first, value_of(await home.run(handler))


class Slow(SharedJournal):
    """A store that takes its time."""

    async def checkpoint(self, *entries: Entry) -> None:
        await asyncio.sleep(0.1)
        await super().checkpoint(*entries)


@contextmanager
def a_task_factory(factory: Any) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(factory)
    try:
        yield
    finally:
        loop.set_task_factory(before)


# racing


async def test_a_branch_that_a_failed_sibling_cancels_is_cancelled_where_it_was() -> None:
    async def fails() -> None:
        await asyncio.sleep(0.05)
        raise ValueError

    async def takes(number: int) -> int:
        await asyncio.sleep(0.02 * number)
        return number

    async def worker(ctx: Context) -> None:
        done: list[int] = []
        try:
            for number in range(5):
                await asyncio.sleep(0.001)
                done.append(await ctx.step("part", takes, number))
        except asyncio.CancelledError:
            await ctx.step("undo", echo, done)
            raise

    async def handler(ctx: Context) -> Any:
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step("bad", fails))
                group.create_task(worker(ctx))
        await ctx.shed()
        return "undone"

    assert await replayed(handler) == ("undone", "undone")


async def test_a_question_that_nobody_waits_for_any_more_is_not_asked() -> None:
    async def handler(ctx: Context) -> Any:
        asks = asyncio.create_task(ctx.elicit("loser", "?", Name))
        await ctx.step("work", echo, 1)
        await asyncio.sleep(0)
        asks.cancel()
        return await ctx.elicit("real", "?", Name)

    assert list(asked_of(await SharedJournal().run(handler))) == ["real"]


# time limits


@pytest.mark.parametrize("seconds", [0.3, 30])
async def test_a_sleep_that_a_timeout_ended_is_ended_by_it_also_when_its_time_is_over(
    seconds: float,
) -> None:
    async def handler(ctx: Context) -> Any:
        said = "slept"
        try:
            async with asyncio.timeout(0.05):
                await ctx.sleep(seconds)
        except TimeoutError:
            said = "timed out"
        await ctx.sleep(60, "later")
        return said

    clock = SkippingClock()
    home = SharedJournal(clock=clock)
    assert isinstance(await home.run(handler), Suspended)
    clock.skip(100)
    assert value_of(await home.run(handler)) == "timed out"


async def test_a_question_that_a_limit_ended_stays_ended_when_an_answer_comes() -> None:
    async def handler(ctx: Context) -> Any:
        who = "nobody"
        with suppress(TimeoutError):
            async with ctx.timeout(5):
                who = (await ctx.elicit("who", "Who?", Name)).name
        return who, (await ctx.elicit("next", f"For {who}?", Name)).name

    clock = SkippingClock()
    home = SharedJournal(clock=clock)
    assert list(asked_of(await home.run(handler))) == ["who"]
    clock.skip(6)
    assert list(asked_of(await home.run(handler))) == ["next"]
    home.journal.receive({"who": accept(name="late"), "next": accept(name="Ada")})
    assert value_of(await home.run(handler)) == ("nobody", "Ada")


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_a_step_given_up_while_it_is_being_noted_is_given_up_in_every_run(
    at_most_once: bool,
) -> None:
    async def handler(ctx: Context) -> Any:
        try:
            async with asyncio.timeout(0.05):
                return await ctx.step("do", echo, "in time", at_most_once=at_most_once)
        except TimeoutError:
            return "late"

    home = Slow()
    assert [value_of(await home.run(handler)) for _ in range(2)] == ["late", "late"]
    assert isinstance(home.written[-1], Cut)
    assert isinstance(home.written[0], Began) == at_most_once


async def test_wait_for_ends_a_long_sleep_of_a_task() -> None:
    async def handler(ctx: Context) -> Any:
        try:
            await asyncio.wait_for(ctx.sleep(600), 0.05)
        except TimeoutError:
            return "timed out"

    assert value_of(await SharedJournal(clock=SkippingClock()).run(handler)) == "timed out"


@pytest.mark.parametrize("beside", [None, 10_000])
async def test_a_turn_that_is_given_back_is_given_back_whatever_limit_is_around_it(
    beside: float | None,
) -> None:
    async def handler(ctx: Context) -> Any:
        async with asyncio.timeout(50), asyncio.TaskGroup() as group:
            group.create_task(ctx.shed("turn"))
            if beside is not None:
                group.create_task(ctx.sleep(beside))
        return "done"

    clock = SkippingClock()
    home = SharedJournal(clock=clock)
    async with asyncio.timeout(60):
        outcome = await home.run(handler)
    assert isinstance(outcome, Suspended)
    assert outcome.wake_ms is None


async def test_a_branch_that_nobody_cuts_again_does_not_hold_the_others_up() -> None:
    runs: list[int] = []

    async def handler(ctx: Context) -> None:
        runs.append(1)
        part = asyncio.create_task(ctx.sleep(3600, "part"))
        await ctx.step("beside", asyncio.sleep, 0.01)
        if len(runs) == 1:
            part.cancel()
            await asyncio.wait([part])
        await ctx.sleep(60, "later")

    home = SharedJournal(clock=SkippingClock())
    for _ in range(2):
        async with asyncio.timeout(60):
            outcome = await home.run(handler)
        assert isinstance(outcome, Suspended)
        assert outcome.wake_ms is not None


@pytest.mark.parametrize("milliseconds", range(12, 24))
async def test_a_timeout_that_fires_in_the_turn_that_looks_idle_ends_its_wait(
    milliseconds: int,
) -> None:
    async def handler(ctx: Context) -> str:
        hold_up(20)
        try:
            async with asyncio.timeout(milliseconds / 1000):
                await ctx.sleep(3600)
        except TimeoutError:
            return "in vain"
        return "in time"

    def hold_up(turns: int) -> None:
        """Have each turn of the event loop take its time."""
        time.sleep(0.002)
        if turns:
            asyncio.get_running_loop().call_soon(hold_up, turns - 1)

    assert value_of(await SharedJournal(clock=SkippingClock()).run(handler)) == "in vain"


async def test_a_task_that_outlives_a_limit_goes_on() -> None:
    async def later(ctx: Context) -> Any:
        await asyncio.sleep(0.1)
        return await ctx.step("later", echo, "done")

    async def handler(ctx: Context) -> Any:
        with suppress(TimeoutError):
            async with ctx.timeout(0.05):
                task = asyncio.create_task(later(ctx))
                await ctx.sleep(60)
        return await task

    async with asyncio.timeout(60):
        assert value_of(await SharedJournal(clock=SkippingClock()).run(handler)) == "done"


async def test_a_process_that_ends_gives_up_no_step_for_its_handler() -> None:
    started = asyncio.Event()
    effects = Effects()

    async def slow() -> None:
        if not effects.do("once"):
            return
        started.set()
        if len(effects.seen) == 1:
            await asyncio.Event().wait()

    async def part(ctx: Context) -> Any:
        return await ctx.step("slow", slow)

    async def handler(ctx: Context) -> Any:
        return await asyncio.gather(part(ctx))

    home = SharedJournal()
    run = asyncio.ensure_future(home.run(handler))
    await started.wait()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as `asyncio.run` does at its end
        task.cancel()
    await asyncio.wait([run])
    assert home.written == []


# tasks


@pytest.mark.parametrize("limit_s", [None, 60])
async def test_branches_inside_wait_for_are_branches(limit_s: float | None) -> None:
    async def part(ctx: Context, number: int) -> Any:
        return await ctx.step("do", number_of, number)

    async def main(ctx: Context) -> Any:
        return await asyncio.gather(*(part(ctx, number) for number in range(3)))

    async def handler(ctx: Context) -> Any:
        return await asyncio.wait_for(main(ctx), limit_s)

    home = SharedJournal()
    assert value_of(await home.run(handler)) == [0, 1, 2]
    assert sorted(home.journal.steps) == ["part@0/do", "part@1/do", "part@2/do"]


async def test_tasks_of_a_library_in_a_group_of_anyio_shift_nobody() -> None:
    async def part(ctx: Context, number: int) -> None:
        await ctx.step("do", number_of, number)

    async def handler_with(library_tasks: int, ctx: Context) -> str:
        async with anyio.create_task_group() as group:
            for number in range(3):
                for _ in range(library_tasks):
                    group.start_soon(anyio.sleep, 0)
                group.start_soon(part, ctx, number)
        return "done"

    home = SharedJournal()
    for library_tasks in (0, 2):
        assert value_of(await home.run(lambda ctx, n=library_tasks: handler_with(n, ctx))) == "done"  # type: ignore[misc]
    assert sorted(home.journal.steps) == ["part@0/do", "part@1/do", "part@2/do"]


async def test_a_task_factory_around_ours_leaves_branches_as_they_are() -> None:
    async def part(ctx: Context, number: int) -> Any:
        return await ctx.step("do", echo, number)

    async def handler(ctx: Context) -> Any:
        return await asyncio.gather(part(ctx, 1), part(ctx, 2))

    await SharedJournal().run(handler)
    ours: Any = asyncio.get_running_loop().get_task_factory()

    def traced(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        async def span() -> Any:
            return await coroutine

        return ours(loop, span(), **options)

    with a_task_factory(traced):
        home = SharedJournal()
        assert value_of(await home.run(handler)) == [1, 2]
        assert sorted(home.journal.steps) == ["part@0/do", "part@1/do"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_tasks_that_start_eagerly_are_the_same_branches() -> None:
    async def part(ctx: Context, number: int) -> Any:
        return await ctx.step("do", number_of, number % 3)

    async def pair(ctx: Context, number: int) -> Any:
        return await asyncio.gather(part(ctx, number), part(ctx, number + 1))

    async def handler(ctx: Context) -> Any:
        pairs = sorted([await one for one in asyncio.as_completed([pair(ctx, 0), pair(ctx, 2)])])
        await ctx.shed()
        return pairs

    with a_task_factory(getattr(asyncio, "eager_task_factory")):  # noqa: B009
        assert await replayed(handler) == ([[0, 1], [2, 0]], [[0, 1], [2, 0]])


async def test_objects_that_as_completed_would_start_in_any_order_are_refused() -> None:
    class Later:
        def __init__(self, ctx: Context) -> None:
            self.ctx = ctx

        def __await__(self) -> Any:
            return self.ctx.step("do", echo, 1).__await__()

    async def handler(ctx: Context) -> Any:
        return [await one for one in asyncio.as_completed([Later(ctx), Later(ctx)])]

    assert "in no fixed order; pass coroutines or tasks" in str(
        error_of(await SharedJournal().run(handler))
    )


async def test_nobody_complains_of_a_suspended_task_that_nobody_waits_for() -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: complaints.append(context)
    )

    async def handler(ctx: Context) -> Any:
        asks = asyncio.create_task(ctx.elicit("aside", "?", Name))
        await ctx.elicit("who", "?", Name)
        return await asks

    assert list(asked_of(await SharedJournal().run(handler))) == ["who", "aside"]
    await asyncio.sleep(0)
    gc.collect()
    assert complaints == []


# the context


async def test_a_context_of_a_call_that_has_ended_is_an_error_in_another_handler_too() -> None:
    kept: list[Context] = []

    async def keeps(ctx: Context) -> None:
        kept.append(ctx)

    async def takes(ctx: Context) -> Any:
        return await kept[0].step("do", echo, 1)

    await SharedJournal().run(keeps)
    assert "the handler has ended" in str(error_of(await SharedJournal().run(takes)))


# arguments


class Remote:
    """Has any attribute that it is asked for."""

    def __getattr__(self, name: str) -> Remote:
        return Remote()

    def __call__(self) -> None: ...


@dataclasses.dataclass
class Unset:
    given: int
    later: int = dataclasses.field(init=False)


@pytest.mark.parametrize(
    "argument",
    [Remote(), Unset(1), 10**5000, "\udcff", {1: "a", "b": None}, {3, "a"}],
    ids=range(6),
)
async def test_any_argument_of_a_step_has_a_digest(argument: Any) -> None:
    async def takes(what: Any) -> str:
        return "taken"

    async def handler(ctx: Context) -> Any:
        return await ctx.step("do", takes, argument)

    home = SharedJournal()
    outcomes: list[Outcome[Any]] = [await home.run(handler) for _ in range(2)]
    assert [value_of(outcome) for outcome in outcomes] == ["taken", "taken"]


async def test_the_time_of_thousands_of_parallel_questions_does_not_grow_quadratically() -> None:
    async def handler(ctx: Context) -> Any:
        async def ask(number: int) -> Any:
            return await ctx.elicit("who", f"Who is {number}?", Name)

        return await asyncio.gather(*(ask(number) for number in range(1000)))

    asked = asked_of(await SharedJournal().run(handler))
    assert {"who", "who#2", "who#1000"} <= set(asked)
    assert len(asked) == 1000
