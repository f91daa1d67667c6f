"""A service that makes tasks of its own of the calls of a tool, as another
server of the protocol would.

It is outside of every gateway: several may be in front of it, and none of them
keeps anything of its tasks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from roundgate.auth.principal import Principal
from roundgate.backends import service_tasks
from roundgate.backends.base import Offering, Returned, Tool
from roundgate.clock import iso
from roundgate.config import ConfigFile
from roundgate.errors import TaskNotFound, Unavailable
from roundgate.main import build_app
from roundgate.protocol.content import TextContent, ToolResult
from roundgate.protocol.tasks import TaskView
from roundgate.replay.context import Context
from roundgate.runtime import loading
from tests.support.asgi import config_file, stoppable
from tests.support.task_client import task_settings

QUESTION = {
    "method": "elicitation/create",
    "params": {
        "message": "Who?",
        "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}


class Service:
    """The service, and the source of its tasks. What it says is the protocol's JSON, read by `task_view`."""

    def __init__(self, *, tells: bool = False) -> None:
        self.tells = tells
        """Whether it tells who watches of changes."""
        self.tasks: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, Mapping[str, Any]] = {}
        self.asked: Counter[str] = Counter()
        """How often each of get, update and cancel came."""
        self.callers: set[str] = set()
        """The subjects on whose behalf it was asked."""
        self.watchers: list[Callable[[], None]] = []
        self.is_away = False
        self.hangs: asyncio.Event | None = None
        self._now_ms = 1_800_000_000_000

    # what happens in the service

    def begin(self) -> dict[str, Any]:
        """A new task."""
        task_id = f"job/{len(self.tasks) + 1} of [us]"
        times = {"createdAt": iso(self._now_ms), "lastUpdatedAt": iso(self._now_ms)}
        task = {
            "taskId": task_id,
            "status": "working",
            **times,
            "ttlMs": 60_000,
            "pollIntervalMs": 50,
        }
        self.tasks[task_id] = task
        return task

    def change(self, task_id: str | None = None, **members: Any) -> None:
        """A task is another from now on: the only one, unless told which."""
        self._now_ms += 1000
        task = self.tasks[next(iter(self.tasks)) if task_id is None else task_id]
        task |= {"lastUpdatedAt": iso(self._now_ms), **members}
        for changed in self.watchers:
            changed()

    def finish(self, text: str) -> None:
        """The only task is over."""
        self.change(status="completed", result={"content": [{"type": "text", "text": text}]})

    # the source

    async def get(self, task_id: str, principal: Principal) -> TaskView:
        return service_tasks.task_view(await self._find("get", task_id, principal))

    async def update(
        self, task_id: str, responses: Mapping[str, Any], principal: Principal
    ) -> None:
        task = await self._find("update", task_id, principal)
        self.answers[task_id] = responses
        task.pop("inputRequests", None)
        self.change(task_id, status="working")

    async def cancel(self, task_id: str, principal: Principal) -> None:
        await self._find("cancel", task_id, principal)
        self.change(task_id, status="cancelled")

    def watch(
        self, task_id: str, principal: Principal, changed: Callable[[], None]
    ) -> Callable[[], None] | None:
        if not self.tells:
            return None
        self.watchers.append(changed)
        return lambda: self.watchers.remove(changed)

    async def _find(self, what: str, task_id: str, principal: Principal) -> dict[str, Any]:
        self.asked[what] += 1
        self.callers.add(principal.subject)
        if self.hangs is not None:
            await self.hangs.wait()
        if self.is_away:
            raise Unavailable("The service cannot be reached")
        if task_id not in self.tasks:
            raise TaskNotFound
        return self.tasks[task_id]


class ServiceBackend:
    """A back end with a tool whose calls the service makes tasks of, and perhaps the source of these."""

    def __init__(
        self, service: Service, *, offers_source: bool = True, scopes: frozenset[str] = frozenset()
    ) -> None:
        self._service = service
        self._offers_source = offers_source
        self._scopes = scopes

    async def offer(self) -> Offering:
        definition = {
            "name": "dispatch",
            "description": "Begins a job.",
            "inputSchema": {"type": "object"},
        }
        always = {**definition, "name": "careless"}
        tools = [
            Tool(definition, self._dispatch, scopes=self._scopes),
            Tool(always, self._careless, task="optional"),
        ]
        return Offering(tools, task_source=self._service if self._offers_source else None)

    async def _dispatch(self, context: Context, arguments: dict[str, Any]) -> Returned:
        if service_tasks.may_hand_over(context):
            return service_tasks.task_view(self._service.begin())
        return ToolResult([TextContent("done at once")])

    async def _careless(self, context: Context, arguments: dict[str, Any]) -> Returned:
        """Hands over whether or not that can be."""
        if arguments.get("task"):
            await context.continue_as_task()
        return service_tasks.task_view(self._service.begin())

    async def aclose(self) -> None:
        """It keeps nothing."""


class _Kind:
    def __init__(self, backend: ServiceBackend) -> None:
        self._backend = backend

    def factory(self) -> Callable[..., Any]:
        return lambda config, origin, shared: self._backend


@contextmanager
def in_front_of(backend: ServiceBackend) -> Iterator[None]:
    """Whatever back end a configuration names, gateways that are made inside have this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "kind_of", lambda entry: _Kind(backend))
        yield


@asynccontextmanager
async def serving_service(
    directory: Path, backend: ServiceBackend, *, file: ConfigFile | None = None, **settings: Any
) -> AsyncIterator[FastAPI]:
    """A gateway in front of a service; gateways with one directory are replicas of each other."""
    if file is None:
        file = config_file(backend={"name": "jobs"}, tasks={"poll_interval_ms": 100})
    with in_front_of(backend):
        app = build_app(file, task_settings(directory, worker="on", **settings))
    async with stoppable(app):
        yield app
