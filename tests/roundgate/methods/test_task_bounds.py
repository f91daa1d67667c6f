"""How many tasks one caller may have open, and how large the call behind one may be; and what
a caller is told then."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from roundgate import Context, tool
from tests.support import wire
from tests.support.task_client import TaskClient, callers, tasked, valid_created

KEY = "roundgate/idempotencyKey"
ran: list[str] = []


@pytest.fixture(autouse=True)
def _clean() -> None:
    ran.clear()


@tool(task="required")
async def wait(ctx: Context, text: str = "") -> str:
    """Waits for an answer that may never come."""
    ran.append("wait")
    await ctx.continue_as_task()
    await ctx.elicit("who", "Who?", {"type": "object", "properties": {"name": {"type": "string"}}})
    return "done"


@tool(task="required")
async def over(ctx: Context) -> str:
    """Is over at once."""
    return "over"


@tool(task="optional")
async def maybe(ctx: Context, text: str = "", go_on: bool = True) -> str:
    """Becomes a task if it is told to."""
    ran.append("maybe")
    if go_on:
        await ctx.continue_as_task()
    return f"{len(text)}"


TOOLS = (wait, over, maybe)


async def error_of(ann: TaskClient, name: str, arguments: dict[str, Any], **meta: Any) -> str:
    """The text of the tool error that a call is."""
    response = await ann.send("tools/call", {"name": name, "arguments": arguments}, **meta)
    result = wire.valid_result("tools/call", response.json())
    assert result["isError"], result
    text: str = result["content"][0]["text"]
    return text


@pytest.mark.parametrize("name", ["wait", "maybe"])
async def test_one_task_more_than_there_may_be_is_a_tool_error_that_says_how_to_mend_it(
    tmp_path: Path, name: str
) -> None:
    async with tasked(tmp_path, *TOOLS, works=False, tasks={"max_open_per_owner": 3}) as ann:
        ids = [await ann.begin("wait") for _ in range(3)]
        text = await error_of(ann, name, {})
        assert text.startswith("You have 3 unfinished tasks")
        assert "tasks/cancel" in text
        assert "tasks.max_open_per_owner" in text
        await ann.cancel(ids[0])
        await ann.begin(name)
        assert await error_of(ann, name, {})


async def test_what_is_over_takes_no_room_and_needs_none(tmp_path: Path) -> None:
    async with tasked(tmp_path, *TOOLS, works=False, tasks={"max_open_per_owner": 1}) as ann:
        await ann.begin("wait")
        for _ in range(3):
            assert valid_created((await ann.call("over")).json())["status"] == "completed"


async def test_a_call_that_is_sent_again_at_the_bound_is_told_of_its_task(tmp_path: Path) -> None:
    params: dict[str, Any] = {"name": "wait", "arguments": {}}
    async with tasked(tmp_path, *TOOLS, works=False, tasks={"max_open_per_owner": 1}) as ann:
        first, second = [await ann.send("tools/call", params, **{KEY: "k"}) for _ in range(2)]
        assert valid_created(first.json())["taskId"] == valid_created(second.json())["taskId"]
        assert await error_of(ann, "wait", {}, **{KEY: "another"})


async def test_fifty_calls_at_once_do_not_get_far_past_the_bound(tmp_path: Path) -> None:
    async with tasked(tmp_path, *TOOLS, works=False, tasks={"max_open_per_owner": 5}) as ann:
        for _ in range(5):
            await asyncio.gather(*(ann.call("wait") for _ in range(10)))
    db = sqlite3.connect(tmp_path / "gateway.sqlite3")
    (count,) = db.execute("select count(*) from tasks").fetchone()
    db.close()
    assert 5 <= count <= 15  # who counts at the same moment may find the same room


async def test_the_tasks_of_one_caller_take_no_room_from_another(tmp_path: Path) -> None:
    async with callers(tmp_path, *TOOLS, works=False, tasks={"max_open_per_owner": 1}) as house:
        await house.of(sub="ann").begin("wait")
        await error_of(house.of(sub="ann"), "wait", {})
        await house.of(sub="bob").begin("wait")


@pytest.mark.parametrize("name", ["wait", "maybe"])
async def test_a_call_too_large_for_a_task_is_a_tool_error_that_says_how_to_mend_it(
    tmp_path: Path, name: str
) -> None:
    async with tasked(tmp_path, *TOOLS, works=False, tasks={"max_call_bytes": 10_000}) as ann:
        text = await error_of(ann, name, {"text": "x" * 10_000})
        assert "the maximum is 10,000 (tasks.max_call_bytes)" in text
        assert "reference" in text
        assert ran == ([] if name == "wait" else ["maybe"])  # what must be a task is not even begun
        await ann.begin(name, text="x" * 5_000)


async def test_a_call_that_does_not_become_a_task_may_be_as_large_as_a_request(
    tmp_path: Path,
) -> None:
    async with tasked(tmp_path, *TOOLS, works=False, tasks={"max_call_bytes": 10_000}) as ann:
        params = {"name": "maybe", "arguments": {"text": "x" * 100_000, "go_on": False}}
        result = wire.valid_result("tools/call", (await ann.send("tools/call", params)).json())
    assert result["content"][0]["text"] == "100000"


async def test_what_a_client_says_of_itself_counts_too(tmp_path: Path) -> None:
    async with tasked(tmp_path, *TOOLS, works=False, tasks={"max_call_bytes": 10_000}) as ann:
        boast = {"name": "tests", "version": "1", "title": "x" * 10_000}
        assert "tasks.max_call_bytes" in await error_of(ann, "wait", {}, clientInfo=boast)
