"""Tools whose calls become tasks, in whatever process; each says in which one it was run."""

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel

from roundgate import Context, Form, tool


class Name(BaseModel):
    name: str


@tool(task="optional")
async def plan(ctx: Context, what: str = "trip") -> list[object]:
    """Asks before it is a task, and three things while it is one."""
    first = await ctx.step("first", os.getpid)
    who = await ctx.elicit("who", "For whom?", Name)
    await ctx.continue_as_task()
    second = await ctx.step("second", os.getpid)
    answers = await ctx.ask({"from": Form("From where?", Name), "to": Form("To where?", Name)})
    third = await ctx.step("third", os.getpid)
    with_whom = await ctx.elicit("with", "With whom?", Name)
    said = f"{what} of {who.name} with {with_whom.name}: {answers['from'].get().name} to {answers['to'].get().name}"
    return [said, [first, second, third]]


@tool(task="required")
async def greet(ctx: Context) -> str:
    """Asks who is there."""
    await ctx.continue_as_task()
    await ctx.progress(1, message="asking")
    await ctx.log("error", "asking")
    who = await ctx.elicit("who", "Who is there?", Name)
    return f"Hello, {who.name}!"


@tool(task="required")
async def dig(ctx: Context, seconds: float = 0) -> str:
    """Takes its time."""
    await ctx.continue_as_task()
    await ctx.status("digging")
    await asyncio.sleep(seconds)
    return "dug"


@tool
async def change(ctx: Context) -> str:
    """Says that the tools have changed."""
    await ctx.tools_changed()
    return "told"


@tool
async def journey(ctx: Context, log: str, slow: float = 0) -> str:
    """Asks twice, between steps that leave a line in a file; its call is none of a task."""

    def note(what: str) -> None:
        with Path(log).open("a") as file:
            file.write(what + "\n")

    async def leave(what: str) -> None:
        is_first = what not in Path(log).read_text()  # noqa: ASYNC240
        note(what)
        await asyncio.sleep(slow if is_first else 0)

    await ctx.step("packed", note, "packed")
    who = await ctx.elicit("who", "Who?", Name)
    await ctx.step("left", leave, f"left {who.name}")
    where = await ctx.elicit("where", "Where?", Name)
    return f"{who.name} in {where.name}"
