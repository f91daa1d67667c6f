"""What a replay does not say again, and what it says of steps that nothing asks for any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from roundgate.replay import Completed, Context, Suspended
from tests.support.clocks import FixedClock
from tests.support.replay import Effects, Name, value_of
from tests.support.rounds import accept
from tests.support.task_runs import SharedJournal

Handler = Callable[[Context], Awaitable[Any]]


async def lived(home: SharedJournal, handler: Handler) -> list[list[Any]]:
    """Run it to its end; returns what it told the client in each run."""
    told: list[list[Any]] = []
    for _ in range(20):
        home.notified.clear()
        outcome = await home.run(handler)
        told.append([params["data"] for _, params in home.notified])
        if isinstance(outcome, Completed):
            return told
        assert isinstance(outcome, Suspended)
        home.journal.receive({key: accept(name="Ada") for key in outcome.requests})
        assert isinstance(home.clock, FixedClock)
        home.clock.skip(100)
    raise AssertionError("it never ends")


async def test_a_line_for_the_client_is_said_in_one_round() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.log("info", "begun")
        await ctx.step("first", lambda: 1)
        await ctx.log("info", "first done")
        await ctx.elicit("who", "Who?", Name)
        await ctx.log("info", "answered")
        await ctx.shed()
        await ctx.log("info", "shed")
        await ctx.step("second", lambda: 2)
        await ctx.elicit("again", "And?", Name)
        await ctx.log("info", "over")

    told = await lived(SharedJournal(task_id=None), handler)
    assert told == [["begun", "first done"], ["answered"], ["shed"], ["over"]]


async def test_so_it_is_in_branches() -> None:
    async def part(ctx: Context, name: str, asks: bool) -> None:
        await ctx.log("info", f"{name} begun")
        await ctx.step("do", lambda: None)
        await ctx.log("info", f"{name} done")
        if asks:
            await ctx.elicit("who", "Who?", Name)
        await ctx.log("info", f"{name} over")

    async def handler(ctx: Context) -> None:
        await asyncio.gather(part(ctx, "a", True), part(ctx, "b", False))
        await ctx.log("info", "both over")

    first, second = await lived(SharedJournal(task_id=None), handler)
    assert sorted(first) == ["a begun", "a done", "b begun", "b done", "b over"]
    assert second == ["a over", "both over"]


async def test_in_a_task_it_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.log("info", "begun")
        await ctx.sleep(60)
        await ctx.log("info", "awake")

    with caplog.at_level(logging.INFO, "roundgate.handler"):
        await lived(SharedJournal(), handler)
    assert [vars(one)["fields"]["data"] for one in caplog.records] == ["begun", "awake"]


async def test_a_handler_that_decides_by_itself_where_it_goes_on_says_everything() -> None:
    ask = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": {}}}

    async def handler(ctx: Context) -> None:
        if ctx.state.get("asked"):
            await ctx.log("info", "asked")
            return
        ctx.state["asked"] = True
        await ctx.request_input({"who": ask})

    assert await lived(SharedJournal(task_id=None), handler) == [[], ["asked"]]


async def test_after_a_step_was_dropped_new_lines_are_said() -> None:
    home = SharedJournal(task_id=None)

    async def before(ctx: Context) -> None:
        await ctx.step("dropped", lambda: 1)
        await ctx.elicit("who", "Who?", Name)

    async def after(ctx: Context) -> None:
        await ctx.elicit("who", "Who?", Name)
        await ctx.step("new", lambda: 1)
        await ctx.log("info", "over")

    assert isinstance(await home.run(before), Suspended)
    home.journal.receive({"who": accept(name="Ada")})
    assert await lived(home, after) == [["over"]]


def warned(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [
        vars(one)["fields"]
        for one in caplog.records
        if one.getMessage().startswith("the handler no longer runs recorded steps")
    ]


async def test_a_renamed_step_is_run_again_and_the_log_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    effects, home = Effects(), SharedJournal()

    def handler(name: str) -> Handler:
        async def charges(ctx: Context) -> None:
            await ctx.step("kept", lambda: 1)
            await ctx.step(name, effects.do, "charged")
            await ctx.elicit("who", "Who?", Name)

        return charges

    assert isinstance(await home.run(handler("charge")), Suspended)
    assert isinstance(await home.run(handler("charge")), Suspended)
    assert warned(caplog) == []
    assert isinstance(await home.run(handler("charge-card")), Suspended)
    assert warned(caplog) == [{"task": "task", "steps": ["charge"], "new": ["charge-card"]}]
    assert effects.seen == ["charged", "charged"]


async def test_a_step_that_is_gone_is_named_when_the_handler_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    home = SharedJournal(task_id=None)

    async def before(ctx: Context) -> None:
        async with ctx.branch("part"):
            await ctx.step("gone", lambda: 1)
        await ctx.sleep(1, "nap")
        await ctx.idempotency_key("key")
        await ctx.elicit("who", "Who?", Name)

    async def after(ctx: Context) -> str:
        return "done"

    assert isinstance(await home.run(before), Suspended)
    assert value_of(await home.run(after)) == "done"
    assert warned(caplog) == [{"steps": ["part/gone"], "new": []}]
