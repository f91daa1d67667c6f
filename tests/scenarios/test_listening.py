"""Who listens to a task that a worker carries goes on at another gateway when
the first is replaced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.scenarios.conftest import Agency, clients
from tests.support import wire
from tests.support.rounds import accept
from tests.support.server import Server
from tests.support.task_client import DECLARED


async def test_who_listens_hears_how_a_task_is_until_its_end_also_through_another_gateway(
    agency: Agency,
) -> None:
    first, second = agency.gateway(), agency.gateway()
    agency.worker()
    async with clients(first, second) as (_, two):
        task_id = await two.begin("tour", days=1)
        async with listening(first, task_id) as heard:
            assert (await anext(heard))["method"] == "notifications/subscriptions/acknowledged"
            while (message := await anext(heard))["params"]["status"] != "input_required":
                assert message["params"]["taskId"] == task_id
            assert list(message["params"]["inputRequests"]) == ["who"]
            assert await asyncio.to_thread(first.stop) == 0
            rest = [message async for message in heard]
            assert wire.valid_result("subscriptions/listen", rest[-1]), (
                "the stream is ended, not cut"
            )
        async with listening(second, task_id) as heard:
            await anext(heard)
            await two.answer(task_id, {"who": accept(name="Ada")})
            while (message := await anext(heard))["params"]["status"] != "completed":
                pass
    assert message["params"]["result"]["content"][0]["text"] == "1 days with Ada"


@asynccontextmanager
async def listening(server: Server, task_id: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The messages of an open stream about a task."""
    wanted = {"notifications": {"taskIds": [task_id]}}
    asked = wire.message("subscriptions/listen", wanted, clientCapabilities=DECLARED)
    async with (
        asyncio.timeout(60),
        httpx.AsyncClient(base_url=server.url, timeout=60, verify=False) as http,
        http.stream(
            "POST", "/mcp", content=json.dumps(asked), headers=wire.headers(asked)
        ) as stream,
    ):
        yield messages(stream)


async def messages(stream: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in stream.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
