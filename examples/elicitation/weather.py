"""A forecast that asks for its city: the tool of mcptest's page, as a handler."""

from __future__ import annotations

from pydantic import BaseModel, Field

from roundgate import Context, tool


class City(BaseModel):
    city: str = Field(description="What city?", min_length=1)


class Unit(BaseModel):
    unit: str = Field(default="celsius", pattern="^(celsius|fahrenheit)$")


@tool
async def weather(ctx: Context, loc: str) -> str:
    """Return the forecast for a city; `loc` is the caller's location."""
    where = await ctx.elicit("city", "Need the city before I can fetch the forecast.", City)
    how = await ctx.elicit("unit", "In which unit?", Unit)
    degrees = {"celsius": "16 °C", "fahrenheit": "61 °F"}[how.unit]
    return f"{where.city} (asked from {loc}): fog, {degrees}"
