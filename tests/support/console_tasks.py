"""A console with tasks: a gateway with its own store, a browser, and a client that calls tools."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel

from roundgate import Context, tool
from roundgate.protocol import Status
from roundgate.settings.process import Settings
from roundgate.storage import TaskRef
from roundgate.tasks.events import NewTask
from roundgate.tasks.stored import StoredTasks
from tests.support.asgi import Client, built, config_file, config_of
from tests.support.console import Browser, browser_of

CAPABILITIES: dict[str, Any] = {
    "elicitation": {"form": {}},
    "extensions": {"io.modelcontextprotocol/tasks": {}},
}
NOW_MS = 2_000_000_000_000
T = TypeVar("T")


class Confirm(BaseModel):
    go: bool
    why: str = "late"


is_down = [True]
"""Whether the service that `pay` needs is down."""


def pay() -> str:
    if is_down[0]:
        raise ConnectionError("4111 1111 1111 1111")
    return "paid"


@tool(task="required")
async def refund(ctx: Context, order: str) -> str:
    await ctx.step("plan", lambda: "plan")
    confirmed = await ctx.elicit("confirm", f"Refund {order}?", Confirm)
    if not confirmed.go:
        return "declined"
    await ctx.step("pay", pay)
    return f"refunded {order}"


@tool(task="required")
async def ship(ctx: Context) -> str:
    event = await ctx.event("paid")
    paid = await event.wait()
    return f"shipped: {paid}"


ACCEPTED = {"action/0": "accept", "answer/0/go": "true", "answer/0/why": "late"}


@dataclass(frozen=True, slots=True)
class Operated:
    """A gateway, its operator's browser, and its client."""

    app: FastAPI
    browser: Browser
    client: Client

    @property
    def store(self) -> StoredTasks:
        store: StoredTasks = self.app.state.core.stores.tasks
        return store

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Return the result of a call of a client with tasks and forms."""
        response = await self.client.post(
            "tools/call", {"name": name, "arguments": arguments}, clientCapabilities=CAPABILITIES
        )
        result: dict[str, Any] = response.json()["result"]
        return result

    async def task(self, name: str, until: str, **arguments: Any) -> str:
        """Call a tool that becomes a task; return `OWNER.ID` once the task has a status."""
        task_id = (await self.call(name, **arguments))["taskId"]

        async def is_there() -> str | None:
            rows = (await self.browser.get(f"/api/tasks?text={task_id}")).json()["tasks"]
            return rows[0]["task"] if rows and rows[0]["status"] == until else None

        return await eventually(is_there)

    async def shown(self, task: str) -> dict[str, Any]:
        """Return a task as the path operation reports it."""
        shown: dict[str, Any] = (await self.browser.get(f"/api/tasks/{task}")).json()
        return shown

    async def until(self, task: str, status: str) -> dict[str, Any]:
        """Return a task once it has a status."""

        async def is_there() -> dict[str, Any] | None:
            shown = await self.shown(task)
            return shown if shown["facts"]["status"] == status else None

        return await eventually(is_there)

    async def act(self, task: str, action: str, **fields: Any) -> str:
        """Act on a task in two steps, as a person does; return the page with the result."""
        path = f"/tasks/{task}/actions/{action}"
        first = await self.browser.submit(path, fields)
        assert first.status_code == 200, first.text
        second = await self.browser.submit(path, {**fields, "confirmed": "yes"})
        assert second.status_code == 200, second.text
        return second.text


async def eventually(look: Callable[[], Awaitable[T | None]]) -> T:
    """Return a result that is not `None`, once there is one."""
    async with asyncio.timeout(60):
        while True:
            if (result := await look()) is not None:
                return result
            await asyncio.sleep(0.02)


@asynccontextmanager
async def operated(
    store: Path | Settings,
    *functions: Callable[..., Any],
    show_values: bool = False,
    **sections: Any,
) -> AsyncIterator[Operated]:
    """A gateway of functions or other back ends, without authentication. `store` is the folder of a
    SQLite file, or names another store."""
    console = {"show_values": show_values}
    if "backends" in sections:
        file = config_of({"console": console, **sections})
    else:
        file = config_file(*functions, console=console, **sections)
    if isinstance(store, Path):
        store = Settings(store=f"sqlite:///{store}/tasks.sqlite3")
    app = built(file, store)
    async with browser_of(app) as browser:
        link = app.state.console.sessions.seal_link()
        assert (await browser.get(f"/enter?token={link}")).status_code == 303
        yield Operated(app, browser, Client(browser.http))


async def add(store: StoredTasks, number: int, **facts: Any) -> TaskRef:
    """Store a task that nobody runs."""
    values = {
        "ref": TaskRef(facts.pop("owner", "uSomebody"), f"task{number:05}"),
        "tool": "report",
        "call": b"{}",
        "created_ms": NOW_MS + number,
        "expires_ms": NOW_MS + 10**9,
        "due_ms": NOW_MS + 10**8,
        "status": Status.WORKING,
        **facts,
    }
    await store.create(NewTask(**values))
    return TaskRef(values["ref"].owner, values["ref"].id)
