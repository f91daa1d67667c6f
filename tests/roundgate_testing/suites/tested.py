"""What suites are run against: one tool for each thing that a suite can expect."""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import BaseModel, Field

from roundgate import Context, prompt, resource, tool
from roundgate.errors import ToolError


class Order(BaseModel):
    """What is asked before something is bought."""

    seats: int = Field(ge=1, le=9)
    meal: Literal["none", "vegan"]


class Sure(BaseModel):
    """A form of one boolean."""

    sure: bool


class Colour(BaseModel):
    """A form with a default."""

    colour: str = "red"


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
def echo(text: str) -> str:
    """Say it again."""
    return text


@tool
def fail() -> str:
    """Always fails."""
    raise ToolError("The printer is on fire")


@tool
async def nap() -> str:
    """Takes longer than anybody waits."""
    await asyncio.sleep(60)
    return "awake"


@tool
async def book(ctx: Context, city: str) -> str:
    """Asks before it books."""
    order = await ctx.elicit("order", f"How many seats to {city}?", Order)
    return f"{order.seats} to {city}, meal: {order.meal}"


@tool
async def quiz(ctx: Context) -> bool:
    """Asks for a boolean."""
    return (await ctx.elicit("sure", "Are you sure?", Sure)).sure


@tool
async def choose(ctx: Context) -> str:
    """Asks for something that has a default."""
    return (await ctx.elicit("colour", "Which colour?", Colour)).colour


@tool
async def poem(ctx: Context) -> str:
    """Has a model write."""
    return (await ctx.sample("line", "Write a line", max_tokens=50)).text


@tool
async def steps(ctx: Context) -> str:
    """Reports how far it is."""
    for at in range(3):
        await ctx.progress(at + 1, 3)
    await ctx.log("info", "done")
    return "done"


@tool(task="optional")
async def slowly(ctx: Context, city: str) -> str:
    """A task that asks."""
    await ctx.continue_as_task()
    order = await ctx.elicit("order", f"How many seats to {city}?", Order)
    return f"{order.seats} to {city}, slowly"


waiting: list[asyncio.Event] = []


@tool
async def meet(others: int) -> str:
    """Answers when so many callers wait."""
    mine = asyncio.Event()
    waiting.append(mine)
    if len(waiting) >= others:
        for event in waiting:
            event.set()
        waiting.clear()
    async with asyncio.timeout(60):
        await mine.wait()
    return "met"


@prompt(complete={"name": ["Ada", "Alan", "Grace"]})
def greet(name: str) -> str:
    """A greeting."""
    return f"Say hello to {name}"


@resource("note://one")
def note() -> str:
    """A note."""
    return "a note"
