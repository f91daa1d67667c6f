"""Times, random numbers, ids and versions: a handler gets the same ones in every run, and pays for
them no more than it has to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from roundgate.clock import Clock
from roundgate.errors import HandlerVersionError, Suspend
from roundgate.replay import Remembered
from roundgate.replay.context import Context
from roundgate.replay.engine import Completed, Suspended
from roundgate.replay.journal import Journal
from tests.support.clocks import FixedClock
from tests.support.lives import DiesAt, Story
from tests.support.replay import (
    Effects,
    Name,
    asked_of,
    elsewhere,
    error_of,
    play,
    play_to_the_end,
    polite,
    value_of,
)
from tests.support.rounds import accept
from tests.support.task_runs import SharedJournal


def remembered(journal: Journal) -> list[str]:
    return [entry.key for entry in journal.entries() if isinstance(entry, Remembered)]


def made(ctx: Any) -> list[Any]:
    return [ctx.now(), ctx.random().random(), ctx.random().choice("abc"), ctx.uuid(), ctx.uuid()]


async def runs_of(handler: Any, seen: list[Any], clock: Any = None) -> None:
    """Plays a handler that asks once, so that it runs twice."""
    played = await play_to_the_end(handler, polite, clock=clock)
    assert isinstance(played.outcome, Completed)
    assert len(seen) == 2


async def test_a_handler_gets_the_same_values_in_every_run() -> None:
    seen: list[Any] = []

    async def handler(ctx: Context) -> None:
        seen.append(made(ctx))
        await ctx.elicit("who", "Who?", Name)

    await runs_of(handler, seen)
    assert seen[0] == seen[1]
    _, draw, _, first, second = seen[0]
    assert 0 <= draw < 1
    assert first != second


async def test_another_call_gets_others() -> None:
    async def handler(ctx: Context) -> list[Any]:
        return made(ctx)[1:]

    one, other = value_of(await play(handler)), value_of(await play(handler))
    assert one[0] != other[0]
    assert one[2] != other[2]


async def test_now_is_the_time_of_the_first_run_in_utc() -> None:
    clock, seen = FixedClock(), list[datetime]()

    async def handler(ctx: Context) -> None:
        seen.append(ctx.now())
        await ctx.elicit("who", "Who?", Name)
        clock.skip(60)
        seen.append(ctx.now())

    await play_to_the_end(handler, polite, clock=clock)
    began = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) - timedelta(seconds=60)
    assert seen == [began, began, began + timedelta(seconds=60)]
    assert seen[0].tzinfo is UTC


async def test_a_uuid_is_one_of_version_4() -> None:
    async def handler(ctx: Context) -> UUID:
        return ctx.uuid()

    value = value_of(await play(handler))
    assert (value.version, value.variant) == (4, "specified in RFC 4122")


async def test_branches_have_their_own_values_whatever_order_they_run_in() -> None:
    seen: list[Any] = []
    pauses = iter([0.02, 0.0, 0.0, 0.02])

    async def handler(ctx: Context) -> None:
        async def part() -> list[Any]:
            await asyncio.sleep(next(pauses))
            return made(ctx)

        async with ctx.branch("named"):
            of_branch = made(ctx)
        seen.append([*await ctx.gather(part(), part()), of_branch, made(ctx)])
        await ctx.elicit("who", "Who?", Name)

    await runs_of(handler, seen)
    assert seen[0] == seen[1]
    assert len({str(values[3]) for values in seen[0]}) == 4


async def test_a_name_keeps_its_values_when_others_are_added_before() -> None:
    async def before(ctx: Context) -> None:
        await ctx.elicit("who", f"{ctx.now('ordered')} {ctx.uuid('order')}?", Name)

    async def after(ctx: Context) -> None:
        ctx.now(), ctx.uuid()
        await before(ctx)

    first = await play(before)
    again = await play(after, first)
    assert asked_of(first) == asked_of(again)


async def test_one_seed_serves_a_call_and_each_time_has_an_entry() -> None:
    async def handler(ctx: Context) -> None:
        for _ in range(3):
            made(ctx)
        await ctx.elicit("who", "Who?", Name)

    outcome = await play(handler)
    assert isinstance(outcome, Suspended)
    assert remembered(outcome.journal) == ["now:now", "seed:", "now:now#2", "now:now#3"]
    assert remembered(elsewhere(outcome.journal)) == remembered(outcome.journal)


async def test_a_step_that_runs_again_after_a_crash_is_given_the_same_values() -> None:
    deaths = 0
    for moment in range(100):
        given: dict[str, set[str]] = {}

        async def charge(what: str, *values: Any, given: Any = given) -> None:
            given.setdefault(what, set()).add(repr(values))

        async def handler(ctx: Context, charge: Any = charge) -> None:
            async def part(name: str) -> None:
                await ctx.step(f"one-{name}", charge, f"one-{name}", *made(ctx))
                await ctx.step(f"two-{name}", charge, f"two-{name}", ctx.version("change", 2))
                await ctx.step(f"key-{name}", charge, name, ctx.uuid(), at_most_once=False)

            await ctx.gather(part("a"), part("b"))
            await ctx.step("end", charge, "end", *made(ctx))

        story = Story(handler, lambda request: None, DiesAt(moment))
        assert isinstance(await story.told(), Completed)
        assert all(len(values) == 1 for values in given.values()), given
        deaths += story.deaths
        if not story.deaths:
            break
    assert deaths > 15


async def test_values_are_written_before_the_next_step_begins_and_only_then() -> None:
    effects = Effects()

    async def handler(ctx: Context) -> None:
        made(ctx)
        ctx.version("change", 2)
        await ctx.step("first", effects.do, 1)
        await ctx.step("second", effects.do, str(ctx.uuid()))  # of the seed that is written
        await ctx.step("third", effects.do, str(ctx.now()), at_most_once=True)
        ctx.now()

    home = SharedJournal(clock=Clock())
    value_of(await home.run(handler))
    assert [[entry.key for entry in batch] for batch in home.batches] == [
        ["now:now", "seed:", "version:change"],
        ["first"],
        ["second"],
        ["now:now#2", "third"],
        ["third"],
    ]


async def test_they_cannot_be_had_inside_a_step_or_in_another_thread_or_afterwards() -> None:
    left: list[Context] = []

    async def handler(ctx: Context) -> list[str]:
        left.append(ctx)
        said: list[str] = []
        asks: list[Callable[[], Any]] = [ctx.now, ctx.uuid]
        asks += [lambda: ctx.random(), lambda: ctx.version("change", 2)]
        for ask in asks:
            for waiting in (ctx.step("do", ask), asyncio.to_thread(ask)):
                try:
                    await waiting
                except Exception as error:
                    said.append(type(error).__name__)
        return said

    assert value_of(await play(handler)) == ["StepFailed", "RuntimeError"] * 4
    with pytest.raises(RuntimeError, match="only the handler and the tasks"):
        left[0].now()


async def test_a_handler_that_goes_on_after_its_end_gets_none() -> None:
    caught: list[BaseException] = []

    async def handler(ctx: Context) -> None:
        try:
            await ctx.elicit("who", "Who?", Name)
        except BaseException:
            try:
                ctx.now()
            except BaseException as error:
                caught.append(error)
            raise

    asked_of(await play(handler))
    assert [type(error) for error in caught] == [Suspend]


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "now:now", "a/b", "#2", 7])
async def test_a_name_that_is_none_is_refused(name: Any) -> None:
    async def handler(ctx: Context) -> None:
        for ask in (ctx.now, ctx.uuid, ctx.random, lambda name: ctx.version(name, 2)):
            with pytest.raises(ValueError, match="is not a valid name for a"):
                ask(name)

    value_of(await play(handler))


# versions


async def old(ctx: Context) -> str:
    await ctx.step("plan", lambda: None)
    await ctx.elicit("before", "Go on?", Name)
    await ctx.step("charge", lambda: None)
    await ctx.elicit("after", "Go on?", Name)
    return "old"


def new(newest: int = 2, oldest: int = 1) -> Any:
    async def handler(ctx: Context) -> int:
        await ctx.step("plan", lambda: None)
        await ctx.elicit("before", "Go on?", Name)
        version = ctx.version("change", newest, oldest=oldest)
        if version == 1:
            await ctx.step("charge", lambda: None)
        await ctx.elicit("after", "Go on?", Name)
        return version

    return handler


GO = accept(name="go")


async def test_a_new_call_gets_the_newest_version_and_keeps_it() -> None:
    first = await play(new(2))
    second = await play(new(2), first, {"before": GO})
    assert value_of(await play(new(3), second, {"after": GO})) == 2


async def test_a_call_that_had_not_come_to_the_place_gets_the_newest() -> None:
    first = await play(old)
    second = await play(new(2), first, {"before": GO})
    assert value_of(await play(new(2), second, {"after": GO})) == 2


async def test_a_call_that_was_beyond_the_place_keeps_the_old_way_to_its_end() -> None:
    first = await play(old)
    second = await play(old, first, {"before": GO})
    third = await play(new(2), second)
    assert list(asked_of(third)) == ["after"]
    assert value_of(await play(new(3), third, {"after": GO})) == 1


async def test_an_open_question_or_sleep_beyond_the_place_is_enough() -> None:
    async def asks(ctx: Context) -> None:
        await ctx.elicit("who", "Who?", Name)

    async def sleeps(ctx: Context) -> None:
        await ctx.sleep(3600)

    for rest in (asks, sleeps):

        async def changed(ctx: Context, rest: Any = rest) -> int:
            version = ctx.version("change", 2)
            await rest(ctx)
            return version

        story = Story(rest, lambda request: GO)
        await story.life()
        story.handler = changed
        outcome = await story.told()
        assert value_of(outcome) == 1


async def test_all_branches_have_the_same_version() -> None:
    """One of them was beyond the place, the others were not."""

    async def handler(ctx: Context) -> list[int]:
        async def part(number: int) -> int:
            await ctx.step("plan", lambda: None)
            if number:
                await ctx.elicit(f"before{number}", "Go on?", Name)
            versions.append(ctx.version("change", 2) if is_changed else 0)
            await ctx.step("do", lambda: None)
            await ctx.elicit(f"after{number}", "Go on?", Name)
            return versions[-1]

        return await ctx.map(part, [2, 0, 1])

    is_changed, versions = False, list[int]()
    first = await play(handler)
    is_changed, versions = True, []
    second = await play(handler, first, {"before1": GO, "before2": GO, "after0": GO})
    answers = dict.fromkeys(asked_of(second), GO)
    assert value_of(await play(handler, second, answers)) == [1, 1, 1]


async def test_a_version_that_is_removed_does_not_age_the_call_for_the_next_change() -> None:
    async def after(ctx: Context) -> list[int]:
        await ctx.step("plan", lambda: None)
        await ctx.elicit("before", "Go on?", Name)
        await ctx.elicit("after", "Go on?", Name)
        return [ctx.version("other", 2)]

    first = await play(new(2))
    second = await play(new(2), first, {"before": GO})
    assert value_of(await play(after, second, {"after": GO})) == [2]


async def test_a_step_that_is_gone_ages_a_call_until_its_next_new_step() -> None:
    """Nothing tells whether the step was before the place or after it."""

    async def before(ctx: Context) -> None:
        await ctx.step("gone", lambda: None)
        await ctx.elicit("who", "Who?", Name)

    async def after(ctx: Context) -> list[int]:
        await ctx.elicit("who", "Who?", Name)
        first = ctx.version("first", 2)
        await ctx.step("more", lambda: None)
        return [first, ctx.version("second", 2)]

    assert value_of(await play(after, await play(before), {"who": GO})) == [1, 2]


async def test_a_handler_that_decides_by_its_state_has_versions_too() -> None:
    async def handler(ctx: Context) -> int:
        version = ctx.version("change", 2) if is_changed else 1
        ctx.state["rounds"] = ctx.state.get("rounds", 0) + 1
        if ctx.state["rounds"] < 3:
            await ctx.request_input({"roots": {"method": "roots/list"}})
        return version

    for is_changed_at, expected in ((0, 2), (1, 1)):
        outcome: Any = None
        for number in range(3):
            is_changed = number >= is_changed_at
            outcome = await play(handler, outcome)
        assert value_of(outcome) == expected


async def test_a_restart_gets_the_newest() -> None:
    async def handler(ctx: Context) -> None:
        versions.append(ctx.version("change", newest))
        await ctx.restart()

    newest, versions = 2, list[int]()
    await play(handler)
    newest = 3
    await play(handler, Journal().restarted({}))
    assert versions == [2, 3]


async def test_a_version_that_is_not_supported_any_more_ends_in_an_error_that_says_so() -> None:
    second = await play(old, await play(old), {"before": GO})
    error = error_of(await play(new(2, oldest=2), second))
    assert isinstance(error, HandlerVersionError)
    assert str(error) == (
        "'version:change': the call has version 1 of 'change', and its handler supports 2 to 2: "
        "serve a handler that has a branch for version 1 and declares it with oldest, or cancel the "
        "call"
    )
    assert not error.is_newer


async def test_so_does_one_that_is_not_known_yet() -> None:
    second = await play(new(3), await play(new(3)), {"before": GO})
    error = error_of(await play(new(2), second))
    assert isinstance(error, HandlerVersionError)
    assert error.is_newer
    assert "serve the newer handler" in str(error)


async def test_a_handler_cannot_catch_that() -> None:
    async def careless(ctx: Context) -> str:
        try:
            ctx.version("change", 3, oldest=3)
        except Exception:
            return "caught"
        return "not raised"

    async def before(ctx: Context) -> None:
        await ctx.elicit("who", "Who?", Name)

    assert isinstance(error_of(await play(careless, await play(before))), HandlerVersionError)


@pytest.mark.parametrize(("newest", "oldest"), [(0, 1), (2, 0), (1, 2), (-1, -2)])
async def test_versions_that_are_no_range_are_refused(newest: int, oldest: int) -> None:
    async def handler(ctx: Context) -> None:
        with pytest.raises(ValueError, match="is required"):
            ctx.version("change", newest, oldest=oldest)

    value_of(await play(handler))
