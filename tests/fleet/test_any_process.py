"""A task begun in one process, worked on in others, and read, answered, listened
to and cancelled in any."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from tests.fleet.conftest import Fleet
from tests.support import wire
from tests.support.asgi import Client
from tests.support.rounds import accept, retry, valid_input_required
from tests.support.server import Server
from tests.support.task_client import DECLARED, TaskClient, ref_of, valid_created, valid_task


@asynccontextmanager
async def clients(*servers: Server) -> AsyncIterator[list[TaskClient]]:
    async with AsyncExitStack() as stack:
        opened = [httpx.AsyncClient(base_url=server.url, timeout=60) for server in servers]
        yield [TaskClient(Client(await stack.enter_async_context(http))) for http in opened]


async def test_each_request_about_a_task_may_reach_another_process(fleet: Fleet) -> None:
    params: dict[str, Any] = {"name": "plan", "arguments": {"what": "tour"}}
    async with clients(*fleet.gateways) as (one, two, three):
        asked = valid_input_required((await one.send("tools/call", params)).json())
        created = valid_created(
            (await two.send("tools/call", retry(params, asked, who=accept(name="Ann")))).json()
        )
        task_id = created["taskId"]
        assert (await three.get(task_id))["createdAt"] == created["createdAt"]
        both = await one.asked(task_id)
        assert list(both) == ["from", "to"]
        await three.answer(task_id, {"to": accept(name="Rome")})
        assert list((await two.get(task_id))["inputRequests"]) == ["from"]
        await one.answer(
            task_id, {"to": accept(name="Oslo"), "nothing": None}
        )  # late, and never asked
        await one.answer(task_id, {"from": accept(name="Bern")})
        assert (await two.get(task_id))["status"] != "input_required" or list(
            await two.asked(task_id)
        ) == ["with"]
        await two.asked(task_id)
        await two.answer(task_id, {"with": accept(name="Bob"), "from": accept(name="Nowhere")})
        await three.answer(
            task_id, {"with": accept(name="Eve")}
        )  # the same update again, after a lost answer
        ended = [await one_.over(task_id) for one_ in (one, two, three)]
    assert ended[0] == ended[1] == ended[2]
    said, processes = ended[0]["result"]["structuredContent"]
    assert said == "tour of Ann with Bob: Bern to Rome"
    assert processes[0] == fleet.gateways[0].process.pid
    assert set(processes[1:]) <= {worker.process.pid for worker in fleet.workers}


async def test_many_tasks_at_once_each_end_once_and_rightly(fleet: Fleet) -> None:
    async with clients(*fleet.gateways) as three:
        ids = await asyncio.gather(*(three[number % 3].begin("greet") for number in range(12)))

        async def drive(number: int, task_id: str) -> str:
            asked = await three[(number + 1) % 3].asked(task_id)
            answers = {key: accept(name=str(number)) for key in asked}
            await asyncio.gather(*(each.answer(task_id, answers) for each in three))
            return await three[(number + 2) % 3].text(task_id)

        texts = await asyncio.gather(
            *(drive(number, task_id) for number, task_id in enumerate(ids))
        )
    assert texts == [f"Hello, {number}!" for number in range(12)]
    ran = [
        line
        for worker in fleet.workers
        for line in worker.lines()
        if line.get("outcome") == "finished"
    ]
    refs = sorted(map(ref_of, ids))
    assert sorted(line["task"] for line in ran if line["task"] in refs) == refs


async def test_a_cancellation_reaches_the_process_that_works_on_it(fleet: Fleet) -> None:
    async with clients(*fleet.gateways) as (one, two, three):
        task_id = await one.begin("dig", seconds=600)
        async with asyncio.timeout(60):
            while (await one.get(task_id)).get("statusMessage") != "digging":  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await two.cancel(task_id)
        assert (await three.get(task_id))["status"] == "cancelled"
        until = time.monotonic() + 60
        while not any(
            line.get("task") == ref_of(task_id) and line["outcome"] == "lost"
            for line in lines(fleet)
        ):
            assert time.monotonic() < until, "the worker goes on with what nobody wants"
            await asyncio.sleep(0.1)
        assert (await one.get(task_id))["status"] == "cancelled"


def lines(fleet: Fleet) -> list[dict[str, Any]]:
    """The lines of the workers about turns."""
    return [line for worker in fleet.workers for line in worker.lines() if line["msg"] == "task"]


async def notifications(stream: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in stream.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@asynccontextmanager
async def listening(server: Server, **wanted: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The messages of an open stream, the acknowledgement first."""
    asked = wire.message(
        "subscriptions/listen", {"notifications": wanted}, "s", clientCapabilities=DECLARED
    )
    async with (
        asyncio.timeout(60),
        httpx.AsyncClient(base_url=server.url, timeout=60) as http,
        http.stream(
            "POST", "/mcp", content=json.dumps(asked), headers=wire.headers(asked)
        ) as stream,
    ):
        yield notifications(stream)


async def test_changes_by_other_processes_are_told_within_the_interval(fleet: Fleet) -> None:
    first, second, third = fleet.gateways
    async with clients(first, second) as (one, two):
        task_id = await one.begin("greet")
        wanted = {"taskIds": [task_id, "A" * 22], "toolsListChanged": True}
        async with listening(third, **wanted) as said:
            acknowledged = await anext(said)
            assert acknowledged["params"]["notifications"] == {
                "taskIds": [task_id],
                "toolsListChanged": True,
            }
            while (task := told(await anext(said)))["status"] != "input_required":
                pass
            assert task["statusMessage"] == "1: asking"
            await two.answer(task_id, {"who": accept(name="Ann")})
            while (task := told(await anext(said)))["status"] != "completed":
                pass
            assert task["result"]["content"][0]["text"] == "Hello, Ann!"
            await two.mcp.call("change")
            assert (await anext(said))["method"] == "notifications/tools/list_changed"


def told(message: dict[str, Any]) -> dict[str, Any]:
    assert message["method"] == "notifications/tasks"
    task = dict(message["params"])
    assert task.pop("_meta") == {wire.SUBSCRIPTION_ID: "s"}
    valid_task(task)
    return task


async def test_a_gateway_that_does_not_work_on_tasks_does_not(fleet: Fleet) -> None:
    async with clients(*fleet.gateways) as (one, _, _):
        task_id = await one.begin("dig")
        assert await one.text(task_id) == "dug"
    assert [
        line for server in fleet.gateways for line in server.lines() if line["msg"] == "task"
    ] == []
    assert sum(line["task"] == ref_of(task_id) for line in lines(fleet)) == 1
