"""Tools that invoke functions, all of it on the stack: what they answer, and what
happens when any of it dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from tests.roundgate_aws.stack.conftest import TIMES, Deployed, begun, only_http, to_api, until
from tests.support import wire
from tests.support.asgi import Client
from tests.support.rounds import Conversation, accept, tool
from tests.support.task_client import TaskClient

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def patient(stack: Deployed) -> AsyncIterator[Client]:
    """A client of gateways with the time of deployed ones: megabytes take seconds on a busy
    machine."""
    deployment = replace(stack.stack.deployment, times=replace(TIMES, gateway_s=29))
    with closing(deployment.gateways(1, "Patient")) as pool:
        async with to_api(deployment, pool) as http:
            one = Client(http)
            await one.call("echo")
            yield one


def error_of(result: dict[str, Any]) -> str:
    """The text of an error."""
    assert result["isError"], result
    text: str = result["content"][0]["text"]
    return text


async def test_a_call_an_error_a_time_out_and_a_large_answer(mcp: Client) -> None:
    told = (await mcp.call("echo", {"order": "7"}))["structuredContent"]
    assert told["arguments"] == {"order": "7", "action": "echo"}
    assert (told["told"]["tool"], told["told"]["subject"]) == ("echo", "local")
    assert error_of(await mcp.call("fail", {"order": "7"})) == (
        "The function desk failed: LookupError: there is no order 7"
    )
    late = error_of(await mcp.call("slow", {"seconds": 6}))
    assert late.startswith("The function slow reached its own timeout")
    assert len(await mcp.text("write", {"bytes": 1_500_000})) == 1_500_000


@only_http
async def test_the_largest_answer_of_a_function_arrives_if_the_gateway_can_return_it(
    patient: Client,
) -> None:
    # a JSON answer is in a result twice: structuredContent, and text
    assert len(await patient.text("write", {"bytes": 3_145_000})) == 3_145_000
    asked = {"name": "write", "arguments": {"bytes": 3_146_000}}
    status, error = await patient.error("tools/call", asked)
    assert (status, error["code"]) == (200, -32603)
    assert error["message"].startswith("The call succeeded, but its response has 6292")
    assert "AWS Lambda returns at most 6291456; request less data per call" in error["message"]
    over = error_of(await patient.call("write", {"bytes": 6_292_000}))
    assert over.startswith("The function desk answered more than AWS Lambda returns")


@only_http
async def test_a_request_within_the_gateways_limit_reaches_the_function_whole(
    stack: Deployed, patient: Client
) -> None:
    assert stack.stack.invoked is not None
    desk = stack.stack.invoked.pools["desk"]
    taken = await patient.call("measure", {"text": "x" * 3_990_000})
    assert taken["structuredContent"] == {"bytes": 3_990_000}
    before = desk.counts["Invocations"]
    asked = {"name": "measure", "arguments": {"text": "x" * 4_000_000}}
    refused = await patient.post("tools/call", asked)
    assert refused.status_code == 413
    assert wire.valid_error(refused)["message"] == (
        "The body is larger than 4000000 bytes (http.max_body_bytes)"
    )
    asked["arguments"] = {"text": '"' * 2_000_000}  # twice as much in each JSON around it
    refused = await patient.post("tools/call", asked)
    assert refused.status_code == 413
    assert refused.json() == {"message": "Request Entity Too Large"}
    assert desk.counts["Invocations"] == before


async def test_what_its_reserved_concurrency_has_no_room_for_is_told_when_to_come_back(
    stack: Deployed, mcp: Client
) -> None:
    assert stack.stack.invoked is not None
    narrow = stack.stack.invoked.pools["narrow"]
    assert await mcp.text("narrow") == "awake"
    # warm, or the first would be over before a gateway has started for the other
    await asyncio.gather(*(mcp.call("echo") for _ in stack.stack.gateways.environments))
    first = asyncio.create_task(mcp.text("narrow", {"seconds": 3}))
    async with asyncio.timeout(60):
        while not narrow.account.running:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert "The function narrow is throttled" in error_of(await mcp.call("hasty"))
    assert await first == "awake"
    assert narrow.counts["Throttles"] == 1


async def test_the_next_worker_invokes_a_function_again_under_the_same_key(
    stack: Deployed, tasks: TaskClient
) -> None:
    task_id = await tasks.begin("pay", order="worker-dies", seconds=3)
    await begun(stack, "worker-dies", "paid")
    for worker in stack.stack.workers.environments:
        worker.kill()
    ended = await until(tasks, task_id, "completed")
    assert ended["result"]["structuredContent"] == {"order": "worker-dies", "first": False}
    happened = stack.done("worker-dies")
    asked = [line for line in happened if line.startswith("asked")]
    assert happened.count("paid") == 1
    assert len(asked) == 2
    assert len(set(asked)) == 1, "one key"


async def test_a_function_that_dies_at_work_is_an_error_and_is_not_invoked_again(
    stack: Deployed, tasks: TaskClient
) -> None:
    task_id = await tasks.begin("pay", order="function-dies", seconds=20)
    await begun(stack, "function-dies", "paid")
    kill_desk(stack)
    ended = await until(tasks, task_id, "completed")
    assert "The function desk failed: Runtime.ExitError" in error_of(ended["result"])
    assert [line.split()[0] for line in stack.done("function-dies")] == ["asked", "paid"]


async def test_a_question_of_a_function_outlives_whoever_asked_it(
    stack: Deployed, mcp: Client, tasks: TaskClient
) -> None:
    def each_alone() -> Any:
        while True:
            yield mcp
            kill_all(stack)

    talk = Conversation({"to": accept(name="Ada")})
    result = await talk.have(each_alone(), *tool("gift", order="round-of-gift"))
    assert result["structuredContent"]["to"] == "Ada"
    task_id = await tasks.begin("gift", order="task-of-gift")
    await until(tasks, task_id, "input_required")
    kill_all(stack)
    await tasks.answer(task_id, {"to": accept(name="Bob")})
    ended = await until(tasks, task_id, "completed")
    assert ended["result"]["structuredContent"]["to"] == "Bob"
    assert stack.done("round-of-gift") == stack.done("task-of-gift") == ["given"]


async def test_a_job_of_a_function_is_started_once_though_everything_dies_while_it_runs(
    stack: Deployed, tasks: TaskClient
) -> None:
    task_id = await tasks.begin("print", order="job-1", seconds=4)
    await begun(stack, "job-1", "looked")
    kill_all(stack)
    ended = await until(tasks, task_id, "completed")
    assert ended["result"]["structuredContent"] == {"printed": "job-1"}
    assert stack.done("job-1").count("started") == 1


def kill_desk(stack: Deployed) -> None:
    """The function of most tools, in all its environments."""
    assert stack.stack.invoked is not None
    for environment in stack.stack.invoked.pools["desk"].environments:
        environment.kill()


def kill_all(stack: Deployed) -> None:
    """Gateways, workers, and the function."""
    for environment in stack.stack.environments:
        environment.kill()
    kill_desk(stack)
