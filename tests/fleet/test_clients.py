"""Clients that others wrote, against gateways and workers in processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from pydantic import Field

from tests.fleet.conftest import Fleet
from tests.support import fastmcp_client
from tests.support.server import Server

SAID = ["called Hello, Ada!", "waits input_required", "task Hello, Ada!", "cancelled cancelled"]


def test_fastmcp_drives_tasks_to_their_ends(fleet: Fleet) -> None:
    ran = fastmcp_client.drive(f"{fleet.gateways[0].url}/mcp")
    assert (ran.stdout.splitlines(), ran.returncode) == (SAID, 0), ran.stderr


# ---- the official client, which lets extensions claim results: this is one, as small as it can be


class Created(types.Result):
    """The schema's `CreateTaskResult`."""

    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    poll_interval_ms: int = Field(alias="pollIntervalMs")


class Got(types.Result):
    """The schema's `GetTaskResult`."""

    status: str
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, Any] = Field(default={}, alias="inputRequests")


class Params(types.RequestParams):
    task_id: str = Field(serialization_alias="taskId")


class Answers(Params):
    input_responses: dict[str, Any] = Field(serialization_alias="inputResponses")


class GetTask(types.Request[Params, Literal["tasks/get"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/get"] = "tasks/get"
    params: Params


class UpdateTask(types.Request[Answers, Literal["tasks/update"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/update"] = "tasks/update"
    params: Answers


class Tasks(ClientExtension):
    """Polls, answers every form with Ada, and gives the result to whoever called the tool."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return (ResultClaim(result_type="task", model=Created, resolve=self._drive),)

    async def _drive(self, created: Created, context: ClaimContext) -> types.CallToolResult:
        session, params = context.session, Params(task_id=created.task_id)
        while True:
            got = await session.send_request(GetTask(params=params), Got)
            self.seen += [got.status] if self.seen[-1:] != [got.status] else []
            if got.result is not None:
                return types.CallToolResult.model_validate(got.result)
            assert got.error is None
            if got.input_requests:
                answer = {"action": "accept", "content": {"name": "Ada"}}
                responses = dict.fromkeys(got.input_requests, answer)
                update = UpdateTask(
                    params=Answers(task_id=created.task_id, input_responses=responses)
                )
                await session.send_request(update, types.EmptyResult)
            await asyncio.sleep(created.poll_interval_ms / 1000)


class Tour(httpx2.AsyncBaseTransport):
    """Sends each request to the next of several gateways."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._ports = [server.port for server in servers]
        self._inner = httpx2.AsyncHTTPTransport()
        self._sent = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.url = request.url.copy_with(port=self._ports[self._sent % len(self._ports)])
        self._sent += 1
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


async def test_the_official_client_drives_a_task_through_a_process_for_each_request(
    fleet: Fleet,
) -> None:
    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    tasks = Tasks()
    async with (
        asyncio.timeout(60),
        httpx2.AsyncClient(transport=Tour(fleet.gateways)) as http,
        Client(
            streamable_http_client("http://127.0.0.1/mcp", http_client=http),
            elicitation_callback=elicit,
            extensions=[tasks],
        ) as official,
    ):
        result = await official.call_tool("plan", {"what": "tour"})
    assert "tour of Ann with Ada: Ada to Ada" in str(result.content)
    assert tasks.seen[-1] == "completed"
    assert "input_required" in tasks.seen


async def test_the_official_client_without_the_extension_gets_results_and_no_tasks(
    fleet: Fleet,
) -> None:
    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    async with (
        asyncio.timeout(60),
        httpx2.AsyncClient(transport=Tour(fleet.gateways)) as http,
        Client(
            streamable_http_client("http://127.0.0.1/mcp", http_client=http),
            elicitation_callback=elicit,
        ) as official,
    ):
        result = await official.call_tool("plan", {"what": "tour"})
    assert "tour of Ann with Ann: Ann to Ann" in str(result.content)
