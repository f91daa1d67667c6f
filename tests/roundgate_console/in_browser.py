"""A gateway with a console for a browser on this machine, and checks of its pages there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field

from roundgate import Context, tool
from roundgate_aws.machine import reserved_port
from tests.support.asgi import built, config_of, of_functions

STOP_UPDATES = """
window.stopped = event => event.preventDefault();
for (const name of ["htmx:beforeRequest", "htmx:beforeSwap"])
  document.body.addEventListener(name, window.stopped);
"""
"""Keeps a page as it is while it is checked: an update could take the focus away."""

GO_ON = STOP_UPDATES.replace("addEvent", "removeEvent").replace(
    "window.stopped = event => event.preventDefault();", ""
)
"""Lets the page update itself again."""

CONTROLS = """
Array.from(document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']"))
  .filter(each => each.type !== "hidden" && !each.disabled && each.checkVisibility())
"""
"""The visible controls of a page."""

FOCUS = """
(() => { const each = document.activeElement, style = getComputedStyle(each);
  return [Array.from(document.querySelectorAll("*")).indexOf(each), style.outlineStyle !== "none"]; })()
"""
"""Returns the place of the focused element, and whether its outline shows the focus."""


class Approval(BaseModel):
    """Approval."""

    approved: bool = Field(description="Whether the refund is paid.")
    reason: Literal["damaged", "late", "goodwill"] = "damaged"


@tool(destructive=True)
async def refund(ctx: Context, order: str, amount: float, note: str = "") -> str:
    """Refunds a part of an order, after a person has approved it."""
    answer = await ctx.elicit("approve", f"Refund {amount:.2f} EUR of {order}?", Approval)
    return f"refunded {order}, {answer.reason}" if answer.approved else "not refunded"


@tool(read_only=True)
async def find_orders(customer: str, limit: int = 10, open_only: bool = True) -> list[str]:
    """Finds the orders of a customer."""
    return [f"{customer}-{number}" for number in range(limit)]


@tool(task="required")
async def close_month(ctx: Context, month: str) -> str:
    """Closes a month: sums up its orders, and asks before it locks them."""
    total = await ctx.step("sum_up", _sum_up, month)
    answer = await ctx.elicit("lock", f"Lock {month} with {total} orders?", Approval)
    if not answer.approved:
        return f"{month} stays open"
    await ctx.step("write_totals", _write_totals, retries=2, backoff=0.4)
    await ctx.step("lock_orders", asyncio.sleep, 0.15)
    return f"{month} is locked"


async def _sum_up(month: str) -> int:
    await asyncio.sleep(0.3)
    return len(month) * 100


_writes: list[None] = []


async def _write_totals() -> None:
    """Fail at the first attempt."""
    await asyncio.sleep(0.2)
    _writes.append(None)
    if len(_writes) == 1:
        raise ConnectionError("the ledger does not answer")


TOOLS = (refund, find_orders, close_month)


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway with a console for a browser on this machine."""

    origin: str
    app: FastAPI

    @property
    def url(self) -> str:
        return f"{self.origin}/console"

    @property
    def link(self) -> str:
        """A link that signs in."""
        return f"{self.url}/enter?token={self.app.state.console.sessions.seal_link()}"


@asynccontextmanager
async def serving(folder: Path, backends: Sequence[dict[str, Any]]) -> AsyncIterator[Served]:
    """Serve a gateway with a console and some limits."""
    file = config_of(
        {
            "backends": list(backends),
            "console": {"show_values": True},
            "server": {"name": "shop", "title": "Shop tools", "version": "3.2"},
            "audit": {"directory": str(folder / "audit")},
            "rate": {"calls_per_minute": 6000, "tools": {"refund": {"concurrent": 5}}},
            "limits": {"strict": False},
        },
        folder,
    )
    app = await asyncio.to_thread(built, file)
    with reserved_port() as port:
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="on"))
        task = asyncio.create_task(server.serve())
        while not server.started:
            assert not task.done()
            await asyncio.sleep(0.05)
        try:
            yield Served(f"http://127.0.0.1:{port}", app)
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def served(folder: Path, *functions: Callable[..., Any]) -> AsyncIterator[tuple[str, str]]:
    """Serve a gateway with a console; return its URL, and the link that signs in."""
    async with serving(folder, [of_functions(*(functions or TOOLS))]) as gateway:
        yield gateway.url, gateway.link
