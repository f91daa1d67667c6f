"""The client and a gateway, over real sockets: calls, rounds, tasks, lists,
changes, and the example."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundgate.client import Client, Limits, Progress, Question, Task, TaskState, split_handle
from roundgate.errors import (
    AnswerInvalid,
    ClientError,
    RpcError,
    TaskEnded,
    TimedOut,
    Unanswered,
    WrongHandle,
)
from tests.support.server import Server, running

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The fixture server of the conformance suite."""
    copied = tmp_path_factory.mktemp("gateway") / "conformance"
    shutil.copytree(
        ROOT / "tests/conformance", copied, ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    with running(
        copied / "gateway.yaml", {"GATEWAY_STORE": f"sqlite:///{copied}/store.sqlite3"}
    ) as server:
        yield server


@pytest.fixture
def url(fixtures: Server) -> str:
    return f"{fixtures.url}/mcp"


def every_field(question: Question) -> Any:
    kinds = {"boolean": True, "integer": 1, "number": 1}
    if question.kind == "form":
        return {name: kinds.get(one.get("type", ""), "x") for name, one in question.fields.items()}
    return [] if question.kind == "roots" else "x"


async def test_a_call_has_its_result(url: str) -> None:
    async with (
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
        Client(url, http=http) as client,
    ):
        assert (await client.call("greet", name="Ada")).value == "Hello, Ada!"
    async with Client(url) as client:
        failed = await client.call("test_error_handling")
        assert failed.is_error
        assert failed.text


async def test_rounds_are_answered_whatever_they_ask(url: str) -> None:
    async with Client(url, answers=every_field) as client:
        assert (await client.call("test_input_required_result_multiple_inputs")).rounds == 2
        assert (await client.call("test_input_required_result_multi_round")).rounds == 3
        assert (await client.prompt("test_input_required_result_prompt")).rounds == 2


async def test_progress_and_logs_arrive_while_a_call_runs(url: str) -> None:
    seen: list[Any] = []

    async def note(one: Any) -> None:
        seen.append(one)

    async with Client(url) as client:
        await client.call("test_tool_with_progress", on_progress=note)
        assert [one.progress for one in seen if isinstance(one, Progress)] == [0, 50, 100]
        await client.call("test_logging_tool", on_log=seen.append, log_level="debug")
        assert seen[-1].level == "info"


async def test_what_a_server_has_is_listed_and_read(url: str) -> None:
    async with Client(url) as client:
        about = await client.connect()
        assert (about.name, about.is_modern, about.has_tasks) == (
            "conformance-fixtures",
            True,
            True,
        )
        tool = await client.tool("greet")
        assert tool.input_schema["required"] == ["name"]
        assert "test_simple_prompt" in [one.name for one in await client.prompts()]
        assert "test://static-text" in [one.uri for one in await client.resources()]
        assert [one.uri for one in await client.resource_templates() if one.is_template]
        assert (await client.read("test://static-text")).text.startswith("This is")
        completion = await client.complete(
            {"type": "ref/prompt", "name": "test_prompt_with_arguments"}, "arg1", "a"
        )
        assert not completion.has_more
        assert await client.ping() > 0


async def test_a_tool_that_is_not_there_is_told_with_those_that_come_close(url: str) -> None:
    async with Client(url) as client:
        with pytest.raises(ClientError, match="greet"):
            await client.tool("gret")
        with pytest.raises(RpcError):
            await client.call("gret")


async def test_a_call_that_becomes_a_task_is_waited_for(url: str) -> None:
    states: list[TaskState] = []
    async with Client(url) as client:
        done = await client.call("slow_compute", seconds=0.2, label="it", on_task=states.append)
        assert "it took" in done.text
        assert [states[0].status, states[-1].status] == ["working", "completed"]
        with pytest.raises(TaskEnded, match="protocol error") as caught:
            await client.call("protocol_error_job")
    assert caught.value.error is not None


async def test_a_task_goes_on_in_another_client_by_its_handle(url: str) -> None:
    async with Client(url) as first:
        started = await first.start("confirm_delete", filename="a.txt")
        handle = started.handle
    assert handle is not None
    assert split_handle(handle) == (url, started.id)
    async with Client(split_handle(handle)[0]) as client:
        task = client.resume(handle)
        done = await task.wait(answers=lambda question: dict.fromkeys(question.fields, True))
    assert "a.txt deleted" in done.text


async def asked(task: Task) -> TaskState:
    """A task that has come to its questions."""
    for _ in range(600):
        if (state := await task.get()).status == "input_required":
            return state
        await asyncio.sleep(0.05)
    raise AssertionError("it does not ask")


async def test_a_task_can_be_looked_at_answered_and_cancelled_by_hand(url: str) -> None:
    async with Client(url) as client:
        task = await client.start("multi_input")
        keys = list((await asked(task)).requests)
        assert len(keys) == 2
        with pytest.raises(AnswerInvalid):
            await task.update({keys[0]: 5})
        state = await asked(task)
        await task.update(
            {key: every_field(Question.read(key, state.requests[key])) for key in keys}
        )
        assert not (await task.wait()).is_error
        assert task.is_over
        other = client.resume((await client.start("slow_compute", seconds=60, label="x")).id)
        await other.cancel()
        with pytest.raises(TaskEnded) as caught:
            await other.wait(timeout_s=60)
    assert caught.value.status == "cancelled"


async def test_to_stop_waiting_leaves_the_task_as_it_is(url: str) -> None:
    async with Client(url) as client:
        task = await client.start("confirm_delete", filename="b")
        with pytest.raises(Unanswered):
            await task.wait()
        with pytest.raises(TimedOut, match="timeout_s"):
            await task.wait(timeout_s=0.5, answers=never)
        assert (await task.get()).status == "input_required"
        await task.cancel()


async def never(_: Question) -> Any:
    await asyncio.sleep(60)


async def test_a_call_without_a_task_is_over_when_it_was_started(url: str) -> None:
    async with Client(url) as client:
        task = await client.start("greet", name="Ada")
        assert (task.is_over, task.handle, (await task.wait()).value) == (True, None, "Hello, Ada!")


@pytest.mark.parametrize(
    "handle", ["http://127.0.0.1:1/mcp#task=x", "https://elsewhere.example/mcp#task=x"]
)
async def test_a_handle_of_another_server_is_refused_before_anything_is_sent(
    url: str, handle: str
) -> None:
    async with Client(url) as client:
        with pytest.raises(WrongHandle, match="belongs to"):
            client.resume(handle)


@pytest.mark.parametrize("handle", ["", "x", "#task=", "ftp://a/#task=1"])
def test_what_is_no_handle_is_refused(handle: str) -> None:
    with pytest.raises(WrongHandle, match="not a task handle"):
        split_handle(handle)


async def test_a_task_that_is_not_there_is_said_so(url: str) -> None:
    async with Client(url) as client:
        with pytest.raises(RpcError, match="Unknown task"):
            await client.resume("nothing").wait()


async def test_changes_are_told_and_make_what_is_kept_stale(url: str) -> None:
    async with Client(url) as client:
        async with client.listen(tools=True) as changes:
            assert changes.acknowledged == {"toolsListChanged": True}
            await client.call("test_trigger_tool_change")
            change = await asyncio.wait_for(anext(changes), 60)
        assert (change.method, change.was_interrupted) == (
            "notifications/tools/list_changed",
            False,
        )


async def test_a_tasks_changes_are_told(url: str) -> None:
    async with Client(url) as client:
        task = await client.start("confirm_delete", filename="c")
        async with client.listen(tasks=[task.id]) as changes:
            await task.cancel()
            async with asyncio.timeout(60):
                async for change in changes:
                    if change.task is not None and change.task.is_over:
                        break
        assert change.task is not None
        assert change.task.status == "cancelled"


async def test_many_calls_share_a_client(url: str) -> None:
    async with Client(url, limits=Limits(max_connections=8)) as client:
        calls = [client.call("greet", name=str(number)) for number in range(60)]
        done = await asyncio.wait_for(asyncio.gather(*calls), 60)
    assert [one.value for one in done] == [f"Hello, {number}!" for number in range(60)]


async def test_every_message_can_be_seen(url: str) -> None:
    seen: list[tuple[str, str]] = []

    def note(direction: str, message: dict[str, Any], status: int | None) -> None:
        seen.append((direction, message.get("method", f"status {status}")))

    async with Client(url, observer=note) as client:
        await client.call("greet", name="x")
    answered = ("received", "status 200")
    assert seen[:2] == [("sent", "server/discover"), answered]
    assert seen[-2:] == [("sent", "tools/call"), answered]


def test_the_example_plays_the_page(tmp_path: Path) -> None:
    import subprocess

    copied = tmp_path / "elicitation"
    shutil.copytree(ROOT / "examples/elicitation", copied)
    with running(
        copied / "gateway.yaml", {"GATEWAY_STORE": f"sqlite:///{tmp_path}/store.sqlite3"}
    ) as server:
        command = [sys.executable, str(copied / "play.py"), f"{server.url}/mcp"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "San Francisco (asked from SFO): fog, 61 °F" in done.stdout
    assert "passed: the call of the page" in done.stdout


def test_nothing_heavy_is_loaded_for_a_call() -> None:
    import subprocess

    code = "import roundgate.client.session, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"httpx", "jwt", "cryptography", "yaml"} & set(loaded)
