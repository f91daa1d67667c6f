"""Tasks for clients that know none: their calls wait, or give a handle that tools take."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate import Context, ToolError, tool
from roundgate.auth import Principal
from roundgate.backends import is_approval
from roundgate.errors import ConfigError, InvalidParams, Unavailable
from roundgate.tasks import Tasks
from tests.support.asgi import client, gateway
from tests.support.clocks import pass_time
from tests.support.replay import Name
from tests.support.rounds import accept
from tests.support.sessions import Event, called, calling, opened, request, tools_of
from tests.support.task_client import TaskClient, serving, valid_created

gates: dict[str, asyncio.Event] = {}
began: list[str] = []


@tool(task="required")
async def report(ctx: Context, topic: str) -> dict[str, str]:
    """Is always a task."""
    await ctx.step("begin", began.append, topic)
    await ctx.status("writing")
    return {"about": topic}


@tool(task="required")
async def slow(ctx: Context, gate: str) -> str:
    """Waits until somebody opens a gate."""
    await ctx.step("begin", began.append, gate)
    await ctx.status("waiting")
    await gates.setdefault(gate, asyncio.Event()).wait()
    return f"through {gate}"


@tool(task="optional")
async def maybe(ctx: Context, goes_on: bool) -> str:
    """Goes on as a task if it is told to."""
    if goes_on:
        await ctx.continue_as_task()
    return f"done, {goes_on}"


@tool(task="required")
async def asks(ctx: Context) -> str:
    """Asks, once it is a task."""
    await ctx.continue_as_task()
    who = await ctx.elicit("who", "Who are you?", Name)
    return f"Hello {who.name}"


@tool(task="required")
async def fails() -> str:
    """Fails as a tool should."""
    raise ToolError("there is no tea left")


@tool(task="required")
async def breaks() -> str:
    """Ends with an error of the protocol."""
    raise InvalidParams("no such tea")


@tool(task="required")
async def destroy() -> str:
    """Destroys everything."""
    began.append("destroyed")
    return "destroyed"


TOOLS = (report, slow, maybe, asks, fails, breaks, destroy)
HANDLES = {"without_tasks": "tools"}
WAITS = {"without_tasks": "wait"}
FOUR = {"task_status", "task_result", "task_answer", "task_cancel"}
FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
EVERY = pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"])
EITHER = pytest.mark.parametrize("version", ["2026-07-28", "2025-03-26"])
"""With and without a session."""


@pytest.fixture(autouse=True)
def fresh() -> None:
    gates.clear()
    began.clear()


def text(result: dict[str, Any]) -> str:
    assert not result.get("isError"), result
    said: str = result["content"][0]["text"]
    return said


def error_text(result: dict[str, Any]) -> str:
    assert result["isError"], result
    said: str = result["content"][0]["text"]
    return said


def handle(result: dict[str, Any]) -> str:
    """The id in a handle, as a model copies it from the text."""
    said = text(result)
    task_id: str = json.loads(said[said.index("{") : said.index("}") + 1])["taskId"]
    if "structuredContent" in result:
        assert result["structuredContent"]["taskId"] == task_id
    return task_id


async def until_asked(app: FastAPI, task_id: str) -> None:
    """Return when a task waits for answers."""
    async with asyncio.timeout(60):
        while True:
            status = await called(app, "2025-06-18", "task_status", taskId=task_id)
            if "input required" in text(status):
                return
            await asyncio.sleep(0.02)


@EVERY
async def test_a_client_without_tasks_gets_a_handle_and_its_result_with_a_tool(
    tmp_path: Path, version: str
) -> None:
    async with serving(tmp_path, *TOOLS, fallback=HANDLES) as app:
        task_id = handle(await called(app, version, "report", topic="tea"))
        result = await called(app, version, "task_result", taskId=task_id)
        assert json.loads(text(result)) == {"about": "tea"}
        status = await called(app, version, "task_status", taskId=task_id)
        assert "completed" in text(status)
    assert began == ["tea"]


async def test_a_client_with_tasks_gets_what_it_always_did(tmp_path: Path) -> None:
    async with serving(tmp_path, *TOOLS, fallback=HANDLES) as app, client(app) as mcp:
        able = TaskClient(mcp)
        created = valid_created((await able.call("report", {"topic": "tea"})).json())
        assert (await able.over(created["taskId"]))["status"] == "completed"
        listed = await able.send("tools/list", {})
        tools = {one["name"]: one for one in listed.json()["result"]["tools"]}
        assert not FOUR & tools.keys()
        assert "outputSchema" in tools["report"]


@EVERY
async def test_the_tools_are_listed_for_who_needs_them(tmp_path: Path, version: str) -> None:
    async with serving(tmp_path, *TOOLS, fallback=HANDLES, works=False) as app:
        listed = await tools_of(app, version)
    assert listed.keys() >= FOUR
    assert "outputSchema" not in listed["report"]


async def test_the_tools_are_not_listed_where_no_tool_has_tasks(tmp_path: Path) -> None:
    @tool
    async def plain() -> str:
        """Is never a task."""
        return "plain"

    async with serving(tmp_path, plain, fallback=HANDLES, works=False) as app, client(app) as mcp:
        result = await mcp.result("tools/list")
    assert [one["name"] for one in result["tools"]] == ["plain"]
    assert result["cacheScope"] == "public"


async def test_a_tool_that_may_be_a_task_is_a_call_until_it_goes_on_as_one(tmp_path: Path) -> None:
    async with serving(tmp_path, *TOOLS, fallback=HANDLES) as app:
        assert text(await called(app, "2025-06-18", "maybe", goes_on=False)) == "done, False"
        task_id = handle(await called(app, "2025-06-18", "maybe", goes_on=True))
        result = await called(app, "2025-06-18", "task_result", taskId=task_id)
    assert text(result) == "done, True"


async def test_who_asks_for_a_result_too_early_is_told_to_ask_again(tmp_path: Path) -> None:
    async with serving(tmp_path, *TOOLS, fallback=HANDLES) as app:
        task_id = handle(await called(app, "2025-06-18", "slow", gate="a"))
        early = asyncio.create_task(called(app, "2025-06-18", "task_result", taskId=task_id))
        while not early.done():
            pass_time(61)
            await asyncio.sleep(0.1)
        assert "working" in text(await early)
        gates.setdefault("a", asyncio.Event()).set()
        result = await called(app, "2025-06-18", "task_result", taskId=task_id)
    assert text(result) == "through a"


async def test_a_task_is_cancelled_with_a_tool(tmp_path: Path) -> None:
    async with serving(tmp_path, *TOOLS, fallback=HANDLES) as app:
        task_id = handle(await called(app, "2025-06-18", "slow", gate="a"))
        assert "cancelled" in text(await called(app, "2025-06-18", "task_cancel", taskId=task_id))
        result = await called(app, "2025-06-18", "task_result", taskId=task_id)
    assert "cancelled" in error_text(result)


@pytest.mark.parametrize(("name", "says"), [("fails", "no tea left"), ("breaks", "no such tea")])
@pytest.mark.parametrize("way", ["tools", "wait"])
async def test_a_task_that_fails_is_an_error_that_the_model_reads(
    tmp_path: Path, way: str, name: str, says: str
) -> None:
    async with serving(tmp_path, *TOOLS, fallback={"without_tasks": way}) as app:
        result = await called(app, "2025-06-18", name)
        if way == "tools":
            result = await called(app, "2025-06-18", "task_result", taskId=handle(result))
    assert says in error_text(result)


@EITHER
async def test_what_a_task_asks_is_answered_in_words(tmp_path: Path, version: str) -> None:
    words = {**HANDLES, "ask_in_words": True}
    async with serving(tmp_path, *TOOLS, fallback=words) as app:
        task_id = handle(await called(app, version, "asks"))
        asked = await called(app, version, "task_result", taskId=task_id)
        assert "Who are you?" in text(asked)
        assert "task_answer" in text(asked)
        wrong = {"who": accept(name=7)}
        await called(app, version, "task_answer", taskId=task_id, answers=wrong)
        again = await called(app, version, "task_result", taskId=task_id)
        assert "could not be used" in text(again)
        answers = {key: accept(name="Ann") for key in ("who", "who~2", "who#2")}
        nothing = await called(app, version, "task_answer", taskId=task_id, answers={"else": {}})
        assert "has not asked this" in error_text(nothing)
        await called(app, version, "task_answer", taskId=task_id, answers=answers)
        assert text(await called(app, version, "task_result", taskId=task_id)) == "Hello Ann"


async def test_what_a_task_asks_is_asked_of_the_user_while_its_result_is_waited_for(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, *TOOLS, fallback=HANDLES) as app:
        session = await opened(app, "2025-06-18")
        task_id = handle((await session.send(app, calling("asks"))).json()["result"])
        async with session.stream(app, calling("task_result", taskId=task_id)) as stream:
            question = await stream.asked()
            assert question.asked["params"]["message"] == "Who are you?"
            await session.answer(app, question, accept(name="Ann"))
            (response,) = await stream.over()
        assert text(response["result"]) == "Hello Ann"


async def test_an_answer_by_a_tool_is_refused_where_words_are_off_and_for_an_approval(
    tmp_path: Path,
) -> None:
    words = {**HANDLES, "ask_in_words": True}
    override = {"asks": {"ask_in_words": False}, "destroy": {"approve": "always"}}
    backend = {"override": override}
    async with serving(tmp_path, *TOOLS, fallback=words, backend=backend) as app:
        task_id = handle(await called(app, "2025-06-18", "asks", can=FORMS))
        await until_asked(app, task_id)
        answers: dict[str, Any] = {"who": accept(name="Ann")}
        answered = await called(app, "2025-06-18", "task_answer", taskId=task_id, answers=answers)
        assert "cannot be answered" in error_text(answered)
        # in 2026-07-28 the user is asked before there is a task; in a task of another
        # gateway it may be asked there
        result = await called(app, "2025-06-18", "destroy")
        assert "a person" in error_text(result)
    assert began == []


async def test_an_approval_is_known_by_how_it_is_asked() -> None:
    app = gateway(destroy, maybe, backend={"approve": "always"})
    asked = {"name": "maybe", "arguments": {"goes_on": False}}
    async with client(app) as mcp:
        response = await mcp.post("tools/call", asked, clientCapabilities=FORMS)
    (question,) = response.json()["result"]["inputRequests"].values()
    assert is_approval(question)
    assert not is_approval({"method": "roots/list"})


async def test_nobody_sees_a_task_that_is_not_theirs(tmp_path: Path) -> None:
    async with serving(tmp_path, *TOOLS, fallback=HANDLES) as app:
        for name in sorted(FOUR):
            more: dict[str, Any] = {"answers": {}} if name == "task_answer" else {}
            for task_id in ("nobody-has-it", "v1.a.b.c", "", "é"):
                result = await called(app, "2025-06-18", name, taskId=task_id, **more)
                assert "Unknown task" in error_text(result)
            assert "Invalid arguments" in error_text(await called(app, "2025-06-18", name))


@EITHER
async def test_a_call_waits_for_its_task_where_that_is_set(tmp_path: Path, version: str) -> None:
    async with serving(tmp_path, *TOOLS, fallback=WAITS) as app:
        result = await called(app, version, "report", topic="tea")
        assert json.loads(text(result)) == {"about": "tea"}
        assert text(await called(app, version, "maybe", goes_on=True)) == "done, True"
    assert began == ["tea"]


async def test_a_call_that_waits_goes_on_in_later_rounds_with_the_same_task(
    tmp_path: Path,
) -> None:
    limits = {"call_timeout_s": 1}
    async with (
        serving(tmp_path, *TOOLS, fallback=WAITS, limits=limits) as app,
        serving(tmp_path, *TOOLS, fallback=WAITS, limits=limits) as other,
        client(app) as mcp,
        client(other) as another,
    ):
        asked = {"name": "slow", "arguments": {"gate": "a"}}
        first = (await mcp.post("tools/call", asked)).json()["result"]
        assert first["resultType"] == "input_required"
        assert "inputRequests" not in first
        moved = {**asked, "arguments": {"gate": "b"}, "requestState": first["requestState"]}
        _, error = await another.error("tools/call", moved)
        assert "requestState" in error["message"]
        gates.setdefault("a", asyncio.Event()).set()
        result = first
        while result["resultType"] == "input_required":  # a slow machine takes more rounds
            later = {**asked, "requestState": result["requestState"]}
            result = (await another.post("tools/call", later)).json()["result"]
    assert text(result) == "through a"
    assert began == ["a"]


async def test_a_call_of_a_session_waits_round_after_round(tmp_path: Path) -> None:
    limits = {"call_timeout_s": 1}
    async with serving(tmp_path, *TOOLS, fallback=WAITS, limits=limits) as app:
        session = await opened(app, "2025-06-18", {})
        async with session.stream(app, calling("slow", gate="a")) as stream:
            await asyncio.sleep(1.5)
            gates.setdefault("a", asyncio.Event()).set()
            body = json.loads(await stream.body())
    assert text(body["result"]) == "through a"
    assert began == ["a"]


async def test_a_store_that_is_away_for_a_moment_does_not_make_a_call_that_waits_two_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, looks = Tasks.record, iter([True])

    async def away_at_first(tasks: Tasks, principal: Principal, task_id: str) -> Any:
        if next(looks, False):
            raise Unavailable("away")
        return await record(tasks, principal, task_id)

    async with serving(tmp_path, *TOOLS, fallback=WAITS) as app, client(app) as mcp:
        monkeypatch.setattr(Tasks, "record", away_at_first)
        assert json.loads(text(await mcp.call("report", {"topic": "tea"}))) == {"about": "tea"}
        assert not next(looks, False)
    assert began == ["tea"]


async def test_a_call_that_waits_for_too_long_is_cancelled(tmp_path: Path) -> None:
    limits, state = {"call_timeout_s": 1}, {"max_rounds": 2}
    async with serving(tmp_path, *TOOLS, fallback=WAITS, limits=limits, state=state) as app:
        result = await called(app, "2025-06-18", "slow", gate="a")
        gates.setdefault("a", asyncio.Event()).set()
    assert "exceeded its time limit" in error_text(result)


async def test_what_a_task_asks_is_asked_on_the_stream_of_the_call_that_waits(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, *TOOLS, fallback=WAITS) as app:
        session = await opened(app)
        async with session.stream(app, calling("asks")) as stream:
            await session.answer(app, await stream.asked(), accept(name="Ann"))
            (response,) = await stream.over()
        assert text(response["result"]) == "Hello Ann"


async def test_what_a_task_asks_is_asked_in_words_where_its_call_waits(tmp_path: Path) -> None:
    words = {**WAITS, "ask_in_words": True}
    async with serving(tmp_path, *TOOLS, fallback=words) as app:
        asked = await called(app, "2025-06-18", "asks")
        state = json.loads(text(asked).splitlines()[-1])["state"]
        answers = {"who": accept(name="Ann")}
        result = await called(app, "2025-06-18", "answer", state=state, answers=answers)
    assert text(result) == "Hello Ann"


async def test_without_a_setting_a_tool_that_must_be_a_task_returns_a_handle(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, *TOOLS, works=False) as app:
        result = await called(app, "2025-06-18", "report", topic="tea")
        assert handle(result)
        instructions = result["structuredContent"]["instructions"]
        assert instructions == text(result)
        assert "Call task_result with" in instructions


async def test_a_tool_that_must_be_a_task_is_refused_if_the_configuration_says_so(
    tmp_path: Path,
) -> None:
    none = {"without_tasks": "none"}
    async with serving(tmp_path, *TOOLS, works=False, fallback=none) as app:
        assert "tasks" in error_text(await called(app, "2025-06-18", "report", topic="tea"))


def test_without_a_setting_tools_of_the_same_names_are_no_error() -> None:
    @tool(task="required")
    async def task_status() -> str:
        """Somebody's own tool."""
        return "mine"

    gateway(task_status)


