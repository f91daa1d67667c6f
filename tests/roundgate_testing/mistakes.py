"""Twelve handlers with the mistakes that people make, and for each the same one done right."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

from pydantic import BaseModel

from roundgate import Context, tool

outbox: list[str] = []


class Confirm(BaseModel):
    go: bool


async def send(what: str, *details: Any) -> str:
    outbox.append(what)
    return what


async def load(number: int) -> dict[str, Any]:
    return {"number": number, "total": 10, "tags": ["new", "paid", "gift", "large", "late"]}


async def ask(ctx: Context) -> None:
    await ctx.elicit("confirm", "Go on?", Confirm)


# a value that a step changes


async def with_postage(cart: dict[str, Any]) -> None:
    cart["total"] += 5


async def with_postage_of_its_own(cart: dict[str, Any]) -> dict[str, Any]:
    return {**cart, "total": cart["total"] + 5}


@tool
async def changed_value(ctx: Context) -> int:
    cart = await ctx.step("load", load, 1)
    await ctx.step("postage", with_postage, cart)
    await ask(ctx)
    return int(cart["total"])


@tool
async def changed_value_right(ctx: Context) -> int:
    cart = await ctx.step("load", load, 1)
    cart = await ctx.step("postage", with_postage_of_its_own, cart)
    cart["total"] += 1
    await ask(ctx)
    return int(cart["total"])


# a limit on an event that no call of ctx waits for


async def pack() -> str:
    await asyncio.sleep(0.8)
    return "packed"


@tool
async def limit_on_an_event(ctx: Context) -> str:
    packed, late = asyncio.Event(), asyncio.Event()

    async def packs() -> None:
        await ctx.step("pack", pack)
        packed.set()

    packing = asyncio.create_task(packs())
    asyncio.get_running_loop().call_later(0.7, late.set)
    waits = [asyncio.create_task(event.wait()) for event in (packed, late)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    done = await ctx.step("end", send, "ship" if packed.is_set() else "refund")
    await packing
    await ask(ctx)
    waits[0].cancel()
    return str(done)


@tool
async def limit_on_an_event_right(ctx: Context) -> str:
    done = "refund"
    with suppress(TimeoutError):
        async with ctx.timeout(60):
            await ctx.step("pack", pack)
            done = "ship"
    ended = await ctx.step("end", send, done)
    await ask(ctx)
    return str(ended)


# a list that a step fills


@tool
async def filled_list(ctx: Context) -> int:
    lines: list[str] = []

    async def fill() -> None:
        lines.append("book")

    await ctx.step("fill", fill)
    await ask(ctx)
    return len(lines)


@tool
async def filled_list_right(ctx: Context) -> int:
    lines = [await ctx.step("fill", send, "book")]
    await ask(ctx)
    return len(lines)


# a cache of the process

rates: dict[str, Any] = {}


@tool
async def process_cache(ctx: Context) -> str:
    if "EUR" not in rates:
        rates["EUR"] = await ctx.step("rate", send, "1.1")
    await ask(ctx)
    return str(rates["EUR"])


async def cached_rate(currency: str) -> str:
    if currency not in rates:
        rates[currency] = "1.1"
    return str(rates[currency])


@tool
async def process_cache_right(ctx: Context) -> str:
    rate = await ctx.step("rate", cached_rate, "USD")
    await ask(ctx)
    return str(rate)


# the order of a set


@tool
async def order_of_a_set(ctx: Context) -> str:
    cart = await ctx.step("load", load, 1)
    for tag in {*cart["tags"]}:
        await ctx.step("tag", send, tag)
    return "done"


@tool
async def order_of_a_set_right(ctx: Context) -> str:
    cart = await ctx.step("load", load, 1)
    for tag in sorted({*cart["tags"]}):
        await ctx.step("tag", send, tag)
    return "done"


# a key that is made anew in each run


@tool
async def new_key(ctx: Context) -> str:
    await ctx.step(f"charge-{uuid4()}", send, "charge")
    await ask(ctx)
    return "charged"


@tool
async def new_key_right(ctx: Context) -> str:
    await ctx.step("charge", send, "charge", await ctx.idempotency_key("charge"))
    await ask(ctx)
    return "charged"


# a random id that is given to a step


@tool
async def random_id(ctx: Context) -> str:
    await ctx.step("charge", send, "charge", str(uuid4()))
    await ask(ctx)
    return "charged"


@tool
async def random_id_right(ctx: Context) -> str:
    await ctx.step("charge", send, "charge", str(ctx.uuid()))
    await ask(ctx)
    return "charged"


# the time, read by the handler


@tool
async def time_of_day(ctx: Context) -> str:
    await ask(ctx)
    return f"ordered on a {datetime.now():%A}"


@tool
async def time_of_day_right(ctx: Context) -> str:
    ordered = ctx.now()
    await ask(ctx)
    return f"ordered on a {ordered:%A}"


# a branch taken at random


@tool
async def random_branch(ctx: Context) -> str:
    await ask(ctx)
    for number in range(20):
        if random.random() < 0.5:
            await ctx.step(f"survey.{number}", send, "survey")
    return "done"


@tool
async def random_branch_right(ctx: Context) -> str:
    await ask(ctx)
    draws = ctx.random()
    for number in range(20):
        if draws.random() < 0.5:
            await ctx.step(f"survey.{number}", send, "survey")
    return "done"


# a counter of the process

numbers = itertools.count(1)


@tool
async def process_counter(ctx: Context) -> str:
    number = next(numbers)
    await ask(ctx)
    await ctx.step("ship", send, "ship", number)
    await ctx.step("bill", send, "bill")
    return "shipped"


@tool
async def process_counter_right(ctx: Context) -> str:
    number = await ctx.step("number", lambda: next(numbers))
    await ask(ctx)
    await ctx.step("ship", send, "ship", number)
    return "shipped"


# the environment, read by the handler


@tool
async def environment(ctx: Context) -> str:
    await ask(ctx)
    return str(await ctx.step("pay", send, os.environ.get("SHOP_MODE", "test")))


async def mode() -> str:
    return os.environ.get("SHOP_MODE", "test")


@tool
async def environment_right(ctx: Context) -> str:
    found = await ctx.step("mode", mode)
    await ask(ctx)
    return str(await ctx.step("pay", send, found))


# an effect outside of a step


@tool
async def effect_outside(ctx: Context) -> str:
    await send("mail")
    await ask(ctx)
    return "sent"


@tool
async def effect_outside_right(ctx: Context) -> str:
    await ctx.step("mail", send, "mail")
    await ask(ctx)
    return "sent"


MISTAKES: Final[Mapping[str, str]] = {
    "changed_value": "it returned: 10 instead of: it returned: 15",
    "limit_on_an_event": "'end' is remembered as",
    "filled_list": "it returned: 0 instead of: it returned: 1",
    "process_cache": "step rate",
    "order_of_a_set": "'tag' is remembered as .*, and the handler now asks for",
    "new_key": "begins this step where an earlier run of the same version came to .charge-.*another path",
    "random_id": "'charge' is remembered as",
    "time_of_day": "replayed in another process, .*: it returned: ordered on a",
    "random_branch": r"step survey\.",
    "process_counter": "'ship' is remembered as",
    "environment": "'pay' is remembered as",
    "effect_outside": "outside of a step, before its end: 'mail'",
}
"""Each mistake, and what the test of its handler says."""
RIGHT: Final[Mapping[str, Callable[..., Any]]] = {
    name: globals()[f"{name}_right"] for name in MISTAKES
}
