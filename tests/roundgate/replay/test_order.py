"""Branches learn things in the same order in every run: outcomes, answers, the ends of
sleeps and of time limits."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import anyio
import pytest

from roundgate.errors import NondeterminismError
from roundgate.replay import branches
from roundgate.replay.context import Context
from roundgate.replay.engine import Completed, Suspended
from roundgate.replay.journal import Told
from tests.support.clocks import SkippingClock
from tests.support.lives import DiesAt, Story, every_death, nothing_happens
from tests.support.replay import Effects, Name, error_of, value_of
from tests.support.rounds import accept
from tests.support.task_runs import SharedJournal
from tests.support.virtual_loop import passed_s

Part = Callable[[Context], Awaitable[str]]


async def echo(value: str) -> str:
    return value


async def asks(ctx: Context) -> str:
    return (await ctx.elicit("who", "Who?", Name)).name


async def works(ctx: Context) -> str:
    await ctx.step("work", echo, "work")
    return "worked"


async def works_long(ctx: Context) -> str:
    await ctx.step("work", asyncio.sleep, 0.1)
    return "worked long"


async def naps(ctx: Context) -> str:
    await ctx.sleep(0.03)
    return "napped"


async def sleeps(ctx: Context) -> str:
    await ctx.sleep(3600)
    return "slept"


async def gives_up(ctx: Context) -> str:
    try:
        async with asyncio.timeout(0.03):
            await ctx.sleep(9999)
    except TimeoutError:
        return "gave up"
    return "slept"


async def sheds(ctx: Context) -> str:
    await ctx.shed("turn")
    return "shed"


async def does_nothing(ctx: Context) -> str:
    return "nothing"


def race(*parts: Part, noted: list[str] | None = None) -> Callable[[Context], Awaitable[list[str]]]:
    """A handler that notes what its parts return, as they end."""

    async def note(what: str) -> None:
        if noted is not None:
            noted.append(what)

    async def handler(ctx: Context) -> list[str]:
        ended: list[str] = []
        for one in asyncio.as_completed([part(ctx) for part in parts]):
            ended.append(await one)
            await ctx.step("note", note, " ".join(ended))
        return ended

    return handler


PAIRS = [
    (asks, works),
    (works, asks),
    (works_long, asks),
    (naps, works),
    (naps, works_long),
    (works_long, naps),
    (sleeps, asks),
    (asks, sleeps),
    (gives_up, works_long),
    (works_long, gives_up),
    (works, gives_up),
    (sheds, works),
    (sheds, works_long),
    (does_nothing, works),
    (naps, gives_up, works_long, asks, sheds, sleeps),
]


async def lived(home: SharedJournal, handler: Callable[[Context], Awaitable[Any]]) -> Any:
    """The value after as many runs as it takes; what it asks is answered, and time passes."""
    for _ in range(20):
        outcome = await home.run(handler)
        if not isinstance(outcome, Suspended):
            return value_of(outcome)
        home.journal.receive({key: accept(name="Ada") for key in outcome.requests})
        if not outcome.requests and outcome.wake_ms is not None:
            assert isinstance(home.clock, SkippingClock)
            home.clock.skip(max(0, outcome.wake_ms - home.clock.now_ms()) / 1000 + 1)
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    "parts", PAIRS, ids=lambda parts: ", ".join(part.__name__ for part in parts)
)
async def test_what_came_first_comes_first_in_every_run_whenever_a_process_dies(
    parts: tuple[Part, ...],
) -> None:
    await every_death(partial(told, parts))


async def told(parts: tuple[Part, ...], fate: DiesAt) -> None:
    noted: list[str] = []
    story = Story(race(*parts, noted=noted), lambda request: accept(name="Ada"), fate)
    value = value_of(await story.told())
    assert len(value) == len(parts)
    story.clock.skip(100_000)
    story.fate = nothing_happens
    assert value_of(await story.told()) == value
    right = {" ".join(value[: at + 1]) for at in range(len(value))}
    assert right <= set(noted)
    assert len(set(noted) - right) <= story.deaths  # one that was not durable when its process died


async def test_two_that_end_at_the_same_moment_are_seen_one_by_one_as_they_will_be_later() -> None:
    gate = asyncio.Event()

    async def handler(ctx: Context) -> int:
        async def part() -> None:
            await ctx.step("wait", gate.wait)

        tasks = [asyncio.create_task(part()) for _ in range(5)]
        asyncio.get_running_loop().call_later(0.01, gate.set)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        seen = len(done)
        await asyncio.gather(*tasks)
        return seen

    home = SharedJournal()
    assert [value_of(await home.run(handler)) for _ in range(2)] == [1, 1]


async def test_a_step_that_a_limit_kept_from_beginning_is_given_up_in_every_run() -> None:
    async def late(ctx: Context) -> str:
        try:
            async with ctx.timeout(0.02):
                time.sleep(0.03)  # noqa: ASYNC251  # its own work, which nobody can interrupt
                await ctx.step("second", echo, "too late")
        except TimeoutError:
            return "limited"
        return "in time"

    clock = SkippingClock()
    home = SharedJournal(clock=clock)
    first = await lived(home, race(late, works_long))
    assert value_of(await home.run(race(late, works_long))) == first
    clock.skip(100)
    assert value_of(await home.run(race(late, works_long))) == first


async def test_a_limit_that_is_over_early_in_a_replay_ends_nothing_that_was_in_time() -> None:
    async def in_time(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0.04):
                await ctx.step("quick", echo, "in time")
        except TimeoutError:
            return "late"
        return "in time"

    async def handler(ctx: Context) -> list[str]:
        # what was learned before took longer than the limit, and does so again
        parts = [asyncio.create_task(gives_up(ctx)) for _ in range(3)]
        ended = [await parts[0]]
        task = asyncio.create_task(in_time(ctx))
        ended.append(await task)
        return ended + [await part for part in parts[1:]]

    home = SharedJournal(clock=SkippingClock())
    first = await lived(home, handler)
    assert first[:2] == ["gave up", "in time"]
    assert value_of(await home.run(handler)) == first


async def test_a_handler_without_branches_keeps_nothing_of_the_kind() -> None:
    effects = Effects()

    async def handler(ctx: Context) -> str:
        await ctx.step("do", effects.do, "once")
        await ctx.sleep(0.01)
        return (await ctx.elicit("who", "Who?", Name)).name

    home = SharedJournal(clock=SkippingClock())
    assert await lived(home, handler) == "Ada"
    assert not [entry for entry in home.journal.entries() if isinstance(entry, Told)]


def rounds_of(*names: str, last: tuple[str, ...] = ()) -> Callable[[Context], Awaitable[None]]:
    """Make a handler of two branches with these steps in each of 30 rounds, and at the end `last`."""

    async def part(ctx: Context) -> None:
        for _ in range(30):
            for name in names:
                await ctx.step(name, echo, name)
        for name in last:
            await ctx.step(name, echo, name)

    async def handler(ctx: Context) -> None:
        await asyncio.gather(part(ctx), part(ctx))
        await ctx.elicit("who", "Who?", Name)

    return handler


@pytest.mark.parametrize(
    ("last", "left", "seconds"),
    [((), (), 0.0), (("last",), (), 0.0), (("last",), ("renamed",), 0.5)],
    ids=["dropped between others", "dropped at the end", "renamed at the end"],
)
def test_steps_that_a_new_version_has_dropped_hold_up_a_replay_once_at_most(
    last: tuple[str, ...], left: tuple[str, ...], seconds: float
) -> None:
    async def upgraded() -> None:
        home = SharedJournal()
        assert isinstance(await home.run(rounds_of("kept", "dropped", last=last)), Suspended)
        assert asyncio.get_running_loop().time() == 0
        assert isinstance(await home.run(rounds_of("kept", last=left)), Suspended)

    assert passed_s(upgraded())[1] == seconds


def test_so_do_those_at_the_ends_of_any_number_of_branches() -> None:
    def handler(*names: str) -> Callable[[Context], Awaitable[None]]:
        async def part(ctx: Context) -> None:
            for name in names:
                await ctx.step(name, echo, name)

        async def twenty(ctx: Context) -> None:
            for _ in range(20):
                await asyncio.gather(part(ctx), part(ctx))

        return twenty

    async def upgraded() -> None:
        home = SharedJournal()
        await home.run(handler("kept", "dropped"))
        await home.run(handler("kept"))

    assert passed_s(upgraded())[1] == 0.5


def test_a_branch_that_came_late_once_is_waited_for_again() -> None:
    """It waits for something outside of the engine, in the replay for longer than before."""
    order: list[str] = []

    async def part(ctx: Context, name: str, waits_s: list[float]) -> None:
        for number, wait_s in enumerate(waits_s):
            await asyncio.sleep(wait_s)
            await ctx.step(f"{name}{number}", echo, name)
            order.append(f"{name}{number}")

    async def replayed() -> None:
        home = SharedJournal()
        for slow in ([0.1, 0.2], [0.8, 0.3]):
            order.clear()

            async def handler(ctx: Context, slow: list[float] = slow) -> None:
                await asyncio.gather(part(ctx, "a", slow), part(ctx, "b", [0.2, 0.2]))

            await home.run(handler)

    passed_s(replayed())
    assert order == ["b0", "a0", "a1", "b1"]  # a0 was too late, a1 was not


# branches that yield


async def yields(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def makes_tasks(turns: int) -> None:
    """Goes on by itself as long, without a bare yield."""
    for _ in range(turns // 2):
        await asyncio.create_task(yields(0))


async def passes_a_queue(turns: int) -> None:
    """Two that hand each other things, one at a time."""
    there: asyncio.Queue[int] = asyncio.Queue(1)
    back: asyncio.Queue[int] = asyncio.Queue(1)

    async def returns() -> None:
        for _ in range(turns // 2):
            await back.put(await there.get())

    async def sends() -> None:
        for number in range(turns // 2):
            await there.put(number)
            await back.get()

    await asyncio.gather(sends(), returns())


Going = Callable[[int], Awaitable[None]]
Arranged = Callable[[Context, list[Callable[[], Any]]], Awaitable[str]]


async def by_wait(ctx: Context, parts: list[Callable[[], Any]]) -> str:
    tasks = [asyncio.create_task(part()) for part in parts]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    first = min(task.result() for task in done)
    await asyncio.gather(*tasks)
    return str(first)


async def by_completion(ctx: Context, parts: list[Callable[[], Any]]) -> str:
    return " ".join([await one for one in asyncio.as_completed([part() for part in parts])])


async def by_group(ctx: Context, parts: list[Callable[[], Any]]) -> str:
    ended: list[str] = []

    async def one(part: Callable[[], Any]) -> None:
        ended.append(await part())

    async with asyncio.TaskGroup() as group:
        for part in parts:
            group.create_task(one(part))
    return " ".join(ended)


async def by_map(ctx: Context, parts: list[Callable[[], Any]]) -> str:
    ended: list[str] = []

    async def one(number: int) -> None:
        ended.append(await parts[number]())

    await ctx.map(one, range(len(parts)))
    return " ".join(ended)


async def by_nesting(ctx: Context, parts: list[Callable[[], Any]]) -> str:
    async def deeper(part: Callable[[], Any], levels: int) -> Any:
        if levels == 0:
            return await part()
        return (await asyncio.gather(deeper(part, levels - 1)))[0]

    return await by_completion(ctx, [lambda part=part: deeper(part, 3) for part in parts])  # type: ignore[misc]


@pytest.mark.parametrize("turns", [1, 20, 25, 100, 1000])
@pytest.mark.parametrize(
    "going", [yields, makes_tasks, passes_a_queue], ids=lambda one: one.__name__
)
@pytest.mark.parametrize(
    "arranged", [by_wait, by_completion, by_group, by_map, by_nesting], ids=lambda one: one.__name__
)
async def test_a_race_is_won_by_the_same_branch_however_long_that_goes_on_by_itself(
    arranged: Arranged, going: Going, turns: int
) -> None:
    async def handler(ctx: Context) -> str:
        async def part(name: str, takes_s: float, turns: int) -> str:
            await ctx.step(name, asyncio.sleep, takes_s)
            await going(turns)
            return name

        parts = [
            lambda: part("last", 0.15, 0),
            lambda: part("second", 0.08, turns // 3),
            lambda: part("first", 0.0, turns),
        ]
        return await arranged(ctx, parts)

    home = SharedJournal()
    first = value_of(await home.run(handler))
    assert first.startswith("first")
    assert [value_of(await home.run(handler)) for _ in range(2)] == [first, first]


async def test_a_branch_that_never_waits_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(branches, "MAX_TURNS", 1_000)

    async def handler(ctx: Context) -> str:
        task = asyncio.create_task(ctx.step("work", asyncio.sleep, 0.01))
        while not task.done():  # noqa: ASYNC110  # as people write it
            await asyncio.sleep(0)
        return "done"

    error = error_of(await SharedJournal().run(handler))
    assert isinstance(error, NondeterminismError)
    assert "without waiting" in str(error)


async def test_a_cancellation_that_is_about_to_come_again_is_not_overtaken() -> None:
    is_there = True

    async def handler(ctx: Context) -> list[str]:
        learned: list[str] = []
        begun = asyncio.Event()

        async def gone() -> None:
            await ctx.step("before", echo, "before")
            await begun.wait()
            await ctx.step("after", echo, "after")

        async def gives_up_late() -> None:
            await ctx.step("begin", asyncio.sleep, 0.02)
            begun.set()
            learned.append(await gives_up(ctx))

        async def works_longer() -> None:
            await ctx.step("work", asyncio.sleep, 0.3)
            learned.append("worked")

        parts = [gives_up_late(), works_longer()] + ([gone()] if is_there else [])
        await asyncio.gather(*parts)
        await ctx.step("act", echo, str(learned))
        return learned

    home = SharedJournal()
    first = value_of(await home.run(handler))
    is_there = False
    assert [value_of(await home.run(handler)) for _ in range(2)] == [first] * 2


async def test_branches_that_are_late_get_their_results_in_order() -> None:
    is_first = True

    async def handler(ctx: Context) -> list[str]:
        async def races(name: str, takes_s: float) -> None:
            await ctx.step(name, asyncio.sleep, takes_s)
            learned.append(name)

        async def race() -> None:
            if not is_first:
                await asyncio.sleep(2 * branches.GRACE_S)
            await asyncio.gather(races("slow", 0.1), races("fast", 0.02))

        learned: list[str] = []
        parts = [race(), ctx.step("long", asyncio.sleep, 0.2)]
        if is_first:
            parts.append(ctx.step("gone", asyncio.sleep, 0))
        await asyncio.gather(*parts)
        return learned

    home = SharedJournal()
    assert value_of(await home.run(handler)) == ["fast", "slow"]
    is_first = False
    assert [value_of(await home.run(handler)) for _ in range(2)] == [["fast", "slow"]] * 2


@pytest.mark.parametrize("by_anyio", [False, True])
async def test_a_branch_that_is_cancelled_twice_ends_no_earlier_in_a_later_run(
    by_anyio: bool,
) -> None:
    """`cut` is cancelled by its sibling, then by its own limit, before an event between the two."""
    is_first = True

    async def handler(ctx: Context) -> str:
        async def cut() -> None:
            limit_s = 9.0 if is_first else 0.1
            with anyio.move_on_after(limit_s) if by_anyio else nullcontext():
                async with asyncio.timeout(None if by_anyio else limit_s):
                    await ctx.step("work", asyncio.sleep, 9)

        async def between() -> None:
            await asyncio.sleep(0 if is_first else 0.2)
            await ctx.step("between", asyncio.sleep, 0.05)

        async def racer() -> None:
            task = asyncio.create_task(cut())
            await ctx.step("begin", asyncio.sleep, 0.01)
            if is_first:
                await begun.wait()
            task.cancel()
            await asyncio.wait([task])

        async def other() -> None:
            await between()
            begun.set()
            await asyncio.sleep(0)

        begun = asyncio.Event()
        tasks = [asyncio.create_task(racer()), asyncio.create_task(other())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = str([task.done() for task in tasks])
        await ctx.step("note", echo, first)
        await asyncio.wait(tasks)
        return first

    home = SharedJournal()
    first = value_of(await home.run(handler))
    is_first = False
    async with asyncio.timeout(60):
        assert [value_of(await home.run(handler)) for _ in range(2)] == [first] * 2


async def test_a_cancellation_with_a_late_place_leaves_all_other_results_in_their_order() -> None:
    """A worker may die between the end of a limit and the entry of the wait that it cut: then a later
    life records the wait behind what followed from it."""
    forever = asyncio.Event()

    async def handler(ctx: Context) -> Any:
        async def limited() -> None:
            with suppress(TimeoutError):
                async with ctx.timeout(5):
                    await ctx.sleep(60)

        async def slow() -> str:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await ctx.step("slow", forever.wait)
            await ctx.sleep(0.001, "nap")
            return "slow"

        async def quick() -> str:
            await ctx.shed()
            return "quick"

        await asyncio.create_task(limited())
        await ctx.step("after", echo, "after")
        tasks = [asyncio.create_task(slow()), asyncio.create_task(quick())]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        first = await ctx.step("first", echo, done.pop().result())
        await asyncio.wait(tasks)
        await ctx.shed("end")
        return first

    story = Story(handler, lambda request: None)
    while b"shed:end" not in story.stored:
        assert await story.life() is None
    rows, *rest = json.loads(story.stored)
    cut = next(row for row in rows if row[:2] == ["c", "limited@0/sleep:sleep"])
    rows.remove(cut)
    story.stored = json.dumps([[*rows, cut], *rest]).encode()
    assert await story.told() == Completed("slow")
