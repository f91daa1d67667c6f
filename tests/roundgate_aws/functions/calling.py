"""Tools that make the functions call AWS in every way they know."""

import asyncio
from typing import Any

from pydantic import BaseModel

from infra.costs import LONG_STEP_BYTES, LONG_STEPS
from roundgate import Context, tool

LARGE = "x" * 500_000


class Text(BaseModel):
    text: str


@tool
async def ask(ctx: Context) -> str:
    """Asks in three rounds."""
    return " ".join([(await ctx.elicit(key, "?", Text)).text for key in ("one", "two", "three")])


@tool
async def keep(ctx: Context, text: str) -> str:
    """Asks once, about much."""
    return (await ctx.elicit("one", "?", Text)).text + text


@tool(once=True)
async def once(ctx: Context) -> str:
    """Asks once, and answers a lot."""
    return (await ctx.elicit("one", "?", Text)).text + LARGE


@tool(task="required")
async def later(ctx: Context, text: str) -> str:
    """Steps with little and with much to remember, a question, a nap, and much to tell."""
    await ctx.continue_as_task()
    small = await ctx.step("small", lambda: "s")
    large = await ctx.step("large", lambda: LARGE)
    asked = await asyncio.gather(*(ctx.elicit(key, "?", Text) for key in ("one", "two")))
    await ctx.sleep(60)
    return "".join([small, large, *(answer.text for answer in asked), text])


@tool
async def plain() -> str:
    """Answers at once."""
    return "done"


@tool(task="required")
async def long(ctx: Context) -> str:
    """A task of many steps, each with something to remember."""
    await ctx.continue_as_task()
    for number in range(LONG_STEPS):
        await ctx.step(f"step-{number}", lambda: "x" * LONG_STEP_BYTES)
    return "done"


@tool(task="required")
async def bare(ctx: Context) -> str:
    """A task with a question and nothing else."""
    await ctx.continue_as_task()
    return (await ctx.elicit("one", "?", Text)).text


@tool(task="required")
async def usual(ctx: Context) -> str:
    """A task of the size that bench/costs.md has the costs of."""
    await ctx.continue_as_task()
    one = await ctx.step("one", lambda: 1)
    two = await ctx.step("two", lambda: 2)
    answer = await ctx.elicit("one", "?", Text)
    three = await ctx.step("three", lambda: 3)
    return f"{one} {two} {answer.text} {three}"


@tool(task="required")
async def pay(ctx: Context) -> Any:
    """Waits for an external event, whose token is sealed where the task runs."""
    event = await ctx.event("paid")
    return await event.wait()


@tool(task="required")
async def tell(ctx: Context) -> str:
    """Has more to tell than is shown at once."""
    await ctx.continue_as_task()
    return LARGE