async def test_each_tool_may_have_its_own_way(tmp_path: Path) -> None:
    override = {"report": {"without_tasks": "wait"}, "fails": {"without_tasks": "none"}}
    async with serving(tmp_path, *TOOLS, fallback=HANDLES, backend={"override": override}) as app:
        assert json.loads(text(await called(app, "2025-06-18", "report", topic="tea")))
        assert handle(await called(app, "2025-06-18", "asks"))
        assert "tasks" in error_text(await called(app, "2025-06-18", "fails"))


def test_names_that_meet_are_an_error_at_the_start() -> None:
    @tool(task="required")
    async def task_status() -> str:
        """Somebody's own tool."""
        return "mine"

    with pytest.raises(ConfigError) as raised:
        gateway(task_status, fallback=HANDLES)
    (problem,) = raised.value.problems
    assert "task_status" in str(problem)
    assert "fallback.task_tool_prefix" in str(problem)
    both = {**HANDLES, "ask_in_words": True, "answer_tool": "task_answer"}
    with pytest.raises(ConfigError, match="two of the gateway's own tools"):
        gateway(report, fallback=both)


async def test_a_stream_that_is_resumed_goes_on_waiting(tmp_path: Path) -> None:
    async with serving(tmp_path, *TOOLS, fallback=WAITS) as app:
        session = await opened(app)
        async with session.stream(app, calling("asks")) as stream:
            question = await stream.asked()
        await session.answer(app, question, accept(name="Ann"))
        async with session.resumed(app, question.id) as stream:
            (response,) = await stream.over()
        assert text(response["result"]) == "Hello Ann"
        assert isinstance(question, Event)
        listed = await session.send(app, request("tools/list"))
        assert listed.status_code == 200


def test_the_tool_that_goes_on_with_pending_calls_has_a_name_of_its_own_too() -> None:
    @tool
    async def continue_call() -> str:
        """Somebody's own tool."""
        return "mine"

    with pytest.raises(ConfigError, match=r"sessions\.continue_tool"):
        gateway(continue_call)
    gateway(continue_call, sessions={"continue_tool": "go_on"})
