"""An order: two questions, a task of five steps, a payment that fails temporarily, a question in
between."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic import BaseModel

from roundgate import Context, tool

SHOP = Path(os.environ.get("SHOP_FOLDER", ".roundgate"))
"""The folder with the shop's ledger. A file in it stands for a fault: `packer-at-lunch`,
`carrier-closed`."""


class Amount(BaseModel):
    """The answer to the first question: the number of items."""

    count: int


class Address(BaseModel):
    """The answer to the second question: the destination."""

    city: str


class Day(BaseModel):
    """The answer to the question that the task asks while it runs."""

    day: str


def enter(what: str) -> str:
    """Write a line into the ledger for an action, and return the line."""
    SHOP.mkdir(exist_ok=True)
    with (SHOP / "ledger").open("a") as ledger:
        ledger.write(f"{what}\n")
    return what


def reserve(item: str, count: int) -> str:
    """Take the goods off the shelf."""
    return enter(f"reserve {count} {item}")


def charge(key: str, count: int) -> str:
    """Charge at a payment service that times out twice, with TimeoutError. It charges once per key,
    however often it is called."""
    tries = SHOP / f"payment-{key}"
    with tries.open("a") as file:
        file.write(".")
    if len(tries.read_text()) <= 2:
        raise TimeoutError("the payment service does not answer")
    return enter(f"charge {10 * count} EUR")


def pack(item: str) -> str:
    """Wait for the packer, then pack."""
    (SHOP / "packing").write_text(str(os.getpid()))
    while (SHOP / "packer-at-lunch").exists():
        time.sleep(0.1)
    return enter(f"pack {item}")


def book_carrier(city: str, day: str) -> str:
    """Book the carrier; raise ConnectionError while it is closed."""
    if (SHOP / "carrier-closed").exists():
        raise ConnectionError("the carrier is closed")
    return enter(f"send to {city} on {day}")


def send_receipt(paid: str, sent: str) -> str:
    """Send the receipt to the customer."""
    return enter(f"receipt: {paid}, {sent}")


@tool(task="optional")
async def order(ctx: Context, item: str) -> str:
    """Order an item. Asks for the quantity, the address and the day.

    Args:
        item: The item to order.
    """
    amount = await ctx.elicit("amount", f"How many {item}?", Amount)
    address = await ctx.elicit("address", "Where do you live?", Address)
    await ctx.continue_as_task()
    await ctx.step("reserve", reserve, item, amount.count)
    key = await ctx.idempotency_key("charge")
    paid = await ctx.step("charge", charge, key, amount.count, retries=5, backoff=0.2)
    when = await ctx.elicit("day", "On which day may we come?", Day)
    await ctx.step("pack", pack, item)
    sent = await ctx.step("carrier", book_carrier, address.city, when.day, retries=1, backoff=0.2)
    return str(await ctx.step("receipt", send_receipt, paid, sent))
