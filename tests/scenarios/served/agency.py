"""What the agency can do. Whatever it does leaves a line in the file that DIARY names, with
the process that did it."""

import asyncio
import os

from pydantic import BaseModel

from roundgate import Context, tool


class Traveller(BaseModel):
    name: str


def note(what: str) -> str:
    """Happens."""
    with open(os.environ["DIARY"], "a") as diary:
        diary.write(f"{os.getpid()} {what}\n")
    return what


@tool(read_only=True)
async def book(ctx: Context, city: str) -> str:
    """Holds a room, asks for whom, books it."""
    held = await ctx.step("hold", note, f"hold {city}")
    who = await ctx.elicit("who", "For whom?", Traveller)
    booked = await ctx.step("book", note, f"book {city} for {who.name}")
    return f"{held}, {booked}"


@tool(task="required", read_only=True)
async def tour(ctx: Context, days: int) -> str:
    """A task: one day after another, then who comes along."""
    await ctx.continue_as_task()
    for day in range(1, days + 1):
        await ctx.step(f"day-{day}", _day, day)
    who = await ctx.elicit("who", "Who comes along?", Traveller)
    return f"{days} days with {who.name}"


async def _day(day: int) -> None:
    await asyncio.sleep(0.2)
    note(f"day {day}")


@tool(destructive=True, approval="What is cancelled is not paid back.")
async def cancel(room: str) -> str:
    """Cancels a room."""
    return note(f"cancel {room}")


@tool(once=True, read_only=True)
async def pay(ctx: Context, amount: int) -> str:
    """Pays after asking; no two receipts are alike."""
    await ctx.elicit("payer", f"Who pays {amount}?", Traveller)
    note(f"pay {amount}")
    return f"receipt {os.urandom(4).hex()}"
