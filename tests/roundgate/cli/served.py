"""Tools for tests of the command line: one of each kind that a person meets."""

from __future__ import annotations

import asyncio
from datetime import date
from enum import Enum
from typing import Literal

from pydantic import Base64Bytes, BaseModel, Field

from roundgate import Context, tool
from roundgate.errors import ToolError


class Order(BaseModel):
    """What is asked before something is bought."""

    seats: int = Field(ge=1, le=9)
    meal: Literal["none", "vegan"]


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


class Size(Enum):
    SMALL = "S"
    LARGE = "L"


class Address(BaseModel):
    city: str
    country: Literal["FR", "IT"] = "FR"


@tool
def ship(to: Address, when: date, size: Size | None = None) -> str:
    """Ship something."""
    return to.city


@tool
def measure(photo: Base64Bytes) -> int:
    """Return the number of bytes."""
    return len(photo)


@tool
def fail() -> str:
    """Always fails."""
    raise ToolError("The printer is on fire")


@tool
async def book(ctx: Context, city: str) -> str:
    """Asks before it books."""
    order = await ctx.elicit("order", f"How many seats to {city}?", Order)
    return f"{order.seats} to {city}, meal: {order.meal}"


@tool
async def poem(ctx: Context) -> str:
    """Has a model write."""
    return (await ctx.sample("line", "Write a line", max_tokens=50)).text


@tool(task="optional")
async def slowly(ctx: Context, city: str) -> str:
    """A task that asks."""
    await ctx.continue_as_task()
    await ctx.status(f"asking about {city}")
    order = await ctx.elicit("order", f"How many seats to {city}?", Order)
    await ctx.step("wait", asyncio.sleep, 0.1)
    return f"{order.seats} to {city}, slowly"
