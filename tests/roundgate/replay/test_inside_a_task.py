"""What a handler tells inside a task: its status message and the logs, never a notification;
what it is told there."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from roundgate.replay.context import MAX_STATUS_CHARS, Context
from roundgate.replay.engine import Suspended
from roundgate.replay.journal import Entry
from roundgate.replay.run import Run, Stop
from tests.support.replay import value_of
from tests.support.task_runs import SharedJournal


async def message_of(home: SharedJournal, handler: Any) -> str | None:
    await home.run(handler)
    assert home.last is not None
    return home.last.message


@pytest.mark.parametrize("task_id", ["task", None], ids=["in a task", "in a call"])
async def test_status_is_kept_for_the_task_that_there_is_or_may_be(task_id: str | None) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.status("first")
        await ctx.status("second")

    home = SharedJournal(task_id=task_id)
    assert await message_of(home, handler) == "second"
    assert home.notified == []


async def test_a_status_message_is_cut_to_a_length_that_stores_can_take() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.status("x" * 5_000)

    assert await message_of(SharedJournal(), handler) == "x" * MAX_STATUS_CHARS


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ((3,), "3"),
        ((0.5, 1), "0.5 of 1"),
        ((3, 7, "sorting"), "3 of 7: sorting"),
        ((3, None, "sorting"), "3: sorting"),
        ((1_234_567, 20_000_000), "1234567 of 20000000"),
        ((0.1 + 0.2, 1), "0.3 of 1"),
    ],
    ids=str,
)
async def test_progress_becomes_the_status_message_and_no_notification(
    told: tuple[Any, ...], message: str
) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.progress(*told)

    home = SharedJournal()
    assert await message_of(home, handler) == message
    assert home.notified == []


async def test_progress_of_a_call_is_a_notification_and_no_status_message() -> None:
    async def handler(ctx: Context) -> None:
        await ctx.progress(1, 2)

    home = SharedJournal(task_id=None)
    assert await message_of(home, handler) is None
    assert home.notified == [
        ("notifications/progress", {"progressToken": "token", "progress": 1, "total": 2})
    ]


async def test_a_log_message_goes_to_the_log_and_to_no_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(ctx: Context) -> None:
        await ctx.log("warning", {"left": 3}, "disk")

    home = SharedJournal()
    with caplog.at_level(logging.INFO, "roundgate.handler"):
        await home.run(handler)
    assert home.notified == []
    (record,) = caplog.records
    expected = {"level": "warning", "logger": "disk", "data": {"left": 3}}
    assert record.fields == expected  # type: ignore[attr-defined]


async def test_a_level_that_does_not_exist_is_an_error_inside_a_task_too() -> None:
    async def handler(ctx: Context) -> str:
        with pytest.raises(ValueError, match="not a log level"):
            await ctx.log("loud", "x")
        return "refused"

    assert value_of(await SharedJournal().run(handler)) == "refused"


@pytest.mark.parametrize("task_id", ["task", None])
async def test_a_handler_knows_which_task_it_is_in(task_id: str | None) -> None:
    async def handler(ctx: Context) -> Any:
        return [ctx.task_id, ctx.cancelled]

    assert value_of(await SharedJournal(task_id=task_id).run(handler)) == [task_id, False]


async def test_a_handler_sees_that_its_task_was_cancelled_and_can_do_nothing_more() -> None:
    """As the home of the journal does it: the flag is raised, the run stopped."""
    seen: list[bool] = []

    async def step() -> str:
        runs[0].stop(Stop.LOST)
        return "done"

    async def handler(ctx: Context) -> str:
        try:
            await ctx.step("one", step)
        finally:
            seen.append(ctx.cancelled)
        seen.append(ctx.cancelled)
        await ctx.step("two", lambda: seen.append(False))
        return "done"

    runs: list[Run] = []
    home = SharedJournal()
    assert isinstance(await home.run(handler, prepare=runs.append), Suspended)
    assert seen == [True, True]
    assert [entry.key for entry in home.written] == ["one"]


async def test_a_step_goes_on_only_when_it_is_written() -> None:
    order: list[str] = []

    async def handler(ctx: Context) -> None:
        for name in ("one", "two"):
            await ctx.step(name, order.append, name)
            order.append(f"after {name}")

    class Slow(SharedJournal):
        async def checkpoint(self, *entries: Entry) -> None:
            (entry,) = entries
            order.append(f"writing {entry.key}")
            await asyncio.sleep(0)
            order.append(f"written {entry.key}")

    await Slow().run(handler)
    assert order == [
        text
        for name in ("one", "two")
        for text in (name, f"writing {name}", f"written {name}", f"after {name}")
    ]
