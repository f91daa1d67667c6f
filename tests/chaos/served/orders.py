"""A tool whose every effect leaves a line in a file, so that what happened can be held
against what was told."""

import asyncio
import os
import secrets

from pydantic import BaseModel

from roundgate import Context, tool


class Address(BaseModel):
    street: str


class Consent(BaseModel):
    go: bool


async def effect(order: int, step: str) -> str:
    """Does something that must not be done again once it is known to be done; returns what identifies this doing."""
    await asyncio.sleep(0.05)
    receipt = secrets.token_hex(4)
    line = f"{order} {step} {receipt}\n".encode()
    file = os.open(os.environ["CHAOS_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line)  # one write of a short line: processes do not tear each other's
    finally:
        os.close(file)
    return receipt


@tool(task="required")
async def place_order(ctx: Context, order: int) -> str:
    """Reserves, packs and ships, with two questions and a sleep in between, and waits for a carrier."""
    await ctx.continue_as_task()
    reserved = await ctx.step("reserve", effect, order, "reserve")
    address = await ctx.elicit("address", f"Where to? ({reserved})", Address)
    await ctx.status("packing")
    packed = await ctx.step("pack", effect, order, "pack")
    await ctx.sleep(1.5)
    answer = await ctx.elicit("ship", f"Ship {packed} to {address.street}?", Consent)
    picked = await ctx.event("picked")
    await ctx.status(f"picked up? {picked.token}")  # where its carrier, the client, finds it
    shipped = await ctx.step("ship", effect, order, "ship") if answer.go else "-"
    carrier = await picked.wait()
    return f"{order} {address.street} {reserved} {packed} {shipped} {carrier}"


@tool(task="required")
async def doze(ctx: Context, order: int, times: int, pause_s: float) -> int:
    """Sleeps again and again."""
    await ctx.continue_as_task()
    for _ in range(times):
        await ctx.sleep(pause_s)
    return times


@tool(task="required")
async def follow(ctx: Context, order: int, times: int, pause_s: float) -> int:
    """Follows a job that is over when it has been asked about so many times."""
    await ctx.continue_as_task()

    async def look() -> int | None:
        await effect(order, "poll")
        with open(os.environ["CHAOS_EFFECTS"]) as file:  # noqa: ASYNC230
            polls = sum(line.startswith(f"{order} poll ") for line in file)
        return polls if polls >= times else None

    return int(await ctx.poll("job", look, every_s=pause_s))


@tool(task="optional")
async def haul(ctx: Context, order: int, seconds: int) -> str:
    """Takes as long as it is told to, a second at a time."""
    for second in range(seconds):
        await ctx.step(f"second-{second}", asyncio.sleep, 1)
    receipt: str = await ctx.step("haul", effect, order, "haul")
    return receipt
