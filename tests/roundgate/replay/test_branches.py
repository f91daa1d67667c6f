"""Parts of a handler that run side by side and use the same names: each keeps its own,
whoever comes first to where."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

import pytest

from roundgate.errors import NondeterminismError, Suspend
from roundgate.replay import branches
from roundgate.replay.context import Context
from roundgate.replay.engine import Suspended
from roundgate.replay.journal import Entry, Slept
from roundgate.replay.sync_context import SyncContext
from tests.support.clocks import FixedClock
from tests.support.replay import Effects, Name, error_of, play, play_to_the_end, polite, value_of
from tests.support.rounds import accept
from tests.support.task_runs import SharedJournal

ORDERS = range(6)


class Mortal(SharedJournal):
    """A worker that dies, and is replaced by another, after each entry that it writes."""

    died = False

    async def checkpoint(self, *entries: Entry) -> None:
        await asyncio.sleep(random.random() / 500)
        if not self.died:
            self.died = True
            await super().checkpoint(*entries)
        raise Suspend


async def to_the_end(handler: Callable[[Context], Awaitable[Any]]) -> Any:
    """The value of a task whose worker dies after every single entry."""
    home = Mortal()
    for _ in range(300):
        before, written, home.died = home.journal, len(home.written), False
        outcome = await home.run(handler)
        if home.died:  # nothing is left of its run but what it has written
            home.journal = before
            for entry in home.written[written:]:
                home.journal.add(entry)
            continue
        if not isinstance(outcome, Suspended):
            return value_of(outcome)
        home.journal.receive({key: polite(key, one) for key, one in outcome.requests.items()})
        home.clock.skip(60)  # type: ignore[attr-defined]
    raise AssertionError("it never ended")


Arrange = Callable[[Callable[[int], Awaitable[Any]]], Awaitable[list[Any]]]


async def by_gather(order: Callable[[int], Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*(order(number) for number in ORDERS)))


async def by_group(order: Callable[[int], Any]) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(order(number)) for number in ORDERS]
    return [task.result() for task in tasks]


async def by_nested_gathers(order: Callable[[int], Any]) -> list[Any]:
    async def pair(number: int) -> list[Any]:
        return list(await asyncio.gather(order(number), order(number + 1)))

    return [one for pair_ in await asyncio.gather(pair(0), pair(2), pair(4)) for one in pair_]


async def by_tasks(order: Callable[[int], Any]) -> list[Any]:
    tasks = [asyncio.create_task(order(number)) for number in ORDERS]
    await asyncio.wait(tasks)
    return [task.result() for task in tasks]


async def by_tasks_with_a_timeout(order: Callable[[int], Any]) -> list[Any]:
    waiting = (asyncio.wait_for(order(number), 60) for number in ORDERS)
    return list(await asyncio.gather(*waiting))


async def by_completion(order: Callable[[int], Any]) -> list[Any]:
    return sorted([await one for one in asyncio.as_completed([order(number) for number in ORDERS])])


ARRANGEMENTS: list[Arrange] = [
    by_gather,
    by_group,
    by_nested_gathers,
    by_tasks,
    by_tasks_with_a_timeout,
    by_completion,
]


@pytest.mark.parametrize("arrange", ARRANGEMENTS, ids=lambda arrange: arrange.__name__)
async def test_branches_that_share_their_names_keep_what_is_theirs(
    arrange: Arrange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branches, "GRACE_S", 0.02)  # it dies dozens of times, often in between
    effects = Counter[str]()

    async def act(what: str, number: int) -> str:
        await asyncio.sleep(random.random() / 500)
        effects[f"{what} {number}"] += 1
        return f"{what} {number}"

    async def handler(ctx: Context) -> list[Any]:
        async def order(number: int) -> list[str]:
            charged = await ctx.step("charge", act, "charge", number)
            await ctx.sleep(number + 2)
            return [charged, await ctx.step("ship", act, "ship", number)]

        return await arrange(order)

    value = await asyncio.wait_for(to_the_end(handler), 60)
    assert value == [[f"charge {number}", f"ship {number}"] for number in ORDERS]
    assert set(effects) == {f"{what} {number}" for what in ("charge", "ship") for number in ORDERS}


async def test_questions_of_branches_are_answered_each_for_itself_in_any_order() -> None:
    async def handler(ctx: Context) -> list[str]:
        async def one(number: int) -> str:
            await asyncio.sleep(random.random() / 100)
            return f"{number}: {(await ctx.elicit('who', f'Who takes {number}?', Name)).name}"

        return list(await asyncio.gather(*(one(number) for number in ORDERS)))

    def client(key: str, request: Any) -> Any:
        return accept(name=request["params"]["message"])

    played = await play_to_the_end(handler, client)
    assert played.value == [f"{number}: Who takes {number}?" for number in ORDERS]
    assert sorted({key for keys in played.rounds for key in keys}) == [
        "who",
        *(f"who#{n}" for n in range(2, 7)),
    ]


async def test_two_sleeps_side_by_side_keep_their_lengths() -> None:
    clock = FixedClock()
    home = SharedJournal(clock=clock)

    async def handler(ctx: Context) -> None:
        async def nap(seconds: float, first: float) -> None:
            await asyncio.sleep(first)
            await ctx.sleep(seconds)

        late = 0.02 if not home.journal.steps else 0
        await asyncio.gather(nap(10, late), nap(1_000, 0.02 - late))

    await home.run(handler)
    await home.run(handler)
    slept = [entry for entry in home.journal.steps.values() if isinstance(entry, Slept)]
    lengths = {entry.key: entry.until_ms - clock.now_ms() for entry in slept}
    assert lengths == {"nap@0/sleep:sleep": 10_000, "nap@1/sleep:sleep": 1_000_000}


async def test_tasks_of_libraries_and_of_steps_shift_nobody() -> None:
    runs: list[int] = []
    effects = Effects()

    async def connection() -> None:
        await asyncio.sleep(0)

    async def step(number: int) -> int:
        await asyncio.gather(*(connection() for _ in range(3)))
        return number

    async def handler(ctx: Context) -> Any:
        async def order(number: int) -> Any:
            value = await ctx.step("step", step, number)
            await ctx.elicit("who", f"Who takes {number}?", Name)
            return value

        runs.append(1)
        await asyncio.gather(
            *(connection() for _ in range(len(runs)))
        )  # another number in every run
        await ctx.step("before", effects.do, 1)
        return await asyncio.gather(order(1), order(2))

    assert (await play_to_the_end(handler, polite)).value == [1, 2]
    assert effects.seen == [1]


async def test_an_item_of_a_map_keeps_its_place_when_another_is_added_before_it() -> None:
    effects = Effects()

    def version(*items: str) -> Any:
        async def handler(ctx: Context) -> Any:
            async def one(item: str) -> Any:
                await ctx.step("do", effects.do_async, item)
                return (await ctx.elicit("who", f"Who takes {item}?", Name)).name

            return await ctx.map(one, items)

        return handler

    first = await play(version("b", "c"))
    assert isinstance(first, Suspended)
    second = await play(
        version("a", "b", "c"), first, {key: accept(name=key) for key in first.requests}
    )
    assert isinstance(second, Suspended)
    assert list(second.requests) == ["who#3"]
    assert value_of(await play(version("a", "b", "c"), second, {"who#3": accept(name="new")})) == [
        "new",
        "who",
        "who#2",
    ]
    assert effects.seen == ["b", "c", "a"]


async def test_a_map_runs_no_more_at_once_than_it_may_and_gives_results_in_order() -> None:
    running, most = 0, 0

    async def one(item: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(random.random() / 200)
        running -= 1
        return item

    async def handler(ctx: Context) -> Any:
        return await ctx.map(one, [{"id": 1}, {"id": 1}, (1, 2), "x", 7], at_most=2)

    assert value_of(await play(handler)) == [{"id": 1}, {"id": 1}, (1, 2), "x", 7]
    assert most == 2


async def test_what_an_item_raises_ends_the_map_and_cancels_the_others() -> None:
    ended: list[str] = []

    async def one(item: int) -> None:
        try:
            await asyncio.sleep(0.01 if item == 2 else 30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        raise ValueError(f"item {item}")

    async def handler(ctx: Context) -> Any:
        return await ctx.map(one, [1, 2, 3])

    assert str(error_of(await play(handler))) == "item 2"
    assert ended == ["cancelled"] * 2


async def test_a_named_branch_keeps_its_place_and_two_of_one_name_are_two() -> None:
    effects = Effects()

    def version(*names: str) -> Any:
        async def handler(ctx: Context) -> Any:
            values = []
            for name in names:
                async with ctx.branch(name):
                    values.append(await ctx.step("do", effects.do_async, name))
            return [values, (await ctx.elicit("who", "Who?", Name)).name]

        return handler

    first = await play(version("b", "b"))
    assert isinstance(first, Suspended)
    assert [*first.journal.steps] == ["b/do", "b#2/do"]
    outcome = await play(version("a", "b", "b"), first, {"who": accept(name="me")})
    assert value_of(outcome) == [["a", "b", "b"], "me"]
    assert effects.seen == ["b", "b", "a"]


async def test_a_plain_function_maps_in_threads_that_are_branches() -> None:
    effects = Counter[int]()

    def act(number: int) -> int:
        effects[number] += 1
        return number * 10

    def handler(ctx: SyncContext) -> list[Any]:
        def order(number: int) -> list[Any]:
            charged = ctx.step("charge", act, number)
            return [charged, ctx.elicit("who", f"Who takes {number}?", Name).name]

        return ctx.map(order, ORDERS, at_most=3)

    def client(key: str, request: Any) -> Any:
        return accept(name=request["params"]["message"])

    value = (await play_to_the_end(handler, client)).value
    assert value == [[number * 10, f"Who takes {number}?"] for number in ORDERS]
    assert effects == Counter(ORDERS)


async def test_threads_that_a_handler_starts_by_itself_are_told_what_to_use() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def handler(ctx: SyncContext) -> Any:
        with ThreadPoolExecutor() as pool:
            return pool.submit(lambda: ctx.step("one", lambda: 1)).result()

    assert "ctx.map" in str(error_of(await play(handler)))


async def test_two_tasks_cannot_share_a_context() -> None:
    async def handler(ctx: Context) -> Any:
        shared = copy_context()
        loop = asyncio.get_running_loop()
        tasks = []
        for number in range(2):
            coroutine = ctx.step("one", lambda number=number: number)
            try:
                tasks.append(loop.create_task(coroutine, context=shared))
            finally:
                if len(tasks) == number:
                    coroutine.close()
        return await asyncio.gather(*tasks)

    assert "context" in str(error_of(await play(handler)))


async def test_a_context_is_of_no_use_outside_of_its_handler() -> None:
    async def handler(ctx: Context) -> Any:
        return ctx

    ctx = value_of(await play(handler))
    with pytest.raises(RuntimeError, match="can use ctx; the handler has ended"):
        await ctx.step("late", lambda: 1)


# Another way than before


async def asks(ctx: Context) -> None:
    await ctx.elicit("who", "Who?", Name)


def one() -> int:
    return 1


def two() -> int:
    return 2


OTHER_WAYS: dict[
    str, tuple[Callable[[Context], Awaitable[Any]], Callable[[Context], Awaitable[Any]]]
] = {
    "other arguments": (lambda ctx: ctx.step("s", abs, -1), lambda ctx: ctx.step("s", abs, -2)),
    "another function": (lambda ctx: ctx.step("s", one), lambda ctx: ctx.step("s", two)),
    "a poll, not a step": (
        lambda ctx: ctx.step("s", one),
        lambda ctx: ctx.poll("s", one, every_s=1),
    ),
    "another sleep": (lambda ctx: ctx.sleep(0.01), lambda ctx: ctx.sleep(0.02)),
    "other keywords": (lambda ctx: ctx.step("s", dict, a=1), lambda ctx: ctx.step("s", dict, b=1)),
    "branches in another order": (
        lambda ctx: asyncio.gather(ctx.step("s", abs, 1), ctx.step("s", abs, 2)),
        lambda ctx: asyncio.gather(ctx.step("s", abs, 2), ctx.step("s", abs, 1)),
    ),
}


@pytest.mark.parametrize("way", OTHER_WAYS)
@pytest.mark.parametrize("swallows", [False, True], ids=["", "and swallows what tells it so"])
async def test_a_replay_that_goes_another_way_is_found_and_never_served(
    way: str, swallows: bool
) -> None:
    went_on = Effects()

    def handler(goes: Callable[[Context], Awaitable[Any]]) -> Any:
        async def handler(ctx: Context) -> None:
            try:
                await goes(ctx)
            except BaseException:
                if not swallows:
                    raise
            await ctx.step("after", went_on.do, way)
            await asks(ctx)

        return handler

    before, after = OTHER_WAYS[way]
    first = await play(handler(before))
    assert isinstance(first, Suspended)
    error = error_of(await play(handler(after), first, {"who": accept(name="me")}))
    assert isinstance(error, NondeterminismError)
    assert repr(error.remembered) in str(error)
    assert repr(error.asked) in str(error)
    assert went_on.seen == [way]


async def test_what_nobody_asks_for_any_more_is_ignored_and_what_is_new_is_new() -> None:
    async def before(ctx: Context) -> None:
        await ctx.step("gone", one)
        await asks(ctx)

    async def after(ctx: Context) -> Any:
        await asks(ctx)
        return await ctx.step("new", two)

    first = await play(before)
    assert value_of(await play(after, first, {"who": accept(name="me")})) == 2


async def test_gathered_coroutines_are_branches_named_after_their_functions() -> None:
    async def charge(ctx: Context, amount: int) -> int:
        return int(await ctx.step("charge", abs, amount))

    async def handler(ctx: Context) -> Any:
        one, two = await ctx.gather(charge(ctx, 1), charge(ctx, 2))
        return [one, two, await ctx.gather()]

    played = await play_to_the_end(handler, polite)
    assert played.value == [1, 2, []]
    home = SharedJournal()
    await home.run(handler)
    assert sorted(home.journal.steps) == ["charge@0/charge", "charge@1/charge"]


async def test_a_gathered_coroutine_that_fails_cancels_the_others_and_raises_its_error() -> None:
    ended: list[str] = []

    async def fails() -> None:
        raise LookupError("gone")

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def handler(ctx: Context) -> None:
        await ctx.gather(waits(), fails())

    assert isinstance(error_of(await play(handler)), LookupError)
    assert ended == ["waits"]
