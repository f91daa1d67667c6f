"""A question without an answer ends the round, with all that are asked beside it, and no
handler talks its way past."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from roundgate.errors import CallTimeout, Declined, MissingCapability, Suspend, ToolError
from roundgate.replay.context import Context
from roundgate.replay.questions import Form, Roots, Sample, Url
from tests.support.clocks import FixedClock
from tests.support.replay import (
    Effects,
    Name,
    asked_of,
    error_of,
    play,
    play_to_the_end,
    polite,
    value_of,
)
from tests.support.rounds import accept


async def test_except_exception_does_not_catch_the_suspension() -> None:
    async def handler(ctx: Context) -> str:
        try:
            return (await ctx.elicit("who", "Who?", Name)).name
        except Exception:
            return "caught"

    assert (await play_to_the_end(handler, polite)).value == "who"


async def in_a_bare_except(ctx: Context) -> str:
    try:
        return (await ctx.elicit("who", "Who?", Name)).name
    except BaseException:
        return "skipped"


async def in_a_bare_except_that_raises(ctx: Context) -> str:
    try:
        return (await ctx.elicit("who", "Who?", Name)).name
    except BaseException:
        raise ToolError("skipped") from None


async def in_a_finally_that_trips(ctx: Context) -> str:
    try:
        name = (await ctx.elicit("who", "Who?", Name)).name
    finally:
        name.upper()  # unbound where the round ended above
    return name


async def in_a_finally_that_returns(ctx: Context) -> str:
    name = "skipped"
    try:
        name = (await ctx.elicit("who", "Who?", Name)).name
    finally:
        return name  # noqa: B012


async def in_a_gather_that_returns_exceptions(ctx: Context) -> str:
    (answer,) = await asyncio.gather(ctx.elicit("who", "Who?", Name), return_exceptions=True)
    return answer.name if isinstance(answer, Name) else "skipped"


async def in_a_gather_whose_results_are_not_looked_at(ctx: Context) -> str:
    (answer,) = await asyncio.gather(ctx.elicit("who", "Who?", Name), return_exceptions=True)
    return answer.name  # type: ignore[union-attr]


async def in_a_group(ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(ctx.elicit("who", "Who?", Name))
    return task.result().name


async def in_a_group_whose_errors_are_caught(ctx: Context) -> str:
    try:
        return await in_a_group(ctx)
    except BaseExceptionGroup:
        return "skipped"


async def in_a_group_with_a_finally_that_trips(ctx: Context) -> str:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(in_a_finally_that_trips(ctx))
    return task.result()


async def in_groups_in_groups(ctx: Context) -> str:
    async def deeper(levels: int) -> str:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(deeper(levels - 1) if levels else in_a_group(ctx))
        return task.result()

    return await deeper(6)


async def under_a_shield(ctx: Context) -> str:
    return (await asyncio.shield(ctx.elicit("who", "Who?", Name))).name


async def in_a_task_that_is_waited_for(ctx: Context) -> str:
    task = asyncio.ensure_future(ctx.elicit("who", "Who?", Name))
    await asyncio.wait({task})
    return "skipped" if task.exception() else task.result().name


SWALLOWERS = [
    in_a_bare_except,
    in_a_bare_except_that_raises,
    in_a_finally_that_trips,
    in_a_finally_that_returns,
    in_a_gather_that_returns_exceptions,
    in_a_gather_whose_results_are_not_looked_at,
    in_a_group,
    in_a_group_whose_errors_are_caught,
    in_a_group_with_a_finally_that_trips,
    in_groups_in_groups,
    under_a_shield,
    in_a_task_that_is_waited_for,
]


@pytest.mark.parametrize("handler", SWALLOWERS, ids=[handler.__name__ for handler in SWALLOWERS])
async def test_a_swallowed_suspension_never_skips_its_question(
    handler: Callable[[Context], Awaitable[str]],
) -> None:
    played = await play_to_the_end(handler, polite)
    assert (played.value, played.rounds) == ("who", [["who"]])


async def test_after_a_swallowed_suspension_nothing_more_is_asked_run_or_shed() -> None:
    effects, stopped = Effects(), []

    async def handler(ctx: Context) -> None:
        try:
            await ctx.elicit("who", "Who?", Name)
        except BaseException:
            for more in (
                ctx.elicit("why", "Why?", Name),
                ctx.step("late", effects.do, "late"),
                ctx.shed(),
                ctx.request_input({"raw": {"method": "roots/list"}}),
            ):
                try:
                    await more
                except Suspend:
                    stopped.append(True)

    outcome = await play(handler)
    assert list(asked_of(outcome)) == ["who"]
    assert [entry.key for entry in outcome.journal.entries()] == ["who"]  # type: ignore[union-attr]
    assert (effects.seen, stopped) == ([], [True] * 4)


async def side_by_side_in_gather(ctx: Context) -> list[Any]:
    return list(
        await asyncio.gather(
            ctx.elicit("a", "A?", Name), ctx.sample("b", "B?", max_tokens=1), ctx.roots("c")
        )
    )


async def side_by_side_in_a_group(ctx: Context) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(ctx.elicit("a", "A?", Name)),
            group.create_task(ctx.sample("b", "B?", max_tokens=1)),
            group.create_task(ctx.roots("c")),
        ]
    return [task.result() for task in tasks]


async def side_by_side_in_ask(ctx: Context) -> list[Any]:
    answers = await ctx.ask({"a": Form("A?", Name), "b": Sample("B?", 1), "c": Roots()})
    return [answer.get() for answer in answers.values()]


@pytest.mark.parametrize(
    "handler",
    [side_by_side_in_gather, side_by_side_in_a_group, side_by_side_in_ask],
    ids=["gather", "TaskGroup", "ask"],
)
async def test_questions_side_by_side_come_out_in_one_round(handler: Any) -> None:
    played = await play_to_the_end(handler, polite)
    name, sampled, roots = played.value
    assert played.rounds == [["a", "b", "c"]]
    assert (name.name, sampled.text, roots[0].uri) == ("a", "b", "file:///c")


@pytest.mark.parametrize("in_thread", [False, True], ids=["async step", "step in a thread"])
async def test_they_do_also_when_a_sibling_runs_a_slow_step_before_it_asks(in_thread: bool) -> None:
    effects = Effects()

    async def slow(what: str) -> str:
        await asyncio.sleep(0.03)
        return effects.do(what)  # type: ignore[no-any-return]

    def slow_in_thread(what: str) -> str:
        return asyncio.run(slow(what))

    async def asks_later(ctx: Context) -> str:
        await ctx.step("one", slow_in_thread if in_thread else slow, "one")
        await ctx.step("two", effects.do, "two")
        return (await ctx.elicit("later", "Later?", Name)).name

    async def handler(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.elicit("soon", "Soon?", Name), asks_later(ctx)))

    played = await play_to_the_end(handler, polite)
    assert played.rounds == [["soon", "later"]]
    assert effects.seen == ["one", "two"]


async def test_a_branch_that_is_refused_an_answer_leaves_the_others_theirs() -> None:
    async def handler(ctx: Context) -> list[Any]:
        answers = await ctx.ask(
            {"a": Form("A?", Name), "b": Url("B?", "https://example.com/"), "c": Form("C?", Name)}
        )
        return [answer.action for answer in answers.values()]

    first = await play(handler)
    partly = await play(handler, first, {"a": {"action": "decline"}, "b": {"action": "cancel"}})
    assert list(asked_of(partly)) == ["c"]
    assert value_of(await play(handler, partly, {"c": accept(name="x")})) == [
        "decline",
        "cancel",
        "accept",
    ]


@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a TaskGroup"])
async def test_a_refusal_that_is_not_caught_ends_the_call_politely(
    action: str, grouped: bool
) -> None:
    handler = in_a_group if grouped else under_a_shield
    error = error_of(await play(handler, await play(handler), {"who": {"action": action}}))
    assert isinstance(error, Declined)
    assert (error.name, error.action) == ("who", action)
    assert "'who'" in str(error)


async def test_a_tool_error_of_a_branch_of_a_group_stays_one() -> None:
    async def fails() -> None:
        raise ToolError("out of tea")

    async def handler(ctx: Context) -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(ctx.elicit("who", "Who?", Name))
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fails())

    error = error_of(await play(handler))
    assert isinstance(error, ToolError)
    assert str(error) == "out of tea"


async def test_an_unexpected_error_beside_it_is_not_hidden_by_a_tool_error() -> None:
    async def fails(error: Exception) -> None:
        raise error

    async def handler(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(ToolError("out of tea")))
            group.create_task(fails(ZeroDivisionError()))

    assert isinstance(error_of(await play(handler)), ExceptionGroup)


@pytest.mark.parametrize(
    ("declared", "missing"),
    [
        ({}, {"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}}),
        ({"elicitation": {}}, {"elicitation": {"url": {}}, "sampling": {"tools": {}}, "roots": {}}),
        (
            {"elicitation": {"url": {}}, "roots": {}},
            {"elicitation": {"form": {}}, "sampling": {"tools": {}}},
        ),
        (
            {
                "elicitation": {"form": {}, "url": {}},
                "sampling": {},
                "roots": {"listChanged": True},
            },
            {"sampling": {"tools": {}}},
        ),
    ],
    ids=["nothing declared", "forms", "urls and roots", "all but tools"],
)
async def test_several_questions_name_all_that_is_missing_and_ask_nothing(
    declared: Any, missing: Any
) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.ask(
            {
                "form": Form("Who?", Name),
                "url": Url("Look", "https://example.com/"),
                "model": Sample("Say", 5, tools=[{"name": "t", "inputSchema": {"type": "object"}}]),
                "roots": Roots(),
            }
        )

    error = error_of(await play(handler, capabilities=declared))
    assert isinstance(error, MissingCapability)
    assert error.missing == missing


async def test_branches_of_a_group_name_all_that_is_missing() -> None:
    error = error_of(await play(side_by_side_in_a_group, capabilities={"roots": {}}))
    assert isinstance(error, MissingCapability)
    assert error.missing == {"elicitation": {"form": {}}, "sampling": {}}


async def test_a_handler_may_ask_something_else_of_a_client_that_lacks_a_capability() -> None:
    async def handler(ctx: Context) -> str:
        try:
            return (await ctx.elicit("who", "Who?", Name)).name
        except MissingCapability:
            return (await ctx.sample("guess", "Guess", max_tokens=1)).text

    assert list(asked_of(await play(handler, capabilities={"sampling": {}}))) == ["guess"]


async def test_an_answer_that_is_there_needs_no_capability() -> None:
    first = await play(in_a_group)
    assert (
        value_of(await play(in_a_group, first, {"who": accept(name="x")}, capabilities={})) == "x"
    )


async def test_the_cancellation_of_the_call_passes_through() -> None:
    begun = asyncio.Event()

    async def handler(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("forever", asyncio.Event().wait))
            begun.set()

    call = asyncio.create_task(play(handler))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_cancellation_of_the_handlers_own_is_a_failure_of_the_handler() -> None:
    async def handler(ctx: Context) -> None:
        raise asyncio.CancelledError

    assert isinstance(error_of(await play(handler)), RuntimeError)


async def test_a_handler_that_exits_does_not_end_the_server() -> None:
    async def handler(ctx: Context) -> None:
        raise SystemExit(3)

    assert "sys.exit(3)" in str(error_of(await play(handler)))


async def test_the_deadline_ends_a_call_with_an_error_that_names_it() -> None:
    async def handler(ctx: Context) -> None:
        await asyncio.Event().wait()

    error = error_of(await play(handler, clock=FixedClock(), within_ms=250))
    assert isinstance(error, CallTimeout)
    assert str(error) == "The call did not finish within 0.25 s (limits.call_timeout_s)"


async def test_a_call_whose_time_is_over_before_it_begins_is_told_so() -> None:
    async def handler(ctx: Context) -> None:
        await asyncio.Event().wait()

    error = error_of(await play(handler, clock=FixedClock(), within_ms=0))
    assert str(error) == "No time was left for the call when it began; call again later"


async def test_a_timeout_of_the_handlers_own_is_not_the_deadline() -> None:
    async def handler(ctx: Context) -> None:
        raise TimeoutError("the database")

    error = error_of(await play(handler, within_ms=5_000))
    assert str(error) == "the database"


@pytest.mark.parametrize(
    "ending", [ValueError("beside"), ToolError("beside"), None], ids=["fails", "tells", "returns"]
)
async def test_a_branch_left_behind_begins_nothing_after_the_end_of_the_call(
    ending: Exception | None,
) -> None:
    effects, going_on, left = Effects(), asyncio.Event(), []

    async def late(ctx: Context) -> None:
        await going_on.wait()
        await ctx.step("late", effects.do, "late")

    async def handler(ctx: Context) -> str:
        left.append(asyncio.ensure_future(late(ctx)))
        await asyncio.sleep(0)
        if ending:
            raise ending
        return "done"

    await play(handler)
    going_on.set()
    assert isinstance((await asyncio.gather(*left, return_exceptions=True))[0], Suspend)
    assert effects.seen == []


async def test_a_question_left_behind_is_forgotten_with_the_call() -> None:
    left: list[asyncio.Future[Any]] = []

    async def handler(ctx: Context) -> str:
        left.append(asyncio.ensure_future(ctx.elicit("who", "Who?", Name)))
        await asyncio.sleep(0)
        return "did not need it"

    assert value_of(await play(handler)) == "did not need it"
    await asyncio.wait(left)
    assert left[0].cancelled()
