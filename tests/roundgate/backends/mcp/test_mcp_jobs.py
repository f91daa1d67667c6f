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
from roundgate.main import build_app
from tests.support.asgi import client, config_of, stoppable
from tests.support.scripted import Asked, error, http, result, scripted, text
from tests.support.sdk_servers import NEW, OLDER, SdkServer, needs_older, over_http, over_stdio
from tests.support.task_client import TaskClient, task_settings
from tests.support.upstreams import Upstream, app_of, health, names, tool, until

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
async def gateway(
    folder: Path, entry: dict[str, Any], *, works: bool = True
) -> AsyncIterator[TaskClient]:
    """A gateway over the store of a folder, whose server has been read."""
    file = config_of(
        {
            "backends": [entry],
            "tasks": {"poll_interval_ms": 100, "sweep_every_s": 0.1},
        }
    )
    using = task_settings(folder, worker="on" if works else "off")
    app = await asyncio.to_thread(build_app, file, using)
    async with stoppable(app), client(app) as mcp:

        async def is_listed() -> bool:
            return bool(await names(mcp))

        await until(True, is_listed)
        yield TaskClient(mcp)


@asynccontextmanager
async def server(kind: str, folder: Path, **settings: Any) -> AsyncIterator[SdkServer]:
    interpreter = NEW if kind.startswith("2") else OLDER
    if kind.endswith("stdio"):
        yield over_stdio(interpreter, folder, **settings)
        return
    async with over_http(interpreter, folder, **settings) as running:
        yield running


async def ended(ann: TaskClient, task_id: str) -> str:
    """The text of the result of a task that ends well."""
    task = await ann.over(task_id)
    assert not task["result"].get("isError"), task
    return str(task["result"]["content"][0]["text"])


