"""A client that knows tasks, which holds each shape to the extension's schema.ts; and
gateways that have them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from mcp_types import _v2026_07_28 as official

from roundgate.auth import task_owner
from roundgate.auth.principal import LOCAL
from roundgate.clock import Clock
from roundgate.main import build_app
from roundgate.runtime.startup import Stores
from roundgate.settings.process import Settings
from tests.support import wire
from tests.support.asgi import STATE_KEY, Client, Exchange, client, config_file, stoppable
from tests.support.issuer import ISSUER, PUBLIC_URL, bearer, jwks, token
from tests.support.rounds import CAPABILITIES
from tests.support.services import answer, service

EXTENSION = "io.modelcontextprotocol/tasks"
DECLARED: dict[str, Any] = {**CAPABILITIES, "extensions": {EXTENSION: {}}}
"""The capabilities of a client that can do everything."""
MISSING: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
"""`data` of the error that a client without the extension gets."""

OUTCOMES = {"completed": "result", "failed": "error", "input_required": "inputRequests"}
_SHARED = {"taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def ref_of(task_id: str) -> str:
    """What the log and the commands call a task of a gateway without authentication."""
    return f"{task_owner(LOCAL)}.{task_id}"


def valid_task(task: Mapping[str, Any], *, more: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """A `DetailedTask` with these further members: every member of its status, of the right type, and no other."""
    status = task["status"]
    assert status in {"working", "input_required", "completed", "failed", "cancelled"}
    own = {OUTCOMES[status]} if status in OUTCOMES else set()
    assert task.keys() - {"statusMessage"} == _SHARED | own | more, task
    _valid_members(task)
    match status:
        case "completed":
            official.CallToolResult.model_validate(task["result"])
            assert task["result"]["resultType"] == "complete"
            assert "io.modelcontextprotocol/related-task" not in task["result"].get("_meta", {})
        case "failed":
            official.Error.model_validate(task["error"])
            assert type(task["error"]["code"]) is int
            assert task["statusMessage"]
        case "input_required":
            asked = {"resultType": "input_required", "inputRequests": task["inputRequests"]}
            official.InputRequiredResult.model_validate(asked)
            assert task["inputRequests"]


def _valid_members(task: Mapping[str, Any]) -> None:
    assert isinstance(task["taskId"], str)
    assert isinstance(task.get("statusMessage", ""), str)
    assert _MOMENT.fullmatch(task["createdAt"])
    assert _MOMENT.fullmatch(task["lastUpdatedAt"])
    assert task["createdAt"] <= task["lastUpdatedAt"]
    assert type(task["ttlMs"]) is int
    assert task["ttlMs"] > 0
    assert type(task["pollIntervalMs"]) is int
    assert task["pollIntervalMs"] > 0


def valid_created(body: Mapping[str, Any]) -> dict[str, Any]:
    """The `CreateTaskResult` of a response: `Result & Task`, so without what only a `DetailedTask` has."""
    assert body.keys() == {"jsonrpc", "id", "result"}, body
    created: dict[str, Any] = body["result"]
    assert created.keys() - {"statusMessage"} == _SHARED | {"resultType", "_meta"}, created
    assert created["resultType"] == "task"
    assert created["_meta"].keys() == {wire.SERVER_INFO}
    _valid_members(created)
    return created


def valid_got(body: Mapping[str, Any]) -> dict[str, Any]:
    """The `GetTaskResult` of a response."""
    assert body.keys() == {"jsonrpc", "id", "result"}, body
    task: dict[str, Any] = body["result"]
    assert task["resultType"] == "complete"
    assert task["_meta"].keys() == {wire.SERVER_INFO}
    valid_task(task, more={"resultType", "_meta"})
    return task


def valid_acknowledgement(response: httpx.Response) -> None:
    """An empty acknowledgement."""
    assert response.status_code == 200, response.text
    assert response.json()["result"].keys() == {"resultType", "_meta"}
    assert response.json()["result"]["resultType"] == "complete"


@dataclass
class TaskClient:
    """A correct client that declares the extension; `headers` go with every request."""

    mcp: Client
    capabilities: Mapping[str, Any] = field(default_factory=lambda: DECLARED)
    headers: dict[str, str | None] = field(default_factory=dict)

    async def send(self, method: str, params: Mapping[str, Any], **meta: Any) -> httpx.Response:
        given = {"clientCapabilities": self.capabilities, **meta}
        return await self.mcp.post(method, dict(params), headers=self.headers, **given)

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, **more: Any
    ) -> httpx.Response:
        """tools/call, whatever comes of it; `more` are further params."""
        return await self.send(
            "tools/call", {"name": name, "arguments": dict(arguments or {}), **more}
        )

    async def begin(self, name: str, /, **arguments: Any) -> str:
        """The id of the task that a call becomes."""
        task_id: str = valid_created((await self.call(name, arguments)).json())["taskId"]
        return task_id

    async def get(self, task_id: str) -> dict[str, Any]:
        """The task as it is now."""
        response = await self.send("tasks/get", {"taskId": task_id})
        assert response.status_code == 200, response.text
        return valid_got(response.json())

    async def until(self, task_id: str, *statuses: str, within_s: float = 60) -> dict[str, Any]:
        """The task once it has one of these statuses."""
        end = time.monotonic() + within_s
        while (task := await self.get(task_id))["status"] not in statuses:
            assert time.monotonic() < end, task
            await asyncio.sleep(0.01)
        return task

    async def over(self, task_id: str) -> dict[str, Any]:
        """The task once it is terminal."""
        return await self.until(task_id, "completed", "failed", "cancelled")

    async def text(self, task_id: str) -> str:
        """The text of the result of a task that ends well."""
        task = await self.over(task_id)
        assert task["status"] == "completed", task
        assert "isError" not in task["result"], task
        text: str = task["result"]["content"][0]["text"]
        return text

    async def asked(self, task_id: str) -> dict[str, Any]:
        """What it asks for, once it asks."""
        requests: dict[str, Any] = (await self.until(task_id, "input_required"))["inputRequests"]
        return requests

    async def answer(self, task_id: str, responses: Mapping[str, Any]) -> None:
        """tasks/update, acknowledged."""
        valid_acknowledgement(
            await self.send("tasks/update", {"taskId": task_id, "inputResponses": responses})
        )

    async def cancel(self, task_id: str) -> None:
        """tasks/cancel, acknowledged."""
        valid_acknowledgement(await self.send("tasks/cancel", {"taskId": task_id}))

    async def error(self, method: str, params: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """HTTP status and JSON-RPC error of a request that fails."""
        response = await self.send(method, params)
        return response.status_code, wire.valid_error(response)


def task_settings(directory: Path, **settings: Any) -> Settings:
    """The settings of processes that share a directory."""
    given = {
        "store": f"sqlite:///{directory / 'gateway.sqlite3'}",
        "state_keys": STATE_KEY,
        **settings,
    }
    return Settings(**given)


@asynccontextmanager
async def serving(
    directory: Path,
    *functions: Callable[..., Any],
    clock: Clock | None = None,
    stores: Stores | None = None,
    works: bool = True,
    public_url: str | None = None,
    **sections: Any,
) -> AsyncIterator[FastAPI]:
    """A gateway that has started, and that works on tasks unless it is told not to."""
    using = task_settings(directory, worker="on" if works else "off", public_url=public_url)
    tasks = {"poll_interval_ms": 100, **sections.pop("tasks", {})}
    file = config_file(*functions, tasks=tasks, **sections)
    async with stoppable(build_app(file, using, clock=clock, stores=stores)) as app:
        yield app


@asynccontextmanager
async def tasked(
    directory: Path, *functions: Callable[..., Any], **options: Any
) -> AsyncIterator[TaskClient]:
    """A client of such a gateway."""
    async with serving(directory, *functions, **options) as app, client(app) as mcp:
        yield TaskClient(mcp)


@dataclass
class Callers:
    """The callers of a gateway with tokens of an issuer."""

    app: FastAPI
    mcp: Client

    def of(self, **claims: Any) -> TaskClient:
        """A client whose token has these claims."""
        return TaskClient(self.mcp, DECLARED, bearer(token(**claims)))

    def listening(self, *task_ids: str, **claims: Any) -> Exchange:
        """A stream of the states of tasks, for a token with these claims."""
        wanted = {"notifications": {"taskIds": list(task_ids)}}
        asked = wire.message("subscriptions/listen", wanted, clientCapabilities=DECLARED)
        headers = {"authorization": f"Bearer {token(**claims)}"}
        return Exchange(self.app, asked, wire.headers(asked) | headers)


@asynccontextmanager
async def callers(
    directory: Path, *functions: Callable[..., Any], issuer: str = ISSUER, **options: Any
) -> AsyncIterator[Callers]:
    """A gateway with tasks (`serving`) that asks for tokens of an issuer."""
    async with service(answer(jwks("ec"))) as keys:
        auth = {"issuer": issuer, "scopes": [], "jwks_url": f"{keys.url}/jwks"}
        options = {"auth": auth, "public_url": PUBLIC_URL, **options}
        async with serving(directory, *functions, **options) as app, client(app) as mcp:
            yield Callers(app, mcp)
