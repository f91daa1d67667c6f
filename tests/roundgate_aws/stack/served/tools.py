"""What is called through the stack; effects leave lines in a file, which tell what
happened from what was said."""

import asyncio
import os
import secrets
import time
from pathlib import Path

from pydantic import BaseModel

from roundgate import Context, tool


class Name(BaseModel):
    name: str


@tool
async def greet(name: str) -> str:
    """Greets somebody."""
    return f"Hello, {name}!"


@tool
async def introduce(ctx: Context) -> str:
    """Asks three things in three rounds, so that the fourth answers."""
    names = [
        (await ctx.elicit(key, f"The {key} name?", Name)).name
        for key in ("first", "middle", "last")
    ]
    return " ".join(names)


def has_left_trace(what: str) -> bool:
    file = Path(os.environ["EFFECTS"])
    return file.exists() and what in file.read_text()


def leave_trace(line: str) -> None:
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(line)


async def effect(what: str) -> str:
    """Does something that leaves a trace; returns what identifies this doing. For the order
    `killed` it does not end the first time: it has happened, and nobody has noted it."""
    receipt = secrets.token_hex(4)
    is_first = not has_left_trace(what)
    leave_trace(f"{what} {receipt}\n")
    if what.startswith("killed ") and is_first:
        await asyncio.sleep(600)
    return receipt


@tool(task="required")
async def deliver(ctx: Context, order: str) -> list[str]:
    """Two steps, each followed by a question."""
    await ctx.continue_as_task()
    packed = await ctx.step("pack", effect, f"{order} pack")
    to = await ctx.elicit("to", f"To whom? ({packed})", Name)
    sent = await ctx.step("send", effect, f"{order} send")
    by = await ctx.elicit("by", f"By whom? ({sent})", Name)
    return [packed, to.name, sent, by.name]


@tool(task="optional")
async def dig(ctx: Context, seconds: int, order: str) -> str:
    """Takes as long as it is told to, a second at a time."""
    for second in range(seconds):
        await ctx.step(f"second-{second}", asyncio.sleep, 1)
    receipt: str = await ctx.step("done", effect, f"{order} dug")
    return receipt


VERSION = Path(__file__).with_name("version.txt").read_text().strip()


@tool(task="required")
async def release(ctx: Context) -> str:
    """Asks, and tells which version asked and which one ended."""
    await ctx.continue_as_task()
    asked = await ctx.step("asked", lambda: VERSION)
    await ctx.elicit("go", "Go on?", Name)
    return f"begun by {asked}, ended by {VERSION}"


@tool(task="required")
async def nap(ctx: Context, times: int) -> int:
    """Sleeps again and again: each time the worker lets go, and a message wakes the task."""
    await ctx.continue_as_task()
    for _ in range(times):
        await ctx.sleep(1.1)
    return times


@tool
async def recite(count: int) -> str:
    """Says what JSON has to escape."""
    return '"' * count


@tool
async def stare(seconds: float) -> str:
    """Takes its time without a step, so that there is nothing to shed."""
    await asyncio.sleep(seconds)
    return "stared"


@tool
async def talk(megabytes: int) -> str:
    """Says a lot."""
    return "m" * (megabytes * 1024 * 1024)


@tool
async def hang() -> str:
    """Stops the event loop, so that nobody can put an end to it but AWS Lambda."""
    time.sleep(60)  # noqa: ASYNC251
    return "hung"


@tool
async def count(ctx: Context, gates: str) -> str:
    """Reports two steps, each when a file allows it."""
    for step in (1, 2):
        while not (Path(gates) / str(step)).exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await ctx.progress(step, total=2)
    return "counted"