@pytest.mark.parametrize(
    "kind",
    [
        "2.x, http",
        "2.x, stdio",
        pytest.param("1.x, http", marks=needs_older),
        pytest.param("1.x, stdio", marks=needs_older),
    ],
)
async def test_a_group_of_tools_is_one_task(kind: str, tmp_path: Path) -> None:
    async with (
        server(kind, tmp_path, jobs={"start_build": BUILD}, exclude=HIDDEN) as up,
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
        assert up.noted() == ["started main", "started bad"]


async def test_a_cancelled_task_cancels_the_job_at_the_server(tmp_path: Path) -> None:
    async with (
        over_http(NEW, tmp_path, jobs={"start_build": BUILD}) as up,
        gateway(tmp_path, up.entry) as ann,
    ):
        task_id = await ann.begin("up__start_build", branch="endless")

        async def has_started() -> bool:
            return up.noted() == ["started endless"]

        await until(True, has_started)
        await ann.cancel(task_id)

        async def is_cancelled() -> bool:
            return up.noted() == ["started endless", "cancelled 17"]

        await until(True, is_cancelled)


async def test_a_job_is_followed_by_another_process(tmp_path: Path) -> None:
    async with over_http(NEW, tmp_path, jobs={"start_build": BUILD}) as up:
        async with gateway(tmp_path, up.entry) as ann:
            task_id = await ann.begin("up__start_build", branch="main")

            async def has_started() -> bool:
                return bool(up.noted())

            await until(True, has_started)
        async with gateway(tmp_path, up.entry) as ann:
            assert await ended(ann, task_id) == "built main as 17"
        assert up.noted() == ["started main"]


async def test_without_tasks_the_client_waits_for_the_result(tmp_path: Path) -> None:
    async with (
        over_http(NEW, tmp_path, jobs={"start_build": BUILD}) as up,
        gateway(tmp_path, up.entry) as ann,
    ):
        assert await ann.mcp.text("up__start_build", {"branch": "x"}) == "built x as 17"


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


def entry(url: str, **job: Any) -> dict[str, Any]:
    return {"kind": "mcp", "name": "up", "url": url, "jobs": {"go": {**JOB, **job}}}


async def test_answers_may_be_plain_words_and_a_failed_poll_is_repeated(tmp_path: Path) -> None:
    def away(asked: Asked) -> bytes:
        return http(503)

    def confused(asked: Asked) -> bytes:
        return error(asked, -32603)

    call = Worded("running", away, confused, "done")
    async with (
        scripted(Upstream(call, TOOLS)) as up,
        gateway(tmp_path, entry(up.url)) as ann,
    ):
        assert await ended(ann, await ann.begin("up__go")) == "done"
    calls = [one.params for one in up.asked if one.rpc == "tools/call"]
    assert [one["name"] for one in calls] == ["go", *["look"] * 4]
    assert calls[1]["arguments"] == {"id": "job-9"}
    # a job's tools cannot ask, so the server is told that nobody can be asked
    for one in calls:
        assert one["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}


async def test_a_job_whose_poll_is_quarantined_does_not_start(tmp_path: Path) -> None:
    tools = [tool("go"), tool("look"), tool("stop")]
    async with scripted(Upstream(Worded("done"), tools)) as up:
        one = {**entry(up.url), "changes": "quarantine", "lock": str(tmp_path / "up.lock")}
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
        gateway(tmp_path, {**entry(up.url), "breaker": breaker}) as ann,
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

    async with (
        scripted(Upstream(Worded("done", start=start), [tool("go"), look])) as up,
        gateway(tmp_path, entry(up.url, poll=poll)) as ann,
    ):
        assert await ended(ann, await ann.begin("up__go")) == "done"
    calls = [one.params for one in up.asked if one.rpc == "tools/call"]
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

    async with scripted(older) as server, gateway(tmp_path, entry(server.url)) as ann:
        assert await ended(ann, await ann.begin("up__go")) == "done"
    assert len(served) == 2
    assert all("elicitation" not in each for each in served)


@pytest.mark.parametrize("looks", ["gone", "refused", "question"])
async def test_a_poll_that_cannot_succeed_ends_the_task_and_cancels(
    looks: str, tmp_path: Path
) -> None:
    def gone(asked: Asked) -> bytes:
        return result(asked, {**text("no such job"), "isError": True})

    def refused(asked: Asked) -> bytes:
        return error(asked, -32602, "bad id")

    def question(asked: Asked) -> bytes:
        return result(asked, {"resultType": "input_required", "requestState": "x"})

    answers = {"gone": gone, "refused": refused, "question": question}
    expected = {"gone": "no such job", "refused": "bad id", "question": "may neither ask"}

    def call(asked: Asked) -> Any:
        if asked.params["name"] == "stop":
            return result(asked, text("stopped"))
        return Worded(answers[looks])(asked)

    async with (
        scripted(Upstream(call, TOOLS)) as up,
        gateway(
            tmp_path, entry(up.url, cancel={"tool": "stop", "arguments": {"id": "{id}"}})
        ) as ann,
    ):
        over = await ann.over(await ann.begin("up__go"))

        async def stops() -> list[Any]:
            calls = [one.params for one in up.asked if one.rpc == "tools/call"]
            return [one["arguments"] for one in calls if one["name"] == "stop"]

        assert over["result"]["isError"] is True
        assert expected[looks] in json.dumps(over["result"])
        await until([{"id": "job-9"}], stops)


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

    cancel = {"tool": "stop", "arguments": {"id": "{id}"}}
    async with (
        scripted(Upstream(call, TOOLS)) as up,
        gateway(tmp_path, entry(up.url, cancel=cancel)) as ann,
    ):
        task_id = await ann.begin("up__go")
        await begun.wait()
        await ann.cancel(task_id)
        go_on.set()

        async def ids() -> list[Any]:
            return stopped

        await until([{"id": "job-9"}], ids)


async def test_a_start_without_an_answer_is_not_repeated(tmp_path: Path) -> None:
    async with (
        scripted(Upstream(Worded("done", start=lambda asked: None), TOOLS)) as up,
        gateway(tmp_path, entry(up.url)) as ann,
    ):
        over = await ann.over(await ann.begin("up__go"))
        assert over["result"]["isError"] is True
        calls = [one.params["name"] for one in up.asked if one.rpc == "tools/call"]
    assert calls == ["go"]


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"poll": {"tool": "lok", "arguments": {}}}, "poll names the tool 'lok'"),
        ({"poll": {"tool": "look", "arguments": {"id": "{job}"}}}, "poll needs job"),
        ({"fetch": {"tool": "strict", "arguments": {}}}, "fetch lacks the argument id of strict"),
    ],
)
async def test_a_job_that_does_not_fit_the_servers_tools_is_left_out(
    job: dict[str, Any], reason: str
) -> None:
    strict = tool("strict")
    strict["inputSchema"]["required"] = ["id"]
    async with (
        scripted(Upstream(tools=[*TOOLS, strict])) as up,
        app_of(entry(up.url, **job)) as app,
        client(app) as mcp,
    ):
        assert await names(mcp) == ["up__look", "up__stop", "up__strict"]
        assert reason in (await health(mcp))["left_out"]["go"]
