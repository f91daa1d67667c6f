"""One tool for each thing that a client may do with a tool, a resource, a template and a prompt."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from roundgate import Context, prompt, resource, tool


class Sum(BaseModel):
    total: int


class Name(BaseModel):
    name: str


class Place(BaseModel):
    place: str


@tool
async def echo(text: str) -> str:
    """Says the same."""
    return f"said {text}"


@tool
async def add(a: int, b: int) -> Sum:
    """Adds two numbers."""
    return Sum(total=a + b)


@tool
async def count(ctx: Context) -> str:
    """Reports three times how far it is."""
    for done in (1, 2, 3):
        await ctx.progress(done, total=3, message=f"{done} of 3")
        await asyncio.sleep(0.2)  # mcp-remote loses reports that its own client has no time to read
    return "counted"


@tool
async def trip(ctx: Context) -> str:
    """Asks two questions, one after the other."""
    who = await ctx.elicit("who", "Who travels?", Name)
    packed = await ctx.step("pack", _pack, who.name)
    where = await ctx.elicit("where", f"Where does {who.name} go?", Place)
    return f"{packed} for {where.place}"


@tool
async def quiet() -> str:
    """Says nothing for longer than the balancer in front waits."""
    await asyncio.sleep(8)
    return "not a word for 8 s"


def _pack(name: str) -> str:
    return f"{name} has packed"


@tool
async def haiku(ctx: Context, subject: str) -> str:
    """Has the client's model write something."""
    written = await ctx.sample("haiku", f"Write a haiku on {subject}", max_tokens=50)
    return f"the model wrote: {written.text}"


@resource("note://today", mime_type="text/plain")
async def today() -> str:
    """A note."""
    return "buy bread"


@resource("note://{day}/first", mime_type="text/plain")
async def first(day: str) -> str:
    """The first note of a day."""
    return f"first of {day}"


@prompt(complete={"language": ["python", "perl", "rust"]})
async def review(language: str) -> str:
    """Asks for a review.

    Args:
        language: Of the code.
    """
    return f"Review this {language} code"
