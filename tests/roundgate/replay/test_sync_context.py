"""A handler that is a plain function runs in a thread, where everything of `Context`
is the same, but blocks."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from typing import Any

import pytest

from roundgate.errors import CallTimeout, Declined, MissingCapability, StepFailed, ToolError
from roundgate.replay.context import Context
from roundgate.replay.questions import Form, Roots
from roundgate.replay.sync_context import SyncContext
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


def members(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(
    "name",
    sorted(members(Context).keys() - {"gather"}),  # which takes functions here
)
def test_whatever_context_has_its_twin_has_too(name: str) -> None:
    ours, theirs = members(SyncContext)[name], members(Context)[name]
    assert isinstance(ours, property) == isinstance(theirs, property)
    if not isinstance(theirs, property):
        assert not inspect.iscoroutinefunction(ours)
        assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]
    if name in ("step", "sleep", "sample", "poll", "restart", "log"):
        assert inspect.signature(ours) == inspect.signature(theirs)
        assert ours.__doc__ == theirs.__doc__


async def test_it_asks_one_thing_after_the_other_and_runs_its_steps_once() -> None:
    effects = Effects()

    def handler(ctx: SyncContext) -> list[Any]:
        first = ctx.step("first", effects.do, "first")
        name = ctx.elicit("who", "Who?", Name).name
        ctx.elicit_url("look", "Look", "https://example.com/")
        said = ctx.sample("say", "Say", max_tokens=5, temperature=0.5).text
        roots = [root.uri for root in ctx.roots("where")]
        second = ctx.step("second", effects.do_async, "second")
        ctx.state["rounds"] = ctx.state.get("rounds", 0) + 1
        ctx.shed()
        is_main = threading.current_thread() is threading.main_thread()
        return [first, name, said, roots, second, ctx.state["rounds"], is_main]

    played = await play_to_the_end(handler, polite)
    assert played.rounds == [["who"], ["look"], ["say"], ["where"], []]
    assert played.value == ["first", "who", "say", ["file:///where"], "second", 2, False]
    assert effects.seen == ["first", "second"]


async def test_except_exception_does_not_catch_the_suspension_there_either() -> None:
    def handler(ctx: SyncContext) -> str:
        try:
            return ctx.elicit("who", "Who?", Name).name
        except Exception:
            return "caught"

    assert (await play_to_the_end(handler, polite)).rounds == [["who"]]


async def test_a_swallowed_suspension_neither_skips_its_question_nor_asks_or_runs_more() -> None:
    effects = Effects()

    def handler(ctx: SyncContext) -> str:
        try:
            return ctx.elicit("who", "Who?", Name).name
        except BaseException:
            try:
                ctx.roots()
            finally:
                ctx.step("late", effects.do, "late")
            return "skipped"

    first = await play(handler)
    assert list(asked_of(first)) == ["who"]
    assert effects.seen == []
    assert value_of(await play(handler, first, {"who": accept(name="x")})) == "x"


async def test_its_errors_are_those_of_the_async_one() -> None:
    def refuses(ctx: SyncContext) -> None:
        ctx.elicit("who", "Who?", Name)

    def fails(ctx: SyncContext) -> None:
        ctx.step("it", [].pop)

    def tells(ctx: SyncContext) -> None:
        raise ToolError("out of tea")

    refused = error_of(await play(refuses, await play(refuses), {"who": {"action": "decline"}}))
    assert isinstance(refused, Declined)
    assert isinstance(error_of(await play(refuses, capabilities={})), MissingCapability)
    assert isinstance(error_of(await play(fails)), StepFailed)
    assert str(error_of(await play(tells))) == "out of tea"


async def test_the_low_level_form_is_there_too() -> None:
    def handler(ctx: SyncContext) -> Any:
        if ctx.input_response("raw") is None:
            ctx.request_input({"raw": {"method": "roots/list"}})
        return ctx.input_response("raw")

    first = await play(handler)
    assert asked_of(first) == {"raw": {"method": "roots/list"}}
    assert value_of(await play(handler, first, {"raw": {"roots": []}})) == {"roots": []}


async def test_a_step_of_it_is_one_piece_too() -> None:
    def handler(ctx: SyncContext) -> Any:
        return ctx.step("outer", lambda: ctx.roots("inner"))

    assert "step 'outer' contains the question 'inner'" in str(
        error_of(await play(handler, within_ms=5_000))
    )


async def test_after_the_deadline_its_thread_begins_nothing_more() -> None:
    effects = Effects()
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def handler(ctx: SyncContext) -> None:
        begun.set()
        try:
            goes_on.wait(60)
            ctx.step("late", effects.do, "late")
        finally:
            ended.set()

    within_ms = 20
    while not begun.is_set():  # on a busy machine the deadline may come before the thread
        assert isinstance(error_of(await play(handler, within_ms=within_ms)), CallTimeout)
        within_ms *= 2
    goes_on.set()
    assert await asyncio.to_thread(ended.wait, 60)
    assert effects.seen == []


async def test_the_cancellation_of_the_call_passes_through_while_a_thread_works() -> None:
    begun = threading.Event()

    def handler(ctx: SyncContext) -> None:
        ctx.step("begin", begun.set)
        time.sleep(0.05)

    call = asyncio.create_task(play(handler))
    assert await asyncio.to_thread(begun.wait, 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_it_knows_what_its_client_can_be_asked() -> None:
    def handler(ctx: SyncContext) -> list[bool]:
        return [
            ctx.supports(Form("?", Name)),
            ctx.supports(Roots()),
            ctx.supports({"sampling": {}}, Roots()),
        ]

    assert value_of(await play(handler, capabilities={"elicitation": {}, "sampling": {}})) == [
        True,
        False,
        False,
    ]


async def test_gathered_functions_are_branches_named_after_them() -> None:
    def handler(ctx: SyncContext) -> list[Any]:
        def charge() -> int:
            return int(ctx.step("charge", abs, -1))

        def ask() -> str:
            return ctx.elicit("who", "Who?", Name).name

        return [*ctx.gather(charge, ask, charge), ctx.gather()]

    played = await play_to_the_end(handler, polite)
    assert played.value == [1, "who", 1, []]
    assert sorted(played.journal.steps) == ["charge@0/charge", "charge@1/charge"]


async def test_a_gathered_function_that_fails_ends_the_others_items() -> None:
    def handler(ctx: SyncContext) -> None:
        ctx.gather(lambda: ctx.step("charge", abs, 1), lambda: dict[str, int]()["gone"])

    assert isinstance(error_of(await play(handler)), KeyError)
