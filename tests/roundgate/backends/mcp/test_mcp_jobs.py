"""A group of ordinary tools of a server as one durable task, in front of servers on the official
Python SDK and of scripted ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from roundgate.cli import main
from tests.support.asgi import client
from tests.support.older_servers import replica
from tests.support.scripted import Asked, Scripted, error, http, result, scripted, text
from tests.support.sdk_servers import NEW, OLDER, needs_older, over_http
from tests.support.task_client import TaskClient
from tests.support.upstreams import (
    Upstream,
    entry,
    fronted,
    names,
    state,
    tool,
    until,
)

BUILD: dict[str, Any] = {
    "variables": {"build": "/build"},
    "poll": {"tool": "build_status", "arguments": {"build": "{build}"}},
    "every_s": 0.1,
    "succeeded": ["done"],
    "failed": ["broken"],
    "error": "/why",
    "fetch": {"tool": "build_log", "arguments": {"build": "{build}", "branch": "{branch}"}},
    "cancel": {"tool": "cancel_build", "arguments": {"build": "{build}"}},
}
HIDDEN = [{"name": name} for name in ("build_status", "build_log", "cancel_build")]


@asynccontextmanager
async def gateway(folder: Path, backend: dict[str, Any]) -> AsyncIterator[TaskClient]:
    """A client of a gateway with a worker, over the store of a folder, whose server has been read."""
    async with replica(folder, backend, worker="on") as app, client(app) as mcp:
        yield TaskClient(mcp)


async def ended(ann: TaskClient, task_id: str) -> str:
    """The text of the result of a task that ends well."""
    task = await ann.over(task_id)
    assert not task["result"].get("isError"), task
    return str(task["result"]["content"][0]["text"])


@pytest.mark.parametrize("sdk", [NEW, pytest.param(OLDER, marks=needs_older)], ids=["2.x", "1.x"])
async def test_a_group_of_tools_is_one_task(sdk: str | Path, tmp_path: Path) -> None:
    async with (
        over_http(sdk, tmp_path, jobs={"start_build": BUILD}, exclude=HIDDEN) as up,
        gateway(tmp_path, up.entry) as ann,
    ):
        listed = await names(ann.mcp)
        assert "up__start_build" in listed
        assert "up__build_status" not in listed
        task_id = await ann.begin("up__start_build", branch="main")
        assert await ended(ann, task_id) == "built main as 17"
        bad = await ann.over(await ann.begin("up__start_build", branch="bad"))
        assert bad["result"]["isError"] is True
        assert "broken: it does not compile" in bad["result"]["content"][0]["text"]
        # without tasks, the client waits for the result
        assert await ann.mcp.text("up__start_build", {"branch": "x"}) == "built x as 19"
        assert up.noted() == ["started main", "started bad", "started x"]


async def test_a_cancelled_task_cancels_the_job_at_the_server(tmp_path: Path) -> None:
    async with (
        over_http(NEW, tmp_path, jobs={"start_build": BUILD}) as up,
        gateway(tmp_path, up.entry) as ann,
    ):
        task_id = await ann.begin("up__start_build", branch="endless")

        await until(True, lambda: up.noted() == ["started endless"])
        await ann.cancel(task_id)

        await until(True, lambda: up.noted() == ["started endless", "cancelled 17"])


async def test_a_job_is_followed_by_another_process(tmp_path: Path) -> None:
    async with over_http(NEW, tmp_path, jobs={"start_build": BUILD}) as up:
        async with gateway(tmp_path, up.entry) as ann:
            task_id = await ann.begin("up__start_build", branch="main")

            await until(True, lambda: bool(up.noted()))
        async with gateway(tmp_path, up.entry) as ann:
            assert await ended(ann, task_id) == "built main as 17"
        assert up.noted() == ["started main"]


JOB: dict[str, Any] = {
    "variables": {"id": ""},
    "poll": {"tool": "look", "arguments": {"id": "{id}"}},
    "every_s": 0.1,
    "status": "",
    "succeeded": ["done"],
}
TOOLS = [tool("go"), tool("look"), tool("stop")]


class Worded:
    """A server whose tools answer in plain words; `looks` are its answers to polls."""

    def __init__(self, *looks: Any, start: Any = None) -> None:
        self.looks = list(looks)
        self.start = start

    def __call__(self, asked: Asked) -> Any:
        if asked.params["name"] == "go":
            return result(asked, text("job-9")) if self.start is None else self.start(asked)
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return look(asked) if callable(look) else result(asked, text(look))


def with_job(server: Scripted, **job: Any) -> dict[str, Any]:
    return entry(server, jobs={"go": {**JOB, **job}})


@asynccontextmanager
async def worded(
    folder: Path, call: Any, tools: Any = TOOLS, **job: Any
) -> AsyncIterator[tuple[Scripted, TaskClient]]:
    """A gateway with the job in front of a scripted server."""
    async with (
        scripted(Upstream(call, tools)) as up,
        gateway(folder, with_job(up, **job)) as ann,
    ):
        yield up, ann


def calls_of(up: Scripted) -> list[dict[str, Any]]:
    """The params of the calls that reached the server."""
    return [one.params for one in up.asked if one.rpc == "tools/call"]


async def test_answers_may_be_plain_words_and_a_failed_poll_is_repeated(tmp_path: Path) -> None:
    def away(asked: Asked) -> bytes:
        return http(503)

    def confused(asked: Asked) -> bytes:
        return error(asked, -32603)

    call = Worded("running", away, confused, "done")
    async with worded(tmp_path, call) as (up, ann):
        assert await ended(ann, await ann.begin("up__go")) == "done"
    calls = calls_of(up)
    assert [one["name"] for one in calls] == ["go", *["look"] * 4]
    assert calls[1]["arguments"] == {"id": "job-9"}
    # a job's tools cannot ask, so the server is told that nobody can be asked
    for one in calls:
        assert one["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}


async def test_a_job_whose_poll_is_quarantined_does_not_start(tmp_path: Path) -> None:
    tools = [*TOOLS]
    async with scripted(Upstream(Worded("done"), tools)) as up:
        one = {**with_job(up), "changes": "quarantine", "lock": str(tmp_path / "up.lock")}
        file = tmp_path / "gateway.yaml"
        file.write_text(json.dumps({"backends": [one]}))
        assert await asyncio.to_thread(main, ["compile", str(file)]) == 0
        tools[1] = tool("look", description="Another.")
        async with gateway(tmp_path, one) as ann:
            task = await ann.over(await ann.begin("up__go"))
    assert task["result"]["isError"] is True
    assert "changed the definition of look" in task["result"]["content"][0]["text"]
    assert "tools/call" not in up.methods()


async def test_a_poll_is_repeated_while_the_breaker_is_open(tmp_path: Path) -> None:
    def away(asked: Asked) -> bytes:
        return http(503)

    breaker = {"failures": 1, "pause_s": 0.5}
    async with (
        scripted(Upstream(Worded(away, "done"), TOOLS)) as up,
        gateway(tmp_path, {**with_job(up), "breaker": breaker}) as ann,
    ):
        assert await ended(ann, await ann.begin("up__go")) == "done"


async def test_a_variable_may_fill_an_argument_of_several_types(tmp_path: Path) -> None:
    number = {"type": ["integer", "null"]}
    word = {"type": ["string", "integer"]}
    look = tool("look")
    look["inputSchema"]["properties"] = {"id": number, "word": word}
    poll = {"tool": "look", "arguments": {"id": "{id}", "word": "{id}"}}

    def start(asked: Asked) -> bytes:
        return result(asked, text("17"))

    call = Worded("done", start=start)
    async with worded(tmp_path, call, [tool("go"), look], poll=poll) as (up, ann):
        assert await ended(ann, await ann.begin("up__go")) == "done"
    calls = calls_of(up)
    assert calls[1]["arguments"] == {"id": 17, "word": "17"}


async def test_an_older_server_learns_that_tools_of_a_job_cannot_ask(tmp_path: Path) -> None:
    sessions = iter("abcdef")
    declared: dict[str, Any] = {}
    served: list[Any] = []
    up = Upstream(Worded("done"), TOOLS)

    def older(asked: Asked) -> Any:
        if asked.rpc == "initialize":
            up.session = next(sessions)
            declared[up.session] = asked.params["capabilities"]
        elif asked.rpc == "server/discover":
            up.session = ""
        else:
            up.session = asked.headers.get("mcp-session-id", "")
        if asked.rpc == "tools/call":
            served.append(declared[str(up.session)])
        return up(asked)

    async with scripted(older) as server, gateway(tmp_path, with_job(server)) as ann:
        assert await ended(ann, await ann.begin("up__go")) == "done"
    assert len(served) == 2
    assert all("elicitation" not in each for each in served)


CANCEL = {"tool": "stop", "arguments": {"id": "{id}"}}


async def test_a_poll_that_cannot_succeed_ends_the_task_and_cancels(tmp_path: Path) -> None:
    asking = {"resultType": "input_required", "requestState": "x"}
    looks: dict[str, Any] = {
        "no such job": lambda asked: result(asked, {**text("no such job"), "isError": True}),
        "bad id": lambda asked: error(asked, -32602, "bad id"),
        "may neither ask": lambda asked: result(asked, asking),
    }
    stops: list[Any] = []

    def call(asked: Asked) -> Any:
        if asked.params["name"] != "stop":
            return Worded([*looks.values()][len(stops)])(asked)
        stops.append(asked.params["arguments"])
        return result(asked, text("stopped"))

    async with worded(tmp_path, call, cancel=CANCEL) as (_, ann):
        for number, expected in enumerate(looks, 1):
            over = await ann.over(await ann.begin("up__go"))
            assert over["result"]["isError"] is True
            assert expected in json.dumps(over["result"])
            await until([{"id": "job-9"}] * number, lambda: stops)


async def test_a_job_that_starts_while_its_task_is_cancelled_is_cancelled(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    stopped: list[Any] = []

    async def call(asked: Asked) -> Any:
        if asked.params["name"] == "stop":
            stopped.append(asked.params["arguments"])
        elif asked.params["name"] == "go":
            begun.set()
            await go_on.wait()
        return result(asked, text("job-9"))

    async with worded(tmp_path, call, cancel=CANCEL) as (_, ann):
        task_id = await ann.begin("up__go")
        await begun.wait()
        await ann.cancel(task_id)
        go_on.set()
        await until([{"id": "job-9"}], lambda: stopped)


async def test_a_start_without_an_answer_is_not_repeated(tmp_path: Path) -> None:
    async with worded(tmp_path, Worded("done", start=lambda asked: None)) as (up, ann):
        over = await ann.over(await ann.begin("up__go"))
        assert over["result"]["isError"] is True
        calls = [one.params["name"] for one in up.asked if one.rpc == "tools/call"]
    assert calls == ["go"]


async def test_jobs_that_do_not_fit_the_servers_tools_are_left_out() -> None:
    jobs: dict[str, tuple[dict[str, Any], str]] = {
        "one": ({"poll": {"tool": "lok", "arguments": {}}}, "poll names the tool 'lok'"),
        "two": ({"poll": {"tool": "look", "arguments": {"id": "{job}"}}}, "poll needs job"),
        "three": (
            {"fetch": {"tool": "strict", "arguments": {}}},
            "fetch lacks the argument id of strict",
        ),
    }
    strict = tool("strict")
    strict["inputSchema"]["required"] = ["id"]
    upstream = Upstream(tools=[*TOOLS, strict, *map(tool, jobs)])
    settings = {name: {**JOB, **job} for name, (job, _) in jobs.items()}
    async with fronted(upstream, jobs=settings) as (_, mcp):
        assert await names(mcp) == ["up__go", "up__look", "up__stop", "up__strict"]
        left_out = await state(mcp, "left_out")
        for name, (_, reason) in jobs.items():
            assert reason in left_out[name]
