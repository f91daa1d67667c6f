"""The tools of the demonstration: a booking that asks twice, and a trip that is a task with a
question."""

import asyncio

from pydantic import BaseModel

from roundgate import Context, tool


class Where(BaseModel):
    city: str


class Agreed(BaseModel):
    go: bool


class Who(BaseModel):
    name: str


async def price(city: str) -> int:
    """Look up a price."""
    await asyncio.sleep(0.2)
    return 40 * len(city)


@tool
async def book(ctx: Context) -> str:
    """Books a room, after two questions."""
    where = await ctx.elicit("where", "Which city?", Where)
    euros = await ctx.step("price", price, where.city)
    agreed = await ctx.elicit("agree", f"{where.city} for {euros} EUR?", Agreed)
    return f"a room in {where.city}, {euros} EUR" if agreed.go else "nothing booked"


@tool(task="required")
async def travel(ctx: Context, city: str) -> str:
    """Books, waits, and asks on the way."""
    await ctx.continue_as_task()
    await ctx.status(f"looking for trains to {city}")
    euros = await ctx.step("price", price, city)
    await ctx.sleep(2)
    who = await ctx.elicit("who", f"{city} for {euros} EUR: in whose name?", Who)
    return f"{who.name} goes to {city} for {euros} EUR"
