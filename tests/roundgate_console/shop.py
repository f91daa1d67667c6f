"""A shop whose console has something on every page: calls of the last day, tasks that failed or wait, a slow back end
and one that is missing."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import BaseModel, Field

from roundgate import Context, ToolError, tool
from tests.roundgate_console.in_browser import TOOLS, Served, serving
from tests.support.asgi import Client, of_functions
from tests.support.console_tasks import CAPABILITIES, eventually


class Delivery(BaseModel):
    """Delivery."""

    approve: bool = Field(description="Whether the parcel is sent.")
    by: Literal["post", "courier"] = "post"


def _reserve(order: str) -> str:
    return f"{order} is reserved"


def _charge(order: str) -> str:
    raise ConnectionError("the bank does not answer")


@tool(task="required")
async def send_order(ctx: Context, order: str) -> str:
    """Reserves the goods of an order, charges its customer and sends the parcel."""
    await ctx.step("reserve_goods", _reserve, order)
    await ctx.step("charge_customer", _charge, order, retries=2, backoff=0.02)
    return "sent"


@tool(task="required")
async def deliver(ctx: Context, order: str) -> str:
    """Delivers an order, after a person has approved it."""
    await ctx.step("reserve_goods", _reserve, order)
    answer = await ctx.elicit("approve", f"Deliver {order}?", Delivery)
    return f"delivered by {answer.by}"


@tool(task="required")
async def await_payment(ctx: Context, order: str) -> str:
    """Waits for the payment of an order."""
    event = await ctx.event("paid")
    return f"paid: {await event.wait()}"


@tool(read_only=True)
async def balance(account: str) -> int:
    """Returns the balance of an account."""
    await asyncio.sleep(0.6)
    return len(account)


@tool(read_only=True)
async def exchange_rate(currency: str) -> float:
    """Returns the exchange rate of a currency."""
    if currency == "XXX":
        raise ToolError("there is no such currency")
    return 1.08


@dataclass(frozen=True, slots=True)
class Shop:
    """The served shop, and the tasks that pages show, by tool."""

    served: Served
    tasks: dict[str, str]
    call: str
    """The id of the call that became the task of `send_order`."""

    def pages(self) -> dict[str, str]:
        """The paths of all pages below the console's own, by name."""
        return {
            "sign_in": "/sign-in",
            "overview": "",
            "all_calls": "/calls",
            "calls": "/calls?tone=bad",
            "call": f"/calls/{self.call}",
            "no_calls": "/calls?text=nothing",
            "tasks": "/tasks",
            "no_tasks": "/tasks?needs=operator",
            "task_failed": f"/tasks/{self.tasks['send_order']}",
            "task_asks": f"/tasks/{self.tasks['deliver']}",
            "task_event": f"/tasks/{self.tasks['await_payment']}",
            "tools": "/tools",
            "tool": "/tools/refund",
            "limits": "/limits",
            "all_audit": "/audit",
            "audit": f"/audit?call={self.call}",
            "session": "/session",
            "error": "/tasks/nothing",
        }


@asynccontextmanager
async def open_shop(folder: Path, *, long: bool = False) -> AsyncIterator[Shop]:
    """Serve the shop, with calls and tasks; with long names of customers and orders."""
    order = "A-1042" + 300 * "x" * long
    backends = [
        of_functions(*TOOLS, send_order, deliver, await_payment, name="shop"),
        of_functions(balance, exchange_rate, name="bank"),
        {"kind": "python", "name": "mail", "path": "mail.py"},
    ]
    async with (
        serving(folder, backends) as served,
        httpx.AsyncClient(base_url=served.origin, timeout=60) as http,
    ):
        client = Client(http)
        fill(served, "ada" + 150 * "a" * long)
        for number in range(6):
            await call(client, "find_orders", customer=f"C-{number}")
        for number in range(3):
            await call(client, "balance", account=f"A-{number}")
        for currency in ("USD", "XXX", "XXX"):
            await call(client, "exchange_rate", currency=currency)
        tasks = {
            name: (await call(client, name, **{argument: order}))["taskId"]
            for name, argument in (
                ("await_payment", "order"),
                ("close_month", "month"),
                ("deliver", "order"),
                ("send_order", "order"),
            )
        }
        yield Shop(served, *await _settled(served, tasks))


async def _settled(served: Served, ids: dict[str, str]) -> tuple[dict[str, str], str]:
    """Return the tasks by tool, and the call of `send_order`, once the tasks fail or wait."""
    store = served.app.state.core.stores.tasks

    async def settled() -> tuple[dict[str, str], str] | None:
        records = {each.ref.id: each for each in (await store.find()).records}
        by_tool = {name: records[task_id] for name, task_id in ids.items()}
        is_settled = (
            bool(by_tool["send_order"].failed_steps)
            and bool(by_tool["await_payment"].events)
            and all(by_tool[name].status == "input_required" for name in ("close_month", "deliver"))
        )
        refs = {name: str(each.ref) for name, each in by_tool.items()}
        return (refs, str(by_tool["send_order"].call_id)) if is_settled else None

    return await eventually(settled)


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """Return the result of a call of a client with tasks and forms."""
    response = await client.post(
        "tools/call", {"name": name, "arguments": arguments}, clientCapabilities=CAPABILITIES
    )
    result: dict[str, Any] = response.json()["result"]
    return result


def fill(served: Served, ada: str) -> None:
    """Give the console the log of the last day, as this process would have written it."""
    console, numbers = served.app.state.console, random.Random(7)
    now_ms = console.clock.now_ms()
    for minute in sorted((numbers.triangular(1, 1_440, 1) for _ in range(900)), reverse=True):
        name = numbers.choice(["find_orders"] * 6 + ["exchange_rate"] * 3 + ["balance"])
        fails = name == "exchange_rate" and numbers.random() < 0.06
        record = logging.LogRecord("roundgate.request", logging.INFO, "", 1, "request", (), None)
        record.created = now_ms / 1000 - minute * 60
        record.fields = {
            "method": "tools/call",
            "name": name,
            "call": console.clock.new_id(),
            "subject": numbers.choice([ada, "grace"]),
            "outcome": "tool_error" if fails else "ok",
            "ms": numbers.lognormvariate(6.4 if name == "balance" else 1.5, 0.4),
        } | ({"reason": "upstream 503"} if fails else {})
        console.recent.handle(record)
